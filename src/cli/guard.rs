//! `phalanx guard`: the process that the launcher puts beside each worker. Not for people.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use phalanx::launch::guard::{GuardOptions, guard};

/// Guard one worker of a job (started by `phalanx run`).
#[derive(Debug, clap::Args)]
pub struct Guard {
    /// The descriptor of the socket to the launcher.
    #[arg(long)]
    control: i32,
    /// What the worker is called.
    #[arg(long)]
    name: String,
    /// How long descendants that outlive the worker may take to end, in milliseconds.
    #[arg(long)]
    grace_ms: u64,
    /// The processors the worker is bound to.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The soft limit of open files of the worker.
    #[arg(long)]
    files: Option<u64>,
    /// The worker's command.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Guard {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let options = GuardOptions {
            control: self.control,
            name: self.name.clone(),
            grace: Duration::from_millis(self.grace_ms),
            cpus: self.cpus,
            files: self.files,
            command: self.command.into_iter().map(super::as_typed).collect(),
        };
        match guard(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("phalanx: the guard of worker {} cannot work: {error}", self.name);
                ExitCode::FAILURE
            }
        }
    }
}
