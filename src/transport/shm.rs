//! Shared memory between two processes of one host: two rings of bytes, one each way.
//!
//! The side that dialled makes one nameless segment for the pair and passes it over the Unix socket on which both have
//! proved who they are: a page of counters, then the two rings, each mapped twice in a row so that every window of it
//! is one piece. The socket stays open and silent: when it hangs up, the peer is gone. The peer's process is also
//! held by its descriptor where that is possible, because a child that a dying peer had forked keeps its sockets open.
//!
//! # The size of a ring
//!
//! [`DEFAULT_RING_BYTES`] each way. A ring is written and read once a lap, so it is best if a lap stays in a
//! processor's own cache: beyond that (1 to 2 MiB on today's servers, shared with the user's data) every byte goes out
//! to a slower cache, or to memory, and back. Below some 100 KiB, on the other hand, two ranks that share a processor
//! change places too often. And all ranks of a large host may talk to all: 64 ranks have 2016 pairs, which is 1 GiB at
//! 256 KiB each way, and would be 4 GiB at 1 MiB. Pairs are connected when they first speak, so that rings and trees
//! come to a few pairs a rank.
//!
//! # Sleeping
//!
//! Whoever publishes bytes rings the peer's doorbell, which costs a system call only if the peer sleeps. A reader who
//! gives room back rings only if the writer has said that it waits for room (`writer_waits`).
//!
//! # Trust
//!
//! Counters are checked (see `ring`); the segment's size is sealed. A peer that has proved knowledge of the key can
//! still change bytes after it has published them: whoever parses them takes each value once and then checks it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::board::Neighbour;
use super::lane::{Lane, LaneError, MIN_WINDOW};
use super::ring::{Impossible, Reader, Writer};
use super::sleep::Sleeper;
use crate::sys::process::PidFd;
use crate::sys::unix::{self, Quiet};
use crate::sys::{self, Mapping, RingMapping, Segment, Uninherited};
use crate::types::TransportKind;

/// The size of each of the two rings of a pair, unless the user says otherwise.
pub const DEFAULT_RING_BYTES: usize = 256 << 10;

/// The smallest ring: it holds the largest window that is ever asked for, and is whole pages on any machine.
pub const MIN_RING_BYTES: usize = 64 << 10;

/// The largest ring.
pub const MAX_RING_BYTES: usize = 64 << 20;

const _: () = assert!(MIN_RING_BYTES >= MIN_WINDOW);

/// How much is copied before it is published: the reader begins to read while the writer still writes, and the price
/// of publishing (a fence, a cache line that travels) stays small beside the copy.
const PIECE_BYTES: usize = 16 << 10;

/// After how many looks in vain the peer is looked after, by one who never sleeps.
const LOOKS_PER_CHECK: u32 = 1024;

/// Counters are this far apart: two cache lines, because processors fetch neighbours in pairs.
const LINE: usize = 128;

/// Whether a ring may have this size.
pub fn is_ring_size(bytes: usize) -> bool {
    bytes.is_power_of_two() && (MIN_RING_BYTES..=MAX_RING_BYTES).contains(&bytes)
}

fn header_bytes() -> usize {
    sys::page_bytes().max(6 * LINE)
}

/// Makes the segment of a pair with rings of `ring_bytes`. Fails if the machine has not the memory, or forbids this
/// kind of it.
pub(super) fn create_segment(ring_bytes: usize) -> io::Result<Segment> {
    Segment::create("phalanx-pair", header_bytes() + 2 * ring_bytes)
}

/// Checks the segment of a pair that a peer made.
pub(super) fn accept_segment(fd: OwnedFd, ring_bytes: usize) -> io::Result<Segment> {
    if !is_ring_size(ring_bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("no size for a ring: {ring_bytes}")));
    }
    Segment::from_peer(fd, header_bytes() + 2 * ring_bytes)
}

/// Which of the two rings is written by this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The side that made the segment writes the first.
    Maker,
    /// The other side writes the second.
    Taker,
}

/// The shared words of one ring.
#[derive(Clone, Copy, Debug)]
struct Words {
    first: usize,
}

/// Everything that is mapped for one pair.
#[derive(Debug)]
pub(super) struct Pair {
    ring_bytes: usize,
    header: Mapping,
    outgoing: RingMapping,
    incoming: RingMapping,
    out_words: Words,
    in_words: Words,
}

