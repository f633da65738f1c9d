//! Collectives among few ranks of one host, straight through shared memory.
//!
//! A message costs matching, framing and flow control, which for a few bytes is many times what the memory takes. Where
//! all ranks of a communicator share a host, and are few, its collectives go over their boards instead
//! (`transport::board`): each rank shows what it contributes, and takes from the others' boards what it needs. There is no
//! read-modify-write, and every word has one writer.
//!
//! This is how the *one-shot* and *two-shot* schedules of `schedule::algorithms::direct` are carried out there, with the
//! same association, in rank order, and so to the same bits.
//!
//! # Short calls
//!
//! Call number k of the communicator has line k modulo 2 of each board: the number, the call itself and the payload. A
//! rank writes its line, waits for those that it needs, compares their calls with its own, and combines or copies. The
//! line of call k may be written when all ranks have written that of k - 1, for whoever has done so is done with k - 2.
//!
//! # Long calls
//!
//! They have a line too, by which the ranks know that they are in the same call; their bytes go in chunks through the
//! stage, a few at a time. A rank puts a chunk's contributions up (*staged*); combines its own part of it when all have
//! staged theirs, and shows the result (*combined*); and copies the others' results (*done*). It stages the next chunks
//! meanwhile. A place in the stage is used again when all are done with what lay there.
//!
//! Lines are written in the order of the calls, each when this rank has seen those that it needs of the call before. Beyond
//! that a long call does not keep a short one that comes after it.
//!
//! # Setting up
//!
//! With the first collective of a communicator, whichever it is, its ranks tell each other which parts of their boards
//! they have taken, and then whether they can see all the others': two small allgathers over the ordinary way, under the
//! signature of that first call. Unless all can, the communicator keeps to the ordinary way.
//!
//! # When something goes wrong
//!
//! A call that is given up, for whatever reason, ends the use of the boards in that communicator for good: what is on them
//! could be of a call that some rank has given up and another not. It takes its line back, so that who comes late does not
//! think that the others are in it. Calls before it end as they would; those that follow take the ordinary way. A rank
//! that hears that a call was given up after it has ended later ones, which the others may now wait for in vain, gives
//! those up too.

mod direct;
mod layout;
mod run;
mod set_up;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::core::Slot;
use super::operation::Operation;
use crate::sys::points::{Point, reach};
use crate::transport::board::{BLOCKS, Board, Count, Neighbour, Part, fence_before_waking};
use crate::transport::foreign::Foreign;
use crate::types::{Signature, Tag};

use direct::Offered;
use run::Mode;

pub use layout::{Extent, Layout};
pub(super) use run::{Memory, Run};
pub(super) use set_up::SetUp;

pub use crate::schedule::cost::MOST_RANKS_OF_BOARDS as MOST_RANKS;

/// Why a call cannot go on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A rank is in another call.
    Differs(usize, Signature),
    /// A rank was in another call than this one in the line before, when this rank needed nothing of it.
    Differed(usize, Signature, (Tag, Signature)),
    /// A rank wrote what no sound one writes, or has given its part away.
    Broken(usize),
    /// A rank's memory cannot be read.
    Unreadable(usize),
}

/// A member's part, as this rank sees it.
struct Peer {
    rank: usize,
    part: Part,
    neighbour: Neighbour,
    /// Its process's memory, if that can be read.
    memory: Option<Foreign>,
    /// The last line that was seen here, and the last that was found to be of the same call.
    seen: u64,
    compared: u64,
}

fn operation(slots: &mut [Slot], slot: usize) -> Option<&mut Operation> {
    slots.get_mut(slot).and_then(|slot| slot.operation.as_mut())
}

/// One communicator's parts of the boards, and the calls that go over them.
pub(super) struct InHost {
    board: Arc<Board>,
    index: usize,
    own: Part,
    peers: SmallVec<[Peer; MOST_RANKS]>,
    /// The last line that was written here, and its call. The first is 1.
    line: u64,
    last: Option<(Tag, Signature)>,
    /// The blocks of all long calls so far.
    blocks: u64,
    /// Operations, by their slots in the engine, whose line is not written yet.
    waiting: VecDeque<usize>,
    /// The short one under way.
    short: Option<usize>,
    /// Long ones under way, of which the first moves.
    long: VecDeque<usize>,
    /// Something was written that a sleeping peer may wait for.
    news: bool,
    /// No call comes any more.
    closing: bool,
    /// Whether all have mapped each other's heaps.
    maps_heaps: bool,
    /// This process's memory, if all can read each other's.
    offered: Option<Offered>,
}

/// Operations that have ended, by slot.
pub(super) type Ended = SmallVec<[(usize, Result<(), Trouble>); 4]>;

