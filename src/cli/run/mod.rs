//! `phalanx run`.

mod elastic;

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use phalanx::bootstrap::{Variables, unknown_in_words};
use phalanx::launch::binding::Bind;
use phalanx::launch::environment::{Compat, parse_setting};
use phalanx::launch::hosts::{self, Host};
use phalanx::launch::printer::Prefix;
use phalanx::launch::supervise::Policy;
use phalanx::launch::{Colour, Job, LaunchError, Output};
use phalanx::types::{Algorithm, Error, TransportKind};

/// The most bytes of a host file: a thousand hosts need a tenth of it.
const MAX_HOSTFILE: u64 = 1 << 20;

/// Start a program on several ranks and see it through.
///
/// Starts N copies of COMMAND, tells each its rank, and shows what they write, each line behind the number of its rank.
/// The first rank that fails ends the job, unless it is elastic: then the others go on. When the launcher ends, however it ends, nothing that the ranks started is
/// left.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP, override_usage = "phalanx run -np N [OPTIONS] COMMAND [ARGUMENTS]...")]
pub struct Run {
    /// How many ranks. Without it: as many as the hosts have slots.
    #[arg(short = 'n', long = "np", aliases = ["np-with-one-dash", "num-proc"], value_name = "N")]
    np: Option<usize>,
    /// Hosts and how many ranks each takes, as host:slots,... (1 slot if not given).
    #[arg(short = 'H', long = "hosts", alias = "host", value_name = "HOSTS", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// A file with one host a line, as `host slots=4` or `host:4`; # begins a comment.
    #[arg(long, alias = "hostfile-with-one-dash", value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Allow more ranks on a host than it has slots.
    #[arg(long)]
    oversubscribe: bool,
    /// Set a variable for the ranks, or pass one on by its name.
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Also set the names for rank and size that programs for this launcher read.
    #[arg(long, value_name = "LAUNCHER")]
    compat: Vec<CompatChoice>,
    /// Bind each rank to a core of its own, as far as they go.
    #[arg(long, value_name = "WHAT", default_value = "none")]
    bind_to: BindChoice,
    /// How data moves between ranks (PHALANX_TRANSPORT for them) [default: chosen for each pair].
    #[arg(long, value_name = "NAME", value_parser = super::carrier)]
    transport: Option<TransportKind>,
    /// The algorithm of collectives (PHALANX_ALGORITHM for them) [default: chosen by size].
    #[arg(long, value_name = "NAME", value_parser = parse::<Algorithm>)]
    algorithm: Option<Algorithm>,
    /// End the job after so many seconds, with exit code 124.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// How long ranks may take to end when asked to, before they are killed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    grace: Duration,
    /// Keep the output of each rank also in DIR/rank.N/stdout and stderr.
    #[arg(long, alias = "output-filename", value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Write lines without the number of their rank.
    #[arg(long, conflicts_with = "tag_output")]
    no_prefix: bool,
    /// Write also from which stream a line is, as [0]<stdout>.
    #[arg(long)]
    tag_output: bool,
    /// Write the time before each line, in UTC.
    #[arg(long, alias = "timestamp-output", conflicts_with = "no_prefix")]
    prefix_timestamp: bool,
    /// When ranks have colours; auto is on a terminal unless NO_COLOR is set.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: ColourChoice,
    /// Show what would be started, and start nothing.
    #[arg(long)]
    dry_run: bool,
    /// Say more about what the launcher does.
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Say only why a job failed.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    elastic: elastic::ElasticOptions,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Examples:
  phalanx run -np 4 python train.py --lr 0.1
      Four ranks on this machine.
  phalanx run -np 4 --bind-to core --output-dir logs ./train
      A core for each; the output is also in logs/rank.0/stdout and so on.
  phalanx run -np 2 --env PHALANX_TIMEOUT=20 --timeout 600 ./train
      Set a variable for the ranks; give up after ten minutes.
  phalanx run -np 4 --dry-run ./train
      Who would run where, with which variables.
  phalanx run -np 4 --min-np 2 python train.py
      An elastic job: ranks that fall are replaced, and the others go on meanwhile as long as 2 are left.
  phalanx run -np 2 --min-np 1 --max-np 8 --host-discovery-script ./hosts.sh python train.py
      As many ranks as the hosts have slots that the script prints, up to 8.

What a rank finds:
  PHALANX_RANK, PHALANX_SIZE, PHALANX_LOCAL_RANK, PHALANX_LOCAL_SIZE, PHALANX_CROSS_RANK, PHALANX_CROSS_SIZE,
  where to meet (PHALANX_RENDEZVOUS), and the job's key (PHALANX_KEY). What other launchers say about rank and size is
  taken out. Unless they are set: OMP_NUM_THREADS is the rank's share of the cores, and PYTHONUNBUFFERED is 1.
  Rank 0 reads the launcher's input; the others read nothing.
  In an elastic job ranks change. A worker finds where to ask for its own (PHALANX_REGISTRY, PHALANX_KEY), the slot it is to
  have (PHALANX_SLOT), which stands before its lines and stays the same, and its number on its host (PHALANX_LOCAL_RANK).

Elastic jobs:
  The program takes part through phalanx::elastic or phalanx.elastic. A worker that fails is replaced at once. Where one
  fails before it has joined, or within 10 s of that, another is started after a second, then two, four, up to a minute,
  and none any more after --respawn-limit in a row. A worker is done when it says so (shutdown, or its function under
  elastic.run returns), or exits with 0. With another code it has failed, unless it had said that it is done. One that
  leaves at a SIGTERM is neither. A worker whose host is no longer in the list gets SIGTERM: it finishes its step, says
  goodbye and ends; but as many as --min-np stay. `phalanx status` shows the members, `phalanx evict` takes one out.

Signals:
  SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on and end the job; ranks that have not ended after the grace
  period are killed, and so they are on a second Ctrl-C. SIGUSR1, SIGUSR2 and SIGCONT are passed on; Ctrl-Z stops all.

Exit codes:
  0        every rank ended with 0
  1        the launcher could not do its work
  2        the command line is wrong
  124      the time limit passed
  126      the command cannot be executed
  127      the command was not found
  128+N    ended by signal N: the first rank that failed was, or the launcher got it
  other    the exit code of the first rank that failed
An elastic job ends with 0 when all its members said goodbye and its work is done. If it cannot go on, it ends with the
code of the first worker that failed after its last change of members; with 1 if none did, or if all left as they were
asked to and none was done; with 128+N if the launcher was told to end by signal N and none was done.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BindChoice {
    /// One core each.
    Core,
    /// The system decides.
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompatChoice {
    /// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and so on.
    Torch,
    /// HOROVOD_RANK, HOROVOD_SIZE and so on.
    Horovod,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ColourChoice {
    Auto,
    Always,
    Never,
}

fn parse<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

/// Seconds, or a number with `ms`, `s`, `m` or `h`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (number, unit) =
        units.iter().find_map(|(unit, length)| Some((text.strip_suffix(unit)?, *length))).unwrap_or((text, 1.0));
    number
        .trim()
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
        .ok_or_else(|| format!("{text:?} is not a length of time; write seconds, or 500ms, 10m, 2h"))
}

impl Run {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        unknown_in_words(&Variables::of_process()).for_each(|note| tracing::warn!("{note}"));
        let dry_run = self.dry_run;
        let outcome = self.job().and_then(|job| {
            let plan = job.plan()?;
            if dry_run {
                super::print(&plan.to_string(), ExitCode::SUCCESS);
                return Ok(0);
            }
            let cause = phalanx::launch::run(&plan)?;
            phalanx::launch::repeat_for_the_shell(cause);
            Ok(cause.exit_code())
        });
        match outcome {
            Ok(code) => ExitCode::from(code),
            Err(LaunchError { code, error }) => {
                eprintln!("phalanx: {error}");
                ExitCode::from(code)
            }
        }
    }

    fn hosts(&self) -> Result<Vec<Host>, Error> {
        match (&self.hosts, &self.hostfile) {
            (Some(list), _) => hosts::parse_list(list),
            (None, Some(path)) => {
                let failed =
                    |what: &dyn std::fmt::Display| Error::invalid(format!("--hostfile {}: {what}", path.display()));
                let mut text = Vec::new();
                let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
                file.take(MAX_HOSTFILE + 1).read_to_end(&mut text).map_err(|error| failed(&error))?;
                if text.len() as u64 > MAX_HOSTFILE {
                    return Err(failed(&format_args!("more than {MAX_HOSTFILE} bytes")));
                }
                hosts::parse_file(path, &String::from_utf8_lossy(&text))
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    fn job(self) -> Result<Job, LaunchError> {
        let hosts = self.hosts()?;
        let mut set = Vec::new();
        for setting in &self.env {
            set.push(parse_setting(setting, |name| std::env::var_os(name))?);
        }
        if let Some(transport) = self.transport {
            set.push(("PHALANX_TRANSPORT".into(), transport.name().into()));
        }
        if let Some(algorithm) = self.algorithm {
            set.push(("PHALANX_ALGORITHM".into(), algorithm.name().into()));
        }
        let prefix = match (self.no_prefix, self.tag_output) {
            (true, _) => Prefix::None,
            (false, true) => Prefix::Stream,
            (false, false) => Prefix::Rank,
        };
        let colour = match self.color {
            ColourChoice::Auto => Colour::Auto,
            ColourChoice::Always => Colour::Always,
            ColourChoice::Never => Colour::Never,
        };
        Ok(Job {
            size: self.np,
            hosts,
            oversubscribe: self.oversubscribe,
            set,
            compat: self
                .compat
                .iter()
                .map(|choice| match choice {
                    CompatChoice::Torch => Compat::Torch,
                    CompatChoice::Horovod => Compat::Horovod,
                })
                .collect(),
            bind: match self.bind_to {
                BindChoice::Core => Bind::Core,
                BindChoice::None => Bind::None,
            },
            policy: Policy { grace: self.grace, timeout: self.timeout },
            output: Output { prefix, timestamps: self.prefix_timestamp, colour, directory: self.output_dir },
            verbosity: match (self.quiet, self.verbose) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            },
            elastic: self.elastic.elasticity(),
            adopt_orphans: true,
            take_signals: true,
            ..Job::new(self.command.into_iter().map(super::as_typed).collect(), 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
        for (text, milliseconds) in [("5", 5000), ("0.5", 500), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "x", "-1", "nan", "1d", "1e300"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
