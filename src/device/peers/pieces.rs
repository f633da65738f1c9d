//! What a rank does with a piece of a call: what it copies into its arena, and what it takes from all arenas.
//!
//! A piece has the same range of elements of every block, and all ranks cut alike. A rank that sends a block to each
//! rank lays them one after the other into its arena.

use super::PeerCall;
use super::arena::REGION;
use crate::types::Collective;

/// Where the memory of a call is on this rank. In place there is no input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMemory {
    pub input: u64,
    pub output: u64,
    pub is_in_place: bool,
}

/// A run of elements between this rank's memory and an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The rank whose arena it is.
    pub rank: usize,
    /// The first byte in that arena.
    pub at: usize,
    /// Where this rank has it.
    pub memory: u64,
    /// How many elements.
    pub count: usize,
}

/// A call, cut on one of its ranks.
pub(super) struct Pieces<'a> {
    call: &'a PeerCall,
    memory: PeerMemory,
    rank: usize,
    ranks: usize,
    longest: usize,
    /// Elements of each block in a piece.
    each: usize,
}

impl<'a> Pieces<'a> {
    pub fn new(call: &'a PeerCall, memory: PeerMemory, rank: usize, ranks: usize) -> Self {
        let sends_to_each =
            matches!(call.collective, Collective::Alltoall | Collective::ReduceScatter | Collective::Scatter);
        let in_arena = if sends_to_each { ranks } else { 1 };
        // Of a long call every block in the arena begins where a vector does; those of a short one are one run.
        let fitting = REGION / in_arena / 16 * 16 / call.dtype.size();
        let longest = (0..ranks).map(|block| call.blocks.length(block)).max().unwrap_or_default();
        Self { call, memory, rank, ranks, longest, each: fitting.min(longest) }
    }

    /// How many pieces.
    pub fn count(&self) -> usize {
        self.longest.div_ceil(self.each.max(1))
    }

    /// What of this rank's memory goes into its arena.
    pub fn fills(&self, piece: usize) -> Vec<Run> {
        let source = if self.memory.is_in_place { self.memory.output } else { self.memory.input };
        let own = |base, block| Run { rank: self.rank, at: 0, ..self.run(piece, base, block) };
        let is_root = self.rank == self.call.root;
        let runs = match self.call.collective {
            Collective::Broadcast if !is_root => Vec::new(),
            Collective::Scatter if !is_root => Vec::new(),
            Collective::Alltoall | Collective::ReduceScatter | Collective::Scatter => (0..self.ranks)
                .map(|block| Run { at: block * self.stride(), ..own(self.block_at(source, block), block) })
                .collect(),
            Collective::Allgather | Collective::Gather if self.memory.is_in_place => {
                vec![own(self.block_at(source, self.rank), self.rank)]
            }
            _ => vec![own(source, self.rank)],
        };
        let width = self.call.dtype.size();
        without_empty(runs).into_iter().fold(Vec::new(), |mut joined: Vec<Run>, run| {
            match joined.last_mut() {
                Some(last)
                    if last.at + last.count * width == run.at
                        && last.memory + (last.count * width) as u64 == run.memory =>
                {
                    last.count += run.count;
                }
                _ => joined.push(run),
            }
            joined
        })
    }

    /// What this rank copies from arenas; for a reduction, none.
    pub fn copies(&self, piece: usize) -> Vec<Run> {
        let PeerMemory { output, is_in_place, .. } = self.memory;
        // Each rank begins with another one's arena.
        let others = (0..self.ranks).map(|next| (self.rank + next) % self.ranks);
        let is_root = self.rank == self.call.root;
        let runs = match self.call.collective {
            Collective::Broadcast if !is_root => {
                vec![Run { rank: self.call.root, ..self.run(piece, output, self.rank) }]
            }
            Collective::Scatter if !(is_root && is_in_place) => {
                let at = self.rank * self.stride();
                vec![Run { rank: self.call.root, at, ..self.run(piece, output, self.rank) }]
            }
            Collective::Gather if !is_root => Vec::new(),
            Collective::Allgather | Collective::Gather => others
                .filter(|&rank| !(rank == self.rank && is_in_place))
                .map(|rank| self.run(piece, self.block_at(output, rank), rank))
                .collect(),
            Collective::Alltoall => others
                .map(|rank| Run { at: self.rank * self.stride(), ..self.run(piece, self.block_at(output, rank), rank) })
                .collect(),
            _ => Vec::new(),
        };
        without_empty(runs)
    }

