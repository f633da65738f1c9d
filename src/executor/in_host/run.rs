//! One call on the boards: its memory, and the work on its lines and chunks.

use smallvec::SmallVec;

use super::MOST_RANKS;
use super::direct::Source;
use super::layout::{self, Cut, Fate, Layout};
use crate::reduce;
use crate::types::{DataType, Finish, Reduction};

/// How much is combined before it is copied on.
const PIECE_BYTES: usize = 8 << 10;

/// How much is fetched while as much is combined. A whole number of elements.
const FETCHED_BYTES: usize = 2 << 10;

/// Which way a long call goes.
pub(super) enum Mode {
    /// Not known before all lines are there.
    Undecided,
    /// Through the stage.
    Staged,
    /// From where the ranks' memory is: that of the others, in the order of their ranks.
    Direct(Box<[Source]>),
}

/// How far a call has come.
pub(in crate::executor) struct Run {
    layout: Layout,
    fate: Fate,
    pub(super) cut: Cut,
    pub(super) mode: Mode,
    /// The call, as it stands in the line.
    pub(super) call: [u64; 3],
    pub(super) is_short: bool,
    /// The most bytes that any rank shows.
    pub(super) longest: usize,
    /// Its line; 0 before that is written.
    pub(super) line: u64,
    /// Whether the others were seen to be in the same call.
    pub(super) met: bool,
    /// The first of its blocks, counted over all calls.
    base: u64,
    /// How many of its chunks are put up, combined, and done with.
    pub(super) staged: u64,
    pub(super) combined: u64,
    pub(super) done: u64,
}

/// The memory of a call, and its arithmetic.
pub(in crate::executor) struct Memory<'a> {
    /// What this rank contributes.
    pub from: *const u8,
    pub to: *mut u8,
    pub dtype: DataType,
    pub reduction: &'a Reduction,
    pub finish: Finish,
}

impl Run {
    pub(in crate::executor) fn new(layout: Layout, call: [u64; 3]) -> Self {
        let (fate, is_short) = (layout.fate(), layout.is_short());
        let cut = if is_short { Cut::NONE } else { Cut::new(&layout) };
        let longest = layout.longest();
        Self {
            layout,
            fate,
            cut,
            mode: Mode::Staged,
            call,
            is_short,
            longest,
            line: 0,
            met: false,
            base: 0,
            staged: 0,
            combined: 0,
            done: 0,
        }
    }

    /// Takes the next blocks after so many. Returns how many there are then.
    pub(super) fn begin_at(&mut self, blocks: u64) -> u64 {
        // No chunk goes beyond the last block of the stage, to the first.
        self.base = blocks.next_multiple_of(self.cut.blocks);
        self.block(self.cut.chunks)
    }

