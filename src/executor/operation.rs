//! One collective in flight: a schedule, its memory, and how far it has come.

mod ahead;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::ahead::{Ahead, received};
use super::completion::Completion;
use super::in_host::{self, Layout, Memory, Run};
use super::scratch::{Scratch, ScratchPool};
use super::waits::Waits;
use crate::reduce;
use crate::schedule::{Buffer, Instruction, Schedule, Span, Step};
use crate::transport::{Accumulate, Receive};
use crate::types::{DataType, Deadline, Finish, ReduceOp, Reduction, Signature, Tag};

/// A collective to run: what the communicator hands to the engine.
pub struct Work {
    /// The communicator, and for point-to-point messages the number within their channel; collectives are numbered
    /// by the engine in the order in which they are submitted.
    pub tag: Tag,
    /// The call, for comparison with the other ranks'.
    pub signature: Signature,
    /// The plan.
    pub schedule: Arc<Schedule>,
    /// The element type of the caller's memory.
    pub dtype: DataType,
    /// The reduction. Ignored by schedules without any.
    pub reduction: Arc<Reduction>,
    /// Whether each message has a length that only its two ranks know, so that it travels under its own count.
    pub unequal: bool,
    /// How many contributions an average divides by.
    pub contributions: usize,
    /// The caller's input; null for in-place calls.
    pub input: *const u8,
    /// Elements of the input.
    pub input_count: usize,
    /// The caller's output, or the one buffer of an in-place call.
    pub output: *mut u8,
    /// Elements of the output.
    pub output_count: usize,
    /// When the operation is given up.
    pub deadline: Deadline,
    /// Set by a user's function that panicked: the result is then worth nothing.
    pub spoilt: Option<Arc<AtomicBool>>,
    /// Kept alive until the operation ends, then found in its completion.
    pub keep: Option<Box<dyn Any + Send>>,
    /// How the call lies in memory, if it may go over the boards of ranks on one host.
    pub layout: Option<Layout>,
}

/// A message of the current step, resolved to addresses.
pub(super) enum Message {
    Send { peer: usize, source: *const u8, bytes: usize },
    Recv { peer: usize, target: *mut u8, bytes: usize, mode: Receive },
}

// SAFETY: as for `Operation`, whose memory it points to.
unsafe impl Send for Message {}

/// The most that is left of an operation's time when its ranks are asked for the last time.
const LAST_ASK: Duration = Duration::from_secs(1);

/// A [`Work`] in flight.
pub(super) struct Operation {
    pub tag: Tag,
    pub signature: Signature,
    pub completion: Arc<Completion>,
    pub started: Instant,
    pub deadline: Deadline,
    schedule: Arc<Schedule>,
    /// The step whose messages are in flight; one past the last when all are done.
    step: usize,
    /// Since when the current step's messages are in flight, as far as somebody looked.
    pub step_seen: Option<Instant>,
    /// Whether the peers of the current step were told that they are being waited for.
    pub step_told: bool,
    /// Whether they were asked for the last time before the deadline.
    pub last_asked: bool,
    /// Which ranks are known to wait for others.
    pub waits: Waits,
    /// Messages of the current step that are not complete.
    pub outstanding: usize,
    /// Which instructions of the current step are complete.
    complete: Vec<bool>,
    /// Sends of the current step that are not complete.
    sending: usize,
    /// Tells the messages of the current step from those posted ahead: changes with every step that has messages.
    is_odd: bool,
    /// Receives of a later step that are posted already.
    ahead: Ahead,
    unequal: bool,
    /// The type the schedule runs on: the caller's, or `f32` for widened halves.
    dtype: DataType,
    reduction: Arc<Reduction>,
    finish: Finish,
    /// Whether the schedule runs on a widened copy.
    widens: bool,
    input: *const u8,
    output: *mut u8,
    scratch: *mut u8,
    /// The caller's output, when the schedule runs on a widened copy of it.
    narrow: Option<Narrow>,
    lent: Option<Scratch>,
    spoilt: Option<Arc<AtomicBool>>,
    keep: Option<Box<dyn Any + Send>>,
    input_count: usize,
    output_count: usize,
    layout: Option<Layout>,
    /// Whether it waits until it is known which way calls go.
    pub held: bool,
    /// Whether it finds that out.
    pub sets_up: bool,
    /// How far it has come on the boards, if that is its way.
    pub run: Option<Run>,
    /// Which of the engine's boards that is.
    pub boards: usize,
}

struct Narrow {
    dtype: DataType,
    output: *mut u8,
    count: usize,
}

// SAFETY: the pointers are to memory that the submitter has promised to leave to the operation until it completes;
// nothing in it belongs to a thread.
unsafe impl Send for Operation {}