    /// What this rank reduces from the same place in all arenas, if this is a reduction and the result is its own.
    pub fn reduction(&self, piece: usize) -> Option<Run> {
        let PeerMemory { output, is_in_place, .. } = self.memory;
        let run = match self.call.collective {
            Collective::Allreduce => self.run(piece, output, self.rank),
            Collective::Reduce if self.rank == self.call.root => self.run(piece, output, self.rank),
            Collective::ReduceScatter => {
                let base = if is_in_place { self.block_at(output, self.rank) } else { output };
                Run { at: self.rank * self.stride(), ..self.run(piece, base, self.rank) }
            }
            _ => return None,
        };
        (run.count > 0).then_some(run)
    }

    /// The piece's part of a block of this length, in memory that begins at `base`; at the start of the block's rank's
    /// arena.
    fn run(&self, piece: usize, base: u64, block: usize) -> Run {
        let first = piece * self.each;
        let count = self.call.blocks.length(block).saturating_sub(first).min(self.each);
        Run { rank: block, at: 0, memory: base + (first * self.call.dtype.size()) as u64, count }
    }

    /// Where a block begins in memory that has all of them.
    fn block_at(&self, base: u64, block: usize) -> u64 {
        base + (self.call.blocks.start(block) * self.call.dtype.size()) as u64
    }

    /// Bytes between blocks in an arena.
    fn stride(&self) -> usize {
        self.each * self.call.dtype.size()
    }
}

fn without_empty(mut runs: Vec<Run>) -> Vec<Run> {
    runs.retain(|run| run.count > 0);
    runs
}

#[cfg(test)]
mod tests {
    use super::super::{Blocks, PeerCall};
    use super::*;
    use crate::types::{DataType, Finish, ReduceOp};

    const INPUT: u64 = 1 << 40;
    const OUTPUT: u64 = 1 << 41;

    fn call(collective: Collective, blocks: Blocks) -> PeerCall {
        let op = matches!(collective, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter);
        PeerCall {
            collective,
            root: 1,
            dtype: DataType::F32,
            op: op.then_some(ReduceOp::Sum),
            prescale: 1.0,
            finish: Finish::NONE,
            blocks,
        }
    }

    const APART: PeerMemory = PeerMemory { input: INPUT, output: OUTPUT, is_in_place: false };
    const IN_PLACE: PeerMemory = PeerMemory { input: 0, output: OUTPUT, is_in_place: true };

    /// Bytes that came to one place from a place of a rank.
    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Moved {
        to: u64,
        rank: usize,
        from: u64,
        bytes: usize,
    }

    /// What a rank gets by a call, from memory to memory. What continues is one.
    fn followed(call: &PeerCall, memory: PeerMemory, ranks: usize, rank: usize) -> Vec<Moved> {
        let width = call.dtype.size();
        let pieces: Vec<_> = (0..ranks).map(|rank| Pieces::new(call, memory, rank, ranks)).collect();
        assert!(pieces.iter().all(|of| of.count() == pieces[0].count()));
        let mut moved = Vec::new();
        for piece in 0..pieces[0].count() {
            let arenas: Vec<_> = pieces.iter().map(|of| of.fills(piece)).collect();
            for run in arenas.iter().flatten() {
                assert!(run.at + run.count * width <= REGION, "beyond the arena: {run:?}");
            }
            for run in pieces[rank].copies(piece) {
                let bytes = run.count * width;
                let has = |fill: &&Run| fill.at <= run.at && run.at + bytes <= fill.at + fill.count * width;
                let fill = arenas[run.rank].iter().find(has).expect("what is copied lies in the arena");
                let from = fill.memory + (run.at - fill.at) as u64;
                moved.push(Moved { to: run.memory, rank: run.rank, from, bytes });
            }
        }
        moved.sort_unstable();
        moved.into_iter().fold(Vec::new(), |mut joined: Vec<Moved>, next| {
            match joined.last_mut() {
                Some(last)
                    if last.rank == next.rank
                        && (next.to - last.to, next.from - last.from) == (last.bytes as u64, last.bytes as u64) =>
                {
                    last.bytes += next.bytes;
                }
                _ => joined.push(next),
            }
            joined
        })
    }

