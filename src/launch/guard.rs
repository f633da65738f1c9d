//! The guard: a small process between the launcher and one worker, so that nothing of the worker outlives the job.
//!
//! The guard starts the worker, adopts whatever the worker's descendants leave behind, and ends them all when it is told
//! to or when the launcher is gone, however the launcher went: the end of their common socket tells it. It sits in a
//! session of its own, so that no key pressed in the launcher's terminal reaches it, and holds back every signal. If the
//! guard itself is killed, the kernel kills the worker, and the launcher adopts the rest.
//!
//! The guard is the same program as the launcher, started again: `phalanx guard`. It has one thread.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::control::{Ending, Lines, Order, Report};
use super::signal::{self, Signal, SignalQueue};
use super::tree;

/// What a guard is told when it starts.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// The socket to the launcher.
    pub control: RawFd,
    /// Whose guard it is, for its name in process lists.
    pub name: String,
    /// How long descendants that outlive the worker may take to end after SIGTERM.
    pub grace: Duration,
    /// The processors the worker is bound to; none means no binding.
    pub cpus: Vec<usize>,
    /// The soft limit of open files that the worker gets back, where the launcher raised its own.
    pub files: Option<u64>,
    /// The worker's program and arguments.
    pub command: Vec<OsString>,
}

/// After this time, what resists SIGKILL (another user's process, or one stuck in the kernel) is left.
const GIVE_UP: Duration = Duration::from_secs(10);

/// How often the tree is looked at again while it is being killed: what was forked during one walk is found by the next.
const AGAIN: Duration = Duration::from_millis(10);

/// Guards one worker until no process of its tree is left. The error is one of the guard's own start.
pub fn guard(options: &GuardOptions) -> io::Result<()> {
    rustix::io::fcntl_getfd(borrow(options.control))?;
    // SAFETY: the descriptor is open (just looked at), was made for this process by the launcher, and nothing else here
    // uses its number.
    let control = unsafe { OwnedFd::from_raw_fd(options.control) };
    rustix::io::fcntl_setfd(&control, FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&control, true)?;

    let _ = rustix::process::setsid();
    signal::block_all()?;
    let signals = SignalQueue::new(&[Signal(libc::SIGCHLD)])?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Another name than the launcher's: who kills all processes of that name should not kill the guards with them.
    if let Ok(name) = std::ffi::CString::new(format!("guard-{}", options.name)) {
        let _ = rustix::thread::set_name(&name);
    }

    let mut guard = Guard { control, signals, lines: Lines::default(), worker: None, grace: options.grace, last: None };
    match start(options) {
        Ok(pid) => {
            guard.worker = Some(pid);
            guard.report(Report::Started { pid: pid.as_raw_nonzero().get() });
        }
        Err(error) => {
            guard.report(Report::Failed { errno: error.raw_os_error().unwrap_or(libc::EINVAL) });
            return Ok(());
        }
    }
    let_go_of_streams();
    guard.run();
    Ok(())
}

fn borrow<'fd>(fd: RawFd) -> rustix::fd::BorrowedFd<'fd> {
    // SAFETY: used for one fcntl call, which reports a descriptor that is not open instead of misbehaving.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}

/// Starts the worker in a process group of its own.
fn start(options: &GuardOptions) -> io::Result<Pid> {
    let (program, arguments) =
        options.command.split_first().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    if !options.cpus.is_empty() {
        // The worker inherits it.
        crate::sys::process::set_affinity(&options.cpus)?;
    }
    let guard = rustix::process::getpid();
    let files = options.files;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    // SAFETY: the closure makes system calls only: it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            signal::unblock_all()?;
            // No key reaches the worker by itself; one that is passed on is meant for it.
            signal::hear_keys();
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The guard may have gone before that took effect.
            if rustix::process::getppid() != Some(guard) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(soft) = files {
                let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                limit.current = Some(soft);
                let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
            }
            Ok(())
        });
    }
    // The handle is not waited on: the guard reaps every child itself.
    Ok(Pid::from_child(&command.spawn()?))
}