impl InHost {
    fn new(
        board: Arc<Board>,
        index: usize,
        own: Part,
        peers: SmallVec<[Peer; MOST_RANKS]>,
        maps_heaps: bool,
        reads_memory: bool,
    ) -> Self {
        let offered = board.witness().filter(|_| reads_memory).and_then(Foreign::own).map(Offered::new);
        Self {
            board,
            index,
            own,
            peers,
            line: 0,
            last: None,
            blocks: 0,
            waiting: VecDeque::new(),
            short: None,
            long: VecDeque::new(),
            news: false,
            closing: false,
            maps_heaps,
            offered,
        }
    }

    /// Whether all ranks can have the kernel copy from each other's memory.
    pub fn has_single_copy(&self) -> bool {
        self.offered.is_some()
    }

    /// Takes an operation on, after those before it.
    pub fn push(&mut self, slot: usize) {
        self.waiting.push_back(slot);
    }

    /// Whether there is anything to move.
    pub fn is_active(&self) -> bool {
        self.short.is_some() || !self.waiting.is_empty() || !self.long.is_empty()
    }

    /// Takes no operation on any more.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Takes back the line of an operation that was given up, or else all that are still to be written.
    pub fn give_up(&mut self, line: Option<u64>) {
        self.own.give_up(line.filter(|line| *line > 0).unwrap_or(self.line + 1));
    }

    /// Whether the last operation has ended and there will be no other.
    pub fn is_over(&self) -> bool {
        self.closing && !self.is_active()
    }

    /// Forgets an operation that has been given up.
    pub fn remove(&mut self, slot: usize) {
        self.waiting.retain(|other| *other != slot);
        self.long.retain(|other| *other != slot);
        self.short = self.short.filter(|other| *other != slot);
    }

    /// Every operation that is under way.
    pub fn operations(&self) -> Vec<usize> {
        self.short.iter().chain(&self.long).chain(&self.waiting).copied().collect()
    }

    /// Moves what can be moved, and says what has ended. Returns whether anything moved.
    pub fn advance(&mut self, ended: &mut Ended, slots: &mut [Slot]) -> bool {
        let mut moved = false;
        while self.turn(ended, slots) {
            moved = true;
        }
        self.wake();
        moved
    }

    fn turn(&mut self, ended: &mut Ended, slots: &mut [Slot]) -> bool {
        let mut moved = false;
        if self.short.is_none()
            && self.last_is_met(slots)
            && let Some(&slot) = self.waiting.front()
            && let Some(operation) = operation(slots, slot)
            && let Some(outcome) = self.write_line_of(operation)
        {
            self.waiting.pop_front();
            if outcome.is_err() {
                ended.push((slot, outcome));
                return true;
            }
            if operation.run.as_ref().is_some_and(|run| run.is_short) {
                self.short = Some(slot);
            } else {
                self.long.push_back(slot);
            }
            moved = true;
        }
        if let Some(slot) = self.short
            && let Some(operation) = operation(slots, slot)
            && let Some((run, memory)) = operation.in_host()
            && let Some(outcome) = self.finish_short(run, &memory)
        {
            self.short = None;
            ended.push((slot, outcome));
            moved = true;
        }
        if let Some(&slot) = self.long.front()
            && let Some(operation) = operation(slots, slot)
        {
            let (any, outcome) = self.move_long(operation);
            moved |= any;
            if let Some(outcome) = outcome {
                self.long.pop_front();
                ended.push((slot, outcome));
                moved = true;
            }
        }
        moved
    }

    /// Whether the ranks that the last long call needs were seen in it: until then their lines must stay as they are, and
    /// they do as long as this rank does not write its next.
    fn last_is_met(&mut self, slots: &mut [Slot]) -> bool {
        let Some(&slot) = self.long.back() else { return true };
        let Some((run, _)) = operation(slots, slot).and_then(Operation::in_host) else { return true };
        // Trouble is told when it is the operation's turn; what comes after it fails with it.
        self.meet(run).is_some_and(|outcome| outcome.is_ok())
    }

    fn write_line_of(&mut self, operation: &mut Operation) -> Option<Result<(), Trouble>> {
        let call = (operation.tag, operation.signature);
        let Some((run, memory)) = operation.in_host() else { return Some(Ok(())) };
        self.write_line(run, &memory, call)
    }

    /// Runs a short call at once, if none is under way and its line may be written, as far as `patience` allows, which is
    /// asked after every look in vain. Returns nothing if it was not begun, or else whether it has ended. If it has not,
    /// [`go_on_with`](Self::go_on_with) it as an operation; should something be amiss, that finds it again.
    pub fn run_now(
        &mut self,
        run: &mut Run,
        memory: &Memory<'_>,
        call: (Tag, Signature),
        patience: &mut dyn FnMut() -> bool,
    ) -> Option<bool> {
        if self.is_active() || !run.is_short || !matches!(self.write_line(run, memory, call), Some(Ok(()))) {
            return None;
        }
        self.wake();
        loop {
            match self.finish_short(run, memory) {
                Some(outcome) => return Some(outcome.is_ok()),
                None if patience() => {}
                None => return Some(false),
            }
        }
    }

