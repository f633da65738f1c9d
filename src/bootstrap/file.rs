//! Meeting through a file that all ranks see.
//!
//! Rank 0 writes where it listens, with mode 0600, under another name first, so that no reader sees half of it. The
//! others read it again and again until a server that knows its session answers: what an earlier run left behind leads
//! nowhere, or to a server of another session.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::publication::Publication;
use crate::types::{Error, Result};
use crate::wire::rendezvous::Session;

/// The most bytes that are read of the file.
const MAX_BYTES: u64 = 16 * 1024;

/// A file that rank 0 wrote. Dropping it removes the file, unless another job has written its own since.
#[derive(Debug)]
pub(super) struct Written {
    path: PathBuf,
    session: Session,
}

/// Puts the line into the file, whole or not at all.
pub(super) fn write(path: &Path, publication: &Publication) -> Result<Written> {
    let session: String = publication.session.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{session}"));
    let unfinished = path.with_file_name(name);
    let written =
        write_new(&unfinished, &publication.encode(MAX_BYTES as usize)).and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        Error::environment(
            format!("rank 0 cannot write {}: {error}", path.display()),
            "give a file in a folder that this user may write to and that all ranks see",
        )
    })?;
    Ok(Written { path: path.into(), session: publication.session })
}

fn write_new(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{line}")?;
    // Other hosts see what the server of the file system has.
    file.sync_all()
}

impl Drop for Written {
    fn drop(&mut self) {
        if read(&self.path).is_ok_and(|publication| publication.session == self.session) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The line in the file, if it is one to trust: this user's, and nobody else may write or read it. The error says why
/// it cannot be used yet.
pub(super) fn read(path: &Path) -> Result<Publication, String> {
    let shown = path.display();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("rank 0 has not written {shown}"),
        _ => format!("{shown}: {error}"),
    };
    // A pipe in the file's place must not hold this process up.
    let mut options = OpenOptions::new();
    let file: File = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err(format!(
            "{shown} is not to be trusted: user {}, mode {:04o}; expected a file of this user with mode 0600",
            about.uid(),
            about.mode() & 0o7777
        ));
    }
    let mut text = String::new();
    (&file).take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Publication::decode(&text).map_err(|why| format!("{shown} cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn publication(session: u8) -> Publication {
        Publication { session: [session; 16], key: None, addresses: vec!["10.0.0.1:1".parse().unwrap()] }
    }

    #[test]
    fn the_file_is_private_and_goes_with_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        assert!(read(&path).unwrap_err().contains("has not written"));
        let written = write(&path, &publication(1)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap().session, [1; 16]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
        drop(written);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_later_jobs_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        let first = write(&path, &publication(1)).unwrap();
        let _second = write(&path, &publication(2)).unwrap();
        drop(first);
        assert_eq!(read(&path).unwrap().session, [2; 16]);
    }

    #[test]
    fn a_file_that_others_may_touch_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        let _written = write(&path, &publication(1)).unwrap();
        for mode in [0o644, 0o660, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(read(&path).unwrap_err().contains("not to be trusted"), "{mode:o}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_of_rank_0() {
        let folder = tempfile::tempdir().unwrap();
        let error = write(&folder.path().join("no/meet"), &publication(1)).unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("no/meet"), "{error}");
    }
}
