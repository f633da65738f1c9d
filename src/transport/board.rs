//! Boards: shared memory that one member writes and its in-host peers read.
//!
//! A member has one board. It maps it for writing, seals it so that nobody else can, and its peers get the descriptor
//! with the doorbell. So a member that was removed and lives on can change nothing but its own board, which nobody looks
//! at any more.
//!
//! A board is divided into parts; a communicator takes one on each of its members' boards. A part holds
//!
//! - an *epoch*, which changes when the part goes over to another communicator, a mark that its owner has left it, and the
//!   number of the first line that its owner takes back;
//! - two *lines* in turn, each with the number of a call, the call itself, and its payload, which for the smallest
//!   messages lies in the very cache line that says it is there;
//! - three *counters* of the blocks of long messages, and the memory that those go through.
//!
//! What is in it, and who may write it when, is `executor::in_host`'s business.
//!
//! # Reuse
//!
//! A part is taken again when every peer has left it, or is gone. Where a member is gone as others see it and reads on, it
//! finds another epoch after what it has read, and does not believe it (a sequence lock: H.-J. Boehm, "Can seqlocks get
//! along with programming language memory models?", MSPC 2012).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::atomic::Word;
use super::doorbell::Doorbell;
use super::foreign::Witness;
use super::heap::{HUGE_PAGE, Heap};
use crate::sys::{self, Mapping, Segment};
use crate::types::Signature;

mod order;

/// How many communicators can have a part at once.
pub(crate) const PARTS: usize = 3;

/// Two cache lines, because processors fetch neighbours in pairs.
const LINE: usize = 128;

/// Bytes of payload that a line takes.
pub(crate) const PAYLOAD_BYTES: usize = 16 << 10;

/// Bytes of payload that fit beside the call into the cache line that says that both are there.
const INLINE_BYTES: usize = 64 - HEAD_BYTES;

/// How many blocks of long messages are on their way at once. A chunk of a message is some of them.
pub(crate) const BLOCKS: usize = 32;

/// Bytes of a block's contributions. All blocks together stay in a processor's own cache, and are so many that what is
/// written again was read a while ago: in half as many bytes, writing takes half as long again.
pub(crate) const BLOCK_BYTES: usize = 8 << 10;

/// Bytes of a block's results.
pub(crate) const RESULT_BYTES: usize = BLOCK_BYTES / 2 + LINE;

const HEAD_BYTES: usize = 8 + Signature::BYTES;
const SLOT_BYTES: usize = LINE + PAYLOAD_BYTES;
const EPOCH: usize = 0;
const LEFT: usize = 8;
const GIVEN_UP: usize = 16;
const COUNTERS: usize = LINE;
const SLOTS: usize = 4096;
const STAGES: usize = (SLOTS + 2 * SLOT_BYTES).next_multiple_of(4096);
const RESULTS: usize = STAGES + BLOCKS * BLOCK_BYTES;
const PART_BYTES: usize = (RESULTS + BLOCKS * RESULT_BYTES).next_multiple_of(4096);

/// The three counters of a part: how many blocks it has ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// ... put up for the others.
    Staged = 0,
    /// ... combined.
    Combined = 1,
    /// ... done with: nothing of the others' is read any more.
    Done = 2,
}

fn board_bytes() -> usize {
    (PARTS * PART_BYTES).next_multiple_of(sys::page_bytes())
}

/// Where a member's heap begins in the segment, if it has one.
fn heap_start() -> usize {
    board_bytes().next_multiple_of(HUGE_PAGE)
}

/// A member's own board, and its heap.
#[derive(Debug)]
pub struct Board {
    segment: Arc<Segment>,
    memory: Arc<Mapping>,
    heap: Option<Arc<Heap>>,
    witness: Option<Witness>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the takings, so that no two share an epoch.
    epochs: u64,
    parts: [Place; PARTS],
}

#[derive(Debug, Default)]
struct Place {
    taken: bool,
    /// Who may still read it.
    readers: Vec<Neighbour>,
    /// Where each of them has its own part.
    parts: Vec<Part>,
}

impl Board {
    /// `single_copy` says whether peers may read other memory of this process, too.
    pub(crate) fn create(single_copy: bool) -> io::Result<Self> {
        let (start, spare) = (heap_start(), sys::memory_bytes());
        let (segment, memory, spare) = Segment::create_for_one_writer("phalanx-board", board_bytes(), start, spare)?;
        memory.prefer_huge_pages();
        let segment = Arc::new(segment);
        let heap = spare.map(|spare| Arc::new(Heap::new(segment.clone(), spare, start)));
        let witness = if single_copy { Some(Witness::new()?) } else { None };
        Ok(Self { segment, memory: Arc::new(memory), heap, witness, state: Mutex::default() })
    }

