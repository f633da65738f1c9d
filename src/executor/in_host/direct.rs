//! Long calls whose memory is read where it is, without a copy into the stage.
//!
//! A rank's line tells where its contribution lies, and its result will: in its heap (`transport::heap`), which all others
//! have mapped, or, of what is only copied, anywhere in its process, from where the kernel copies it
//! (`transport::foreign`). Where the lines of all ranks do, the call goes so. Contributions are copied or combined straight
//! from where they are, part by part as in the staged way; of an allreduce, the others' parts are then copied from their
//! results.
//!
//! A rank ends its call only when all who read its memory have said that they are done. When it gives the call up it does
//! not wait for them: it takes its line back first, and whoever has read looks at the line again before he believes what he
//! read, and then leaves the call alone, which will be given up by all (the other half of a sequence lock: see
//! `transport::board`). Peers can only read. A rank that was left behind in the middle of a call changes nothing.

use smallvec::SmallVec;

use super::layout::{self, Cut};
use super::run::Mode;
use super::{Count, InHost, MOST_RANKS, Memory, Peer, Run, Trouble};
use crate::transport::foreign::{Foreign, Unread};

/// How many steps a call makes before short ones have their turn.
const STEPS: usize = 4;

/// What the first word of a line says: where the places lie that the two others tell, of contribution and result. 0 for a
/// rank whose memory cannot be read.
const IN_HEAP: u64 = 1;
const IN_PROCESS: u64 = 2;

/// A peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    rank: usize,
    from: Place,
    /// Where its results are mapped here, of a call that shows them.
    to: *const u8,
    /// Whether the peer reads this rank's memory in its turn.
    reads: bool,
}

/// Where a contribution is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Mapped here.
    Here(*const u8),
    /// In the other process only.
    There(Foreign, u64),
}

/// This process's own memory, as its peers read it.
pub(super) struct Offered {
    memory: Foreign,
    /// What was found to be readable last. Programs use few buffers in turn.
    found: [(usize, usize); 4],
    next: usize,
}

impl Offered {
    pub(super) fn new(memory: Foreign) -> Self {
        Self { memory, found: [(0, 0); 4], next: 0 }
    }

    /// Whether peers can read it: memory of devices, for example, cannot be. Its ends are looked at.
    fn can_be_read(&mut self, start: *const u8, bytes: usize) -> bool {
        if bytes == 0 || self.found.contains(&(start.addr(), bytes)) {
            return true;
        }
        let mut byte = 0;
        // SAFETY: one byte of this frame.
        let mut reads = |at: *const u8| unsafe { self.memory.read(at as u64, &raw mut byte, 1) }.is_ok();
        let readable = reads(start) && reads(start.wrapping_add(bytes - 1));
        if readable {
            self.found[self.next] = (start.addr(), bytes);
            self.next = (self.next + 1) % self.found.len();
        }
        readable
    }
}

impl InHost {
    /// What this rank's line tells of a long call's memory.
    pub(super) fn tell(&mut self, run: &Run, memory: &Memory<'_>) -> [u64; 3] {
        let layout = run.layout();
        if !layout.can_be_read_directly() {
            return [0; 3];
        }
        let (shown, results) = (layout.shown(), layout.result_bytes());
        let (from, to) = (memory.from.wrapping_add(shown.start), memory.to.cast_const());
        if let Some(heap) = self.board.heap().filter(|_| self.maps_heaps) {
            // Where there is nothing to read, any place will do.
            let place = |start, bytes| if bytes == 0 { Some(0) } else { heap.offset_of(start, bytes) };
            if let (Some(from), Some(to)) = (place(from, shown.bytes), place(to, results)) {
                return [IN_HEAP, from, to];
            }
        }
        let offered = self.offered.as_mut().filter(|_| layout.gains_by_single_copy());
        if offered.is_some_and(|own| own.can_be_read(from, shown.bytes)) {
            [IN_PROCESS, from as u64, 0]
        } else {
            [0; 3]
        }
    }

