//! The launcher's PMI service: a place where one rank can put a line that all others read.
//!
//! PMI-1 is lines of text over a descriptor that the launcher left open: `cmd=NAME key=value ...`, each answered by one
//! line. MPICH's Hydra, Intel MPI's launcher and Slurm's pmi2 plugin serve it. It travels over the launcher's own
//! connections, which are taken to be as private as the job itself; give a key of your own where they are not.
//!
//! The exchange: `init`, `get_maxes`, `get_my_kvsname`; rank 0 puts the line; all enter the barrier, which hands what
//! was put to all hosts; all get the line; `finalize`. A process that ends between `init` and `finalize` is taken for
//! crashed by the launcher, and one that has finalised cannot begin again.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::local;
use crate::types::Deadline;

/// The name under which the line is put.
const KEY: &str = "phalanx-rendezvous";

/// The longest line that is read.
const MAX_LINE: usize = 16 * 1024;

/// The most bytes that the value has where the service does not say: the least that any is known to take.
const LEAST_VALUE: usize = 256;

/// A conversation with the service.
pub(super) struct Pmi {
    fd: OwnedFd,
    arrived: Vec<u8>,
    deadline: Deadline,
    name: String,
    max_value: usize,
}

/// How it went wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PmiError {
    /// The service cannot be used. The text says why.
    Unusable(String),
    /// Not all ranks entered the barrier in time.
    Barrier,
}

impl From<String> for PmiError {
    fn from(why: String) -> Self {
        PmiError::Unusable(why)
    }
}

impl Pmi {
    /// Begins the conversation on the descriptor that the launcher gave.
    pub fn begin(fd: i32, deadline: Deadline) -> Result<Self, PmiError> {
        if !local::is_open(fd) {
            return Err(format!("PMI_FD={fd} is not an open descriptor").into());
        }
        // SAFETY: the descriptor is open, and nothing in this library closes it. It is duplicated at once.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let fd = fd.try_clone_to_owned().map_err(|error| format!("PMI_FD: {error}"))?;
        let mut pmi = Pmi { fd, arrived: Vec::new(), deadline, name: String::new(), max_value: LEAST_VALUE };
        let answer = pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        if field(&answer, "rc").is_some_and(|rc| rc != "0") {
            return Err(format!("the service does not speak PMI-1: {answer}").into());
        }
        let answer = pmi.ask("get_maxes", "maxes")?;
        if let Some(max) = field(&answer, "vallen_max").and_then(|max| max.parse::<usize>().ok()) {
            // The limit counts the zero at the end of a C string.
            pmi.max_value = max.saturating_sub(1).min(MAX_LINE / 2);
        }
        let answer = pmi.ask("get_my_kvsname", "my_kvsname")?;
        pmi.name = field(&answer, "kvsname").ok_or_else(|| format!("no name in {answer:?}"))?.to_string();
        Ok(pmi)
    }

    /// The most bytes that the line may have.
    pub fn max_value(&self) -> usize {
        self.max_value
    }

    /// Rank 0's part: the line is put, and seen by all after the barrier.
    pub fn put(&mut self, line: &str) -> Result<(), PmiError> {
        let request = format!("put kvsname={} key={KEY} value={line}", self.name);
        // The line may hold the key: neither it nor an answer that repeats it is told.
        let answer = self.ask(&request, "put_result")?;
        match field(&answer, "rc") {
            Some("0") => Ok(()),
            _ => Err("the service did not take the rendezvous line".to_string().into()),
        }
    }

    /// Waits until all ranks are here, and reads the line.
    pub fn meet(&mut self) -> Result<String, PmiError> {
        match self.ask("barrier_in", "barrier_out") {
            Err(PmiError::Unusable(_)) if self.deadline.has_passed(Instant::now()) => return Err(PmiError::Barrier),
            answer => answer?,
        };
        let request = format!("get kvsname={} key={KEY}", self.name);
        let answer = self.ask(&request, "get_result")?;
        match (field(&answer, "rc"), field(&answer, "value")) {
            (None | Some("0"), Some(line)) => Ok(line.to_string()),
            _ => Err("rank 0 put no rendezvous line".to_string().into()),
        }
    }

    /// Ends the conversation.
    pub fn finish(mut self) -> Result<(), PmiError> {
        self.ask("finalize", "finalize_ack").map(|_| ())
    }

    /// One request, one answer.
    fn ask(&mut self, request: &str, expected: &str) -> Result<String, PmiError> {
        let what = request.split(' ').next().unwrap_or_default();
        self.write(&format!("cmd={request}\n")).map_err(|why| format!("{what}: {why}"))?;
        let answer = self.read_line().map_err(|why| format!("{what}: {why}"))?;
        if field(&answer, "cmd") != Some(expected) {
            return Err(format!(
                "{what} was answered by {:?}, expected {expected}",
                field(&answer, "cmd").unwrap_or("")
            )
            .into());
        }
        Ok(answer)
    }

