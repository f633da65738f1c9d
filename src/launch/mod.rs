//! The launcher: from a command line to ranks on hosts, and from their ends to one exit code.
//!
//! A [`Job`] says what is wanted. [`Job::plan`] decides everything that can be decided before anything is started: which
//! ranks run where ([`place`]), what each finds in its environment ([`environment`]), to which processors it is bound
//! ([`binding`]), and whether the command can be run at all ([`command`]). [`run`] carries the plan out.
//!
//! While a job runs there are, for every rank, two processes below the launcher: the *guard* ([`guard`]), and the
//! *worker*, which is the user's command. The launcher decides through a state machine ([`supervise`]), and its shell
//! is one loop in one thread, which waits for all descriptors at once and never for one alone. The output of all ranks
//! becomes one stream of whole lines ([`lines`], [`printer`], [`sink`]).

pub mod binding;
pub mod command;
mod console;
pub mod control;
mod course;
mod director;
pub mod environment;
mod fleet;
pub mod guard;
pub mod hosts;
mod job;
pub mod lines;
mod log;
mod meeting;
pub mod operator;
pub mod place;
pub mod printer;
pub mod registry;
mod relay;
mod resources;
mod shell;
pub mod signal;
pub mod sink;
pub mod spawn;
pub mod supervise;
mod tree;
mod words;
mod worker;

pub use fleet::{Cooldown, Elasticity};
pub use job::{Colour, Job, Output, Plan};
pub use shell::{repeat_for_the_shell, run, run_with};

use crate::types::Error;

/// Why a job did not run, and the exit code that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// The exit code of the launcher.
    pub code: u8,
    /// What was wrong, and what to do.
    pub error: Error,
}

impl From<Error> for LaunchError {
    fn from(error: Error) -> Self {
        let code = if matches!(error, Error::InvalidArgument { .. }) { 2 } else { 1 };
        Self { code, error }
    }
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for LaunchError {}
