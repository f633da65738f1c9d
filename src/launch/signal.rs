//! Signals: their names, and reading them as events instead of being interrupted by them.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(pub i32);

impl Signal {
    /// Asks a process to end.
    pub const TERM: Self = Self(libc::SIGTERM);
    /// Ctrl-C.
    pub const INT: Self = Self(libc::SIGINT);
    /// Ctrl-\.
    pub const QUIT: Self = Self(libc::SIGQUIT);
    /// The terminal is gone.
    pub const HUP: Self = Self(libc::SIGHUP);
    /// Ends a process without asking it.
    pub const KILL: Self = Self(libc::SIGKILL);
    /// Stops a process without asking it.
    pub const STOP: Self = Self(libc::SIGSTOP);
    /// Ctrl-Z.
    pub const TSTP: Self = Self(libc::SIGTSTP);
    /// Lets a stopped process go on.
    pub const CONT: Self = Self(libc::SIGCONT);
    /// The terminal has another size.
    pub const WINCH: Self = Self(libc::SIGWINCH);
    /// The reader of a pipe is gone.
    pub const PIPE: Self = Self(libc::SIGPIPE);

    /// The name, such as `SIGTERM`; none for real-time signals.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::SIGHUP => "SIGHUP",
            libc::SIGINT => "SIGINT",
            libc::SIGQUIT => "SIGQUIT",
            libc::SIGILL => "SIGILL",
            libc::SIGTRAP => "SIGTRAP",
            libc::SIGABRT => "SIGABRT",
            libc::SIGBUS => "SIGBUS",
            libc::SIGFPE => "SIGFPE",
            libc::SIGKILL => "SIGKILL",
            libc::SIGUSR1 => "SIGUSR1",
            libc::SIGSEGV => "SIGSEGV",
            libc::SIGUSR2 => "SIGUSR2",
            libc::SIGPIPE => "SIGPIPE",
            libc::SIGALRM => "SIGALRM",
            libc::SIGTERM => "SIGTERM",
            libc::SIGCONT => "SIGCONT",
            libc::SIGSTOP => "SIGSTOP",
            libc::SIGTSTP => "SIGTSTP",
            libc::SIGXCPU => "SIGXCPU",
            libc::SIGXFSZ => "SIGXFSZ",
            libc::SIGWINCH => "SIGWINCH",
            libc::SIGSYS => "SIGSYS",
            _ => return None,
        })
    }

    /// The exit code by which a shell reports a process ended by this signal.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0).unwrap_or(u8::MAX)
    }

    /// The signal for the system calls of `rustix`.
    pub(super) fn to_rustix(self) -> Option<rustix::process::Signal> {
        rustix::process::Signal::from_named_raw(self.0)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "signal {} ({name})", self.0),
            None => write!(f, "signal {}", self.0),
        }
    }
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Which one.
    pub signal: Signal,
    /// Whether the kernel sent it, as it does when a key is pressed in a terminal, and not a process.
    pub from_kernel: bool,
}

/// Signals that are held back and read from a descriptor.
///
/// They stay blocked in the thread that called [`SignalQueue::new`] and in those it starts later. The mask is that of
/// the process for good: a queue is made once, at the start.
///
/// What this process was told to ignore when it was started stays ignored: the hangup under `nohup`, and the keys of
/// the terminal for what a shell script runs in the background. An interrupt that somebody sends to such a process with
/// intent, and not by a key, is taken.
#[derive(Debug)]
pub struct SignalQueue {
    fd: OwnedFd,
    ignored: Vec<Signal>,
}

impl SignalQueue {
    /// Blocks `signals` in this thread and reads them instead.
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        let ignored = signals.iter().copied().filter(|signal| is_ignored(*signal)).collect();
        let mut set = empty_set();
        for signal in signals {
            // SAFETY: `set` is an initialised set; an unknown number is an error that changes nothing.
            unsafe { libc::sigaddset(&mut set, signal.0) };
        }
        // SAFETY: `set` is an initialised set, and no old mask is asked for.
        let code = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        // SAFETY: `set` is an initialised set; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor that nobody else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, ignored })
    }

    /// The next signal that has arrived, if any.
    pub fn try_next(&mut self) -> io::Result<Option<Arrived>> {
        let mut record = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let bytes = size_of::<libc::signalfd_siginfo>();
        loop {
            // SAFETY: `record` has room for `bytes` bytes.
            let got = unsafe { libc::read(self.fd.as_raw_fd(), record.as_mut_ptr().cast(), bytes) };
            if usize::try_from(got) == Ok(bytes) {
                // SAFETY: the kernel filled the whole record, which is plain integers.
                let record = unsafe { record.assume_init() };
                let signal = Signal(i32::try_from(record.ssi_signo).unwrap_or_default());
                let from_kernel = record.ssi_code == SI_KERNEL;
                if self.ignored.contains(&signal) && (from_kernel || signal == Signal::HUP) {
                    continue;
                }
                return Ok(Some(Arrived { signal, from_kernel }));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(None),
                _ => return Err(error),
            }
        }
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The sender code of signals that come from the kernel itself, such as those of a terminal's keys.
const SI_KERNEL: i32 = 0x80;

/// Whether this process ignores a signal.
fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and the old one is written to `action`, which is read only on success.
    unsafe {
        libc::sigaction(signal.0, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Lets the keys of a terminal end this process again, in case it was started with these ignored. A child calls this
/// before it becomes another program, which keeps what is ignored. Async-signal-safe.
pub(super) fn hear_keys() {
    for signal in [Signal::INT, Signal::QUIT] {
        // SAFETY: the default disposition needs no handler.
        unsafe { libc::signal(signal.0, libc::SIG_DFL) };
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Lets every signal through again. A child calls this before it becomes another program, because masks are inherited.
/// Async-signal-safe.
pub(super) fn unblock_all() -> io::Result<()> {
    let set = empty_set();
    // SAFETY: `set` is an initialised set, and no old mask is asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Holds back every signal that can be held back.
pub(super) fn block_all() -> io::Result<()> {
    let mut set = empty_set();
    // SAFETY: sigfillset writes the initialised set; pthread_sigmask reads it.
    match unsafe {
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut())
    } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Ends this process by `signal`, as if it had never been held back, so that the parent sees how it ended.
pub(super) fn die_by(signal: Signal) {
    // SAFETY: the default disposition needs no handler, and raising a signal touches no memory.
    unsafe {
        libc::signal(signal.0, libc::SIG_DFL);
        libc::raise(signal.0);
    }
    let _ = unblock_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_exit_codes() {
        assert_eq!(Signal::KILL.to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Signal(40).to_string(), "signal 40");
        assert_eq!(Signal::TERM.exit_code(), 143);
        assert_eq!(Signal(200).exit_code(), 255);
    }
}