impl Pair {
    pub(super) fn map(segment: &Segment, ring_bytes: usize, side: Side) -> io::Result<Self> {
        let first = RingMapping::new(segment, header_bytes(), ring_bytes)?;
        let second = RingMapping::new(segment, header_bytes() + ring_bytes, ring_bytes)?;
        let (first_words, second_words) = (Words { first: 0 }, Words { first: 3 * LINE });
        let header = Mapping::new(segment, 0, header_bytes())?;
        Ok(match side {
            Side::Maker => Self {
                ring_bytes,
                header,
                outgoing: first,
                incoming: second,
                out_words: first_words,
                in_words: second_words,
            },
            Side::Taker => Self {
                ring_bytes,
                header,
                outgoing: second,
                incoming: first,
                out_words: second_words,
                in_words: first_words,
            },
        })
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + LINE <= self.header.bytes());
        // SAFETY: the offset is one of the six multiples of a line inside the header, which is mapped as long as
        // `self`; all processes use these bytes only as an atomic.
        unsafe { self.header.start().add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn head(&self, words: Words) -> &AtomicU64 {
        self.counter(words.first)
    }

    fn tail(&self, words: Words) -> &AtomicU64 {
        self.counter(words.first + LINE)
    }

    /// Written by the writer of a ring: whether it waits for room.
    fn writer_waits(&self, words: Words) -> &AtomicU32 {
        let offset = words.first + 2 * LINE;
        debug_assert!(offset + LINE <= self.header.bytes());
        // SAFETY: as in `counter`.
        unsafe { self.header.start().add(offset).cast::<AtomicU32>().as_ref() }
    }
}

/// What the two ends of a pair have agreed on over their Unix socket.
#[derive(Debug)]
pub(super) struct ShmParts {
    /// Stays open; its hang-up is the peer's end.
    pub(super) socket: Uninherited<OwnedFd>,
    /// The peer's process, where it can be held.
    pub(super) process: Option<PidFd>,
    /// How to wake the peer, and what it shows.
    pub(super) neighbour: Neighbour,
    pub(super) pair: Pair,
    /// The peer's rank.
    pub(super) peer: usize,
}

/// A lane through shared memory.
pub struct ShmLane {
    pair: Pair,
    writer: Writer,
    reader: Reader,
    socket: Uninherited<OwnedFd>,
    process: Option<PidFd>,
    neighbour: Neighbour,
    sleeper: Arc<Sleeper>,
    link: Arc<str>,
    /// Whether `writer_waits` is set.
    waiting: bool,
    looks_in_vain: u32,
    /// The sleeper's count of closings when the peer was last looked after.
    closings: usize,
    /// The peer is gone: what it wrote is still to be read.
    gone: bool,
    /// What the end was, once it is known.
    end: Option<LaneError>,
}

impl ShmLane {
    pub(super) fn new(parts: ShmParts, sleeper: Arc<Sleeper>) -> io::Result<Self> {
        let ShmParts { socket, process, neighbour, pair, peer } = parts;
        let ring_bytes = pair.ring_bytes;
        sleeper.watch_closing(&socket)?;
        if let Some(process) = &process {
            sleeper.watch_closing(process).inspect_err(|_| sleeper.unwatch_closing(&socket))?;
        }
        Ok(Self {
            pair,
            writer: Writer::new(ring_bytes),
            reader: Reader::new(ring_bytes),
            socket,
            process,
            neighbour,
            sleeper,
            link: format!("shm rank {peer}").into(),
            waiting: false,
            looks_in_vain: 0,
            // Not the present count: what may have happened before the watch is looked at once.
            closings: usize::MAX,
            gone: false,
            end: None,
        })
    }

    fn broken(&mut self, what: impl std::fmt::Display) -> LaneError {
        let error = LaneError::Broken(what.to_string().into());
        self.end = Some(error.clone());
        error
    }

    fn impossible(&mut self, what: Impossible) -> LaneError {
        self.broken(what)
    }

    /// Whether the peer turns out to be gone, or to have spoken where it should be silent.
    fn look_after_peer(&mut self) -> Result<bool, LaneError> {
        match unix::look(&self.socket) {
            Quiet::Silent => self.gone = self.process.as_ref().is_some_and(PidFd::has_ended),
            Quiet::HungUp => self.gone = true,
            Quiet::Speaking => {
                return Err(self.broken("the peer spoke on the socket of a shared memory link"));
            }
        }
        Ok(self.gone)
    }