    /// The first block of a chunk; and how many there are before it.
    pub(super) fn block(&self, chunk: u64) -> u64 {
        self.base + chunk * self.cut.blocks
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether what is taken is copied, rather than combined.
    pub(super) fn copies(&self) -> bool {
        self.fate == Fate::Copied
    }

    /// Whether the results that others need lie on the board, rather than in their ranks' memory.
    pub(super) fn shows_results_on_board(&self) -> bool {
        self.has_results() && !self.layout.shows_results()
    }

    pub(in crate::executor) fn reads_output(&self) -> bool {
        self.layout.reads_output()
    }

    /// Whether this rank's result needs what `rank` shows, or in a long call its part of the work.
    pub(super) fn needs(&self, rank: usize) -> bool {
        // The owners of the parts of a long reduce need all contributions, whoever gets the result.
        self.layout.needs(rank) || (self.fate == Fate::ReduceByParts && !self.is_short)
    }

    /// Whether this rank has to see `rank` in the call before it goes on.
    pub(super) fn awaits(&self, rank: usize) -> bool {
        matches!(self.mode, Mode::Undecided | Mode::Direct(_)) || self.needs(rank)
    }

    /// Whether the parts that the ranks combine are shown to others.
    pub(super) fn has_results(&self) -> bool {
        matches!(self.fate, Fate::AllreduceByParts | Fate::ReduceByParts)
    }

    /// Its line; 0 before that is written.
    pub(in crate::executor) fn line(&self) -> u64 {
        self.line
    }

    /// Grows as the call comes on.
    pub(in crate::executor) fn step_number(&self) -> u32 {
        let steps = self.line.min(1) + self.staged + self.combined + self.done;
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// Whether this rank copies the others' results.
    pub(super) fn collects(&self) -> bool {
        self.has_results() && self.layout.taken(self.layout.rank).is_some()
    }

    /// How results get to the caller's memory. In place they are in the cache, where the input was just read.
    pub(super) fn hand_over(&self) -> fn(*const u8, layout::Run, *mut u8) {
        if self.longest >= STREAMED_BYTES && !self.layout.in_place { copy_streaming } else { copy }
    }

    /// Copies what this rank shows into its line.
    pub(super) fn show(&self, memory: &Memory<'_>, payload: *mut u8) {
        copy(memory.from, self.layout.shown(), payload);
    }

    /// Takes the result of a short call from the payloads of all.
    pub(super) fn take_short<'a>(&self, memory: &Memory<'_>, payload: impl Fn(usize) -> Option<*const u8> + 'a) {
        let own = memory.from.wrapping_add(self.layout.shown().start);
        let source = |rank: usize| if rank == self.layout.rank { Some(own) } else { payload(rank) };
        if self.fate == Fate::Copied {
            for rank in 0..self.layout.size {
                if let (Some((run, target)), Some(source)) = (self.layout.taken(rank), source(rank)) {
                    copy(source, run, memory.to.wrapping_add(target));
                }
            }
            return;
        }
        let Some((run, target)) = self.layout.taken(self.layout.rank) else { return };
        let sources: SmallVec<[*const u8; MOST_RANKS]> =
            (0..self.layout.size).filter_map(source).map(|source| source.wrapping_add(run.start)).collect();
        self.reduce(memory, memory.to.wrapping_add(target), &sources, run.bytes);
    }

    /// Puts the next chunk up.
    pub(super) fn stage(&self, memory: &Memory<'_>, stage: *mut u8) {
        for to in 0..self.layout.size {
            if let Some((run, offset)) = self.cut.shown(&self.layout, self.staged, to) {
                copy(memory.from, run, stage.wrapping_add(offset));
            }
        }
    }

    /// Combines this rank's part of the next chunk, and shows it where others need it.
    pub(super) fn combine<'a>(
        &self,
        memory: &Memory<'_>,
        result: *mut u8,
        stage: impl Fn(usize) -> Option<*const u8> + 'a,
    ) {
        let Layout { rank, size, .. } = self.layout;
        let sources = |own: *const u8, offset: usize| -> SmallVec<[*const u8; MOST_RANKS]> {
            let source = |from| if from == rank { Some(own) } else { Some(stage(from)?.wrapping_add(offset)) };
            (0..size).filter_map(source).collect()
        };
        match self.fate {
            Fate::AllreduceByParts | Fate::ReduceByParts => {
                let (run, offset) = self.cut.share(&self.layout, self.combined, rank);
                let own = memory.from.wrapping_add(run.start);
                let (all, takes) = (sources(own, offset), self.layout.taken(rank).is_some());
                // Piece by piece, so that what is copied is still in the nearest cache.
                for start in (0..run.bytes).step_by(PIECE_BYTES) {
                    let bytes = PIECE_BYTES.min(run.bytes - start);
                    let pieces: SmallVec<[*const u8; MOST_RANKS]> =
                        all.iter().map(|source| source.wrapping_add(start)).collect();
                    self.reduce(memory, result.wrapping_add(start), &pieces, bytes);
                    if takes {
                        self.hand_over()(
                            result,
                            layout::Run { start, bytes },
                            memory.to.wrapping_add(run.start + start),
                        );
                    }
                }
            }
            Fate::Combined => {
                let Some((run, target)) = self.cut.own(&self.layout, self.combined) else { return };
                let own = memory.from.wrapping_add(run.start);
                let offset = self.cut.taken(&self.layout, self.combined, rank).map_or(0, |(run, _)| run.start);
                self.reduce(memory, memory.to.wrapping_add(target), &sources(own, offset), run.bytes);
            }
            Fate::Copied => {
                for from in (0..size).filter(|from| *from != rank) {
                    if let (Some((run, target)), Some(stage)) =
                        (self.cut.taken(&self.layout, self.combined, from), stage(from))
                    {
                        self.hand_over()(stage, run, memory.to.wrapping_add(target));
                    }
                }
                if let Some((run, target)) = self.cut.own(&self.layout, self.combined) {
                    self.hand_over()(memory.from, run, memory.to.wrapping_add(target));
                }
            }
        }
    }

