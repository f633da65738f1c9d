//! Starting the launcher and waiting for what it does, with a clock on every wait.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// A wait that takes longer has failed. Generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `phalanx run` with these arguments, without anything of this process's environment that could matter to it.
pub fn run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.arg("run").args(arguments);
    for name in ["NO_COLOR", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "PHALANX_LOG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `phalanx run` of a shell script on so many ranks.
pub fn script(size: usize, options: &[&str], script: &str) -> Command {
    let size = size.to_string();
    run(&[&["-np", &size], options, &["sh", "-c", script]].concat())
}

/// What a command that ended left.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("text")
    }

    /// The lines of standard output, sorted: the order between ranks is free.
    pub fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

/// Runs a command to its end.
pub fn ended(mut command: Command) -> Ended {
    Started::new(command.spawn().expect("the launcher starts")).wait()
}

/// A launcher that runs.
pub struct Started {
    pub child: Child,
    pidfd: OwnedFd,
    lines: Option<BufReader<std::process::ChildStdout>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Started {
    pub fn new(mut child: Child) -> Self {
        let pidfd = hold(Pid::from_child(&child));
        let lines = child.stdout.take().map(BufReader::new);
        Self { child, pidfd, lines, reader: None }
    }

    pub fn of(mut command: Command) -> Self {
        Self::new(command.spawn().expect("the launcher starts"))
    }

    /// Ends with the process: a thread that reads what it says.
    pub fn keep(&mut self, reader: std::thread::JoinHandle<()>) {
        self.reader = Some(reader);
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::pidfd_send_signal(&self.pidfd, signal).expect("it lives");
    }

    /// The next line of standard output.
    pub fn line(&mut self) -> String {
        let lines = self.lines.as_mut().expect("a piped output");
        if lines.buffer().is_empty() {
            assert!(is_ready(lines.get_ref(), PATIENCE), "no line within {PATIENCE:?}");
        }
        let mut line = String::new();
        lines.read_line(&mut line).expect("readable");
        line.trim_end_matches('\n').to_owned()
    }

    /// So many lines, sorted.
    pub fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines: Vec<_> = (0..count).map(|_| self.line()).collect();
        lines.sort();
        lines
    }

    /// Closes standard output at our end.
    pub fn stop_reading(&mut self) {
        self.lines = None;
    }

    /// Waits for the end and collects what is left of the output.
    pub fn wait(mut self) -> Ended {
        let out = self.lines.take().map(|mut lines| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                lines.read_to_end(&mut bytes).map(|_| bytes)
            })
        });
        let err = self.child.stderr.take().map(|mut err| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                err.read_to_end(&mut bytes).map(|_| bytes)
            })
        });
        let status = self.wait_status();
        let take = |thread: Option<std::thread::JoinHandle<std::io::Result<Vec<u8>>>>| {
            thread.map(|thread| thread.join().expect("a reader").expect("readable")).unwrap_or_default()
        };
        let stderr = String::from_utf8_lossy(&take(err)).into_owned();
        Ended { status, stdout: take(out), stderr }
    }

    /// Waits for the end alone.
    pub fn wait_status(&mut self) -> ExitStatus {
        if !is_ready(&self.pidfd, PATIENCE) {
            let _ = self.child.kill();
            panic!("the launcher did not end within {PATIENCE:?}");
        }
        self.child.wait().expect("waitable")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A failed test leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.reader.take().map(std::thread::JoinHandle::join);
    }
}

/// A descriptor that stands for a process.
pub fn hold(pid: Pid) -> OwnedFd {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("the process lives")
}

/// A descriptor for the process whose number stands in a line's last word.
pub fn hold_named(line: &str) -> OwnedFd {
    let number = line.split_whitespace().last().and_then(|word| word.parse().ok()).expect("a number");
    hold(Pid::from_raw(number).expect("a process id"))
}

/// Waits until a descriptor is readable; a process is when it has ended.
pub fn is_ready(fd: impl std::os::fd::AsFd, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("a short time");
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until `done` says so, looking again and again: for states of which nothing tells.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
    }
}

/// One letter for what a process does, as `R`, `S`, `T`.
pub fn state_of(pid: Pid) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// The file at a path, or nothing while it is not there.
pub fn read(path: &std::path::Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        file.read_to_end(&mut bytes).expect("readable");
    }
    bytes
}

/// The signal that ended a process.
pub fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// A new fifo in a directory.
pub fn fifo(directory: &std::path::Path) -> String {
    let path = directory.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a fifo");
    path.to_str().expect("a name").to_owned()
}
