//! The commands of the `phalanx` program. Each is a thin layer over the library.

mod bench;
mod demo;
mod doctor;
mod explain;
mod guard;
mod operate;
mod registry;
mod run;
mod simulate;
mod workers;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use phalanx::TransportKind;

/// Collective communication for data-parallel training.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    Simulate(simulate::Simulate),
    Bench(bench::Bench),
    Demo(demo::Demo),
    Registry(Box<registry::Registry>),
    Status(operate::Status),
    Evict(operate::Evict),
    #[command(hide = true)]
    Guard(guard::Guard),
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(std::env::args_os().map(two_dashes));
    if let Err(error) = phalanx::observe::log_to_stderr() {
        eprintln!("phalanx: {error}");
        return ExitCode::from(2);
    }
    match cli.command {
        Command::Run(run) => run.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Explain(explain) => explain.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Bench(bench) => bench.run(),
        Command::Demo(demo) => demo.run(),
        Command::Registry(registry) => registry.run(),
        Command::Status(status) => status.run(),
        Command::Evict(evict) => evict.run(),
        Command::Guard(guard) => guard.run(),
    }
}

/// Reads a transport between processes. Whether it was built in is for the ranks to say, which may be another program's.
fn carrier(text: &str) -> Result<TransportKind, String> {
    const EXPECTED: &str = "expected shm, tcp, rdma or mpi";
    match text.parse() {
        Ok(TransportKind::Inproc) => Err(format!("inproc is for ranks that are threads of one process; {EXPECTED}")),
        Ok(kind) => Ok(kind),
        Err(_) => Err(format!("unknown transport {text:?}; {EXPECTED}")),
    }
}

/// Prints the whole output of a command. A reader that has seen enough is no error.
fn print(text: &str, code: ExitCode) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("phalanx: {error}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Long options that launchers of the MPI family write with one dash, and the hidden names that stand for that. They
/// are names of their own so that [`as_typed`] can give a user's command back as it was.
const ONE_DASH: [(&str, &str); 2] = [("-np", "--np-with-one-dash"), ("-hostfile", "--hostfile-with-one-dash")];

fn two_dashes(word: OsString) -> OsString {
    ONE_DASH.iter().find(|(one, _)| word == *one).map_or(word, |(_, two)| (*two).into())
}

/// The word as the user typed it.
fn as_typed(word: OsString) -> OsString {
    ONE_DASH.iter().find(|(_, two)| word == *two).map_or(word, |(one, _)| (*one).into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn threads_are_no_transport_between_processes() {
        for command in ["demo", "bench", "run"] {
            for (name, words) in [
                ("inproc", "threads of one process; expected shm, tcp, rdma or mpi"),
                ("x", "expected shm, tcp, rdma or mpi"),
            ] {
                let line = ["phalanx", command, "--transport", name];
                let error = Cli::try_parse_from(line).unwrap_err().to_string();
                assert!(error.contains(words), "{command}: {error}");
            }
        }
        assert_eq!(carrier("tcp"), Ok(TransportKind::Tcp));
        assert_eq!(carrier("rdma"), Ok(TransportKind::Rdma));
    }
}
