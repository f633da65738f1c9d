//! The limit of an allreduce whose inputs and outputs are each thread's own, so that all bytes that go from one to another
//! are copied through memory that both see.
//!
//! Chunk by chunk, each thread puts up the others' shares of its input, adds up its own share of all, stores the sum in its
//! output and where the others see it, and copies their sums.

use std::cell::UnsafeCell;
use std::ops::Range;

use phalanx::reduce::reduce;
use phalanx::types::{Finish, Reduction};
use phalanx::{DataType, ReduceOp};

use super::{Aligned, LINE_ELEMENTS, Meeting, Outcome, Work, answer, fastest, input, on_threads};

/// Bytes of a thread's input that are on their way at once: what is tried. The fastest counts.
const CHUNK_BYTES: [usize; 3] = [32 << 10, 128 << 10, 512 << 10];

/// Memory that one thread writes and the others read, in turn.
struct Stage(Box<[UnsafeCell<f32>]>);

// SAFETY: the threads meet between one's writing and the others' reading, and before it is written again.
unsafe impl Sync for Stage {}

impl Stage {
    fn new(count: usize) -> Self {
        Self((0..count + LINE_ELEMENTS).map(|_| UnsafeCell::new(0.0)).collect())
    }

    /// Element `at` after the first that starts a cache line.
    fn at(&self, at: usize) -> *mut f32 {
        let start = self.0.as_ptr().align_offset(64).min(LINE_ELEMENTS);
        assert!(start + at <= self.0.len());
        UnsafeCell::raw_get(self.0.as_ptr()).wrapping_add(start + at)
    }
}

/// A thread's stage and its sums, each twice, by the parity of the chunk.
struct Shown {
    inputs: [Stage; 2],
    sums: [Stage; 2],
}

/// One thread's part.
struct Staged<'a> {
    rank: usize,
    /// Elements of a chunk.
    chunk: usize,
    input: Aligned,
    output: Aligned,
    shown: &'a [Shown],
    sum: Reduction,
}

impl Staged<'_> {
    /// The share of a rank in the chunk: elements of the whole.
    fn share(&self, chunk: &Range<usize>, rank: usize) -> Range<usize> {
        let each = chunk.len().div_ceil(self.shown.len()).next_multiple_of(LINE_ELEMENTS);
        let start = (chunk.start + rank * each).min(chunk.end);
        start..(start + each).min(chunk.end)
    }
}

impl Work for Staged<'_> {
    fn once(&mut self, meeting: &mut Meeting) {
        let (own, ranks, count) = (self.rank, self.shown.len(), self.input.count);
        for (number, start) in (0..count).step_by(self.chunk).enumerate() {
            let chunk = start..(start + self.chunk).min(count);
            let side = number % 2;
            let shares: Vec<_> = (0..ranks).map(|rank| self.share(&chunk, rank)).collect();
            let input = self.input.elements().as_ptr();
            let output = self.output.elements().as_mut_ptr();
            for (_, share) in shares.iter().enumerate().filter(|(rank, _)| *rank != own) {
                let place = self.shown[own].inputs[side].at(share.start - start);
                // SAFETY: inside the input and the stage, which this thread alone writes, and which nobody reads now.
                unsafe { place.copy_from_nonoverlapping(input.add(share.start), share.len()) }
            }
            meeting.exchange(&[], |_, _| {});
            let share = &shares[own];
            let place = |rank: usize| match rank == own {
                true => input.wrapping_add(share.start),
                false => self.shown[rank].inputs[side].at(share.start - start).cast_const(),
            };
            let sources: Vec<_> = (0..ranks).map(|rank| place(rank).cast::<u8>()).collect();
            let target = self.shown[own].sums[side].at(0);
            // SAFETY: the sources have the share's elements, which were put up before the threads met; the target is this
            // thread's, and read by nobody now. So is the output.
            unsafe {
                reduce(&self.sum, DataType::F32, target.cast(), &sources, share.len(), Finish::NONE);
                output.add(share.start).copy_from_nonoverlapping(target, share.len());
            }
            meeting.exchange(&[], |_, _| {});
            for (rank, share) in shares.iter().enumerate().filter(|(rank, _)| *rank != own) {
                let sums = self.shown[rank].sums[side].at(0);
                // SAFETY: the sums were written before the threads met; the output is this thread's own.
                unsafe { output.add(share.start).copy_from_nonoverlapping(sums, share.len()) }
            }
        }
    }

    fn wrong(&self) -> u64 {
        let ranks = self.shown.len();
        let output = self.output.memory[self.output.start()..][..self.output.count].iter();
        output.enumerate().filter(|(index, sum)| **sum != answer(ranks, *index)).count() as u64
    }
}

/// Of the sizes of a chunk the fastest.
pub(super) fn staged(ranks: usize, count: usize) -> Outcome {
    fastest(CHUNK_BYTES.map(|bytes| in_chunks(ranks, count, bytes / size_of::<f32>())))
}

fn in_chunks(ranks: usize, count: usize, chunk: usize) -> Outcome {
    let stage = || [(); 2].map(|()| Stage::new(chunk + ranks * LINE_ELEMENTS));
    let shown: Vec<_> = (0..ranks).map(|_| Shown { inputs: stage(), sums: stage() }).collect();
    let part = |rank| {
        let mut memory = Aligned::new(count);
        memory.elements().iter_mut().enumerate().for_each(|(index, element)| *element = input(rank, index));
        let (output, sum) = (Aligned::new(count), Reduction::new(ReduceOp::Sum));
        Staged { rank, chunk, input: memory, output, shown: &shown, sum }
    };
    on_threads((0..ranks).map(part).collect())
}
