//! `phalanx demo`.

use std::process::ExitCode;

/// Train a small model on several ranks.
#[derive(Debug, clap::Args)]
pub struct Demo {}

impl Demo {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        eprintln!("phalanx: `demo` is not part of this build");
        ExitCode::FAILURE
    }
}