    /// Looks for new bytes until at least `wanted` are known or there are no more for now.
    fn arrived(&mut self, wanted: usize) -> Result<usize, LaneError> {
        let head = self.pair.head(self.pair.in_words);
        let known = match self.reader.available(wanted, head) {
            Ok(known) => known,
            Err(what) => return Err(self.impossible(what)),
        };
        if known >= wanted {
            self.looks_in_vain = 0;
            return Ok(known);
        }
        self.arrived_too_few(known)
    }

    #[cold]
    fn arrived_too_few(&mut self, known: usize) -> Result<usize, LaneError> {
        if let Some(end) = &self.end {
            return if known > 0 && *end == LaneError::Closed { Ok(known) } else { Err(end.clone()) };
        }
        self.looks_in_vain += 1;
        if !self.gone && self.looks_in_vain >= LOOKS_PER_CHECK {
            self.looks_in_vain = 0;
            self.look_after_peer()?;
        }
        if !self.gone {
            return Ok(known);
        }
        // What it wrote before it went has been written by now: this look is the last.
        let head = self.pair.head(self.pair.in_words);
        if let Err(what) = self.reader.look(head) {
            return Err(self.impossible(what));
        }
        let known = self.reader.known();
        if known > 0 {
            return Ok(known);
        }
        self.end = Some(LaneError::Closed);
        Err(LaneError::Closed)
    }

    fn take(&mut self, count: usize) {
        let tail = self.pair.tail(self.pair.in_words);
        if self.reader.take(count, tail) {
            // Against the writer's store of its mark and its look at the tail: see `doorbell`.
            fence(Ordering::SeqCst);
            if self.pair.writer_waits(self.pair.in_words).load(Ordering::Relaxed) != 0 {
                self.neighbour.doorbell().ring();
            }
        }
    }

    fn room(&mut self, wanted: usize) -> Result<usize, LaneError> {
        let tail = self.pair.tail(self.pair.out_words);
        self.writer.room(wanted, tail).map_err(|what| self.impossible(what))
    }
}

impl Lane for ShmLane {
    fn kind(&self) -> TransportKind {
        TransportKind::Shm
    }

    fn link(&self) -> Arc<str> {
        self.link.clone()
    }

    fn neighbour(&self) -> Option<&Neighbour> {
        Some(&self.neighbour)
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        if let Some(LaneError::Broken(what)) = &self.end {
            return Err(LaneError::Broken(what.clone()));
        }
        let total = head.len() + body.len();
        let mut written = 0;
        while written < total {
            let piece = (total - written).min(PIECE_BYTES);
            let piece = piece.min(self.room(piece)?);
            if piece == 0 {
                break;
            }
            let from_head = &head[written.min(head.len())..(written + piece).min(head.len())];
            let body_start = written.saturating_sub(head.len());
            let from_body = &body[body_start..body_start + (piece - from_head.len())];
            // SAFETY: `piece` bytes from the writer's position are its own until published, and are one piece of the
            // doubled mapping, since the position is below the ring's size and a piece no longer than it. The sources
            // are slices outside the mapping.
            unsafe {
                let target = self.pair.outgoing.start().as_ptr().add(self.writer.position());
                target.copy_from_nonoverlapping(from_head.as_ptr(), from_head.len());
                target.add(from_head.len()).copy_from_nonoverlapping(from_body.as_ptr(), from_body.len());
            }
            self.writer.publish(piece, self.pair.head(self.pair.out_words));
            self.neighbour.doorbell().ring();
            written += piece;
        }
        if written > 0 && self.waiting {
            self.waiting = false;
            self.pair.writer_waits(self.pair.out_words).store(0, Ordering::Relaxed);
        }
        Ok(written)
    }

    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError> {
        debug_assert!(wanted <= MIN_WINDOW);
        let known = self.arrived(wanted)?;
        // SAFETY: `known` bytes from the reader's position are its own until taken, and are one piece of the doubled
        // mapping. A sound peer does not write them; see the module's story on trust.
        Ok(unsafe {
            std::slice::from_raw_parts(self.pair.incoming.start().as_ptr().add(self.reader.position()), known)
        })
    }

    fn consume(&mut self, count: usize) {
        self.take(count);
    }

    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError> {
        let mut read = 0;
        while read < bytes {
            let wanted = (bytes - read).min(PIECE_BYTES);
            let known = match self.arrived(1) {
                Ok(known) => known,
                // The error is told when there is nothing else to tell.
                Err(error) => return if read > 0 { Ok(read) } else { Err(error) },
            };
            let piece = wanted.min(known);
            if piece == 0 {
                break;
            }
            // SAFETY: the source as in `fill`; the target is writable by the caller's promise and no part of the
            // mapping.
            unsafe {
                let source = self.pair.incoming.start().as_ptr().add(self.reader.position());
                target.add(read).copy_from_nonoverlapping(source, piece);
            }
            self.take(piece);
            read += piece;
        }
        Ok(read)
    }