    /// Takes on a short operation whose line is written.
    pub fn go_on_with(&mut self, slot: usize) {
        self.short = Some(slot);
    }

    /// Wakes peers that sleep and may wait for what was written.
    fn wake(&mut self) {
        if std::mem::take(&mut self.news) {
            fence_before_waking();
            self.peers.iter().for_each(|peer| peer.neighbour.wake_after_fence());
        }
    }

    /// Writes the line of a call. `None` when it may not be written yet.
    fn write_line(
        &mut self,
        run: &mut Run,
        memory: &Memory<'_>,
        call: (Tag, Signature),
    ) -> Option<Result<(), Trouble>> {
        let line = self.line + 1;
        let before = self.line;
        for peer in &mut self.peers {
            if !peer.has_written(before) {
                return None;
            }
            if let (true, Some(last)) = (peer.compared < before, self.last)
                && let Err(trouble) = peer.compare(before, words(&last.1))
            {
                return Some(Err(match trouble {
                    Trouble::Differs(rank, call) => Trouble::Differed(rank, call, last),
                    other => other,
                }));
            }
        }
        self.last = Some(call);
        let slot = line as usize;
        if run.is_short {
            run.show(memory, self.own.payload(slot, run.longest));
        } else {
            let told = self.tell(run, memory);
            self.own.tell(slot, told);
            if told[0] != 0 {
                run.mode = Mode::Undecided;
            }
        }
        for (word, value) in self.own.call(slot).into_iter().zip(run.call) {
            word.store(value, Ordering::Relaxed);
        }
        self.own.show_line(line);
        self.line = line;
        run.line = line;
        if !run.is_short && matches!(run.mode, Mode::Staged) {
            self.blocks = run.begin_at(self.blocks);
        }
        self.news = true;
        reach(Point::Half);
        Some(Ok(()))
    }

    /// Sees whether a short call has all it needs, and takes it. `None` when not.
    fn finish_short(&mut self, run: &mut Run, memory: &Memory<'_>) -> Option<Result<(), Trouble>> {
        if let Err(trouble) = self.meet(run)? {
            return Some(Err(trouble));
        }
        let slot = run.line as usize;
        let longest = run.longest;
        run.take_short(memory, |rank| self.peer(rank).map(|peer| peer.part.payload(slot, longest).cast_const()));
        Some(self.believe(run))
    }

    /// Whether every rank that the call needs has written its line, of the same call.
    fn meet(&mut self, run: &mut Run) -> Option<Result<(), Trouble>> {
        if run.met {
            return Some(Ok(()));
        }
        for peer in self.peers.iter_mut().filter(|peer| run.awaits(peer.rank)) {
            if !peer.has_written(run.line) {
                return None;
            }
            if let Err(trouble) = peer.compare(run.line, run.call) {
                return Some(Err(trouble));
            }
        }
        if matches!(run.mode, Mode::Undecided) {
            match self.decide(run) {
                Ok(mode) => {
                    run.go(mode);
                    self.blocks = run.begin_at(self.blocks);
                }
                Err(trouble) => return Some(Err(trouble)),
            }
        }
        run.met = true;
        Some(Ok(()))
    }

    /// Whether what was read is what its writers wrote for this communicator.
    fn believe(&self, run: &Run) -> Result<(), Trouble> {
        match self.peers.iter().find(|peer| run.needs(peer.rank) && !peer.part.is_current()) {
            Some(peer) => Err(Trouble::Broken(peer.rank)),
            None => Ok(()),
        }
    }

