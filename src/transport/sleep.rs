//! Where a process context sleeps when nothing can be done: one place for all its peers, whatever carries them.
//!
//! While only in-host peers are there, it sleeps on the word of its doorbell (a futex): that is the cheapest wake-up
//! there is. The kernel does not tell a word that a peer died, so that sleep is cut into slices, short ones at first, after
//! each of which the peers' descriptors are looked at. As soon as there is a socket that carries data, it sleeps on descriptors
//! (epoll), and in-host peers ring through an event descriptor which they got with the doorbell. An event descriptor and
//! not a byte on the peers' Unix sockets, because one serves all peers and the owner's own kicks, it is never full, it
//! needs no reading, and the sockets stay silent: whatever becomes readable there is the end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::board::Board;
use super::doorbell::{self, Alarm, Doorbell};
#[cfg(feature = "rdma")]
use super::heap::Heap;
use crate::sys::{Epoll, Interest, Readiness, Segment, futex};

/// How long the sleep on the word may last before the peers' descriptors are looked at: the delay with which the death
/// of an in-host peer is noticed by one who sleeps. At this length an otherwise idle waiter wakes 40 times a second,
/// some 0.02 % of a processor.
const SLICE: Duration = Duration::from_millis(25);

/// How long the first slice is. Each is twice as long as the one before: ranks that work wait a millisecond or two for each
/// other, and one that waits longer than that may wait for one that has just died.
const FIRST_SLICE: Duration = Duration::from_millis(1);

/// Reading only. Room to write is asked for while it is waited for (`want_write`), because a socket nearly always has
/// room, and an edge for arrived bytes that were taken long ago would be told again as room.
const READS: Interest = Interest { readable: true, writable: false, edge: true };

/// As `READS`, and room to write.
const READS_AND_WRITES: Interest = Interest { readable: true, writable: true, edge: true };

/// The place where a process context sleeps. One thread at a time sleeps; a second one waits its turn.
///
/// The order is: progress; `prepare_sleep` of every endpoint; if all say true, [`Sleeper::sleep`]; progress again.
/// It may wake for no reason.
#[derive(Debug)]
pub struct Sleeper {
    doorbell: Doorbell,
    segment: Segment,
    /// What in-host peers read, made when the first of them connects.
    board: OnceLock<Arc<Board>>,
    /// Whether they may read this process's other memory, too.
    single_copy: bool,
    epoll: Epoll,
    /// How many watched descriptors carry data: if any, the word alone is not enough.
    carriers: AtomicUsize,
    /// How often something was seen at a descriptor whose closing is watched.
    closings: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    found: Vec<Readiness>,
    /// When the descriptors were last looked at.
    looked: Instant,
}

/// What the descriptors of one kind are found under.
const EVENT: u64 = 0;
const CARRIER: u64 = 1;
const CLOSING: u64 = 2;

impl Sleeper {
    /// A place of its own for one context. Costs three descriptors and a page of shared memory.
    pub fn new() -> io::Result<Self> {
        let (doorbell, segment) = Doorbell::create()?;
        let epoll = Epoll::new()?;
        epoll.add(doorbell.event(), EVENT, READS)?;
        Ok(Self {
            doorbell,
            segment,
            board: OnceLock::new(),
            single_copy: false,
            epoll,
            carriers: AtomicUsize::new(0),
            closings: AtomicUsize::new(0),
            state: Mutex::new(State { found: Vec::new(), looked: Instant::now() }),
        })
    }

    /// Lets in-host peers read this process's memory where it is, if the machine allows it.
    pub fn with_single_copy(self, allowed: bool) -> Self {
        Self { single_copy: allowed, ..self }
    }

    fn alarm(&self) -> Alarm {
        if self.sleeps_on_memory() { Alarm::Word } else { Alarm::Event }
    }

    /// Whether only in-host peers are there.
    pub fn sleeps_on_memory(&self) -> bool {
        self.carriers.load(Ordering::Acquire) == 0
    }