    fn prepare_sleep(&mut self, wants_write: bool) -> bool {
        if self.end.is_some() {
            return true;
        }
        if wants_write && !self.waiting {
            self.waiting = true;
            self.pair.writer_waits(self.pair.out_words).store(1, Ordering::Relaxed);
        }
        // Also the fence between the mark above and the look at the tail below.
        self.sleeper.arm();
        match self.reader.look(self.pair.head(self.pair.in_words)) {
            Ok(false) => {}
            Ok(true) => return false,
            Err(what) => {
                self.impossible(what);
                return false;
            }
        }
        if self.gone {
            // Nothing more will come. The end is told by `fill` once what is there has been read.
            return self.reader.known() > 0;
        }
        if wants_write && self.room(1) != Ok(0) {
            return false;
        }
        let closings = self.sleeper.closings();
        if closings != self.closings {
            self.closings = closings;
            return matches!(self.look_after_peer(), Ok(false));
        }
        true
    }
}

impl Drop for ShmLane {
    fn drop(&mut self) {
        self.neighbour.mark_gone();
        self.sleeper.unwatch_closing(&self.socket);
        if let Some(process) = &self.process {
            self.sleeper.unwatch_closing(process);
        }
        // A peer that sleeps on its word need not wait for the end of its slice to learn of this.
        sys::socket::end_writing(&self.socket);
        self.neighbour.doorbell().ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::transport::doorbell::Doorbell;

    const LONG: Duration = Duration::from_secs(3600);

    fn neighbour(sleeper: &Sleeper) -> Neighbour {
        let mut descriptors = sleeper.descriptors().into_iter().map(|fd| fd.try_clone_to_owned().unwrap());
        let (word, event) = (descriptors.next().unwrap(), descriptors.next().unwrap());
        Neighbour::new(Doorbell::from_peer(word, event).unwrap(), descriptors.next()).unwrap()
    }

    /// Two ends of one link, with their sleepers.
    fn link(ring_bytes: usize) -> [(ShmLane, Arc<Sleeper>); 2] {
        let segment = create_segment(ring_bytes).unwrap();
        let sleepers = [Arc::new(Sleeper::new().unwrap()), Arc::new(Sleeper::new().unwrap())];
        let (ours, theirs) = UnixStream::pair().unwrap();
        let lane = |side, socket: UnixStream, own: usize| {
            let parts = ShmParts {
                socket: OwnedFd::from(socket).into(),
                process: None,
                neighbour: neighbour(&sleepers[1 - own]),
                pair: Pair::map(&segment, ring_bytes, side).unwrap(),
                peer: 1 - own,
            };
            (ShmLane::new(parts, sleepers[own].clone()).unwrap(), sleepers[own].clone())
        };
        [lane(Side::Maker, ours, 0), lane(Side::Taker, theirs, 1)]
    }

    #[test]
    fn what_was_written_before_the_end_is_read_before_the_end() {
        let [(mut ours, _), (mut theirs, _)] = link(MIN_RING_BYTES);
        assert_eq!(ours.write(b"last ", b"words"), Ok(10));
        drop(ours);
        assert_eq!(theirs.fill(100).unwrap(), b"last words", "fewer than wanted, but all there is");
        theirs.consume(10);
        let end = loop {
            match theirs.fill(1) {
                Ok(window) => assert!(window.is_empty()),
                Err(end) => break end,
            }
        };
        assert_eq!(end, LaneError::Closed);
        assert_eq!(theirs.fill(1), Err(LaneError::Closed));
        assert!(theirs.prepare_sleep(true));
    }

    /// One that was about to find the peer gone anyhow, because it had looked in vain for long.
    #[test]
    fn the_last_look_is_for_the_last_words() {
        let [(mut ours, _), (mut theirs, _)] = link(MIN_RING_BYTES);
        for _ in 1..LOOKS_PER_CHECK {
            assert!(theirs.fill(1).unwrap().is_empty());
        }
        assert_eq!(ours.write(b"last words", &[]), Ok(10));
        drop(ours);
        assert_eq!(theirs.fill(100).unwrap(), b"last words");
        theirs.consume(10);
        assert_eq!(theirs.fill(1), Err(LaneError::Closed));
    }

    #[test]
    fn a_full_ring_takes_no_more_until_there_is_room() {
        let [(mut ours, sleeper), (mut theirs, _)] = link(MIN_RING_BYTES);
        let bytes = vec![7; 3 * MIN_RING_BYTES];
        assert_eq!(ours.write(&bytes[..1], &bytes[1..]), Ok(MIN_RING_BYTES));
        assert_eq!(ours.write(&bytes, &[]), Ok(0));
        assert!(ours.prepare_sleep(true));
        let reader = std::thread::spawn(move || {
            let mut target = vec![0; MIN_RING_BYTES];
            // SAFETY: a buffer of our own.
            let count = unsafe { theirs.read_into(target.as_mut_ptr(), target.len()) };
            (count, target, theirs)
        });
        sleeper.sleep(LONG);
        let (count, target, _theirs) = reader.join().unwrap();
        assert_eq!((count, target), (Ok(MIN_RING_BYTES), vec![7; MIN_RING_BYTES]));
        assert_eq!(ours.write(&bytes, &[]), Ok(MIN_RING_BYTES));
    }

    #[test]
    fn arrival_is_never_slept_over() {
        let [(mut ours, our_sleeper), (mut theirs, their_sleeper)] = link(MIN_RING_BYTES);
        let echo = std::thread::spawn(move || {
            for _ in 0..2_000 {
                while theirs.fill(1).unwrap().is_empty() {
                    if theirs.prepare_sleep(false) {
                        their_sleeper.sleep(LONG);
                    }
                }
                theirs.consume(1);
                assert_eq!(theirs.write(b"x", &[]), Ok(1));
            }
            theirs
        });
        for _ in 0..2_000 {
            assert_eq!(ours.write(b"x", &[]), Ok(1));
            while ours.fill(1).unwrap().is_empty() {
                if ours.prepare_sleep(false) {
                    our_sleeper.sleep(LONG);
                }
            }
            ours.consume(1);
        }
        drop(echo.join().unwrap());
    }

    #[test]
    fn impossible_counters_break_the_link_and_nothing_else() {
        type Damage = fn(&ShmLane);
        let damages: [(&str, Damage); 3] = [
            ("head", |lane| lane.pair.head(lane.pair.out_words).store(u64::MAX, Ordering::Relaxed)),
            ("head", |lane| {
                lane.pair.head(lane.pair.out_words).store(MIN_RING_BYTES as u64 + 1, Ordering::Relaxed);
            }),
            ("tail", |lane| lane.pair.tail(lane.pair.in_words).store(1 << 40, Ordering::Relaxed)),
        ];
        for (counter, damage) in damages {
            let [(mut ours, _), (theirs, _)] = link(MIN_RING_BYTES);
            damage(&theirs);
            let outcome = match counter {
                "head" => ours.fill(1).map(|_| 0),
                _ => ours.write(&vec![0; MIN_RING_BYTES], &[]).and_then(|_| ours.write(b"more", &[])),
            };
            let Err(LaneError::Broken(what)) = outcome else { panic!("{counter}: {outcome:?}") };
            assert!(what.contains(&format!("the peer's {counter} counter is")), "{what}");
        }
        // One that falls.
        let [(mut ours, _), (mut theirs, _)] = link(MIN_RING_BYTES);
        theirs.write(b"four", &[]).unwrap();
        assert_eq!(ours.fill(4).unwrap(), b"four");
        theirs.pair.head(theirs.pair.out_words).store(3, Ordering::Relaxed);
        assert!(!ours.prepare_sleep(false));
        assert!(matches!(ours.fill(5), Err(LaneError::Broken(_))));
    }

    #[test]
    fn a_peer_that_speaks_on_the_silent_socket_breaks_the_link() {
        let [(mut ours, _), (theirs, _)] = link(MIN_RING_BYTES);
        sys::socket::send(&theirs.socket, b"?").unwrap();
        assert!(!ours.prepare_sleep(false));
        assert!(matches!(ours.fill(1), Err(LaneError::Broken(_))));
    }

    #[test]
    fn segments_of_the_wrong_size_are_refused() {
        let segment = create_segment(MIN_RING_BYTES).unwrap();
        let fd = || segment.as_fd().try_clone_to_owned().unwrap();
        assert!(accept_segment(fd(), MIN_RING_BYTES).is_ok());
        for ring_bytes in [0, 1, MIN_RING_BYTES + 1, 2 * MIN_RING_BYTES, usize::MAX, 1 << 63] {
            assert!(accept_segment(fd(), ring_bytes).is_err(), "{ring_bytes}");
        }
    }
}