    fn peer(&self, rank: usize) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.rank == rank)
    }

    /// Moves a long call on. Returns whether anything moved, and its outcome if it has ended.
    fn move_long(&mut self, operation: &mut Operation) -> (bool, Option<Result<(), Trouble>>) {
        let Some((run, memory)) = operation.in_host() else { return (true, Some(Ok(()))) };
        let mut moved = false;
        let met = match self.meet(run) {
            Some(Err(trouble)) => return (true, Some(Err(trouble))),
            met => met.is_some(),
        };
        match run.mode {
            Mode::Undecided => return (false, None),
            Mode::Direct(_) => return self.move_directly(run, &memory),
            Mode::Staged => {}
        }
        loop {
            let mut step = false;
            let chunks = run.cut.chunks;
            // Two chunks ahead of what is combined keep the others busy; what is further ahead falls out of the cache.
            let ahead = run.staged - run.combined;
            if run.staged < chunks && ahead < 2 && self.has_room(run, run.staged) {
                run.stage(&memory, self.own.stage(run.block(run.staged)));
                run.staged += 1;
                self.publish(Count::Staged, run.block(run.staged));
                step = true;
            }
            if met && run.combined < run.staged && self.all_have(run, Count::Staged, run.combined) {
                let block = run.block(run.combined);
                let stage = |rank: usize| self.peer(rank).map(|peer| peer.part.stage(block).cast_const());
                run.combine(&memory, self.own.result(block), stage);
                run.combined += 1;
                if run.has_results() {
                    self.publish(Count::Combined, run.block(run.combined));
                }
                step = true;
            }
            if run.done < run.combined && (!run.collects() || self.all_have(run, Count::Combined, run.done)) {
                let block = run.block(run.done);
                run.collect(&memory, |rank| self.peer(rank).map(|peer| peer.part.result(block).cast_const()));
                run.done += 1;
                self.publish(Count::Done, run.block(run.done));
                step = true;
            }
            if !step {
                break;
            }
            moved = true;
        }
        if run.done == run.cut.chunks {
            // A call without a chunk has nothing that waits for the others, and ends when they have come.
            return if met { (true, Some(self.believe(run))) } else { (moved, None) };
        }
        (moved, None)
    }

    /// Whether all are done with what lay where a chunk of the call goes.
    fn has_room(&self, run: &Run, chunk: u64) -> bool {
        let wanted = run.block(chunk + 1).saturating_sub(BLOCKS as u64);
        self.peers.iter().all(|peer| peer.part.has_counted(Count::Done, wanted))
    }

    /// Whether all that this rank needs have counted beyond a chunk of the call.
    fn all_have(&self, run: &Run, count: Count, chunk: u64) -> bool {
        let wanted = run.block(chunk + 1);
        self.peers.iter().filter(|peer| run.needs(peer.rank)).all(|peer| peer.part.has_counted(count, wanted))
    }

    fn publish(&mut self, count: Count, value: u64) {
        self.own.count_to(count, value);
        self.news = true;
    }

    /// The ranks that an operation waits for.
    pub fn waiting_for(&self, run: &Run) -> Vec<usize> {
        self.peers.iter().filter(|peer| self.lacks(run, peer)).map(|peer| peer.rank).collect()
    }

    fn lacks(&self, run: &Run, peer: &Peer) -> bool {
        if run.line == 0 {
            return !peer.shows_line(self.line);
        }
        let needed = run.awaits(peer.rank);
        if run.is_short || !run.met {
            return needed && !peer.shows_line(run.line);
        }
        let behind = |count, chunks: u64| !peer.part.has_counted(count, run.block(chunks));
        if matches!(run.mode, Mode::Direct(_)) {
            let ahead = run.collects() && run.done < run.combined && behind(Count::Combined, run.done + 1);
            return (needed && ahead) || (run.done == run.cut.chunks && run.is_still_read_by(peer));
        }
        let room = run.block(run.staged + 1).saturating_sub(BLOCKS as u64);
        (needed && run.combined < run.staged && behind(Count::Staged, run.combined + 1))
            || (needed && run.collects() && run.done < run.combined && behind(Count::Combined, run.done + 1))
            || (run.staged < run.cut.chunks && !peer.part.has_counted(Count::Done, room))
    }
}

impl Drop for InHost {
    fn drop(&mut self) {
        if self.is_active() {
            // Its operations go too, and with them the memory that others may be reading.
            self.own.give_up(0);
        }
        self.own.leave();
        let (readers, parts) = self.peers.drain(..).map(|peer| (peer.neighbour, peer.part)).unzip();
        self.board.give_back(self.index, readers, parts);
    }
}

impl Peer {
    /// Whether the peer has written a line, as its board says now.
    fn shows_line(&self, line: u64) -> bool {
        self.seen >= line || self.part.shows_line(line)
    }

    fn has_written(&mut self, line: u64) -> bool {
        let shows = self.shows_line(line);
        if shows {
            self.seen = self.seen.max(line);
        }
        shows
    }

    /// Whether the peer's line is of the same call.
    fn compare(&mut self, line: u64, ours: [u64; 3]) -> Result<(), Trouble> {
        let theirs = self.part.call(line as usize).map(|word| word.load(Ordering::Relaxed));
        if theirs == ours {
            self.compared = line;
            return Ok(());
        }
        let mut bytes = [0; Signature::BYTES];
        for (part, word) in bytes.chunks_exact_mut(8).zip(theirs) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        Err(match Signature::decode(&bytes) {
            Some(call) if self.part.is_current() => Trouble::Differs(self.rank, call),
            _ => Trouble::Broken(self.rank),
        })
    }
}

/// A call's signature as three words.
pub(super) fn words(signature: &Signature) -> [u64; 3] {
    let bytes = signature.encode();
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * word + byte])))
}