    /// By what peers know this process's memory. `None` where they are not to read it.
    pub(crate) fn witness(&self) -> Option<&Witness> {
        self.witness.as_ref()
    }

    /// Memory that the peers can read too. `None` where the limits do not allow so many addresses.
    pub(crate) fn heap(&self) -> Option<&Arc<Heap>> {
        self.heap.as_ref()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    /// Takes a part that nobody reads any more, and its index. `None` when there is none.
    pub(crate) fn take(&self) -> Option<(usize, Part)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { epochs, parts } = &mut *state;
        let index = parts.iter().position(|place| {
            let has_left = |(reader, part): (&Neighbour, &Part)| reader.is_gone() || part.has_left();
            !place.taken && place.readers.iter().zip(&place.parts).all(has_left)
        })?;
        *epochs += 1;
        parts[index] = Place { taken: true, ..Place::default() };
        let part = Part { memory: self.memory.clone(), start: index * PART_BYTES, epoch: *epochs };
        order::begin(part.word(EPOCH), *epochs);
        part.word(LEFT).store(0, Ordering::Relaxed);
        part.word(GIVEN_UP).store(u64::MAX, Ordering::Relaxed);
        for slot in 0..2 {
            part.line(slot).store(0, Ordering::Relaxed);
        }
        for count in [Count::Staged, Count::Combined, Count::Done] {
            part.count(count).store(0, Ordering::Relaxed);
        }
        Some((index, part))
    }

    /// Gives a part back. `readers` may read it until they leave theirs.
    pub(crate) fn give_back(&self, index: usize, readers: Vec<Neighbour>, parts: Vec<Part>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = state.parts.get_mut(index) {
            *place = Place { taken: false, readers, parts };
        }
    }
}

/// What a peer shows, and how to wake the peer.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// `None` for a peer that had no memory for a board.
    memory: Option<Arc<Mapping>>,
    heap: Option<Arc<PeerHeap>>,
    doorbell: Arc<Doorbell>,
    gone: Arc<AtomicBool>,
}

/// A peer's heap, mapped when it is first looked at.
#[derive(Debug)]
struct PeerHeap {
    segment: Segment,
    memory: OnceLock<Option<Mapping>>,
}

impl PeerHeap {
    fn memory(&self) -> Option<&Mapping> {
        let start = heap_start();
        let bytes = self.segment.bytes().checked_sub(start).filter(|bytes| *bytes > 0)?;
        self.memory.get_or_init(|| Mapping::read_only_lazily(&self.segment, start, bytes).ok()).as_ref()
    }
}

impl Neighbour {
    pub(super) fn new(doorbell: Doorbell, board: Option<OwnedFd>) -> io::Result<Self> {
        let (mut memory, mut heap) = (None, None);
        if let Some(board) = board {
            let segment = Segment::from_peer_at_least(board, board_bytes())?;
            memory = Some(Arc::new(Mapping::read_only(&segment, 0, board_bytes())?));
            heap = Some(Arc::new(PeerHeap { segment, memory: OnceLock::new() }));
        }
        Ok(Self { memory, heap, doorbell: Arc::new(doorbell), gone: Arc::default() })
    }

    /// Whether the peer's heap is mapped here, or there is none.
    pub(crate) fn maps_heap(&self) -> bool {
        let has_one = |heap: &Arc<PeerHeap>| heap.segment.bytes() > heap_start();
        self.heap.as_ref().filter(|heap| has_one(heap)).is_none_or(|heap| heap.memory().is_some())
    }

    /// A range of the peer's heap. `None` for one that is not there.
    pub(crate) fn heap_at(&self, offset: u64, bytes: usize) -> Option<*const u8> {
        let heap = self.heap.as_ref()?.memory()?;
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= heap.bytes()).then(|| heap.start().as_ptr().cast_const().wrapping_add(offset))
    }

    pub(super) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Its link has ended.
    pub(super) fn mark_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The part that the peer says it has taken. `None` for one that cannot be.
    pub(crate) fn part(&self, index: u64, epoch: u64) -> Option<Part> {
        let memory = self.memory.clone()?;
        let index = usize::try_from(index).ok().filter(|index| *index < PARTS)?;
        Some(Part { memory, start: index * PART_BYTES, epoch })
    }

    /// Wakes the peer if it sleeps. What it is to see was written before a full fence.
    pub(crate) fn wake_after_fence(&self) {
        self.doorbell.ring_after_fence();
    }
}

/// One communicator's part of a board: this member's own, or a peer's, which is read only.
#[derive(Clone, Debug)]
pub struct Part {
    memory: Arc<Mapping>,
    start: usize,
    epoch: u64,
}