    fn wait(&self, flags: PollFlags) -> Result<(), String> {
        loop {
            let now = Instant::now();
            if self.deadline.has_passed(now) {
                return Err("no answer before the deadline".into());
            }
            let left = self.deadline.remaining(now).min(std::time::Duration::from_secs(3600));
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.fd, flags)], Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            self.wait(PollFlags::OUT)?;
            // A signal for a service that is gone must not end the process; a pipe takes no flag against it.
            let sent = match rustix::net::send(&self.fd, rest, rustix::net::SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::NOTSOCK) => rustix::io::write(&self.fd, rest),
                sent => sent,
            };
            match sent {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn read_line(&mut self) -> Result<String, String> {
        loop {
            if let Some(end) = self.arrived.iter().position(|&byte| byte == b'\n') {
                let rest = self.arrived.split_off(end + 1);
                let line = std::mem::replace(&mut self.arrived, rest);
                return Ok(String::from_utf8_lossy(&line).trim_end().to_string());
            }
            if self.arrived.len() > MAX_LINE {
                return Err(format!("a line of more than {MAX_LINE} bytes"));
            }
            self.wait(PollFlags::IN)?;
            let mut buffer = [0; 4096];
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) => return Err("the service closed".into()),
                Ok(count) => self.arrived.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// The value of a field in a line of the service.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    /// A service that expects these requests and gives these answers, in order; then it closes.
    fn serve(script: &'static [(&'static str, &'static str)]) -> (UnixStream, std::thread::JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for (request, answer) in script {
                assert_eq!(lines.next().unwrap().unwrap(), *request);
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
        });
        (ours, thread)
    }

    fn soon() -> Deadline {
        Deadline::after(Instant::now(), Duration::from_secs(20))
    }

    const BEGINNING: [(&str, &str); 3] = [
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_77_0\n"),
    ];

    #[test]
    fn rank_0_puts_and_all_get() {
        static SCRIPT: [(&str, &str); 7] = [
            BEGINNING[0],
            BEGINNING[1],
            BEGINNING[2],
            ("cmd=put kvsname=kvs_77_0 key=phalanx-rendezvous value=v1/a=b", "cmd=put_result rc=0 msg=success\n"),
            ("cmd=barrier_in", "cmd=barrier_out\n"),
            ("cmd=get kvsname=kvs_77_0 key=phalanx-rendezvous", "cmd=get_result rc=0 msg=success value=v1/a=b\n"),
            ("cmd=finalize", "cmd=finalize_ack\n"),
        ];
        let (stream, service) = serve(&SCRIPT);
        let mut pmi = Pmi::begin(stream.as_raw_fd(), soon()).unwrap();
        assert_eq!(pmi.max_value(), 1023);
        pmi.put("v1/a=b").unwrap();
        assert_eq!(pmi.meet().unwrap(), "v1/a=b");
        pmi.finish().unwrap();
        service.join().unwrap();
    }

    #[test]
    fn a_service_that_goes_away_or_speaks_otherwise_is_told() {
        static GONE: [(&str, &str); 1] = [BEGINNING[0]];
        static OTHER: [(&str, &str); 1] = [("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=-1\n")];
        static ODD: [(&str, &str); 1] = [("cmd=init pmi_version=1 pmi_subversion=1", "hello\n")];
        for (script, expected) in [(&GONE, "get_maxes: "), (&OTHER, "does not speak PMI-1"), (&ODD, "was answered by")]
        {
            let (stream, service) = serve(script);
            let Err(PmiError::Unusable(why)) = Pmi::begin(stream.as_raw_fd(), soon()) else { panic!("{expected}") };
            assert!(why.contains(expected), "{why}");
            service.join().unwrap();
        }
        let Err(PmiError::Unusable(why)) = Pmi::begin(i32::MAX, soon()) else { panic!() };
        assert!(why.contains("not an open descriptor"), "{why}");
    }

    #[test]
    fn a_barrier_that_others_do_not_enter_ends_at_the_deadline() {
        static SCRIPT: [(&str, &str); 4] = [BEGINNING[0], BEGINNING[1], BEGINNING[2], ("cmd=barrier_in", "")];
        let (ours, theirs) = UnixStream::pair().unwrap();
        let service = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for (request, answer) in SCRIPT {
                assert_eq!(lines.next().unwrap().unwrap(), request);
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
            theirs
        });
        let deadline = Deadline::after(Instant::now(), Duration::from_millis(150));
        let mut pmi = Pmi::begin(ours.as_raw_fd(), deadline).unwrap();
        assert_eq!(pmi.meet(), Err(PmiError::Barrier));
        drop(service.join().unwrap());
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let service = std::thread::spawn(move || {
            // It ends with the reader's closing.
            while (&theirs).write_all(&[b'x'; 4096]).is_ok() {}
        });
        let Err(PmiError::Unusable(why)) = Pmi::begin(ours.as_raw_fd(), soon()) else { panic!() };
        assert!(why.contains("a line of more than"), "{why}");
        drop(ours);
        service.join().unwrap();
    }
}
