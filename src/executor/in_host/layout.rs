//! Which bytes of a call each rank shows to the others, and where each of them goes.
//!
//! Everything here follows from the call alone, so that all ranks reckon alike.

use std::sync::Arc;

use crate::transport::board::{BLOCK_BYTES, PAYLOAD_BYTES, RESULT_BYTES};
use crate::types::Collective;

/// How many elements a call moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole buffer.
    Whole(usize),
    /// Blocks of one length, one for each rank.
    Equal(usize),
    /// Blocks of given lengths, one for each rank.
    Blocks(Arc<[usize]>),
}

/// A call in which every rank knows every length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The collective.
    pub collective: Collective,
    /// The elements.
    pub extent: Extent,
    /// The root, of those that have one.
    pub root: usize,
    /// Whether this rank's memory is one buffer.
    pub in_place: bool,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Bytes of an element.
    pub width: usize,
}

/// How much is read at once of what another rank shows, where it is read in place: enough to make up for a system call,
/// and little enough to stay in the cache next to the processor, one for each of the other ranks.
pub(super) const DIRECT_BYTES: usize = 128 << 10;

/// From how many bytes on, which one rank has for another, the kernel copies them.
const SINGLE_COPY_BYTES: usize = 64 << 10;

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub start: usize,
    pub bytes: usize,
}

/// What becomes of what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Combined by those that it is for.
    Combined,
    /// As that; but where it is long, each rank combines a part, which the others then copy.
    AllreduceByParts,
    /// As that, for the root alone.
    ReduceByParts,
    /// Copied by those that it is for.
    Copied,
}

impl Layout {
    pub(super) fn fate(&self) -> Fate {
        match self.collective {
            Collective::Allreduce => Fate::AllreduceByParts,
            // The root reads as much either way, and the other writes it once.
            Collective::Reduce if self.size == 2 => Fate::Combined,
            Collective::Reduce => Fate::ReduceByParts,
            Collective::ReduceScatter => Fate::Combined,
            _ => Fate::Copied,
        }
    }

    fn count(&self, block: usize) -> usize {
        match &self.extent {
            Extent::Whole(count) | Extent::Equal(count) => *count,
            Extent::Blocks(counts) => counts.get(block).copied().unwrap_or(0),
        }
    }

    /// Where a block begins among all.
    fn start(&self, block: usize) -> usize {
        match &self.extent {
            Extent::Whole(_) => 0,
            Extent::Equal(count) => block * count,
            Extent::Blocks(counts) => counts.iter().take(block).sum(),
        }
    }

    fn run(&self, start: usize, count: usize) -> Run {
        Run { start: start * self.width, bytes: count * self.width }
    }

    /// Whether the call sends each rank another block.
    fn scatters(&self) -> bool {
        matches!(self.collective, Collective::ReduceScatter | Collective::Alltoall | Collective::Scatter)
    }

    /// Whether each rank gives one block.
    fn gathers(&self) -> bool {
        matches!(self.collective, Collective::Allgather | Collective::Gather)
    }

    /// Whether a rank shows anything.
    fn shows(&self, rank: usize) -> bool {
        match self.collective {
            Collective::Broadcast | Collective::Scatter => rank == self.root,
            Collective::Barrier => false,
            _ => true,
        }
    }

    /// Whether only this rank takes what the ranks show.
    fn takes_all(&self) -> bool {
        matches!(self.collective, Collective::Reduce | Collective::Gather) && self.rank == self.root
    }

    /// What this rank shows, in the memory that it reads from: see [`reads_output`](Self::reads_output).
    pub(super) fn shown(&self) -> Run {
        if !self.shows(self.rank) {
            return self.run(0, 0);
        }
        if self.scatters() {
            return self.run(0, self.start(self.size));
        }
        let count = self.count(self.rank);
        if self.gathers() && self.in_place { self.run(self.start(self.rank), count) } else { self.run(0, count) }
    }

    /// Whether this rank's contribution lies in the output.
    pub(super) fn reads_output(&self) -> bool {
        self.in_place
    }

    /// What this rank takes of what `from` shows, and where it puts it in its output.
    pub(super) fn taken(&self, from: usize) -> Option<(Run, usize)> {
        let is_root = self.rank == self.root;
        let rooted_elsewhere = matches!(self.collective, Collective::Reduce | Collective::Gather) && !is_root;
        if rooted_elsewhere || !self.shows(from) {
            return None;
        }
        let own = from == self.rank;
        if own && self.in_place && self.fate() == Fate::Copied {
            return None;
        }
        if self.scatters() {
            let part = self.run(self.start(self.rank), self.count(self.rank));
            let target = match self.collective {
                Collective::Alltoall => self.start(from) * self.width,
                Collective::ReduceScatter if self.in_place => part.start,
                _ => 0,
            };
            return Some((part, target));
        }
        if own && self.collective == Collective::Broadcast {
            return None;
        }
        let part = self.run(0, self.count(from));
        let target = if self.gathers() { self.start(from) * self.width } else { 0 };
        Some((part, target))
    }

