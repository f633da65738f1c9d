//! `phalanx doctor`.

use std::process::ExitCode;

use phalanx::observe::doctor::examine;

/// Say what is on this machine, what Phalanx would use of it and why, and what to do about what is missing.
///
/// The exit code is 1 if something prevents Phalanx from working, and 0 otherwise.
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// List the environment variables that Phalanx understands, and nothing else.
    #[arg(long, conflicts_with = "json")]
    variables: bool,
}

impl Doctor {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        if self.variables {
            return super::print(&phalanx::bootstrap::variables_as_help(), ExitCode::SUCCESS);
        }
        let report = examine();
        let code = if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        let text = match self.json {
            false => report.to_string(),
            true => match serde_json::to_string_pretty(&report) {
                Ok(text) => text + "\n",
                Err(error) => {
                    eprintln!("phalanx: the report cannot be written as JSON: {error}");
                    return ExitCode::FAILURE;
                }
            },
        };
        super::print(&text, code)
    }
}