impl Operation {
    /// Takes over `work`.
    ///
    /// # Safety
    ///
    /// The pointers of `work` must be valid for their counts until the completion is done, input for reads, output for
    /// reads and writes by this operation alone.
    pub unsafe fn new(work: Work, tag: Tag, completion: Arc<Completion>, now: Instant) -> Self {
        let reduces = work.signature.op.is_some();
        let divisor = if work.reduction.op == ReduceOp::Average { work.contributions as u64 } else { 1 };
        // With two ranks every element is combined once, and so rounded once, whatever travels.
        let widens = reduces && work.dtype.is_half() && work.schedule.partials_travel && work.contributions > 2;
        Self {
            tag,
            signature: work.signature,
            completion,
            started: now,
            deadline: work.deadline,
            step: 0,
            step_seen: None,
            step_told: false,
            last_asked: false,
            waits: Waits::default(),
            outstanding: 0,
            complete: Vec::new(),
            sending: 0,
            is_odd: false,
            ahead: Ahead::default(),
            unequal: work.unequal,
            dtype: work.dtype,
            widens,
            finish: if reduces { Finish { divisor, factor: work.reduction.postscale } } else { Finish::NONE },
            input: work.input,
            output: work.output,
            scratch: std::ptr::null_mut(),
            narrow: None,
            lent: None,
            spoilt: work.spoilt,
            keep: work.keep,
            schedule: work.schedule,
            reduction: work.reduction,
            input_count: work.input_count,
            output_count: work.output_count,
            layout: work.layout,
            held: false,
            sets_up: false,
            run: None,
            boards: 0,
        }
    }

    /// Whether it can go over boards.
    pub fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// Makes ready to go over the boards.
    pub fn prepare_in_host(&mut self, boards: usize, pool: &mut ScratchPool) {
        self.boards = boards;
        // What lies on the boards are raw contributions, which are combined and rounded once.
        self.prepare(pool, false, 0);
        let call = in_host::words(&self.signature);
        self.run = self.layout.take().map(|layout| Run::new(layout, call));
    }

    /// Makes ready to run the schedule.
    pub fn prepare_schedule(&mut self, pool: &mut ScratchPool) {
        self.prepare(pool, self.widens, self.schedule.scratch);
    }

    /// Widens and prescales the input where needed.
    fn prepare(&mut self, pool: &mut ScratchPool, widen: bool, scratch: usize) {
        let Self { input_count, output_count, .. } = *self;
        let narrow_dtype = self.dtype;
        let prescale = if self.signature.op.is_some() { self.reduction.prescale } else { 1.0 };
        let in_place = self.input.is_null() && output_count > 0;
        let dtype = if widen { DataType::F32 } else { narrow_dtype };
        let size = dtype.size();

        // One loan holds the schedule's scratch, and the copies of input and output where they are needed.
        let copies_input = !in_place && (widen || prescale != 1.0);
        let round = |bytes: usize| bytes.next_multiple_of(64);
        let scratch_bytes = round(scratch * size);
        let input_bytes = if copies_input { round(input_count * size) } else { 0 };
        let output_bytes = if widen { round(output_count * size) } else { 0 };
        let total = scratch_bytes + input_bytes + output_bytes;
        self.lent = (total > 0).then(|| pool.take(total));
        let base = self.lent.as_ref().map_or(std::ptr::null_mut(), Scratch::start);
        self.scratch = base;
        self.dtype = dtype;

        let (input, output) = (self.input, self.output);
        if copies_input {
            let copy = base.wrapping_add(scratch_bytes);
            // SAFETY: the loan has room for `input_count` elements at `copy`; the caller's input is valid for reads.
            unsafe {
                if widen {
                    reduce::cast(narrow_dtype, input, dtype, copy, input_count);
                    if prescale != 1.0 {
                        reduce::scale(dtype, copy, copy, input_count, prescale);
                    }
                } else {
                    reduce::scale(dtype, copy, input, input_count, prescale);
                }
            }
            self.input = copy;
        }
        if widen {
            let copy = base.wrapping_add(scratch_bytes + input_bytes);
            self.narrow = Some(Narrow { dtype: narrow_dtype, output, count: output_count });
            if in_place {
                // SAFETY: the loan has room for `output_count` elements at `copy`; the output is valid for reads.
                unsafe { reduce::cast(narrow_dtype, output, dtype, copy, output_count) };
            }
            self.output = copy;
        }
        if in_place && prescale != 1.0 {
            // SAFETY: output is valid for `output_count` elements, and this operation's alone.
            unsafe { reduce::scale(dtype, self.output, self.output, output_count, prescale) };
        }
    }