    /// Whether this call's memory can be read by others as long as it is under way: not where what one rank writes is what
    /// another still reads.
    pub(super) fn can_be_read_directly(&self) -> bool {
        !(self.in_place && self.collective == Collective::Alltoall)
    }

    /// Whether the kernel's copies of the others' memory are faster than the stage: where each byte is copied for one rank
    /// only, by all ranks at once, and in pieces that are worth the calls. Not what is combined, which would have to be
    /// copied somewhere first: the rank that has it in its cache is faster to put it up.
    pub(super) fn gains_by_single_copy(&self) -> bool {
        let for_one = match self.collective {
            Collective::Alltoall | Collective::Scatter => true,
            Collective::Allgather => self.size == 2,
            _ => false,
        };
        for_one && self.longest() >= SINGLE_COPY_BYTES * if self.scatters() { self.size } else { 1 }
    }

    /// Whether `reader` reads this rank's memory in a long call.
    pub(super) fn is_read_by(&self, reader: usize) -> bool {
        let by_parts = matches!(self.fate(), Fate::AllreduceByParts | Fate::ReduceByParts);
        let theirs = Self { rank: reader, ..self.clone() };
        reader != self.rank && (by_parts || theirs.taken(self.rank).is_some())
    }

    /// Whether this rank's output is read by others too.
    pub(super) fn shows_results(&self) -> bool {
        self.fate() == Fate::AllreduceByParts
    }

    /// Bytes of a rank's output, where others read it.
    pub(super) fn result_bytes(&self) -> usize {
        if self.shows_results() { self.longest() } else { 0 }
    }

    /// How many bytes of contribution and of result may be read of another rank.
    pub(super) fn read_of(&self, rank: usize) -> (usize, usize) {
        let theirs = Self { rank, ..self.clone() };
        (theirs.shown().bytes, self.result_bytes())
    }

    /// Whether this rank needs to have seen `from` before it has its result.
    pub(super) fn needs(&self, from: usize) -> bool {
        self.collective == Collective::Barrier || self.taken(from).is_some()
    }

    /// The most bytes that any rank shows.
    pub(super) fn longest(&self) -> usize {
        let count = match (&self.extent, self.scatters()) {
            (_, true) => self.start(self.size),
            (Extent::Blocks(counts), false) => counts.iter().copied().max().unwrap_or(0),
            (_, false) => self.count(0),
        };
        count * self.width
    }

    /// How many blocks of the stage a chunk takes: a power of 2. Where one rank writes what others only read, they begin
    /// when the first chunk is there, so that some sixteen are best; where all do both, fewer looks at each other are.
    fn blocks_of_a_chunk(&self) -> usize {
        let one_way = self.collective == Collective::Broadcast || self.fate() == Fate::Combined && !self.scatters();
        let most = 8;
        if one_way { (self.longest() / 16 / BLOCK_BYTES).clamp(1, most).next_power_of_two().min(most) } else { most }
    }

    /// Whether it all goes into a line.
    pub(super) fn is_short(&self) -> bool {
        // All read all, which more ranks put off longer.
        self.longest() <= if self.size <= 4 { PAYLOAD_BYTES } else { PAYLOAD_BYTES / 2 }
    }
}

/// How a long message is cut into chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Elements of a chunk: of the whole, or of one block.
    elements: usize,
    /// Elements of a rank's part of a chunk, where ranks have parts.
    pub part: usize,
    /// The number of chunks.
    pub chunks: u64,
    /// How many blocks of the stage each takes.
    pub blocks: u64,
}

impl Cut {
    /// Of what is not cut.
    pub(super) const NONE: Self = Self { elements: 0, part: 0, chunks: 0, blocks: 1 };

    /// Of what goes through the stage.
    pub(super) fn new(layout: &Layout) -> Self {
        let blocks = layout.blocks_of_a_chunk();
        Self { blocks: blocks as u64, ..Self::with(layout, blocks * BLOCK_BYTES, blocks * RESULT_BYTES) }
    }

