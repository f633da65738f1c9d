//! A call on device memory as a row of calls on host memory.
//!
//! Long calls are cut, so that copies and network work at the same time: each piece has the same range of elements of
//! every block. The cut depends on nothing but what all ranks agree on. Each piece travels under the count of the whole
//! call and its own place in it, so that ranks whose calls differ find out with the first piece.

use crate::comm::call::{Call, Extent};
use crate::device::Segment;
use crate::types::Collective;

/// Bytes of a slot that a piece is cut to fit in: large enough that a copy runs at full speed, and that four slots fit in
/// the pinned memory that any container allows.
pub(super) const SLOT_BYTES: usize = 4 << 20;

/// Elements of a block that a piece has at least: less would cost more in latency than in copies.
const LEAST: usize = 1024;

/// Where the output begins in a slot.
const ALIGNMENT: usize = 256;

/// How a call is cut on this rank.
pub(super) struct Pieces {
    call: Call,
    rank: usize,
    width: usize,
    /// Elements of a block of the input, and how many blocks this rank has of it.
    input: (usize, usize),
    output: (usize, usize),
    /// Elements of a block in a piece.
    piece: usize,
    in_place: bool,
    is_cut: bool,
}

/// One piece: a call on a slot.
pub(super) struct Piece {
    pub call: Call,
    /// Where the input begins in the slot; none in place.
    pub input: Option<usize>,
    pub output: usize,
    /// Bytes that it needs of a slot.
    pub bytes: usize,
    pub fetch: Vec<Segment>,
    pub deliver: Vec<Segment>,
}

impl Pieces {
    /// Cuts a call that was validated.
    pub fn new(call: &Call, rank: usize, size: usize) -> Self {
        let width = call.dtype.size();
        let in_place = call.is_in_place(rank);
        let (inputs, outputs) = call.buffer_counts(rank, size);
        let (block, most_blocks) = match call.extent {
            Extent::Whole(count) => (count, 2),
            Extent::Equal(count) if call.collective == Collective::Alltoall => (count, size.saturating_mul(2)),
            Extent::Equal(count) => (count, size.saturating_add(1)),
            Extent::Blocks(_) | Extent::Exchange { .. } => {
                return Self {
                    call: call.clone(),
                    rank,
                    width,
                    input: (inputs, 1),
                    output: (outputs, 1),
                    piece: inputs.max(outputs),
                    in_place,
                    is_cut: false,
                };
            }
        };
        let fitting = SLOT_BYTES / most_blocks.saturating_mul(width).max(1);
        let piece = (fitting / LEAST * LEAST).max(LEAST).min(block);
        let blocks = |count: usize| count.checked_div(block).unwrap_or_default();
        Self {
            call: call.clone(),
            rank,
            width,
            input: (block, blocks(inputs)),
            output: (block, blocks(outputs)),
            piece,
            in_place,
            is_cut: true,
        }
    }

    /// How many pieces: at least one, since every rank must have been called.
    pub fn count(&self) -> usize {
        if self.is_cut { self.input.0.div_ceil(self.piece.max(1)).max(1) } else { 1 }
    }

    /// The piece with this number, for buffers at these addresses.
    pub fn piece(&self, number: usize, input: u64, output: u64) -> Piece {
        let at = number * self.piece;
        // A call that is not cut has blocks of different lengths in its input and output.
        let of = |block: usize| if self.is_cut { self.piece.min(block - at) } else { block };
        let run = |base: u64, start: usize, (block, _): (usize, usize), index: usize| Segment {
            device: base + ((index * block + at) * self.width) as u64,
            at: start + index * of(block) * self.width,
            bytes: of(block) * self.width,
        };
        let bytes = |(block, blocks): (usize, usize)| of(block) * blocks * self.width;
        let output_start = bytes(self.input).next_multiple_of(ALIGNMENT);
        let outputs = (0..self.output.1).map(|index| run(output, output_start, self.output, index));
        let fetch = if self.in_place {
            outputs.clone().enumerate().filter(|(index, _)| self.is_read(*index)).map(|(_, segment)| segment).collect()
        } else {
            (0..self.input.1).map(|index| run(input, 0, self.input, index)).collect::<Vec<_>>()
        };
        let deliver = outputs.enumerate().filter(|(index, _)| self.is_result(*index)).map(|(_, segment)| segment);
        Piece {
            call: self.call_of(at, of(self.input.0.max(self.output.0))),
            input: (!self.in_place && self.input.1 > 0).then_some(0),
            output: output_start,
            bytes: output_start + bytes(self.output),
            fetch: without_empty(fetch),
            deliver: without_empty(deliver.collect()),
        }
    }

    fn call_of(&self, at: usize, count: usize) -> Call {
        if !self.is_cut {
            return self.call.clone();
        }
        let whole = self.input.0;
        let extent = match self.call.extent {
            Extent::Equal(_) => Extent::Equal(count),
            _ => Extent::Whole(count),
        };
        Call { extent, part: Some((whole as u64, at as u64)), ..self.call.clone() }
    }