    /// Decides, with the lines of all, which way a long call goes.
    pub(super) fn decide(&mut self, run: &Run) -> Result<Mode, Trouble> {
        let mut sources = Vec::with_capacity(self.peers.len());
        for peer in &self.peers {
            let (shown, results) = run.layout().read_of(peer.rank);
            let (from, to) = match (peer.part.told(run.line as usize), peer.memory) {
                ([IN_HEAP, from, to], _) => {
                    let place = |offset, bytes| peer.neighbour.heap_at(offset, bytes).ok_or(Trouble::Broken(peer.rank));
                    let place = |offset, bytes| if bytes == 0 { Ok(std::ptr::null()) } else { place(offset, bytes) };
                    (Place::Here(place(from, shown)?), place(to, results)?)
                }
                ([IN_PROCESS, from, _], Some(memory)) if run.layout().gains_by_single_copy() => {
                    (Place::There(memory, from), std::ptr::null())
                }
                _ => return Ok(Mode::Staged),
            };
            sources.push(Source { rank: peer.rank, from, to, reads: run.layout().is_read_by(peer.rank) });
        }
        Ok(Mode::Direct(sources.into()))
    }

    /// Moves a call on whose memory is read where it is. Returns whether anything moved, and its outcome if it has ended.
    pub(super) fn move_directly(&mut self, run: &mut Run, memory: &Memory<'_>) -> (bool, Option<Result<(), Trouble>>) {
        let chunks = run.cut.chunks;
        let mut moved = false;
        if self.has_given_up(run) {
            return (false, None);
        }
        for _ in 0..STEPS {
            let mut step = false;
            let shows = run.shows_results_on_board();
            if run.combined < chunks && (!shows || self.has_room(run, run.combined)) {
                if let Err(unread) = run.combine_directly(memory, self.own.result(run.block(run.combined))) {
                    return (moved, self.go_without(run, unread));
                }
                if self.has_given_up(run) {
                    return (moved, None);
                }
                run.combined += 1;
                if run.has_results() {
                    self.publish(Count::Combined, run.block(run.combined));
                }
                step = true;
            }
            if run.done < run.combined && (!run.collects() || self.all_have(run, Count::Combined, run.done)) {
                if shows {
                    let block = run.block(run.done);
                    run.collect(memory, |rank| self.peer(rank).map(|peer| peer.part.result(block).cast_const()));
                } else {
                    run.collect_directly(memory);
                }
                if self.has_given_up(run) {
                    return (moved, None);
                }
                run.done += 1;
                self.publish(Count::Done, run.block(run.done));
                step = true;
            }
            if !step {
                break;
            }
            self.wake();
            moved = true;
        }
        if run.done == chunks && !self.peers.iter().any(|peer| run.is_still_read_by(peer)) {
            return (true, Some(self.believe(run)));
        }
        (moved, None)
    }

    /// What becomes of a call when a peer's memory was not read. Nothing yet if the peer is gone or has given the call up:
    /// this rank will hear of it.
    fn go_without(&self, run: &Run, (rank, why): (usize, Unread)) -> Option<Result<(), Trouble>> {
        let is_over = why == Unread::Gone || self.has_given_up(run);
        (!is_over).then_some(Err(Trouble::Unreadable(rank)))
    }

    /// Whether one of the others has given the call up, so that what was read of its memory before this look does not
    /// count. The call rests then, until this rank hears of it.
    fn has_given_up(&self, run: &Run) -> bool {
        !self.peers.iter().all(|peer| peer.part.still_shows_line(run.line))
    }
}

impl Run {
    /// Whether a peer may read this rank's memory yet.
    pub(super) fn is_still_read_by(&self, peer: &Peer) -> bool {
        let Mode::Direct(sources) = &self.mode else { return false };
        let reads = sources.iter().any(|source| source.rank == peer.rank && source.reads);
        reads && !peer.part.has_counted(Count::Done, self.block(self.cut.chunks))
    }

