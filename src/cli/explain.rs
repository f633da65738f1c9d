//! `phalanx explain`.

use std::process::ExitCode;

/// Show which algorithm a collective would use, and why.
#[derive(Debug, clap::Args)]
pub struct Explain {}

impl Explain {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        eprintln!("phalanx: `explain` is not part of this build");
        ExitCode::FAILURE
    }
}
