//! Running the host discovery script: a shell with a guard, as a worker has one, so that nothing of it outlives the
//! launcher.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::launch::control::{Ending, Lines, Order, Report};
use crate::launch::spawn::{Input, Running, Spawner, WorkerPlan};

/// More than this is no list of hosts.
const MAX_BYTES: usize = 1 << 20;

/// A run of the script.
#[derive(Debug)]
pub(super) struct Script {
    running: Running,
    reports: Lines,
    printed: Stream,
    complaints: Stream,
    ending: Option<Result<Ending, i32>>,
}

/// What came out of one stream.
#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    is_closed: bool,
}

/// What became of a run: what it printed; or what went wrong, and whether it could not be run at all.
pub(super) type Printed = Result<String, (String, bool)>;

impl Script {
    /// Starts it.
    pub(super) fn start(
        spawner: &mut dyn Spawner,
        script: &str,
        environment: &BTreeMap<OsString, OsString>,
    ) -> io::Result<Self> {
        let running = spawner.spawn(&WorkerPlan {
            name: "hosts".into(),
            enter: Vec::new(),
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            environment: environment.clone(),
            cpus: Vec::new(),
            input: Input::Null,
        })?;
        let (printed, complaints) = (Stream::default(), Stream::default());
        Ok(Self { running, reports: Lines::default(), printed, complaints, ending: None })
    }

    /// Its guard.
    pub(super) fn guard(&self) -> Pid {
        Pid::from_child(&self.running.process)
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.running.control, Order::Kill.encode().as_bytes(), flags);
    }

    /// What is to be watched.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let streams = [(&self.printed, &self.running.stdout), (&self.complaints, &self.running.stderr)];
        let open = streams.into_iter().filter(|(stream, _)| !stream.is_closed).map(|(_, fd)| fd.as_fd());
        open.chain([self.running.control.as_fd()])
    }

    /// Takes what is there. Returns what became of it once nothing of it is left.
    pub(super) fn read(&mut self) -> Option<Printed> {
        self.printed.read(&self.running.stdout);
        self.complaints.read(&self.running.stderr);
        let mut bytes = [0; 512];
        loop {
            match rustix::io::read(&self.running.control, &mut bytes) {
                Ok(count) if count > 0 => self.reports.push(bytes.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Ok(_) | Err(_) => break,
            }
        }
        for report in std::iter::from_fn(|| self.reports.poll_line()).filter_map(|line| Report::decode(&line)) {
            match report {
                Report::Started { .. } => {}
                Report::Failed { errno } => self.ending = Some(Err(errno)),
                Report::Ended { ending, .. } => self.ending = Some(Ok(ending)),
            }
        }
        // The guard has closed its socket, so it is ending. What was written before is in the pipes.
        let _ = self.running.process.wait();
        self.printed.read(&self.running.stdout);
        self.complaints.read(&self.running.stderr);
        Some(self.result())
    }

    fn result(&self) -> Printed {
        match self.ending {
            _ if self.printed.bytes.len() >= MAX_BYTES => {
                Err((format!("it printed more than {MAX_BYTES} bytes"), false))
            }
            Some(Ok(ending)) if ending.is_success() => {
                String::from_utf8(self.printed.bytes.clone()).map_err(|_| ("it printed what is no text".into(), false))
            }
            Some(Ok(ending)) => {
                let said = String::from_utf8_lossy(&self.complaints.bytes);
                let said = said.trim().lines().last().map(|line| format!(": {line}")).unwrap_or_default();
                // The shell's own codes for a command that is not there, or cannot be executed.
                Err((format!("it {ending}{said}"), matches!(ending, Ending::Code(126 | 127))))
            }
            Some(Err(errno)) => {
                Err((format!("it could not be started: {}", io::Error::from_raw_os_error(errno)), true))
            }
            None => Err(("its guard was killed".into(), false)),
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.kill();
        // The guard ends the script, then itself.
        let _ = self.running.process.wait();
    }
}

impl Stream {
    fn read(&mut self, fd: &OwnedFd) {
        let mut bytes = [0; 4096];
        while !self.is_closed {
            match rustix::io::read(fd, &mut bytes) {
                Ok(count) if count > 0 => {
                    let room = MAX_BYTES.saturating_sub(self.bytes.len());
                    self.bytes.extend_from_slice(bytes.get(..count.min(room)).unwrap_or_default());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => self.is_closed = true,
            }
        }
    }
}