    /// Its way over the boards, and its memory.
    pub fn in_host(&mut self) -> Option<(&mut Run, Memory<'_>)> {
        let run = self.run.as_mut()?;
        let from = if run.reads_output() { self.output.cast_const() } else { self.input };
        let memory =
            Memory { from, to: self.output, dtype: self.dtype, reduction: &self.reduction, finish: self.finish };
        Some((run, memory))
    }

    /// Whether every step is done.
    pub fn is_finished(&self) -> bool {
        self.step >= self.schedule.steps.len()
    }

    /// Whether a user's function panicked in it.
    pub fn is_spoilt(&self) -> bool {
        self.spoilt.as_ref().is_some_and(|spoilt| spoilt.load(Ordering::Relaxed))
    }

    /// The signature under which a message of `bytes` bytes travels.
    pub fn message_signature(&self, bytes: usize) -> Signature {
        if self.unequal {
            Signature { count: (bytes / self.dtype.size()) as u64, ..self.signature }
        } else {
            self.signature
        }
    }

    /// Whether a peer's message may belong to this call, as far as its signature tells.
    pub fn agrees_with(&self, theirs: &Signature) -> bool {
        let ours = if self.unequal { Signature { count: theirs.count, ..self.signature } } else { self.signature };
        ours == *theirs
    }

    /// This call as it should be shown beside `peer`'s: with the count of the message that is expected from it.
    pub fn call_towards(&self, peer: usize) -> Signature {
        let step = self.schedule.steps.get(self.step);
        let expected = step.into_iter().flat_map(|step| &step.instructions).find_map(|instruction| match instruction {
            Instruction::Recv { peer: from, target } if *from == peer => Some(self.bytes(target)),
            _ => None,
        });
        expected.map_or(self.signature, |bytes| self.message_signature(bytes))
    }

    /// Resolves the messages of the current step, by instruction number.
    pub fn messages(&mut self, messages: &mut Vec<(usize, Message)>) {
        let schedule = self.schedule.clone();
        let Some(step) = schedule.steps.get(self.step) else {
            return;
        };
        let posted = std::mem::take(&mut self.ahead);
        let is_posted = posted.step == self.step && self.step > 0;
        self.is_odd ^= step.instructions.iter().any(is_message);
        (self.outstanding, self.sending) = (0, 0);
        self.complete.clear();
        self.complete.resize(step.instructions.len(), true);
        for (at, instruction) in step.instructions.iter().enumerate() {
            let Some(message) = self.message(instruction) else { continue };
            self.complete[at] = false;
            if is_posted && received(instruction).is_some() {
                self.complete[at] = posted.complete.get(at).copied().unwrap_or(false);
            } else {
                messages.push((Self::number(at, self.is_odd), message));
            }
            self.outstanding += usize::from(!self.complete[at]);
            self.sending += usize::from(matches!(instruction, Instruction::Send { .. }));
        }
        if !is_posted {
            self.ahead = posted;
        }
    }

    /// What an instruction is called in a token.
    fn number(instruction: usize, is_odd: bool) -> usize {
        instruction << 1 | usize::from(is_odd)
    }

    /// The message of an instruction, if it is one.
    fn message(&self, instruction: &Instruction) -> Option<Message> {
        Some(match instruction {
            Instruction::Send { peer, source } => {
                Message::Send { peer: *peer, source: self.address(source), bytes: self.bytes(source) }
            }
            Instruction::Recv { peer, target } => Message::Recv {
                peer: *peer,
                target: self.address(target),
                bytes: self.bytes(target),
                mode: Receive::Store,
            },
            Instruction::RecvReduce { peer, target, order, finish } => Message::Recv {
                peer: *peer,
                target: self.address(target),
                bytes: self.bytes(target),
                mode: Receive::Reduce(Accumulate {
                    dtype: self.dtype,
                    reduction: self.reduction.clone(),
                    order: *order,
                    finish: self.finish_if(*finish),
                }),
            },
            Instruction::Copy { .. } | Instruction::Reduce { .. } => return None,
        })
    }

    /// Whether the current step has local work.
    pub fn has_local_work(&self) -> bool {
        let is_local =
            |instruction: &Instruction| matches!(instruction, Instruction::Copy { .. } | Instruction::Reduce { .. });
        self.schedule.steps.get(self.step).is_some_and(|step| step.instructions.iter().any(is_local))
    }