    /// From now on the arrival of bytes at `fd`, and its closing, end the sleep. Told at each arrival, not as long as
    /// bytes are there: take everything before sleeping.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.epoll.add(fd, CARRIER, READS)?;
        self.carriers.fetch_add(1, Ordering::AcqRel);
        // One who sleeps on the word must change over.
        self.kick();
        Ok(())
    }

    /// Whether room to write at the watched `fd` ends the sleep too.
    pub fn want_write(&self, fd: impl AsFd, wanted: bool) -> io::Result<()> {
        self.epoll.modify(fd, CARRIER, if wanted { READS_AND_WRITES } else { READS })
    }

    /// Ends `watch`.
    pub fn unwatch(&self, fd: impl AsFd) {
        if self.epoll.remove(fd).is_ok() {
            self.carriers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// From now on the closing of `fd`, over which nothing is expected, ends the sleep, if not at once then within
    /// 25 ms.
    pub fn watch_closing(&self, fd: impl AsFd) -> io::Result<()> {
        self.epoll.add(fd, CLOSING, READS)
    }

    /// Ends `watch_closing`.
    pub fn unwatch_closing(&self, fd: impl AsFd) {
        // It was either there or never added.
        let _ = self.epoll.remove(fd);
    }

    /// Makes the sleep of now end, or else the next one return at once. From any thread.
    pub fn kick(&self) {
        self.doorbell.kick();
    }

    /// Marks that a sleep is coming: what the caller looks at after this, no in-host peer can change without ending the
    /// sleep.
    pub(super) fn arm(&self) {
        doorbell::arm(self.doorbell.word(), self.alarm());
    }

    /// What an in-host peer needs to ring, the segment with the word and the event descriptor; and the board, if there is
    /// memory for one.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let board = self.board().ok().map(|board| board.descriptor());
        [self.segment.as_fd(), self.doorbell.event()].into_iter().chain(board).collect()
    }

    /// What in-host peers read. Made when it is first asked for.
    pub(crate) fn board(&self) -> io::Result<&Arc<Board>> {
        if let Some(board) = self.board.get() {
            return Ok(board);
        }
        let made = Arc::new(Board::create(self.single_copy)?);
        Ok(self.board.get_or_init(|| made))
    }

    /// The memory of users' buffers, if any was asked for or any peer connected.
    #[cfg(feature = "rdma")]
    pub(super) fn heap(&self) -> Option<&Arc<Heap>> {
        self.board.get()?.heap()
    }

    /// Changes whenever something was seen at a descriptor whose closing is watched. Who watches one looks at it when
    /// this has changed, instead of before every sleep.
    pub(super) fn closings(&self) -> usize {
        self.closings.load(Ordering::Acquire)
    }

    /// Sleeps until a kick, a ring, an event at a watched descriptor, or `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let word = self.doorbell.word();
        let mut now = Instant::now();
        let end = now.checked_add(timeout);
        let mut slice = FIRST_SLICE;
        loop {
            let alarm = self.alarm();
            if !doorbell::enter(word, alarm) {
                // A peer that never ceases to ring must not keep the end of another one from being seen.
                if now.saturating_duration_since(state.looked) >= SLICE {
                    let _ = self.look(&mut state, Duration::ZERO);
                }
                return;
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(now));
            // The calls fail only on what this struct made wrong; the sleep then ends as by a spurious wake-up, and
            // the caller's deadline still holds.
            let outcome = match alarm {
                Alarm::Word => {
                    let slept = futex::wait(word, alarm.expected(), left.min(slice));
                    slice = (2 * slice).min(SLICE);
                    if word.load(Ordering::Relaxed) == alarm.expected() {
                        slept.and_then(|()| self.look(&mut state, Duration::ZERO))
                    } else {
                        // Rung or kicked: `enter` says so.
                        slept.map(|()| false)
                    }
                }
                Alarm::Event => self.look(&mut state, left),
            };
            now = Instant::now();
            if !matches!(outcome, Ok(false)) || end.is_some_and(|end| now >= end) {
                doorbell::leave(word);
                return;
            }
        }
    }

    /// Waits for the descriptors; whether anything was found.
    fn look(&self, state: &mut State, timeout: Duration) -> io::Result<bool> {
        state.found.clear();
        self.epoll.wait(Some(timeout), &mut state.found)?;
        state.looked = Instant::now();
        if state.found.iter().any(|found| found.key == CLOSING) {
            self.closings.fetch_add(1, Ordering::AcqRel);
        }
        Ok(!state.found.is_empty())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn remote(sleeper: &Sleeper) -> Doorbell {
        let [segment, event] = [sleeper.segment.as_fd(), sleeper.doorbell.event()];
        Doorbell::from_peer(segment.try_clone_to_owned().unwrap(), event.try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn kicks_are_sticky_and_single() {
        let sleeper = Sleeper::new().unwrap();
        sleeper.kick();
        sleeper.kick();
        sleeper.sleep(LONG);
        let before = Instant::now();
        sleeper.sleep(Duration::from_millis(60));
        assert!(before.elapsed() >= Duration::from_millis(60), "one sleep uses up all kicks before it");
    }

    #[test]
    fn a_kick_from_another_thread_ends_either_sleep() {
        for with_socket in [false, true] {
            let sleeper = Arc::new(Sleeper::new().unwrap());
            let (ours, _theirs) = UnixStream::pair().unwrap();
            if with_socket {
                sleeper.watch(&ours).unwrap();
            }
            let kicker = sleeper.clone();
            let thread = std::thread::spawn(move || kicker.kick());
            sleeper.sleep(LONG);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_ring_reaches_either_sleep() {
        for with_socket in [false, true] {
            let sleeper = Arc::new(Sleeper::new().unwrap());
            let (ours, _theirs) = UnixStream::pair().unwrap();
            if with_socket {
                sleeper.watch(&ours).unwrap();
                sleeper.sleep(LONG); // the kick of `watch`
            }
            let bell = remote(&sleeper);
            bell.ring();
            sleeper.arm();
            let thread = std::thread::spawn(move || bell.ring());
            sleeper.sleep(LONG);
            thread.join().unwrap();
        }
    }

    #[test]
    fn arrival_and_closing_end_the_sleep() {
        let sleeper = Sleeper::new().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        sleeper.watch(&ours).unwrap();
        sleeper.sleep(LONG); // the kick of `watch`
        theirs.write_all(b"x").unwrap();
        sleeper.sleep(LONG);
        sleeper.unwatch(&ours);
        sleeper.watch_closing(&ours).unwrap();
        sleeper.sleep(LONG); // the byte is still there
        drop(theirs);
        sleeper.sleep(LONG);
    }

    #[test]
    fn room_to_write_ends_the_sleep() {
        let sleeper = Sleeper::new().unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        sleeper.watch(&ours).unwrap();
        sleeper.sleep(LONG); // the kick of `watch`
        while ours.write(&[0; 4096]).is_ok() {}
        sleeper.want_write(&ours, true).unwrap();
        let reader = std::thread::spawn(move || {
            let mut sink = vec![0; 1 << 20];
            assert_ne!(theirs.read(&mut sink).unwrap(), 0);
            theirs
        });
        sleeper.sleep(LONG);
        assert!(ours.write(&[0; 16]).is_ok());
        drop(reader.join().unwrap());
    }
}
