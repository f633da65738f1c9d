//! Where the launcher's output goes, without ever waiting for its reader.
//!
//! The descriptors 1 and 2 are shared with other processes, so they must not be made non-blocking. How a write is kept
//! from waiting depends on what the descriptor is:
//!
//! - a pipe that is ready takes at least one page whole;
//! - a socket has a flag for each call;
//! - a terminal is opened again, which makes a description of our own that may be non-blocking;
//! - a file does not wait for a reader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ready means that one page can be written.
    Ready,
    Socket,
    /// Does not block.
    Free,
}

/// Why a destination takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its reader is gone.
    NoReader,
    /// An error, such as a full disk.
    Error(i32),
}

/// A destination with a queue.
#[derive(Debug)]
pub struct Sink {
    fd: OwnedFd,
    kind: Kind,
    queue: Vec<u8>,
    written: usize,
    closed: Option<Closed>,
    same_as: (u64, u64),
}

/// What a pipe takes at once when it is ready.
const PAGE_BYTES: usize = 4096;

impl Sink {
    /// With more than this in the queue, the workers' output is left in their pipes.
    pub const FULL_BYTES: usize = 1 << 20;

    /// For a descriptor of this process; the descriptor itself is left as it is.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3)?;
        let (fd, kind) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo => (copy, Kind::Ready),
            FileType::Socket => (copy, Kind::Socket),
            FileType::CharacterDevice if rustix::termios::isatty(&copy) => {
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy));
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                match rustix::fs::open(path, flags, Mode::empty()) {
                    Ok(own) => (own, Kind::Free),
                    Err(_) => (copy, Kind::Ready),
                }
            }
            _ => (copy, Kind::Free),
        };
        Ok(Self { fd, kind, queue: Vec::new(), written: 0, closed: None, same_as: (stat.st_dev, stat.st_ino) })
    }

    /// Whether both lead to the same file, pipe or terminal.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.same_as == other.same_as
    }

    /// Puts bytes into the queue and leaves `bytes` empty.
    pub fn push(&mut self, bytes: &mut Vec<u8>) {
        if self.closed.is_none() {
            self.queue.append(bytes);
        }
        bytes.clear();
    }

    /// Whether no more should be pushed now.
    pub fn is_full(&self) -> bool {
        self.queue.len() - self.written >= Self::FULL_BYTES
    }

    /// Whether everything is written, or nothing can be.
    pub fn is_empty(&self) -> bool {
        self.queue.len() == self.written
    }

    /// Forgets what is not written. Returns how many bytes that were.
    pub fn clear(&mut self) -> usize {
        let left = self.queue.len() - self.written;
        self.queue.clear();
        self.written = 0;
        left
    }

    /// Why nothing can be written any more.
    pub fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Writes what can be written without waiting.
    pub fn try_flush(&mut self) {
        while self.closed.is_none() {
            let Some(rest) = self.queue.get(self.written..).filter(|rest| !rest.is_empty()) else { break };
            let done = match self.kind {
                Kind::Free => rustix::io::write(&self.fd, rest),
                Kind::Socket => rustix::net::send(&self.fd, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                Kind::Ready if !self.is_ready() => return self.compact(),
                Kind::Ready => rustix::io::write(&self.fd, rest.get(..PAGE_BYTES).unwrap_or(rest)),
            };
            match done {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.compact(),
                Err(Errno::PIPE | Errno::CONNRESET) => self.closed = Some(Closed::NoReader),
                Err(error) => self.closed = Some(Closed::Error(error.raw_os_error())),
            }
        }
        self.queue.clear();
        self.written = 0;
        self.queue.shrink_to(Self::FULL_BYTES);
    }

    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }

    fn compact(&mut self) {
        // Not each time, or a slow reader would cost a move of the whole queue a page.
        if self.written >= Self::FULL_BYTES {
            self.queue.drain(..self.written);
            self.written = 0;
        }
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_does_not_read_is_not_waited_for() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let mut sink = Sink::new(writer.as_fd()).expect("a sink");
        drop(writer);
        let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        sink.push(&mut sent.clone());
        sink.try_flush();
        assert!(!sink.is_empty());
        let mut got = Vec::new();
        let mut bytes = [0; 10_000];
        while !sink.is_empty() {
            let count = rustix::io::read(&reader, &mut bytes).expect("readable");
            got.extend_from_slice(&bytes[..count]);
            sink.try_flush();
        }
        while got.len() < sent.len() {
            let count = rustix::io::read(&reader, &mut bytes).expect("readable");
            got.extend_from_slice(&bytes[..count]);
        }
        assert_eq!(got, sent);
        drop(reader);
        sink.push(&mut vec![1]);
        sink.try_flush();
        assert_eq!(sink.closed(), Some(Closed::NoReader));
        assert!(sink.is_empty());
    }
}