    /// As [`combine`](Self::combine), from where the contributions are.
    fn combine_directly(&self, memory: &Memory<'_>, result: *mut u8) -> Result<(), (usize, Unread)> {
        let Mode::Direct(sources) = &self.mode else { return Ok(()) };
        let layout = self.layout();
        if self.copies() {
            for source in sources {
                let Some((run, target)) = self.cut.taken_directly(layout, self.combined, source.rank) else { continue };
                let target = memory.to.wrapping_add(target);
                match source.from {
                    Place::Here(from) => self.hand_over()(from, run, target),
                    Place::There(theirs, from) if run.bytes > 0 => {
                        let from = from.wrapping_add(run.start as u64);
                        // SAFETY: the layout keeps every run inside the caller's output, which the call has to itself.
                        unsafe { theirs.read(from, target, run.bytes) }.map_err(|unread| (source.rank, unread))?;
                    }
                    Place::There(..) => {}
                }
            }
            if let Some((run, target)) = self.cut.own(layout, self.combined) {
                self.hand_over()(memory.from, run, memory.to.wrapping_add(target));
            }
            return Ok(());
        }
        // What this rank combines of each contribution, and where its own lies and the result goes.
        let (run, own, target) = if self.has_results() {
            let (run, _) = self.cut.share(layout, self.combined, layout.rank);
            let target = if self.shows_results_on_board() { result } else { memory.to.wrapping_add(run.start) };
            (run, run, target)
        } else {
            let taken = self.cut.taken_directly(layout, self.combined, layout.rank);
            let (Some((run, target)), Some((own, _))) = (taken, self.cut.own(layout, self.combined)) else {
                return Ok(());
            };
            (run, own, memory.to.wrapping_add(target))
        };
        let place = |source: &Source| match source.from {
            Place::Here(from) => Some(from.wrapping_add(run.start)),
            // Only what is copied is told so.
            Place::There(..) => None,
        };
        let mut pointers: SmallVec<[*const u8; MOST_RANKS]> = sources.iter().filter_map(place).collect();
        pointers.insert(layout.rank, memory.from.wrapping_add(own.start));
        self.reduce(memory, target, &pointers, run.bytes);
        if self.shows_results_on_board() && layout.taken(layout.rank).is_some() {
            let whole = layout::Run { start: 0, bytes: run.bytes };
            self.hand_over()(result, whole, memory.to.wrapping_add(run.start));
        }
        Ok(())
    }

    /// Copies the others' results of the next chunk from where they are.
    fn collect_directly(&self, memory: &Memory<'_>) {
        let Mode::Direct(sources) = &self.mode else { return };
        for source in sources.iter().filter(|_| self.collects()) {
            let (run, _) = self.cut.share(self.layout(), self.done, source.rank);
            self.hand_over()(source.to, run, memory.to.wrapping_add(run.start));
        }
    }

