//! `phalanx bench`.

use std::process::ExitCode;

/// Measure a collective.
#[derive(Debug, clap::Args)]
pub struct Bench {}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        eprintln!("phalanx: `bench` is not part of this build");
        ExitCode::FAILURE
    }
}
