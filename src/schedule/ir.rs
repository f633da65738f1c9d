//! The language of plans.

use crate::types::{Algorithm, Collective, Order};

/// Which memory a span lies in.
///
/// In-place plans name [`Buffer::Output`] and scratch alone. What an in-place buffer holds before and after:
/// allreduce, broadcast, reduce: the whole; allgather: all blocks, this rank's own filled in; reduce_scatter: all
/// blocks, this rank's own holding the result, the others unspecified; gather at the root, scatter at the root: all
/// blocks, with the root's own in its place; gather and scatter elsewhere: this rank's block; alltoall: all blocks,
/// equal lengths only.
///
/// Out of place, the output is: allreduce, broadcast: the whole, on every rank, the root of a broadcast included;
/// reduce: the whole at the root; allgather, alltoall: all blocks; gather: all blocks at the root; reduce_scatter,
/// scatter: this rank's block. The input of a broadcast and of a scatter is read at the root only.
///
/// The ranks of a reduce or gather that are not the root keep their buffers as they are, in place or not. What is sent
/// never depends on whether a rank works in place, so that each may choose for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input; never written.
    Input,
    /// The caller's output.
    Output,
    /// Memory that the executor lends for the length of the operation; its contents are unspecified at first.
    Scratch,
}

/// A run of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Where it lies.
    pub buffer: Buffer,
    /// First element.
    pub start: usize,
    /// Number of elements. May be zero: a message of zero elements still travels, and still synchronises.
    pub count: usize,
}

impl Span {
    /// Elements `start .. start + count` of `buffer`.
    pub const fn new(buffer: Buffer, start: usize, count: usize) -> Self {
        Self { buffer, start, count }
    }

    /// One past the last element.
    pub const fn end(&self) -> usize {
        self.start + self.count
    }

    /// `count` elements of this span, from its element `offset` on.
    pub const fn part(&self, offset: usize, count: usize) -> Self {
        Self { buffer: self.buffer, start: self.start + offset, count }
    }

    /// Whether the two spans share an element.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.buffer == other.buffer
            && self.count > 0
            && other.count > 0
            && self.start < other.end()
            && other.start < self.end()
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Sends `source` to `peer`. Messages between two ranks arrive in the order of their steps, and within a step in
    /// the order of the instructions.
    Send {
        /// The receiving rank.
        peer: usize,
        /// What is sent.
        source: Span,
    },
    /// Receives from `peer` into `target`.
    Recv {
        /// The sending rank.
        peer: usize,
        /// What is overwritten.
        target: Span,
    },
    /// Receives from `peer` and combines what arrives into `target`.
    RecvReduce {
        /// The sending rank.
        peer: usize,
        /// Left or right operand, and where the result goes.
        target: Span,
        /// Which operand stands on the left.
        order: Order,
        /// Whether every contribution is now in, so that average and postscale are due.
        finish: bool,
    },
    /// Copies `source` to `target`, of equal counts.
    Copy {
        /// What is read.
        source: Span,
        /// What is overwritten.
        target: Span,
    },
    /// `target = sources[0] op sources[1] op ...`, from left to right, in one pass, halves accumulating in `f32` and
    /// rounding once. `target` may be identical to one of the sources; otherwise it overlaps none. One source alone
    /// is a copy (with `finish`, a finished copy).
    Reduce {
        /// What is combined, in order. All counts are equal.
        sources: Vec<Span>,
        /// What is overwritten.
        target: Span,
        /// Whether every contribution is now in, so that average and postscale are due.
        finish: bool,
    },
}

/// Instructions that may run together: none writes what another reads or writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The instructions. Their order matters only for messages to or from the same peer.
    pub instructions: Vec<Instruction>,
}

/// One rank's plan of one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The algorithm that made it.
    pub algorithm: Algorithm,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Elements of scratch it needs.
    pub scratch: usize,
    /// Whether partial results travel between ranks or wait in memory for the next receive (ring, trees, ...), or
    /// only raw contributions and finished results do (direct algorithms). Where there are partial results, halves
    /// are widened to `f32` for the whole operation, so that they are rounded once. The same on all ranks.
    pub partials_travel: bool,
}

/// How many elements a collective moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'a> {
    /// Allreduce, reduce, broadcast: elements of the whole buffer. Barrier: 0.
    Whole(usize),
    /// Allgather, reduce_scatter, gather, scatter: elements of each rank's block, one for each rank, packed in rank
    /// order in the larger buffer.
    Blocks(&'a [usize]),
    /// Alltoall: elements of this rank's block for each rank, and of each rank's block for this one, packed in rank
    /// order. In general no rank knows the lengths that two others exchange.
    Exchange {
        /// Elements this rank sends to each rank.
        send: &'a [usize],
        /// Elements this rank receives from each rank.
        recv: &'a [usize],
        /// Whether every block of every rank has the same length, which is what Bruck's algorithm needs.
        equal: bool,
    },
}

/// What is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The collective. `SendRecv` is not planned: it is one instruction.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The rank whose plan is wanted.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The root, for rooted collectives; otherwise ignored.
    pub root: usize,
    /// The counts.
    pub shape: Shape<'a>,
    /// Whether input and output are the same memory; see [`Buffer`].
    pub in_place: bool,
    /// For each rank, which host it is on; empty when all share one. Ranks of one host need not be neighbours.
    pub hosts: &'a [usize],
    /// Elements in flight at once in pipelined algorithms; at least 1.
    pub segment: usize,
    /// Whether every element must be reduced in rank order, `((x0 op x1) op x2) ...`, whatever the algorithm.
    pub deterministic: bool,
}
