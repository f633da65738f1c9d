//! Ranks of our own: demo and bench start this very program again as their ranks, and listen to rank 0.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;

use clap::builder::RangedU64ValueParser;
use phalanx::bootstrap::Launcher;
use phalanx::launch::binding::Bind;
use phalanx::launch::hosts::Host;
use phalanx::launch::spawn::{LocalSpawner, Running, Spawner, WorkerPlan};
use phalanx::launch::{Job, LaunchError};
use phalanx::{Config, Error, Result};
use rustix::io::FdFlags;
use rustix::pipe::PipeFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a number on the command line that is not below `least`.
pub fn at_least(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..)
}

/// The place of this process in a world that somebody else started, if there is one. `asked` is the number of ranks on
/// the command line; `reporting` says that this process was started to be a rank.
pub fn existing_world(asked: Option<usize>, reporting: bool) -> Result<Option<Config>> {
    let config = Config::from_env()?;
    if config.launch.launcher == Launcher::None {
        // Ranks that started ranks would never come to an end.
        let lost = "a rank was started, but no variable of its environment says which";
        return if reporting { Err(Error::internal(lost)) } else { Ok(None) };
    }
    match asked {
        Some(asked) if asked != config.launch.size => Err(Error::invalid(format!(
            "{asked} ranks asked for inside a world of {} that {} started",
            config.launch.size, config.launch.launcher
        ))),
        _ => Ok(Some(config)),
    }
}

/// The way of messages from rank 0 to the process that started it: one JSON object a line.
pub struct Reports(File);

impl Reports {
    /// Opens the descriptor that the starting process handed down.
    pub fn open(descriptor: i32) -> Result<Self> {
        let path = format!("/proc/self/fd/{descriptor}");
        File::options().write(true).open(&path).map(Self).map_err(|error| {
            Error::environment(format!("cannot report to {path}: {error}"), "leave --report-to to the program itself")
        })
    }

    /// Sends a message. A reader that is gone is no reason to stop.
    pub fn send(&mut self, message: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(message) {
            line.push(b'\n');
            let _ = self.0.write_all(&line);
        }
    }
}

/// How ranks are started.
pub struct Start {
    /// How many.
    pub ranks: usize,
    /// Their arguments, if not those of this process.
    pub arguments: Option<Vec<OsString>>,
    /// Variables to be set for them.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether each is bound to a core.
    pub bind: Bind,
    /// Where they run; empty for this machine.
    pub hosts: Vec<Host>,
    /// At which address they meet; loopback if not given.
    pub address: Option<IpAddr>,
}

/// Runs this program, with its own arguments if none are given, as ranks, tells `on_message` what rank 0 reports, and returns the exit
/// code. Ctrl-C ends all of it.
pub fn run<M: DeserializeOwned>(
    start: Start,
    on_message: impl FnMut(M) + Send + 'static,
) -> std::result::Result<u8, LaunchError> {
    let broken = |error: io::Error| Error::environment(format!("cannot start ranks: {error}"), "see `phalanx doctor`");
    let (reading, writing) = rustix::pipe::pipe_with(PipeFlags::empty()).map_err(|error| broken(error.into()))?;
    rustix::io::fcntl_setfd(&reading, FdFlags::CLOEXEC).map_err(|error| broken(error.into()))?;

    let program = std::env::current_exe().map_err(broken)?;
    let mut command = vec![program.into_os_string()];
    command.extend(start.arguments.unwrap_or_else(|| std::env::args_os().skip(1).collect()));
    command.push("--report-to".into());
    command.push(writing.as_raw_fd().to_string().into());
    let mut job = Job::new(command, start.ranks);
    job.set = start.variables;
    job.bind = start.bind;
    job.hosts = start.hosts;
    job.rendezvous_address = start.address;
    job.input = false;
    job.verbosity = 0;
    job.adopt_orphans = true;
    job.take_signals = true;
    let plan = job.plan()?;

    let local = LocalSpawner { guard: None, grace: job.policy.grace, files: None };
    let listen = move || listen(File::from(reading), on_message);
    let mut spawner = Listening { local, pending: Some(listen), listener: None };
    let cause = phalanx::launch::run_with(&plan, &mut spawner)?;
    // The ranks are gone, and so are their ends of the pipe: this one is the last.
    let mut last = File::from(writing);
    let _ = last.write_all(b"\n");
    drop(last);
    if let Some(listener) = spawner.listener
        && listener.join().is_err()
    {
        return Err(Error::internal("showing the results panicked").into());
    }
    Ok(cause.exit_code())
}

/// Starts to listen with the first rank: the launcher holds signals back by then, and new threads do the same.
struct Listening<F> {
    local: LocalSpawner,
    pending: Option<F>,
    listener: Option<JoinHandle<()>>,
}

impl<F: FnOnce() + Send + 'static> Spawner for Listening<F> {
    fn spawn(&mut self, worker: &WorkerPlan) -> io::Result<Running> {
        if let Some(listen) = self.pending.take() {
            self.listener = Some(std::thread::Builder::new().name("phalanx-listen".into()).spawn(listen)?);
        }
        self.local.spawn(worker)
    }
}

/// Reads messages up to an empty line or the end. What is not a message is not for us.
fn listen<M: DeserializeOwned>(reading: impl io::Read, mut on_message: impl FnMut(M)) {
    for line in BufReader::new(reading).lines().map_while(io::Result::ok) {
        if line.is_empty() {
            break;
        }
        if let Ok(message) = serde_json::from_str(&line) {
            on_message(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_up_to_the_end() {
        let (reading, writing) = rustix::pipe::pipe().expect("a pipe");
        let mut reports = Reports::open(writing.as_raw_fd()).expect("a way through the own descriptor");
        reports.send(&1);
        File::from(writing).write_all(b"no number\n").expect("room in the pipe");
        reports.send(&2);
        reports.0.write_all(b"\n").expect("room in the pipe");
        reports.send(&3);
        let mut heard = Vec::new();
        listen(File::from(reading), |message: i32| heard.push(message));
        assert_eq!(heard, [1, 2]);
    }

    #[test]
    fn a_reader_that_is_gone_stops_nobody() {
        let (reading, writing) = rustix::pipe::pipe().expect("a pipe");
        let mut reports = Reports::open(writing.as_raw_fd()).expect("a way through the own descriptor");
        drop(reading);
        reports.send(&1);
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_an_error() {
        assert!(Reports::open(-1).err().expect("no such descriptor").to_string().contains("/proc/self/fd/-1"));
    }
}
