//! Starting workers. The seam between supervising a job and reaching its hosts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::guard::GuardOptions;

/// What a worker reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// Nothing: `/dev/null`.
    #[default]
    Null,
    /// What the launcher itself would read.
    Inherit,
    /// What the launcher passes on through a pipe.
    Pipe,
}

/// A worker to be started.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// What it is called, for the name of its guard: a number in most cases.
    pub name: String,
    /// The command that enters its host; empty for this machine.
    pub enter: Vec<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The whole environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// The processors it is bound to; empty for no binding.
    pub cpus: Vec<usize>,
    /// What it reads.
    pub input: Input,
}

/// A worker that was started, with the launcher's ends of its streams. They do not block.
#[derive(Debug)]
pub struct Running {
    /// The process to be waited for once `control` has ended.
    pub process: Child,
    /// Speaks the language of `control.rs` with the worker's guard.
    pub control: OwnedFd,
    /// What the worker writes to its standard output.
    pub stdout: OwnedFd,
    /// What the worker writes to its standard error.
    pub stderr: OwnedFd,
    /// What the worker reads, for [`Input::Pipe`].
    pub stdin: Option<OwnedFd>,
}

/// Starts workers on a host. The local one starts a guard as a child; one for other hosts starts it through a remote
/// shell, and carries the same control stream.
pub trait Spawner {
    /// Starts the guard of a worker, which starts the worker.
    fn spawn(&mut self, worker: &WorkerPlan) -> io::Result<Running>;
}

/// Starts workers on this machine.
#[derive(Clone, Debug)]
pub struct LocalSpawner {
    /// The program and first arguments that start a guard. None: this program with the argument `guard`.
    pub guard: Option<Vec<OsString>>,
    /// How long descendants that outlive a worker may take to end.
    pub grace: Duration,
    /// The soft limit of open files that workers get.
    pub files: Option<u64>,
}

impl LocalSpawner {
    fn guard_command(&self, entering: bool) -> io::Result<Vec<OsString>> {
        if let Some(guard) = &self.guard {
            return Ok(guard.clone());
        }
        // The kernel's link is this very program even if its file was replaced meanwhile; seen from the command that
        // enters a host, it would be that command.
        let program = match std::fs::metadata("/proc/self/exe") {
            Ok(_) if !entering => "/proc/self/exe".into(),
            _ => std::env::current_exe()?.into_os_string(),
        };
        Ok(vec![program, "guard".into()])
    }
}

impl Spawner for LocalSpawner {
    fn spawn(&mut self, worker: &WorkerPlan) -> io::Result<Running> {
        let (control, guards_end) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (stdout, workers_stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, workers_stderr) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        for fd in [&control, &stdout, &stderr] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let (stdin, workers_stdin) = match worker.input {
            Input::Null => (None, Stdio::from(File::open("/dev/null")?)),
            Input::Inherit => (None, Stdio::inherit()),
            Input::Pipe => {
                let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&write, true)?;
                (Some(write), Stdio::from(read))
            }
        };

        let options = GuardOptions {
            control: guards_end.as_raw_fd(),
            name: worker.name.clone(),
            grace: self.grace,
            cpus: worker.cpus.clone(),
            files: self.files,
            command: worker.command.clone(),
        };
        let words = worker.enter.iter().map(OsString::from);
        let mut words = words.chain(self.guard_command(!worker.enter.is_empty())?).chain(options.to_arguments());
        let program = words.next().unwrap_or_default();
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .envs(&worker.environment)
            .stdin(workers_stdin)
            .stdout(workers_stdout)
            .stderr(workers_stderr);
        if worker.enter.is_empty() {
            command.arg0("phalanx");
        }
        // SAFETY: the closure makes two system calls: it allocates nothing and takes no lock. `guards_end` is open until
        // the child has become the guard, because it is dropped after the spawn.
        unsafe {
            let guards_end = guards_end.as_raw_fd();
            command.pre_exec(move || {
                // Out of the terminal's reach from the first moment.
                let _ = rustix::process::setsid();
                let guards_end = rustix::fd::BorrowedFd::borrow_raw(guards_end);
                Ok(rustix::io::fcntl_setfd(guards_end, FdFlags::empty())?)
            });
        }
        let process = command.spawn()?;
        drop(guards_end);
        Ok(Running { process, control, stdout, stderr, stdin })
    }
}
