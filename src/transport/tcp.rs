//! A TCP connection as a lane.
//!
//! Small messages go out at once (`TCP_NODELAY`): whoever writes has already put together what belongs together, head
//! and body in one call. Arriving bytes go through a window of [`WINDOW_BYTES`], which takes many small messages with
//! one call; the payload of a large message goes straight to its place, and the same call brings what follows it, the
//! next head, into the window.
//!
//! # How a dead peer is noticed
//!
//! The end of a process closes its connections, which is noticed at once. A host that vanishes says nothing; the
//! operation that waits for it ends at its own deadline, which is shorter than anything set here, so this is only for
//! connections over which nothing is being done: keepalive probes ([`KEEPALIVE_IDLE`] and so on) break them in the
//! end, and keep address translators on the way from forgetting them meanwhile. `TCP_USER_TIMEOUT` stays unset: a host
//! that is paused for half a minute, as when a virtual machine moves, need not cost a job whose deadlines allow it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::lane::{Lane, LaneError, MIN_WINDOW};
use super::sleep::Sleeper;
use crate::sys::{Uninherited, socket};
use crate::types::TransportKind;

/// The size of the window: enough that the payload of middling messages is reduced straight from it, while it stays in
/// a processor's own cache.
pub const WINDOW_BYTES: usize = 128 << 10;

const _: () = assert!(WINDOW_BYTES >= 2 * MIN_WINDOW);

/// How much is received at once where a header is looked for: many short messages. More of a long one would only be
/// copied a second time on its way to its place.
const HEADERS_BYTES: usize = 16 << 10;

/// How much of what follows a long payload is received in one call with it: the next header, and no long payload.
const SPARE_BYTES: usize = 4 << 10;

/// What is asked for at most where a header is looked for.
const SHORT: usize = 256;

/// How long a connection is silent before it is probed.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// How far apart probes are.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// After how many lost probes a connection is broken.
pub const KEEPALIVE_PROBES: u32 = 6;

/// How much is read and thrown away before closing, see `drop`.
const CLOSING_READ_BYTES: usize = 1 << 20;

/// A lane over one TCP connection.
pub struct TcpLane {
    socket: Uninherited<OwnedFd>,
    sleeper: Arc<Sleeper>,
    link: Arc<str>,
    window: Box<[u8]>,
    /// The part of the window that has arrived and is not consumed.
    start: usize,
    end: usize,
    /// The last call to receive was given less than it had room for: there was no more.
    drained: bool,
    /// Why nothing more will arrive.
    read_end: Option<LaneError>,
    /// Why nothing more can be written. Told by the reading side after everything that arrived: the peer may have said
    /// goodbye before it closed.
    write_end: Option<Arc<str>>,
    /// Whether the sleeper was asked for room to write.
    write_wanted: bool,
    /// Whether the caller knows that nothing more will arrive.
    end_told: bool,
}

impl TcpLane {
    /// Takes a connected non-blocking socket on which both sides have proved who they are.
    pub(super) fn new(socket: Uninherited<OwnedFd>, link: Arc<str>, sleeper: Arc<Sleeper>) -> io::Result<Self> {
        socket::set_no_delay(&socket)?;
        socket::set_keepalive(&socket, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES)?;
        sleeper.watch(&socket)?;
        Ok(Self {
            socket,
            sleeper,
            link,
            window: vec![0; WINDOW_BYTES].into(),
            start: 0,
            end: 0,
            drained: false,
            read_end: None,
            write_end: None,
            write_wanted: false,
            end_told: false,
        })
    }

    fn window_bytes(&self) -> usize {
        self.end - self.start
    }

    /// What a call to receive brought; 0 if nothing has arrived.
    fn note_received(&mut self, outcome: io::Result<usize>) -> usize {
        match outcome {
            Ok(0) => {
                self.read_end = Some(match &self.write_end {
                    Some(what) => LaneError::Broken(what.clone()),
                    None => LaneError::Closed,
                });
                0
            }
            Ok(count) => count,
            Err(error) if is_temporary(&error) => 0,
            Err(error) => {
                self.read_end = Some(LaneError::Broken(error.to_string().into()));
                0
            }
        }
    }

