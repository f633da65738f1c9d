//! `phalanx registry`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use phalanx::bootstrap::{Bind, Variables, settings};
use phalanx::launch::Elasticity;
use phalanx::launch::registry::{Ending, Service, serve};
use phalanx::membership::registry::Outcome;
use phalanx::types::{Error, Result};
use phalanx::wire::registry::MAX_MEMBERS;

use super::run::seconds;

/// Serve the registry of an elastic job, which judges who is a member.
///
/// `phalanx run` has one of its own unless it is told of another with --registry. One that runs alone outlives launchers, and
/// with --state it can be ended and started again: the members go on meanwhile, and come back to it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP, override_usage = "phalanx registry --listen ADDRESS -np N [OPTIONS]")]
pub struct Registry {
    /// Where to listen: host:port, or unix:@name for processes of this user on this host.
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Keep in FILE what is needed to go on after being started again; go on from it if it is there.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How many members the job begins with [default: as many as --min-np].
    #[arg(short = 'n', long = "np", alias = "np-with-one-dash", value_name = "N")]
    np: Option<usize>,
    /// The fewest members that the job goes on with [default: as many as -np].
    #[arg(long, value_name = "N")]
    min_np: Option<usize>,
    /// The most members [default: no limit].
    #[arg(long, value_name = "N")]
    max_np: Option<usize>,
    /// End the job when its members would change more often than this.
    #[arg(long, value_name = "N")]
    reset_limit: Option<u64>,
    /// How long the job waits with fewer than --min-np members before it ends, and for the first ones.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600")]
    elastic_timeout: Duration,
    /// After how long a member whose host does not answer is out; 200ms at least.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    heartbeat: Duration,
    /// After how long a member is named that is stopped, or whose work does not advance while others wait for it.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    name_silent: Duration,
    /// After how long a member that is stopped, though its host answers, is out [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    evict_silent: Option<Duration>,
    /// Say more.
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Say only why a job failed.
    #[arg(short, long)]
    quiet: bool,
}

const AFTER_HELP: &str = "\
Examples:
  (umask 077; openssl rand -hex 32 > key)
  PHALANX_KEY_FILE=key phalanx registry --listen node1:29500 --state job.state -np 8 --min-np 4
      The registry. Then, on each host:
  PHALANX_KEY_FILE=key phalanx run --registry node1:29500 -np 4 python train.py
      Four members of the job.
  PHALANX_KEY_FILE=key phalanx status --registry node1:29500
      How it is.

The key is the job's secret: whoever has it can be a member. It is never an argument. Use a state file for one job: one
registry at a time has it, and it is removed when the job is over.

SIGTERM and SIGINT end the registry. With --state the members go on, and wait for it where they need it; without, the job
is over for them.

Exit codes:
  0  the job has finished, or a signal ended the registry
  1  the job failed, all members left before its work was done, or the registry cannot serve
  2  the command line is wrong";

impl Registry {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let ending = self.service().and_then(|service| {
            let mut say = |text: &str| eprintln!("phalanx: {text}");
            serve(&service, &mut say)
        });
        match ending {
            Ok(Ending::Job(Outcome::Failed(_)) | Ending::Undone) => ExitCode::FAILURE,
            Ok(Ending::Job(Outcome::Finished) | Ending::Signal(_)) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("phalanx: {error}");
                ExitCode::from(if matches!(error, Error::InvalidArgument { .. }) { 2 } else { 1 })
            }
        }
    }

    fn service(self) -> Result<Service> {
        let elasticity = Elasticity {
            min_np: self.min_np,
            max_np: self.max_np.or(Some(MAX_MEMBERS)),
            reset_limit: self.reset_limit,
            elastic_timeout: self.elastic_timeout,
            heartbeat: self.heartbeat,
            name_silent: self.name_silent,
            evict_silent: self.evict_silent,
            ..Elasticity::default()
        };
        let config = elasticity.registry_config(self.np)?;
        let bind = match self.listen.strip_prefix("unix:@") {
            Some(name) => Bind::Unix(name.into()),
            None => Bind::Tcp(self.listen),
        };
        let verbosity = match (self.quiet, self.verbose) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        Ok(Service { config, bind, key: settings(&Variables::of_process())?.key, state_file: self.state, verbosity })
    }
}