impl Part {
    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < PART_BYTES);
        // SAFETY: the part lies inside the mapping, as its maker has seen to, and the offset inside the part.
        unsafe { self.memory.start().as_ptr().add(self.start + offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8));
        // SAFETY: aligned, since parts are whole pages; mapped as long as `self`; all processes use these bytes only as
        // an atomic. A peer's mapping cannot be written, and is not: `Part`s of peers are only loaded from.
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    /// Which taking of the part this is.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether what was read from it up to now was its communicator's.
    pub(crate) fn is_current(&self) -> bool {
        order::is_still(self.word(EPOCH), self.epoch)
    }

    fn has_left(&self) -> bool {
        self.word(LEFT).load(Ordering::Acquire) != 0 || !self.is_current()
    }

    /// Says that the line of call `number` is written: its call and its payload.
    pub(crate) fn show_line(&self, number: u64) {
        order::publish(self.line(number as usize), number);
    }

    /// Whether the line of call `number` is written, and was not taken back.
    pub(crate) fn shows_line(&self, number: u64) -> bool {
        order::shows(self.line(number as usize), self.word(GIVEN_UP), number)
    }

    /// Whether what was read up to now of the memory that line `number` tells of was its writer's contribution: it shows
    /// the line, and has not taken it back.
    pub(crate) fn still_shows_line(&self, number: u64) -> bool {
        order::still_shows(self.line(number as usize), self.word(GIVEN_UP), number)
    }

    /// Says how many blocks this member has counted.
    pub(crate) fn count_to(&self, count: Count, blocks: u64) {
        order::publish(self.count(count), blocks);
    }

    /// Whether the member has counted so many blocks.
    pub(crate) fn has_counted(&self, count: Count, blocks: u64) -> bool {
        order::has_reached(self.count(count), blocks)
    }

    /// The number of the call in one of the two lines.
    fn line(&self, slot: usize) -> &AtomicU64 {
        self.word(SLOTS + (slot & 1) * SLOT_BYTES)
    }

    /// The call in a line: three words. Valid once the line's number says so.
    pub(crate) fn call(&self, slot: usize) -> [&AtomicU64; 3] {
        let start = SLOTS + (slot & 1) * SLOT_BYTES + 8;
        [self.word(start), self.word(start + 8), self.word(start + 16)]
    }

    /// Where a line's payload lies that has up to `longest` bytes on any rank; beyond what fits beside the call, on a
    /// cache line's start, since copies that straddle lines take half as long again.
    pub(crate) fn payload(&self, slot: usize, longest: usize) -> *mut u8 {
        let offset = if longest <= INLINE_BYTES { HEAD_BYTES } else { LINE };
        self.at(SLOTS + (slot & 1) * SLOT_BYTES + offset)
    }

    /// One of the counters of blocks.
    fn count(&self, count: Count) -> &AtomicU64 {
        self.word(COUNTERS + 8 * count as usize)
    }

    /// What the line of a long call tells beside the call: three words in place of a payload.
    fn telling(&self, slot: usize) -> [&AtomicU64; 3] {
        let start = SLOTS + (slot & 1) * SLOT_BYTES + HEAD_BYTES;
        [self.word(start), self.word(start + 8), self.word(start + 16)]
    }

    /// Writes what the line of a long call tells. Before the line is shown.
    pub(crate) fn tell(&self, slot: usize, words: [u64; 3]) {
        order::tell(self.telling(slot), words);
    }

    /// What the line of a long call tells. Valid once it is shown.
    pub(crate) fn told(&self, slot: usize) -> [u64; 3] {
        order::told(self.telling(slot))
    }

    /// Where the contributions of a block lie: [`BLOCK_BYTES`].
    pub(crate) fn stage(&self, block: u64) -> *mut u8 {
        self.at(STAGES + (block as usize % BLOCKS) * BLOCK_BYTES)
    }

    /// Where the results of a block lie: [`RESULT_BYTES`].
    pub(crate) fn result(&self, block: u64) -> *mut u8 {
        self.at(RESULTS + (block as usize % BLOCKS) * RESULT_BYTES)
    }

    /// Takes a line and all after it back: who has not seen them yet is not to.
    pub(crate) fn give_up(&self, line: u64) {
        order::take_back(self.word(GIVEN_UP), line);
    }

    /// Says that this member reads nothing of the communicator's any more. What it has written stays for the others.
    pub(crate) fn leave(&self) {
        self.word(LEFT).store(1, Ordering::Release);
    }
}

/// Orders what was written before it before the looks at who sleeps.
pub(crate) fn fence_before_waking() {
    <std::sync::atomic::AtomicU32 as Word>::full_fence();
}