    /// Goes the way that was decided.
    pub(super) fn go(&mut self, mode: Mode) {
        if matches!(mode, Mode::Direct(_)) {
            self.cut = Cut::direct(self.layout());
        }
        self.mode = mode;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::executor::in_host::{Extent, Layout, words};
    use crate::transport::board::{Board, Part};
    use crate::transport::heap::Lease;
    use crate::types::{Algorithm, Collective, CommunicatorId, DataType, Finish, ReduceOp, Reduction, Signature, Tag};

    const COUNT: usize = 100_000;

    /// Two ranks that see each other, in one thread.
    fn pair() -> [InHost; 2] {
        let boards = [(); 2].map(|()| Arc::new(Board::create(true).expect("memory")));
        let memory = boards.each_ref().map(|board| board.witness().and_then(|witness| Foreign::meet(witness.told())));
        let parts: [(usize, Part); 2] = std::array::from_fn(|rank| boards[rank].take().expect("a part"));
        std::array::from_fn(|rank| {
            let other = 1 - rank;
            let neighbour = boards[other].as_seen();
            let part = neighbour.part(parts[other].0 as u64, parts[other].1.epoch()).expect("a part");
            let peer = Peer { rank: other, part, neighbour, memory: memory[other], seen: 0, compared: 0 };
            let (index, own) = parts[rank].clone();
            InHost::new(boards[rank].clone(), index, own, SmallVec::from_iter([peer]), true, true)
        })
    }

    fn run(rank: usize, signature: &Signature) -> Run {
        let (extent, in_place) = match signature.collective {
            Collective::Allreduce => (Extent::Whole(COUNT), true),
            _ => (Extent::Equal(COUNT), false),
        };
        let layout = Layout { collective: signature.collective, extent, root: 0, in_place, rank, size: 2, width: 8 };
        Run::new(layout, words(signature))
    }

    fn signature(collective: Collective, op: Option<ReduceOp>) -> Signature {
        Signature {
            collective,
            dtype: DataType::U64,
            op,
            algorithm: Algorithm::Boards,
            root: None,
            count: COUNT as u64,
            digest: 0,
        }
    }

    fn buffer(ranks: &[InHost; 2], rank: usize) -> (Lease, &'static mut [u64]) {
        let lease = ranks[rank].board.heap().expect("a heap").take(8 * COUNT).expect("memory");
        // SAFETY: the lease has so many elements, zero, and lives as long as the test uses them.
        let elements = unsafe { std::slice::from_raw_parts_mut(lease.start().cast(), COUNT) };
        (lease, elements)
    }

    /// Whether both ranks end well when each moves in its turn, and what the second one gets. The first gives the call up as
    /// soon as it has all it needs itself, if it does so at all.
    fn allreduce(gives_up: bool) -> Option<(bool, bool, Vec<u64>)> {
        let mut ranks = pair();
        ranks[0].board.heap()?;
        let signature = signature(Collective::Allreduce, Some(ReduceOp::Sum));
        let call = (Tag { communicator: CommunicatorId::WORLD, sequence: 0 }, signature);
        let (_first, mine) = buffer(&ranks, 0);
        let (_second, theirs) = buffer(&ranks, 1);
        mine.fill(1);
        theirs.fill(2);
        let starts = [mine.as_mut_ptr(), theirs.as_mut_ptr()].map(|start| start.cast::<u8>());
        let reduction = Reduction::new(ReduceOp::Sum);
        let memory = starts.map(|start| Memory {
            from: start.cast_const(),
            to: start,
            dtype: DataType::U64,
            reduction: &reduction,
            finish: Finish::NONE,
        });
        let mut runs = [run(0, &signature), run(1, &signature)];
        for rank in 0..2 {
            let written = ranks[rank].write_line(&mut runs[rank], &memory[rank], call);
            assert!(matches!(written, Some(Ok(()))), "the line of rank {rank}");
        }
        for rank in 0..2 {
            assert!(matches!(ranks[rank].meet(&mut runs[rank]), Some(Ok(()))), "rank {rank}");
            assert!(matches!(runs[rank].mode, Mode::Direct(_)), "the way of rank {rank}");
        }
        let chunks = runs[0].cut.chunks;
        assert!(chunks > 1);
        let mut ended = [false; 2];
        // The second does its part of the work, and no more before the first has all.
        let [first, second] = &mut ranks;
        let [first_run, second_run] = &mut runs;
        while second_run.combined < chunks {
            ended[1] |= second.move_directly(second_run, &memory[1]).1.is_some();
        }
        while first_run.done < chunks {
            ended[0] |= first.move_directly(first_run, &memory[0]).1.is_some();
        }
        assert_eq!(ended, [false; 2], "each waits for the other");
        assert!(mine.iter().all(|found| *found == 3));
        if gives_up {
            first.give_up(Some(first_run.line));
            mine.fill(1_000);
        }
        for _ in 0..4 * chunks {
            ended[1] |= second.move_directly(second_run, &memory[1]).1.is_some_and(|outcome| outcome.is_ok());
            ended[0] |= first.move_directly(first_run, &memory[0]).1.is_some_and(|outcome| outcome.is_ok());
        }
        Some((ended[0], ended[1], theirs.to_vec()))
    }

    #[test]
    fn what_was_read_of_a_call_given_up_is_no_result() {
        let Some((first, second, found)) = allreduce(false) else {
            return eprintln!("not tested: this process may not have so many addresses (ulimit -v, -f)");
        };
        assert!(first && second && found.iter().all(|found| *found == 3));
        let (_, second, _) = allreduce(true).expect("as before");
        assert!(!second, "the second took what the first wrote when it had given the call up for its result");
    }

    /// What the first rank does instead of taking part in a call whose line it has written.
    #[derive(Clone, Copy, PartialEq)]
    enum Instead {
        Nothing,
        /// It gives the call up, and then its memory away.
        GivesUp,
        /// Its memory goes although it has not given the call up.
        Loses,
    }

    type Ending = Result<Vec<u64>, Trouble>;

    /// Runs an alltoall of which the kernel copies what lies in the other rank's memory, and gives how it ended on both,
    /// with the result.
    fn alltoall(instead: Instead) -> Option<[Option<Ending>; 2]> {
        let mut ranks = pair();
        if ranks.iter().any(|rank| rank.offered.is_none() || rank.peers[0].memory.is_none()) {
            return None;
        }
        let signature = signature(Collective::Alltoall, None);
        let call = (Tag { communicator: CommunicatorId::WORLD, sequence: 0 }, signature);
        // A mapping of its own, which can be taken away. Its place stays taken, so that no other test's memory comes there.
        let bytes = (2 * 8 * COUNT).next_multiple_of(crate::sys::page_bytes());
        let input = || {
            crate::sys::Segment::create("phalanx-test", bytes).and_then(|one| crate::sys::Mapping::new(&one, 0, bytes))
        };
        let inputs = [(); 2].map(|()| input().expect("memory"));
        let mut outputs = [(); 2].map(|()| vec![0_u64; 2 * COUNT]);
        let reduction = Reduction::new(ReduceOp::Sum);
        let memory: [Memory<'_>; 2] = std::array::from_fn(|rank| {
            let from = inputs[rank].start().as_ptr();
            // SAFETY: the mapping has so many elements, and nobody else looks at it.
            let elements = unsafe { std::slice::from_raw_parts_mut(from.cast::<u64>(), 2 * COUNT) };
            elements.iter_mut().enumerate().for_each(|(index, element)| *element = (index * 2 + rank) as u64);
            let to = outputs[rank].as_mut_ptr().cast();
            Memory { from: from.cast_const(), to, dtype: DataType::U64, reduction: &reduction, finish: Finish::NONE }
        });
        let mut runs = [run(0, &signature), run(1, &signature)];
        for rank in 0..2 {
            assert!(matches!(ranks[rank].write_line(&mut runs[rank], &memory[rank], call), Some(Ok(()))));
        }
        for rank in 0..2 {
            assert!(matches!(ranks[rank].meet(&mut runs[rank]), Some(Ok(()))), "rank {rank}");
            let Mode::Direct(sources) = &runs[rank].mode else { panic!("another way than rank {rank} was to go") };
            assert!(matches!(sources[..], [Source { from: Place::There(..), .. }]), "rank {rank}");
        }
        if instead == Instead::GivesUp {
            ranks[0].give_up(Some(runs[0].line));
        }
        if instead != Instead::Nothing {
            use rustix::mm::{MprotectFlags, mprotect};
            // SAFETY: nobody looks at the elements any more but the system, which is refused.
            let taken = unsafe { mprotect(inputs[0].start().as_ptr().cast(), bytes, MprotectFlags::empty()) };
            taken.expect("memory without access");
        }
        let mut ended = [None, None];
        for _ in 0..2 * runs[0].cut.chunks + 2 {
            for rank in (0..2).filter(|rank| instead == Instead::Nothing || *rank == 1) {
                let (_, outcome) = ranks[rank].move_directly(&mut runs[rank], &memory[rank]);
                ended[rank] = ended[rank].take().or(outcome);
            }
        }
        let mut outputs = outputs.into_iter();
        Some(ended.map(|ended| outputs.next().zip(ended).map(|(output, ended)| ended.map(|()| output))))
    }