    /// Does the local work of the current step.
    pub fn work_locally(&mut self) {
        let schedule = self.schedule.clone();
        let Some(step) = schedule.steps.get(self.step) else {
            return;
        };
        for instruction in &step.instructions {
            match instruction {
                Instruction::Copy { source, target } => {
                    let (from, to, bytes) = (self.address(source), self.address(target), self.bytes(source));
                    if bytes > 0 && from != to {
                        // SAFETY: the verifier proves spans within their buffers; `copy` allows overlap.
                        unsafe { std::ptr::copy(from, to, bytes) };
                    }
                }
                Instruction::Reduce { sources, target, finish } => {
                    let from: smallvec::SmallVec<[*const u8; 8]> =
                        sources.iter().map(|source| self.address(source).cast_const()).collect();
                    let finish = self.finish_if(*finish);
                    // SAFETY: the verifier proves spans within their buffers, and a target equal to a source or
                    // apart from all.
                    unsafe {
                        reduce::reduce(&self.reduction, self.dtype, self.address(target), &from, target.count, finish);
                    }
                }
                _ => {}
            }
        }
    }

    /// Marks a message of the current step, or one posted ahead, complete. Returns whether the step now is.
    pub fn complete(&mut self, number: usize) -> bool {
        let (at, is_odd) = (number >> 1, number & 1 == 1);
        if is_odd != self.is_odd {
            if let Some(done) = self.ahead.complete.get_mut(at) {
                *done = true;
            }
            return false;
        }
        match self.complete.get_mut(at) {
            Some(done) if !*done => {
                *done = true;
                self.outstanding -= 1;
                let step = self.schedule.steps.get(self.step);
                let instruction = step.and_then(|step| step.instructions.get(at));
                self.sending -= usize::from(matches!(instruction, Some(Instruction::Send { .. })));
                self.outstanding == 0
            }
            _ => false,
        }
    }

    /// Whether messages of the current step are not complete, and none of them is a send: now and then receives can be
    /// posted ahead that could not before.
    pub fn only_receives(&self) -> bool {
        self.outstanding > 0 && self.sending == 0
    }

    /// Moves to the next step.
    pub fn next_step(&mut self) {
        self.step += 1;
        self.step_seen = None;
        self.step_told = false;
    }

    /// The peers, as ranks of the communicator, whose messages are not complete.
    pub fn waiting_for(&self) -> Vec<usize> {
        let empty = Step::default();
        let step = self.schedule.steps.get(self.step).unwrap_or(&empty);
        let pending = step.instructions.iter().zip(&self.complete).filter(|(_, done)| !**done);
        let mut peers: Vec<_> = pending.filter_map(|(instruction, _)| peer_of(instruction)).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// How far it has come, for what this rank answers when it is asked whether it waits for others.
    pub fn step_number(&self) -> u32 {
        match &self.run {
            Some(run) => run.step_number(),
            None => u32::try_from(self.step).unwrap_or(u32::MAX),
        }
    }

    /// How long before the deadline the ranks that are waited for are asked for the last time: long enough for answers
    /// from behind many others, and for a machine that is busy.
    pub fn last_ask_before(&self) -> Duration {
        (self.deadline.remaining(self.started) / 4).min(LAST_ASK)
    }

    /// Ends the operation: narrows the result when it ended well, gives the loan back, and tells the completion.
    pub fn end(mut self, outcome: crate::types::Result<()>, pool: &mut ScratchPool) {
        if let (Ok(()), Some(narrow)) = (&outcome, &self.narrow) {
            // SAFETY: the caller's output is valid for its count; the widened copy lies in the loan.
            unsafe { reduce::cast(self.dtype, self.output, narrow.dtype, narrow.output, narrow.count) };
        }
        if let Some(lent) = self.lent.take() {
            pool.give_back(lent);
        }
        self.completion.finish(outcome, self.keep.take());
    }

    fn finish_if(&self, finish: bool) -> Finish {
        if finish { self.finish } else { Finish::NONE }
    }

    fn bytes(&self, span: &Span) -> usize {
        span.count * self.dtype.size()
    }

    fn address(&self, span: &Span) -> *mut u8 {
        let base = match span.buffer {
            Buffer::Input => self.input.cast_mut(),
            Buffer::Output => self.output,
            Buffer::Scratch => self.scratch,
        };
        base.wrapping_add(span.start * self.dtype.size())
    }
}

fn is_message(instruction: &Instruction) -> bool {
    peer_of(instruction).is_some()
}

fn peer_of(instruction: &Instruction) -> Option<usize> {
    match instruction {
        Instruction::Send { peer, .. } | Instruction::Recv { peer, .. } | Instruction::RecvReduce { peer, .. } => {
            Some(*peer)
        }
        Instruction::Copy { .. } | Instruction::Reduce { .. } => None,
    }
}
