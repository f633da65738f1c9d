//! What the launcher takes before it starts anything, so that nothing is half started for the lack of it.

use rustix::process::{Resource, Rlimit};

use super::LaunchError;
use super::job::Output;
use super::log::{self, Log};
use super::printer::StreamKind;
use crate::types::Error;

/// Makes room for `needed` open files. Returns the limit there was, if it was raised, so that the workers get it back.
pub(super) fn raise_file_limit(needed: usize) -> Result<Option<u64>, LaunchError> {
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|soft| soft >= needed) {
        return Ok(None);
    }
    if let Some(hard) = limit.maximum.filter(|&hard| hard < needed) {
        let what = format!("so many ranks need {needed} open files in the launcher; the limit is {hard}");
        return Err(Error::environment(what, "raise the hard limit (`ulimit -Hn`), or start fewer ranks").into());
    }
    match rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit }) {
        Ok(()) => Ok(limit.current),
        Err(_) => Ok(None),
    }
}

/// Creates the files that keep the output of one worker, where that is wanted. `continues` says that another wrote to
/// them in this job.
pub(super) fn open_log(output: &Output, folder: &str, continues: bool) -> Result<[Log; 2], LaunchError> {
    let Some(directory) = &output.directory else { return Ok([Log::new(None), Log::new(None)]) };
    let open = |kind| {
        log::create(directory, folder, kind, continues).map(|file| Log::new(Some(file))).map_err(|error| {
            let what = format!("--output-dir {}: {error}", directory.display());
            LaunchError::from(Error::environment(what, "name a directory that can be written to"))
        })
    };
    Ok([open(StreamKind::Out)?, open(StreamKind::Err)?])
}