#[cfg(all(test, not(loom)))]
impl Board {
    /// What it looks like to a peer.
    pub(crate) fn as_seen(&self) -> Neighbour {
        let (doorbell, _segment) = Doorbell::create().unwrap();
        Neighbour::new(doorbell, Some(self.descriptor().try_clone_to_owned().unwrap())).unwrap()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn seen(board: &Board) -> Neighbour {
        board.as_seen()
    }

    #[test]
    fn a_part_is_taken_again_when_all_who_may_read_it_have_left() {
        let boards = [Board::create(false).unwrap(), Board::create(false).unwrap()];
        let [ours, theirs] = &boards;
        let neighbour = seen(theirs);
        for _ in 0..PARTS {
            let (index, _) = ours.take().unwrap();
            let (their_index, their_part) = theirs.take().unwrap();
            let as_seen = neighbour.part(their_index as u64, their_part.epoch()).unwrap();
            ours.give_back(index, vec![neighbour.clone()], vec![as_seen]);
        }
        assert!(ours.take().is_none(), "the peer may still read all of them");
        theirs.take().map(|_| ()).ok_or(()).unwrap_err();
        // The peer leaves the second.
        Part { memory: theirs.memory.clone(), start: PART_BYTES, epoch: 2 }.leave();
        assert_eq!(ours.take().unwrap().0, 1);
        assert!(ours.take().is_none());
        // Its link ends: whatever it still reads, it will not believe.
        neighbour.mark_gone();
        assert_eq!(ours.take().unwrap().0, 0);
    }

    #[test]
    fn who_reads_on_notices_that_a_part_is_another_s() {
        let board = Board::create(false).unwrap();
        let (index, own) = board.take().unwrap();
        let part = seen(&board).part(index as u64, own.epoch()).unwrap();
        own.show_line(1);
        assert!(part.shows_line(1) && !part.shows_line(2) && part.is_current());
        board.give_back(index, Vec::new(), Vec::new());
        let (again, next) = board.take().unwrap();
        assert_eq!(again, index);
        assert!(!part.is_current() && next.is_current());
        assert!(!part.shows_line(1), "and it begins anew");
    }

    #[test]
    fn a_line_that_was_taken_back_is_not_shown() {
        let board = Board::create(false).unwrap();
        let (_, part) = board.take().unwrap();
        (1..=3).for_each(|number| part.show_line(number));
        part.give_up(3);
        part.give_up(5);
        assert!(part.shows_line(2) && !part.shows_line(3));
    }

    #[test]
    fn parts_that_cannot_be_are_none() {
        let board = Board::create(false).unwrap();
        let neighbour = seen(&board);
        assert!(neighbour.part(PARTS as u64, 1).is_none() && neighbour.part(u64::MAX, 1).is_none());
        let (doorbell, _segment) = Doorbell::create().unwrap();
        assert!(Neighbour::new(doorbell, None).unwrap().part(0, 1).is_none());
    }

    #[test]
    fn a_place_that_is_not_in_the_heap_is_none() {
        let board = Board::create(false).unwrap();
        let Some(heap) = board.heap() else {
            return eprintln!("not tested: this process may not have so many addresses (ulimit -v, -f)");
        };
        let (neighbour, lease) = (seen(&board), heap.take(5000).unwrap());
        // SAFETY: the lease is of that many bytes, and alive.
        unsafe { lease.start().add(4999).write(7) };
        let offset = heap.offset_of(lease.start(), 5000).unwrap();
        let there = neighbour.heap_at(offset, 5000).unwrap();
        // SAFETY: mapped, and nobody writes it now.
        assert_eq!(unsafe { there.add(4999).read() }, 7);
        let end = sys::memory_bytes() as u64;
        assert!(neighbour.maps_heap() && neighbour.heap_at(end - 8, 8).is_some());
        assert!(neighbour.heap_at(end - 8, 9).is_none() && neighbour.heap_at(u64::MAX, 1).is_none());
        assert!(neighbour.heap_at(8, usize::MAX).is_none() && heap.offset_of(std::ptr::null(), 1).is_none());
        assert_eq!(heap.offset_of((&raw const end).cast(), 8), None, "a place on the stack");
    }

    #[test]
    fn a_peer_cannot_map_a_board_for_writing() {
        let board = Board::create(false).unwrap();
        let descriptor = board.descriptor().try_clone_to_owned().unwrap();
        let segment = Segment::from_peer_at_least(descriptor, board_bytes()).unwrap();
        assert!(Mapping::new(&segment, 0, board_bytes()).is_err());
        assert!(Mapping::read_only(&segment, 0, board_bytes()).is_ok());
    }
}