    /// Copies the others' results of the next chunk.
    pub(super) fn collect<'a>(&self, memory: &Memory<'_>, result: impl Fn(usize) -> Option<*const u8> + 'a) {
        let Layout { rank, size, .. } = self.layout;
        if !self.collects() {
            return;
        }
        for owner in (0..size).filter(|owner| *owner != rank) {
            let (run, _) = self.cut.share(&self.layout, self.done, owner);
            if let Some(result) = result(owner) {
                self.hand_over()(result, layout::Run { start: 0, bytes: run.bytes }, memory.to.wrapping_add(run.start));
            }
        }
    }

    /// Combines `bytes` of all sources, which are in rank order, a piece at a time. The next piece is fetched meanwhile:
    /// loads from a peer's cache take long, and a loop that stores as well cannot have many under way where its addresses
    /// happen to be alike in their last 12 bits, by which the processor takes a load for one of what was just stored.
    pub(super) fn reduce(&self, memory: &Memory<'_>, target: *mut u8, sources: &[*const u8], bytes: usize) {
        let fetch = |start: usize| {
            let others = sources.iter().enumerate().filter(|(rank, _)| *rank != self.layout.rank);
            for (_, source) in others {
                reduce::prefetch(source.wrapping_add(start), FETCHED_BYTES.min(bytes.saturating_sub(start)));
            }
        };
        if bytes > FETCHED_BYTES / 4 {
            fetch(0);
        }
        for start in (0..bytes).step_by(FETCHED_BYTES) {
            fetch(start + FETCHED_BYTES);
            let pieces: SmallVec<[*const u8; MOST_RANKS]> =
                sources.iter().map(|source| source.wrapping_add(start)).collect();
            self.reduce_piece(memory, target.wrapping_add(start), &pieces, FETCHED_BYTES.min(bytes - start));
        }
    }

    pub(super) fn reduce_piece(&self, memory: &Memory<'_>, target: *mut u8, sources: &[*const u8], bytes: usize) {
        let count = bytes / self.layout.width;
        // SAFETY: the layout keeps every run inside the caller's buffers, whose lengths are the call's, and inside the
        // boards' payloads, stages and results, which are mapped as long as the communicator's parts. The peers do not
        // write what they have published until this rank has said that it is done. The target is the caller's own, or
        // this rank's own result; equal to a source or apart from all.
        unsafe { reduce::reduce(memory.reduction, memory.dtype, target, sources, count, memory.finish) }
    }
}

/// From how many bytes on results are written past the caches: what is longer does not stay in one processor's own.
const STREAMED_BYTES: usize = 4 << 20;

/// As [`copy`], past the caches.
fn copy_streaming(source: *const u8, run: layout::Run, target: *mut u8) {
    // SAFETY: as in `copy`.
    unsafe { reduce::copy_streaming(source.wrapping_add(run.start), target, run.bytes) }
}

/// Copies a run of `source`.
fn copy(source: *const u8, run: layout::Run, target: *mut u8) {
    let source = source.wrapping_add(run.start);
    if run.bytes > 0 && source != target.cast_const() {
        // SAFETY: as in `Run::reduce`; one of the two is a board's and the other the caller's, or both are the caller's
        // input and output, which do not overlap.
        unsafe { target.copy_from_nonoverlapping(source, run.bytes) }
    }
}