    /// Of what is read where it is. The results of a reduce go over the boards all the same.
    pub(super) fn direct(layout: &Layout) -> Self {
        match layout.fate() {
            Fate::ReduceByParts => Self::new(layout),
            _ => Self::with(layout, DIRECT_BYTES * layout.size, DIRECT_BYTES),
        }
    }

    /// `chunk_bytes` of contributions and `result_bytes` of each rank's results at a time.
    fn with(layout: &Layout, chunk_bytes: usize, result_bytes: usize) -> Self {
        let room = chunk_bytes / layout.width;
        let line = (64 / layout.width).max(1);
        let longest_block = || (0..layout.size).map(|block| layout.count(block)).max().unwrap_or(0);
        let (elements, part, longest) = if layout.scatters() {
            let each = (room / layout.size) / line * line;
            (each, each, longest_block())
        } else if matches!(layout.fate(), Fate::AllreduceByParts | Fate::ReduceByParts) {
            let part = (result_bytes / layout.width / line).min(room / layout.size / line) * line;
            (part * layout.size, part, layout.count(0))
        } else {
            (room, room, longest_block())
        };
        Self { elements, part, chunks: longest.div_ceil(elements) as u64, blocks: 1 }
    }

    /// The elements of a chunk in a run of `count`.
    fn range(&self, chunk: u64, count: usize) -> std::ops::Range<usize> {
        let start = (chunk as usize).saturating_mul(self.elements).min(count);
        start..start.saturating_add(self.elements).min(count)
    }

    /// The part of the chunk that `owner` combines: where it lies in the whole, and in the stage.
    pub(super) fn share(&self, layout: &Layout, chunk: u64, owner: usize) -> (Run, usize) {
        let range = self.range(chunk, layout.count(0));
        // The last chunk is shared out as evenly as the others.
        let line = (64 / layout.width).max(1);
        let part = range.len().div_ceil(layout.size).next_multiple_of(line).min(self.part);
        let start = (range.start + owner * part).min(range.end);
        let end = (start + part).min(range.end);
        (layout.run(start, end - start), owner * part * layout.width)
    }

    /// What this rank puts up of the chunk for `to`, in the memory that it reads from, and where in the stage. Where all
    /// get the same, it is put up once, for rank 0.
    pub(super) fn shown(&self, layout: &Layout, chunk: u64, to: usize) -> Option<(Run, usize)> {
        match layout.fate() {
            Fate::AllreduceByParts | Fate::ReduceByParts => (to != layout.rank).then(|| self.share(layout, chunk, to)),
            _ if !layout.shows(layout.rank) || layout.takes_all() => None,
            _ if layout.scatters() => {
                let range = self.range(chunk, layout.count(to));
                let run = layout.run(layout.start(to) + range.start, range.len());
                (to != layout.rank).then_some((run, to * self.part * layout.width))
            }
            _ => {
                let range = self.range(chunk, layout.count(layout.rank));
                let offset = layout.shown().start;
                let run = layout.run(range.start, range.len());
                (to == 0).then_some((Run { start: offset + run.start, ..run }, 0))
            }
        }
    }

    /// What this rank takes of the chunk that `from` put up, in the stage, and where in its output it goes. For what is
    /// copied, or combined to where it belongs.
    pub(super) fn taken(&self, layout: &Layout, chunk: u64, from: usize) -> Option<(Run, usize)> {
        let (whole, target) = layout.taken(from)?;
        let range = self.range(chunk, whole.bytes / layout.width);
        let start = if layout.scatters() { layout.rank * self.part } else { 0 };
        Some((layout.run(start, range.len()), target + range.start * layout.width))
    }

    /// As [`taken`](Self::taken), in all that `from` shows.
    pub(super) fn taken_directly(&self, layout: &Layout, chunk: u64, from: usize) -> Option<(Run, usize)> {
        let (whole, target) = layout.taken(from)?;
        let range = self.range(chunk, whole.bytes / layout.width);
        let run = layout.run(range.start, range.len());
        Some((Run { start: whole.start + run.start, ..run }, target + run.start))
    }