    #[test]
    fn the_kernel_copies_from_where_the_others_have_it() {
        let Some(found) = alltoall(Instead::Nothing) else {
            return eprintln!("not tested: no process may read another's memory here (process_vm_readv)");
        };
        for (rank, found) in found.into_iter().enumerate() {
            let answer: Vec<u64> =
                (0..2 * COUNT).map(|index| ((rank * COUNT + index % COUNT) * 2 + index / COUNT) as u64).collect();
            assert!(found.expect("an end").expect("a result") == answer, "rank {rank}");
        }
        let [_, second] = alltoall(Instead::GivesUp).expect("as before");
        assert!(second.is_none(), "the second waits to hear that the first has given the call up");
        let [_, second] = alltoall(Instead::Loses).expect("as before");
        assert!(matches!(second, Some(Err(Trouble::Unreadable(0)))), "{second:?}");
    }

    #[test]
    fn memory_that_cannot_be_read_goes_through_the_stage() {
        let mut ranks = pair();
        let signature = signature(Collective::Alltoall, None);
        let reduction = Reduction::new(ReduceOp::Sum);
        let nowhere = Memory {
            from: std::ptr::without_provenance(4096),
            to: std::ptr::without_provenance_mut(4096),
            dtype: DataType::U64,
            reduction: &reduction,
            finish: Finish::NONE,
        };
        assert_eq!(ranks[0].tell(&run(0, &signature), &nowhere), [0; 3]);
    }
}