    /// Receives into the free part of the window, `most` bytes at most. Whether anything came.
    fn receive(&mut self, most: usize) -> bool {
        if self.read_end.is_some() {
            return false;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.window.len() - self.end < MIN_WINDOW && self.start > 0 {
            self.window.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.window.len() {
            return false;
        }
        let room = self.window.len().min(self.end + most);
        let outcome = socket::recv(&self.socket, &mut self.window[self.end..room]);
        let count = self.note_received(outcome);
        self.end += count;
        self.drained = self.end < room;
        count > 0
    }

    fn told(&mut self, error: LaneError) -> LaneError {
        self.end_told = true;
        error
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Lane for TcpLane {
    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn link(&self) -> Arc<str> {
        self.link.clone()
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        if self.write_end.is_some() || (head.is_empty() && body.is_empty()) {
            return Ok(0);
        }
        let outcome =
            if body.is_empty() { socket::send(&self.socket, head) } else { socket::send_two(&self.socket, head, body) };
        match outcome {
            Ok(count) => Ok(count),
            Err(error) if is_temporary(&error) => Ok(0),
            Err(error) => {
                self.write_end = Some(error.to_string().into());
                Ok(0)
            }
        }
    }

    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError> {
        debug_assert!(wanted <= MIN_WINDOW);
        if self.window_bytes() < wanted {
            self.receive(if wanted <= SHORT { HEADERS_BYTES } else { WINDOW_BYTES });
            // What arrived before the end is shown, and the end once that is consumed.
            if self.window_bytes() == 0
                && let Some(end) = self.read_end.clone()
            {
                return Err(self.told(end));
            }
        }
        Ok(&self.window[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.window_bytes());
        self.start += count.min(self.window_bytes());
    }

    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError> {
        let from_window = bytes.min(self.window_bytes());
        if from_window > 0 {
            let source = &self.window[self.start..self.start + from_window];
            // SAFETY: the target is writable by the caller's promise and no part of the window.
            unsafe { target.copy_from_nonoverlapping(source.as_ptr(), from_window) };
            self.start += from_window;
        }
        if from_window == bytes {
            return Ok(bytes);
        }
        if self.read_end.is_none() {
            // The window is empty here.
            (self.start, self.end) = (0, 0);
            let left = bytes - from_window;
            // SAFETY: the rest of the target, by the caller's promise.
            let outcome = unsafe {
                socket::recv_two(&self.socket, target.add(from_window), left, &mut self.window[..SPARE_BYTES])
            };
            let count = self.note_received(outcome);
            self.end = count.saturating_sub(left);
            self.drained = count < left + SPARE_BYTES;
            if count > 0 {
                return Ok(from_window + count.min(left));
            }
        }
        match &self.read_end {
            Some(end) if from_window == 0 => Err(self.told(end.clone())),
            _ => Ok(from_window),
        }
    }

    fn may_have_more(&self) -> bool {
        !self.drained || self.window_bytes() > 0 || (self.read_end.is_some() && !self.end_told)
    }

    fn prepare_sleep(&mut self, wants_write: bool) -> bool {
        // The sleeper is told of arrivals as they happen, so what arrived before must be taken now. A full window
        // waits for its consumer, and is known to it.
        let had_ended = self.read_end.is_some();
        let came = self.receive(WINDOW_BYTES);
        let ends_now = self.read_end.is_some() && !had_ended;
        let end_is_next = self.read_end.is_some() && !self.end_told && self.window_bytes() == 0;
        if came || ends_now || end_is_next {
            return false;
        }
        let wants_write = wants_write && self.write_end.is_none();
        if wants_write != self.write_wanted {
            if self.sleeper.want_write(&self.socket, wants_write).is_err() {
                return false;
            }
            self.write_wanted = wants_write;
        }
        // A failed write is told by the reading side, which the kernel ends as well.
        !(wants_write && socket::is_writable(&self.socket))
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        self.sleeper.unwatch(&self.socket);
        socket::end_writing(&self.socket);
        // Closing with unread bytes resets the connection, and a reset takes back what the peer has not received yet:
        // our goodbye, perhaps. So what has arrived is taken first, within a limit.
        let mut left = CLOSING_READ_BYTES;
        while left > 0 {
            match socket::recv(&self.socket, &mut self.window) {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// A lane, its sleeper, and the raw other end.
    fn link() -> (TcpLane, Arc<Sleeper>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let sleeper = Arc::new(Sleeper::new().unwrap());
        (TcpLane::new(OwnedFd::from(ours).into(), "tcp".into(), sleeper.clone()).unwrap(), sleeper, theirs)
    }

    fn wait_for(lane: &mut TcpLane, sleeper: &Sleeper, wanted: usize) {
        while lane.fill(wanted).unwrap().len() < wanted {
            if lane.prepare_sleep(false) {
                sleeper.sleep(LONG);
            }
        }
    }

    fn end_of(lane: &mut TcpLane, sleeper: &Sleeper) -> LaneError {
        loop {
            if let Err(end) = lane.fill(1) {
                return end;
            }
            if lane.prepare_sleep(false) {
                sleeper.sleep(LONG);
            }
        }
    }

    /// A peer that says its last words and is gone may be so before its connection becomes a lane here.
    #[test]
    fn a_connection_that_was_reset_still_becomes_a_lane() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        // Closed with unread bytes: reset.
        ours.write_all(b"unread").unwrap();
        theirs.peek(&mut [0; 6]).unwrap();
        drop(theirs);
        while ours.peer_addr().is_ok() {
            std::thread::yield_now();
        }
        let sleeper = Arc::new(Sleeper::new().unwrap());
        let mut lane = TcpLane::new(OwnedFd::from(ours).into(), "tcp".into(), sleeper.clone()).unwrap();
        assert!(matches!(end_of(&mut lane, &sleeper), LaneError::Broken(_)));
    }

    #[test]
    fn head_and_body_go_out_together() {
        let (mut lane, _, mut theirs) = link();
        assert_eq!(lane.write(b"head", b"body"), Ok(8));
        let mut bytes = [0; 8];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"headbody");
        assert_eq!(lane.write(b"", b""), Ok(0));
    }

    #[test]
    fn a_payload_goes_to_its_place_and_what_follows_to_the_window() {
        let (mut lane, sleeper, mut theirs) = link();
        theirs.write_all(b"0123456789abcdef").unwrap();
        wait_for(&mut lane, &sleeper, 1);
        // However the bytes came in pieces, they are told apart.
        let mut target = [0; 10];
        let mut have = 0;
        while have < 10 {
            // SAFETY: the rest of a buffer of our own.
            have += unsafe { lane.read_into(target[have..].as_mut_ptr(), 10 - have) }.unwrap();
        }
        assert_eq!(&target, b"0123456789");
        wait_for(&mut lane, &sleeper, 6);
        assert_eq!(lane.fill(6).unwrap(), b"abcdef");
        lane.consume(6);
        // SAFETY: a buffer of our own.
        assert_eq!(unsafe { lane.read_into(target.as_mut_ptr(), 10) }, Ok(0), "nothing there is no end");

        // More than the target in one arrival: the rest is in the window without another call.
        theirs.write_all(b"XYZ").unwrap();
        while !lane.sleeper_has_news() {}
        let mut two = [0; 2];
        // SAFETY: a buffer of our own.
        assert_eq!(unsafe { lane.read_into(two.as_mut_ptr(), 2) }, Ok(2));
        assert_eq!((&two, lane.window_bytes()), (b"XY", 1));
    }

    impl TcpLane {
        /// Whether bytes wait in the kernel.
        fn sleeper_has_news(&self) -> bool {
            crate::sys::unix::look(&self.socket) == crate::sys::unix::Quiet::Speaking
        }
    }

    #[test]
    fn a_window_is_refilled_across_its_end() {
        let (mut lane, sleeper, mut theirs) = link();
        let writer = std::thread::spawn(move || {
            let pattern: Vec<u8> = (0..10 * WINDOW_BYTES).map(|index| (index % 251) as u8).collect();
            theirs.write_all(&pattern).unwrap();
            theirs
        });
        let mut next = 0;
        while next < 10 * WINDOW_BYTES {
            let wanted = MIN_WINDOW.min(10 * WINDOW_BYTES - next);
            wait_for(&mut lane, &sleeper, wanted);
            let window = lane.fill(wanted).unwrap();
            assert!(window[..wanted].iter().enumerate().all(|(index, &byte)| byte == ((next + index) % 251) as u8));
            lane.consume(wanted);
            next += wanted;
        }
        drop(writer.join().unwrap());
    }

    #[test]
    fn what_took_everything_says_so() {
        let (mut lane, sleeper, mut theirs) = link();
        theirs.write_all(&[1; 100]).unwrap();
        wait_for(&mut lane, &sleeper, 100);
        lane.consume(100);
        assert!(!lane.may_have_more(), "fewer bytes came than there was room for");
        theirs.write_all(&[1; 2 * HEADERS_BYTES]).unwrap();
        wait_for(&mut lane, &sleeper, MIN_WINDOW);
        assert!(lane.may_have_more(), "what is shown is not consumed");
        drop(theirs);
        while let Ok(window) = lane.fill(1) {
            let count = window.len();
            lane.consume(count);
            if count == 0 && lane.prepare_sleep(false) {
                sleeper.sleep(LONG);
            }
        }
        assert!(!lane.may_have_more(), "the end was told");
    }

    #[test]
    fn room_to_write_wakes() {
        let (mut lane, sleeper, mut theirs) = link();
        let bytes = vec![1; 1 << 20];
        let mut sent = 0;
        loop {
            match lane.write(&bytes, &[]).unwrap() {
                0 => break,
                count => sent += count,
            }
        }
        while !lane.prepare_sleep(true) {}
        let reader = std::thread::spawn(move || {
            let mut sink = vec![0; sent];
            theirs.read_exact(&mut sink).unwrap();
            theirs
        });
        while lane.write(b"more", &[]).unwrap() == 0 {
            if lane.prepare_sleep(true) {
                sleeper.sleep(LONG);
            }
        }
        drop(reader.join().unwrap());
    }

    #[test]
    fn the_end_comes_after_what_was_sent_and_a_failed_write_does_not_hide_it() {
        let (mut lane, sleeper, mut theirs) = link();
        theirs.write_all(b"goodbye").unwrap();
        drop(theirs);
        // Writing into a closed connection fails from the second time on.
        for _ in 0..100 {
            assert!(lane.write(b"are you there", &[]).is_ok());
        }
        wait_for(&mut lane, &sleeper, 7);
        assert_eq!(lane.fill(7).unwrap(), b"goodbye");
        lane.consume(7);
        assert!(matches!(end_of(&mut lane, &sleeper), LaneError::Closed | LaneError::Broken(_)));
        assert!(lane.prepare_sleep(true), "nothing more can happen");
    }

    #[test]
    fn a_reset_is_broken_and_a_close_is_closed() {
        let (mut lane, sleeper, theirs) = link();
        socket2::SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).unwrap();
        drop(theirs);
        assert!(matches!(end_of(&mut lane, &sleeper), LaneError::Broken(_)));

        let (mut lane, sleeper, theirs) = link();
        drop(theirs);
        assert_eq!(end_of(&mut lane, &sleeper), LaneError::Closed);
    }

    #[test]
    fn closing_with_unread_bytes_does_not_take_back_what_was_said() {
        let (mut lane, _, mut theirs) = link();
        theirs.write_all(&[0; 100_000]).unwrap();
        assert_eq!(lane.write(b"goodbye", &[]), Ok(7));
        drop(lane);
        let mut said = Vec::new();
        theirs.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"goodbye");
    }
}