/// Gives up the guard's copies of the worker's streams, so that whoever is at the other end sees them closed when the
/// worker closes them.
fn let_go_of_streams() {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for stream in 0..=2 {
            // SAFETY: both are numbers of open descriptors; the streams are used through their numbers only, so whoever
            // writes to them later writes to the null device.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
}

struct Guard {
    control: OwnedFd,
    signals: SignalQueue,
    lines: Lines,
    /// The worker, until it is reaped.
    worker: Option<Pid>,
    grace: Duration,
    /// What comes next for descendants that have not ended: when they are killed, or since when they are being killed.
    last: Option<Last>,
}

#[derive(Clone, Copy)]
enum Last {
    /// They were asked to end, and are killed then.
    Asked { kill_at: Instant },
    /// They are being killed; what is left then stays.
    Killing { until: Instant },
}

impl Guard {
    fn run(&mut self) {
        loop {
            if !self.reap() {
                return;
            }
            let now = Instant::now();
            let wait = match self.last {
                None => None,
                Some(Last::Asked { kill_at }) if now < kill_at => Some(kill_at - now),
                Some(Last::Asked { .. }) => {
                    self.kill(now);
                    Some(AGAIN)
                }
                Some(Last::Killing { until }) if now < until => {
                    tree::signal_descendants(rustix::process::getpid(), Signal::KILL);
                    Some(AGAIN)
                }
                Some(Last::Killing { .. }) => return,
            };
            self.sleep(wait);
            while let Ok(Some(_)) = self.signals.try_next() {}
            self.obey();
        }
    }

    /// Until a child ends, the launcher says something, or `wait` is over.
    fn sleep(&self, wait: Option<Duration>) {
        let killing = matches!(self.last, Some(Last::Killing { .. }));
        let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut fds = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        // Once the tree is being killed there is nothing more to be told, and an ended stream is always readable.
        let watched = if killing { 1 } else { 2 };
        let _ = rustix::event::poll(fds.get_mut(..watched).unwrap_or_default(), timeout.as_ref());
    }

    /// Does what the launcher says.
    fn obey(&mut self) {
        let mut bytes = [0; 512];
        let ended = match rustix::io::read(&self.control, &mut bytes) {
            Ok(0) => true,
            Ok(count) => {
                self.lines.push(bytes.get(..count).unwrap_or_default());
                false
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        };
        while let Some(line) = self.lines.poll_line() {
            match Order::decode(&line) {
                Some(Order::Signal(signal)) => self.forward(signal, rustix::process::kill_process_group),
                Some(Order::Ask(signal)) => self.forward(signal, rustix::process::kill_process),
                Some(Order::Kill) => self.kill(Instant::now()),
                None => {}
            }
        }
        if ended {
            self.kill(Instant::now());
        }
    }

    fn forward(&self, signal: Signal, send: fn(Pid, rustix::process::Signal) -> rustix::io::Result<()>) {
        let Some(worker) = self.worker else { return };
        let resume = matches!(signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT).then_some(Signal::CONT);
        // A stopped process does not hear that it is asked to end, unless it is let go on.
        for signal in [Some(signal), resume].into_iter().flatten().filter_map(Signal::to_rustix) {
            // The worker is not reaped yet, so its number, which is its group's, is still its own.
            let _ = send(worker, signal);
        }
    }

    fn kill(&mut self, now: Instant) {
        if !matches!(self.last, Some(Last::Killing { .. })) {
            self.last = Some(Last::Killing { until: now + GIVE_UP });
            tree::signal_descendants(rustix::process::getpid(), Signal::KILL);
        }
    }

    /// Collects the children that have ended. Returns whether any is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.worker => {
                    self.worker = None;
                    self.report(Report::Ended { ending: ending(status), at: monotonic_nanoseconds() });
                    self.ask_the_rest();
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Asks what the worker left behind to end too.
    fn ask_the_rest(&mut self) {
        if self.last.is_none() && tree::signal_descendants(rustix::process::getpid(), Signal::TERM) > 0 {
            // A stopped process does not hear that it is asked.
            tree::signal_descendants(rustix::process::getpid(), Signal::CONT);
            self.last = Some(Last::Asked { kill_at: Instant::now() + self.grace });
        }
    }

    /// Tells the launcher. The lines are few and short: they fit the socket's buffer, so nothing is lost by not waiting.
    fn report(&self, report: Report) {
        let _ = rustix::net::send(&self.control, report.encode().as_bytes(), rustix::net::SendFlags::NOSIGNAL);
    }
}

fn ending(status: WaitStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(signal)) => Ending::Signal(Signal(signal)),
        (Some(code), None) => Ending::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        (None, None) => Ending::Code(u8::MAX),
    }
}

/// The clock that all processes of a machine share.
fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default())
}

impl GuardOptions {
    /// The arguments after `phalanx guard` that say this.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            format!("--control={}", self.control).into(),
            format!("--name={}", self.name).into(),
            format!("--grace-ms={}", self.grace.as_millis()).into(),
        ];
        if !self.cpus.is_empty() {
            let cpus: Vec<_> = self.cpus.iter().map(ToString::to_string).collect();
            arguments.push(format!("--cpus={}", cpus.join(",")).into());
        }
        if let Some(files) = self.files {
            arguments.push(format!("--files={files}").into());
        }
        arguments.push("--".into());
        arguments.extend(self.command.iter().cloned());
        arguments
    }
}