    #[test]
    fn every_block_comes_from_its_rank_and_place_however_long_it_is() {
        for count in [1, 1000, 3_000_000] {
            let bytes = 4 * count;
            let block = |number: usize| (number * bytes) as u64;
            let equal = |collective| call(collective, Blocks::Equal(count));
            // Block by block from each rank, from the same place of each.
            let from_each = |from| [0, 1, 2].map(|rank| Moved { to: OUTPUT + block(rank), rank, from, bytes });
            let allgather = equal(Collective::Allgather);
            assert_eq!(followed(&allgather, APART, 3, 2), from_each(INPUT));
            let others = [0, 1].map(|rank| Moved { to: OUTPUT + block(rank), rank, from: OUTPUT + block(rank), bytes });
            assert_eq!(followed(&allgather, IN_PLACE, 3, 2), others);
            let alltoall = equal(Collective::Alltoall);
            assert_eq!(followed(&alltoall, APART, 3, 2), from_each(INPUT + block(2)));
            assert_eq!(followed(&alltoall, IN_PLACE, 3, 2), from_each(OUTPUT + block(2)));
            let gather = equal(Collective::Gather);
            assert_eq!(followed(&gather, APART, 3, 2), []);
            assert_eq!(followed(&gather, APART, 3, 1), from_each(INPUT));
            let scatter = equal(Collective::Scatter);
            let from_root = |from| [Moved { to: OUTPUT, rank: 1, from, bytes }];
            assert_eq!(followed(&scatter, APART, 3, 2), from_root(INPUT + block(2)));
            assert_eq!(followed(&scatter, IN_PLACE, 3, 1), []);
            let broadcast = call(Collective::Broadcast, Blocks::Whole(count));
            assert_eq!(followed(&broadcast, IN_PLACE, 3, 2), from_root(OUTPUT));
            assert_eq!(followed(&broadcast, IN_PLACE, 3, 1), []);
        }
        let counts = Blocks::Given(vec![5, 0, 7_000_000]);
        let long = |to, rank, from| Moved { to, rank, from, bytes: 28_000_000 };
        let given = call(Collective::Allgather, counts.clone());
        let short = Moved { to: OUTPUT, rank: 0, from: INPUT, bytes: 20 };
        assert_eq!(followed(&given, APART, 3, 1), [short, long(OUTPUT + 20, 2, INPUT)]);
        let given = call(Collective::Scatter, counts);
        assert_eq!(followed(&given, APART, 3, 2), [long(OUTPUT, 1, INPUT + 20)]);
        assert_eq!(followed(&given, APART, 3, 1), []);
    }

    #[test]
    fn reductions_read_the_same_place_of_all_arenas() {
        for count in [1, 1000, 3_000_000] {
            let call = call(Collective::ReduceScatter, Blocks::Equal(count));
            for rank in 0..3 {
                for memory in [APART, IN_PLACE] {
                    let of = |rank| Pieces::new(&call, memory, rank, 3);
                    let mut done = 0;
                    for piece in 0..of(0).count() {
                        let result = of(rank).reduction(piece).expect("a part of the block");
                        let first = (rank * count + done) as u64 * 4;
                        let target = if memory.is_in_place { first } else { 4 * done as u64 };
                        assert_eq!(result.memory, OUTPUT + target);
                        for other in 0..3 {
                            let source = if memory.is_in_place { OUTPUT } else { INPUT };
                            let fills = of(other).fills(piece);
                            let has = |run: &&Run| run.at <= result.at && result.at < run.at + 4 * run.count;
                            let fill = fills.iter().find(has).expect("what is reduced lies in the arena");
                            assert_eq!(fill.memory + (result.at - fill.at) as u64, source + first);
                        }
                        done += result.count;
                    }
                    assert_eq!(done, count);
                }
            }
        }
        let reduce = call(Collective::Reduce, Blocks::Whole(9));
        assert_eq!(Pieces::new(&reduce, APART, 0, 2).reduction(0), None);
        let run = Run { rank: 1, at: 0, memory: OUTPUT, count: 9 };
        assert_eq!(Pieces::new(&reduce, APART, 1, 2).reduction(0), Some(run));
    }

    #[test]
    fn what_is_short_goes_into_the_arena_at_once() {
        let alltoall = call(Collective::Alltoall, Blocks::Equal(7));
        let run = Run { rank: 0, at: 0, memory: INPUT, count: 28 };
        assert_eq!(Pieces::new(&alltoall, APART, 0, 4).fills(0), [run]);
        // A vector begins with every block of what is cut.
        let alltoall = call(Collective::Alltoall, Blocks::Equal(5_000_001));
        let fills = Pieces::new(&alltoall, APART, 0, 3).fills(0);
        assert!(fills.len() == 3 && fills.iter().all(|run| run.at % 16 == 0), "{fills:?}");
    }
}
