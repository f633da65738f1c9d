//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;

/// `duration` as the kernel wants it. Lengths that it cannot hold become very long ones.
pub(super) fn timespec(duration: Duration) -> Timespec {
    let seconds = duration.as_secs().min(i32::MAX as u64);
    Timespec { tv_sec: seconds as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// What to be told about a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Bytes or connections to take, or the peer's closing.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
    /// Told once for each change instead of as long as it lasts.
    pub edge: bool,
}

impl Interest {
    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        if self.readable {
            flags |= EventFlags::IN | EventFlags::RDHUP;
        }
        if self.writable {
            flags |= EventFlags::OUT;
        }
        if self.edge {
            flags |= EventFlags::ET;
        }
        flags
    }
}

/// What a wait has found about one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The key the descriptor was added with.
    pub key: u64,
    /// There is something to read, closing and errors included.
    pub readable: bool,
    /// There is room to write, or an error to be had by writing.
    pub writable: bool,
    /// The peer has closed, or the connection broke.
    pub hung_up: bool,
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor under `key`.
    pub fn add(&self, fd: impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(key), interest.flags())?)
    }

    /// Changes the interest in a descriptor. What is true already is told again.
    pub fn modify(&self, fd: impl AsFd, key: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(key), interest.flags())?)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits at most `timeout` and appends what was found to `found` (up to 64 at once). A signal ends the wait with
    /// nothing found.
    pub fn wait(&self, timeout: Option<Duration>, found: &mut Vec<Readiness>) -> io::Result<()> {
        let mut buffer = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        // Whole milliseconds, rounded up: older kernels know nothing finer, and waking too early would only make the
        // caller come back.
        let timeout = timeout.map(|length| {
            let millis = length.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u64;
            timespec(Duration::from_millis(millis))
        });
        let (events, _) = match epoll::wait(&self.0, &mut buffer, timeout.as_ref()) {
            Ok(events) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        found.extend(events.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            Readiness {
                key: data.u64(),
                readable: broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                writable: broken || flags.contains(EventFlags::OUT),
                hung_up: broken || flags.contains(EventFlags::RDHUP),
            }
        }));
        Ok(())
    }
}

/// A descriptor that anyone who holds it can make readable.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, not signalled.
    pub fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// One that a peer sent. Any other kind of descriptor is refused: writing to it might block, or raise a signal.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            let what = format!("the peer's descriptor is no event descriptor but {}", kind.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self(fd))
    }

    /// Signals. Never blocks; fails only when the descriptor is no event descriptor.
    pub fn signal(&self) -> io::Result<()> {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            // The counter is full: it has been signalled quite enough.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes all signals back.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        // Nothing to read is as good as read.
        let _ = rustix::io::read(&self.0, &mut counter);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: Interest = Interest { readable: true, writable: false, edge: true };

    fn wait(epoll: &Epoll, millis: u64) -> Vec<Readiness> {
        let mut found = Vec::new();
        epoll.wait(Some(Duration::from_millis(millis)), &mut found).unwrap();
        found
    }

    #[test]
    fn each_signal_is_an_edge_without_reading() {
        let epoll = Epoll::new().unwrap();
        let event = EventFd::new().unwrap();
        epoll.add(&event, 5, EDGE).unwrap();
        assert_eq!(wait(&epoll, 0), []);
        for _ in 0..3 {
            event.signal().unwrap();
            assert_eq!(wait(&epoll, 1000).iter().map(|found| found.key).collect::<Vec<_>>(), [5]);
            assert_eq!(wait(&epoll, 0), []);
        }
    }

    #[test]
    fn only_event_descriptors_are_taken_for_such() {
        let event = EventFd::new().unwrap();
        let again = EventFd::from_peer(event.as_fd().try_clone_to_owned().unwrap()).unwrap();
        again.signal().unwrap();
        let (_reader, writer) = io::pipe().unwrap();
        assert!(EventFd::from_peer(writer.into()).unwrap_err().to_string().contains("no event descriptor"));
    }

    #[test]
    fn a_closed_peer_is_told() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add(&ours, 1, EDGE).unwrap();
        assert_eq!(wait(&epoll, 0), []);
        drop(theirs);
        assert!(wait(&epoll, 1000)[0].hung_up);
    }
}