    /// In place: whether a block of the buffer is input on this rank.
    fn is_read(&self, index: usize) -> bool {
        match self.call.collective {
            Collective::Broadcast => self.rank == self.call.root,
            Collective::Allgather | Collective::Gather => !self.is_cut || index == self.rank,
            _ => true,
        }
    }

    /// Whether a block of the output is a result on this rank that the device's memory lacks.
    fn is_result(&self, index: usize) -> bool {
        match self.call.collective {
            Collective::Broadcast => self.rank != self.call.root,
            Collective::Reduce => self.rank == self.call.root,
            Collective::Scatter => !self.in_place,
            Collective::Allgather | Collective::Gather => !self.is_cut || !self.in_place || index != self.rank,
            Collective::ReduceScatter => !self.is_cut || !self.in_place || index == self.rank,
            _ => true,
        }
    }
}

fn without_empty(mut segments: Vec<Segment>) -> Vec<Segment> {
    segments.retain(|segment| segment.bytes > 0);
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, ReduceOp};

    fn covered(pieces: &Pieces, which: impl Fn(Piece) -> Vec<Segment>) -> Vec<(u64, usize)> {
        let mut runs: Vec<(u64, usize)> = Vec::new();
        for number in 0..pieces.count() {
            let piece = pieces.piece(number, 0, 1 << 40);
            let (bytes, input, output) = (piece.bytes, piece.input, piece.output);
            assert!(input.is_none_or(|input| input < output || output == 0));
            for segment in which(piece) {
                assert!(segment.at + segment.bytes <= bytes);
                runs.push((segment.device, segment.bytes));
            }
        }
        runs.sort_unstable();
        // Neighbours grow together; an overlap would stay apart.
        runs.into_iter().fold(Vec::new(), |mut merged, (start, bytes)| {
            match merged.last_mut() {
                Some((first, length)) if *first + *length as u64 == start => *length += bytes,
                _ => merged.push((start, bytes)),
            }
            merged
        })
    }

    #[test]
    fn every_element_is_fetched_and_delivered_once() {
        const OUT: u64 = 1 << 40;
        let large = 3_000_001;
        for count in [1, 1023, 1024, large] {
            let bytes = 4 * count;
            let pieces = Pieces::new(&Call::allreduce(DataType::F32, count, ReduceOp::Sum), 1, 4);
            assert_eq!(covered(&pieces, |piece| piece.fetch), [(0, bytes)]);
            assert_eq!(covered(&pieces, |piece| piece.deliver), [(OUT, bytes)]);
            let pieces = Pieces::new(&Call::allgather(DataType::F32, count).in_place(true), 1, 4);
            assert_eq!(covered(&pieces, |piece| piece.fetch), [(OUT + bytes as u64, bytes)]);
            let others = [(OUT, bytes), (OUT + 2 * bytes as u64, 2 * bytes)];
            assert_eq!(covered(&pieces, |piece| piece.deliver), others);
            let pieces = Pieces::new(&Call::alltoall(DataType::F32, count), 2, 3);
            assert_eq!(covered(&pieces, |piece| piece.fetch), [(0, 3 * bytes)]);
            assert_eq!(covered(&pieces, |piece| piece.deliver), [(OUT, 3 * bytes)]);
            let pieces = Pieces::new(&Call::gather(DataType::F32, count, 0), 1, 3);
            assert_eq!(covered(&pieces, |piece| piece.fetch), [(0, bytes)]);
            assert_eq!(covered(&pieces, |piece| piece.deliver), []);
        }
        let pieces = Pieces::new(&Call::allgatherv(DataType::U8, &[3, 0, 9]), 2, 3);
        assert_eq!(covered(&pieces, |piece| piece.fetch), [(0, 9)]);
        assert_eq!(covered(&pieces, |piece| piece.deliver), [(OUT, 12)]);
    }

    #[test]
    fn all_ranks_cut_alike_whatever_they_have_of_a_call() {
        for call in [
            Call::gather(DataType::F64, 2_000_000, 1),
            Call::scatter(DataType::F64, 2_000_000, 1),
            Call::broadcast(DataType::F64, 2_000_000, 1),
            Call::reduce(DataType::F64, 2_000_000, ReduceOp::Sum, 1),
        ] {
            let root = Pieces::new(&call, 1, 3);
            let other = Pieces::new(&call.in_place(true), 0, 3);
            assert_eq!(root.piece, other.piece);
            // A rank may have no block of its own, and is called as often all the same.
            assert!(root.count() > 1);
            assert_eq!(root.count(), other.count());
        }
        assert_eq!(Pieces::new(&Call::barrier(), 0, 3).count(), 1);
    }

    #[test]
    fn pieces_of_different_calls_do_not_meet() {
        let sign = |count, number| {
            let pieces = Pieces::new(&Call::allreduce(DataType::F32, count, ReduceOp::Sum), 0, 2);
            pieces.piece(number, 0, 0).call.signature(crate::types::Algorithm::Ring, false, 2)
        };
        assert_ne!(sign(3_000_000, 0), sign(3_000_001, 0));
        assert_ne!(sign(3_000_000, 0), sign(3_000_000, 1));
        assert_eq!(sign(3_000_000, 1).count, 3_000_000);
    }
}