    /// The bytes of this rank's own contribution that go with [`taken`](Self::taken) of itself, in the memory that it
    /// reads from.
    pub(super) fn own(&self, layout: &Layout, chunk: u64) -> Option<(Run, usize)> {
        let (whole, target) = layout.taken(layout.rank)?;
        let range = self.range(chunk, whole.bytes / layout.width);
        let offset = layout.shown().start + whole.start;
        let run = layout.run(range.start, range.len());
        Some((Run { start: offset + run.start, ..run }, target + run.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same call as every rank sees it, in all kinds of lengths.
    fn calls() -> Vec<Vec<Layout>> {
        let mut calls = Vec::new();
        for &collective in Collective::ALL.iter().filter(|one| **one != Collective::SendRecv) {
            for size in 2..=8 {
                for width in [1, 2, 8] {
                    for count in [0, 1, 7, 8_191, 70_000] {
                        for in_place in [false, true] {
                            let extent = match collective {
                                Collective::Allreduce | Collective::Reduce | Collective::Broadcast => {
                                    Extent::Whole(count)
                                }
                                Collective::Barrier => Extent::Whole(0),
                                _ if count % 2 == 0 => Extent::Equal(count),
                                _ => Extent::Blocks((0..size).map(|block| count * block / 2).collect()),
                            };
                            let root = size - 1;
                            let layout = |rank| {
                                let rooted = matches!(collective, Collective::Gather | Collective::Scatter);
                                let in_place =
                                    collective == Collective::Broadcast || (in_place && (!rooted || rank == root));
                                Layout { collective, extent: extent.clone(), root, in_place, rank, size, width }
                            };
                            calls.push((0..size).map(layout).collect());
                        }
                    }
                }
            }
        }
        calls
    }

    #[test]
    fn ranks_agree_on_how_a_call_goes() {
        for ranks in calls() {
            let first = &ranks[0];
            for layout in &ranks {
                assert_eq!((layout.longest(), layout.fate()), (first.longest(), first.fate()), "{layout:?}");
                assert!(layout.shown().bytes <= first.longest(), "{layout:?}");
                if first.longest() > 0 {
                    assert_eq!(Cut::new(layout).chunks, Cut::new(first).chunks, "{layout:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_taken_of_a_line_was_shown_there() {
        for ranks in calls() {
            for (to, from) in ranks.iter().flat_map(|to| ranks.iter().map(move |from| (to, from))) {
                if let Some((run, _)) = to.taken(from.rank) {
                    assert!(run.start + run.bytes <= from.shown().bytes, "{from:?} to {to:?}");
                }
            }
        }
    }

    /// Chunk by chunk, what a rank takes of another's stage is what that one put there for it, and all chunks together
    /// are all that it is to get, in order.
    #[test]
    fn chunks_add_up_to_the_whole() {
        for ranks in calls().into_iter().filter(|ranks| !ranks[0].is_short()) {
            let cut = Cut::new(&ranks[0]);
            assert!(
                cut.part * ranks[0].width <= RESULT_BYTES * cut.blocks as usize
                    || !matches!(ranks[0].fate(), Fate::AllreduceByParts | Fate::ReduceByParts)
            );
            for (to, from) in ranks.iter().flat_map(|to| ranks.iter().map(move |from| (to, from))) {
                let mut next = None;
                for chunk in 0..cut.chunks {
                    let (place, taken, offset) = if matches!(to.fate(), Fate::AllreduceByParts | Fate::ReduceByParts) {
                        let (share, offset) = cut.share(to, chunk, to.rank);
                        (share.start, share.bytes, offset)
                    } else if let Some((run, target)) = cut.taken(to, chunk, from.rank) {
                        (target, run.bytes, run.start)
                    } else {
                        continue;
                    };
                    assert!(offset + taken <= BLOCK_BYTES * cut.blocks as usize, "{to:?}");
                    if to.rank != from.rank {
                        let all = matches!(to.fate(), Fate::Copied | Fate::Combined) && !to.scatters();
                        let (shown, at) = cut.shown(from, chunk, if all { 0 } else { to.rank }).unwrap();
                        assert_eq!((shown.bytes, at), (taken, offset), "chunk {chunk} of {from:?} for {to:?}");
                    }
                    if !matches!(to.fate(), Fate::AllreduceByParts | Fate::ReduceByParts) {
                        assert_eq!(next.unwrap_or(place), place, "chunk {chunk} of {from:?} for {to:?}");
                        next = Some(place + taken);
                    }
                }
                if let (Some(next), Some((run, target))) = (next, to.taken(from.rank)) {
                    assert_eq!(next, target + run.bytes, "{from:?} for {to:?}");
                }
            }
            // The shares of all ranks are the whole, each byte once.
            if matches!(ranks[0].fate(), Fate::AllreduceByParts | Fate::ReduceByParts) {
                let mut next = 0;
                for (chunk, owner) in
                    (0..cut.chunks).flat_map(|chunk| (0..ranks.len()).map(move |owner| (chunk, owner)))
                {
                    let (share, _) = cut.share(&ranks[0], chunk, owner);
                    assert!(share.bytes == 0 || share.start == next, "{:?}", ranks[0]);
                    next += share.bytes;
                }
                assert_eq!(next, ranks[0].longest());
            }
        }
    }
}
