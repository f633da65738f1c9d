//! One training step: collectives whose inputs are kept, until all ranks agree that they count.
//!
//! A step runs in a view. Should the view end before the step counts, the registry's verdict says for everybody alike
//! whether it counts all the same, or is run again, by those who are left, from the inputs that were kept. What the caller
//! sees of it is who contributed.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Command;
use super::ledger::{Computed, Installed};
use super::{Elastic, Keep};
use crate::comm::{Call, Handle};
use crate::sys::points::{Point, reach};
use crate::types::{Element, Error, Generation, ReduceOp, Reduction, Result};

/// How a step ended that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutcome {
    /// Its number in the job, from 1.
    pub step: u64,
    /// The view in which its results came to be.
    pub generation: Generation,
    /// The slots of those whose inputs are in the results, in rank order.
    pub contributors: Arc<[usize]>,
    /// Whether members joined after it: the next thing to do is [`Elastic::sync`].
    pub joined: bool,
    /// Whether the view is another than when the step before ended: it may have changed between the two.
    pub view_changed: bool,
    /// Whether this member has left, as it was asked to. It makes no further step.
    pub left: bool,
    /// How long the step was held up by a change of the view: from the first call that could not go on, or the agreement
    /// to change, until the step counted or the new view was there.
    pub held_up: Duration,
}

/// A step under construction, untyped, for bindings: see [`Elastic::step`] for the safe one.
#[derive(Default)]
pub struct RawStep {
    kept: Vec<Kept>,
    /// The view in which the collectives so far were started.
    view: Option<Installed>,
}

// SAFETY: the pointers are to memory that its owners promised to leave alone, whatever thread the step is on.
unsafe impl Send for RawStep {}

impl RawStep {
    /// Starts an allreduce of `data`, in place, as [`Step::allreduce`] does. `call` is the out-of-place one.
    ///
    /// # Errors
    ///
    /// When the arguments cannot be used. What goes wrong on the way is the step's outcome.
    ///
    /// # Safety
    ///
    /// `data` must be valid for reads and writes of `bytes` bytes, which are what `call` needs, and be nobody else's,
    /// until the step has been finished or dropped.
    pub unsafe fn allreduce(&mut self, elastic: &Elastic, call: Call, data: *mut u8, bytes: usize) -> Result<()> {
        match elastic.keep() {
            Keep::Nothing => self.add(elastic, Kept::new(call.in_place(true), std::ptr::null(), data)),
            Keep::Inputs => {
                let mut staged = elastic.stage(bytes);
                let output = staged.as_mut_ptr().cast();
                let kept = Kept::new(call, data, output);
                self.add(elastic, Kept { staged: Some((staged, data, bytes)), ..kept })
            }
        }
    }

    /// Starts an allreduce from `input` to `output`, as [`Step::allreduce_into`] does.
    ///
    /// # Errors
    ///
    /// As [`allreduce`](Self::allreduce).
    ///
    /// # Safety
    ///
    /// Both must be valid for what `call` needs, the output nobody else's, until the step has been finished or dropped.
    pub unsafe fn allreduce_into(
        &mut self,
        elastic: &Elastic,
        call: Call,
        input: *const u8,
        output: *mut u8,
    ) -> Result<()> {
        self.add(elastic, Kept::new(call, input, output))
    }

    /// Waits for the collectives, agrees with the others that they count, and delivers the results.
    ///
    /// # Errors
    ///
    /// As [`Elastic::step`].
    pub fn finish(&mut self, elastic: &Elastic) -> Result<StepOutcome> {
        if self.kept.is_empty() {
            elastic.expect_no_change()?;
        }
        let outcome = elastic.run_step(self.view.clone(), &mut |view| self.run(elastic, view))?;
        reach(Point::Counted);
        for kept in self.kept.drain(..) {
            if let Some((staged, target, bytes)) = kept.staged {
                // SAFETY: the target is the caller's, for as many bytes; the staged memory is apart from it.
                unsafe { std::ptr::copy_nonoverlapping(staged.as_ptr().cast::<u8>(), target, bytes) };
                elastic.unstage(staged);
            }
        }
        self.view = None;
        reach(Point::Delivered);
        Ok(outcome)
    }

    fn add(&mut self, elastic: &Elastic, kept: Kept) -> Result<()> {
        if self.kept.is_empty() {
            elastic.expect_no_change()?;
            // A view that is over, or has not come, is found when the step is finished.
            self.view = elastic.current_view()?;
        }
        self.kept.push(kept);
        match (&self.view, self.kept.last_mut()) {
            (Some(view), Some(last)) => last.start(view),
            _ => Ok(()),
        }
    }

    /// Runs everything in `view`, as far as it has not been started there, and waits for it.
    fn run(&mut self, elastic: &Elastic, view: &Installed) -> Result<()> {
        let is_begun = self.view.as_ref().is_some_and(|begun| begun.generation == view.generation);
        if !is_begun {
            self.quiesce("the view has changed");
            self.view = Some(view.clone());
            self.kept.iter_mut().try_for_each(|kept| kept.start(view))?;
        }
        self.kept.iter().filter_map(|kept| kept.handle.as_ref()).try_for_each(|handle| elastic.wait(handle))
    }

    /// Sees to it that no operation touches the buffers any more.
    fn quiesce(&mut self, why: &str) {
        for handle in self.kept.iter_mut().filter_map(|kept| kept.handle.take()) {
            handle.give_up(why);
            // Given up: the outcome is there.
            let _ = handle.wait();
        }
    }
}

impl Drop for RawStep {
    fn drop(&mut self) {
        self.quiesce("the step was given up");
    }
}

/// A collective of the step, and what it needs to be run again.
struct Kept {
    call: Call,
    input: *const u8,
    /// Where the call writes.
    output: *mut u8,
    /// The memory behind `output` if it is not the caller's, where the result goes when the step counts, and its bytes.
    staged: Option<(Vec<u128>, *mut u8, usize)>,
    handle: Option<Handle>,
}

impl Kept {
    fn new(call: Call, input: *const u8, output: *mut u8) -> Self {
        Self { call, input, output, staged: None, handle: None }
    }

    fn start(&mut self, view: &Installed) -> Result<()> {
        // SAFETY: whoever made the step promised the memory until the step ends, which waits for the handle or gives
        // it up; staged memory is this value's own. An earlier handle has ended.
        self.handle = Some(unsafe { view.communicator.submit(&self.call, self.input, self.output, None)? });
        reach(Point::Started);
        Ok(())
    }
}

/// Within [`Elastic::step`]: starts collectives. They run while the program computes on.
///
/// Buffers stay borrowed until the step has ended.
pub struct Step<'a, 'env> {
    elastic: &'a Elastic,
    raw: RawStep,
    /// Invariant, so that no borrow can be shortened.
    buffers: PhantomData<&'env mut &'env ()>,
}

impl<'env> Step<'_, 'env> {
    /// Starts an allreduce of `data`, in place. Until the step counts, `data` keeps its content: the result waits in
    /// memory of the library, and is copied when the step ends. Without keeping ([`Keep::Nothing`]) it is reduced where
    /// it lies.
    ///
    /// # Errors
    ///
    /// When the arguments cannot be used. What goes wrong on the way is the step's outcome.
    pub fn allreduce<T: Element>(&mut self, data: &'env mut [T], reduction: impl Into<Reduction>) -> Result<()> {
        let call = Call::allreduce(T::DATA_TYPE, data.len(), reduction);
        let bytes = size_of_val(data);
        // SAFETY: `data` is borrowed for 'env, which outlives the step.
        unsafe { self.raw.allreduce(self.elastic, call, data.as_mut_ptr().cast(), bytes) }
    }

    /// Starts an allreduce from `input` to `output`. `output` may be written before the step counts, `input` is what
    /// the step is run again from. Costs no copy.
    ///
    /// # Errors
    ///
    /// As [`allreduce`](Self::allreduce).
    pub fn allreduce_into<T: Element>(
        &mut self,
        input: &'env [T],
        output: &'env mut [T],
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        if input.len() != output.len() {
            let (given, room) = (input.len(), output.len());
            return Err(Error::invalid(format_args!("allreduce_into: {given} elements given, room for {room}")));
        }
        let call = Call::allreduce(T::DATA_TYPE, input.len(), reduction);
        // SAFETY: both are borrowed for 'env, which outlives the step.
        unsafe { self.raw.allreduce_into(self.elastic, call, input.as_ptr().cast(), output.as_mut_ptr().cast()) }
    }
}

impl Elastic {
    /// Runs a training step: `body` starts its collectives, and computes meanwhile what there is to compute. When this
    /// returns `Ok`, the step counts on every rank, and the buffers have the results; whatever ranks fell on the way, the
    /// others have the same results, of the inputs of those who are named in the outcome.
    ///
    /// `body` is called once, also when the step is run again.
    ///
    /// # Errors
    ///
    /// What `body` returns. [`Error::ViewChanged`] when nothing is kept and the view ended: the step does not count, on
    /// any rank, and the buffers are spoilt. Errors of the calls themselves, such as a mismatch. When this member is out,
    /// or the job has ended: why.
    pub fn step<'env>(&self, body: impl FnOnce(&mut Step<'_, 'env>) -> Result<()>) -> Result<StepOutcome> {
        let mut step = Step { elastic: self, raw: RawStep::default(), buffers: PhantomData };
        body(&mut step)?;
        step.raw.finish(self)
    }

    /// Runs `attempt` in one view after the other until it counts; first in `begun`, the view in which something of it
    /// has been started already.
    pub(super) fn run_step(
        &self,
        begun: Option<Installed>,
        attempt: &mut dyn FnMut(&Installed) -> Result<()>,
    ) -> Result<StepOutcome> {
        let number = self.shared.lock().counted + 1;
        let mut view = begun.map_or_else(|| self.wait_for_view(Generation(0)), Ok)?;
        let mut stuck: Option<Instant> = None;
        let first = view.generation;
        loop {
            match attempt(&view).and_then(|()| self.commit(&view, number)) {
                Ok(wanted) if self.shared.lock().pass(view.generation, wanted) => {
                    return self.finish(first, view, number, wanted, stuck);
                }
                Ok(_) => {}
                // A lost rank is reported to the registry by the engine.
                Err(Error::ViewChanged { .. }) => {}
                Err(error) => {
                    let mut ledger = self.shared.lock();
                    ledger.held = None;
                    // A member that is out finds its connections closed; why it is out says more.
                    return Err(ledger.stop.clone().unwrap_or_else(|| ledger.explained(error, Instant::now())));
                }
            }
            // The view is over, or about to be. The verdict comes with the next.
            stuck.get_or_insert_with(Instant::now);
            view = self.wait_for_view(view.generation)?;
            if self.shared.lock().counted >= number {
                return Ok(self.outcome(first, &view, number, stuck));
            }
            let given_up = std::mem::take(&mut self.shared.lock().given_up);
            if self.keep() == Keep::Nothing || given_up {
                self.see(view.generation);
                return Err(Error::ViewChanged { generation: view.generation, cause: view.cause.clone() });
            }
        }
    }

    /// Enters the commit of step `number`: an agreement that every member has all results. Returns whether a change is
    /// wanted now, by anyone.
    fn commit(&self, view: &Installed, number: u64) -> Result<bool> {
        reach(Point::Here);
        let mut words = {
            let mut ledger = self.shared.lock();
            // From here on this member can be told that the step counts. Not if the view has ended meanwhile: the
            // results are then not those of the view in which it would be said.
            if !ledger.runs_in(view.generation) {
                return Err(Error::ViewChanged { generation: view.generation, cause: "the view is over".into() });
            }
            ledger.held = Some(Computed { generation: view.generation, slots: view.slots.clone() });
            [u64::from(ledger.wanted), number, !number]
        };
        if view.communicator.size() > 1 {
            let call = Call::allreduce(u64::DATA_TYPE, words.len(), ReduceOp::Max).in_place(true);
            let words = words.as_mut_ptr().cast();
            // SAFETY: the array lives until the handle has ended: `wait` returns when it has.
            let handle = unsafe { view.communicator.submit(&call, std::ptr::null(), words, None)? };
            reach(Point::Commit);
            self.wait(&handle)?;
        }
        reach(Point::Committed);
        let [wanted, highest, lowest] = words;
        if highest != number || lowest != !number {
            return Err(Error::internal(format_args!(
                "ranks commit different steps: {} to {highest}, this rank {number}",
                !lowest
            )));
        }
        Ok(wanted != 0)
    }

    /// After the commit: the change that was agreed on, if any.
    fn finish(
        &self,
        first: Generation,
        view: Installed,
        number: u64,
        wanted: bool,
        stuck: Option<Instant>,
    ) -> Result<StepOutcome> {
        if !wanted {
            return Ok(self.outcome(first, &view, number, stuck));
        }
        let stuck = Some(stuck.unwrap_or_else(Instant::now));
        if self.shared.lock().leaving {
            self.leave("it was asked to go");
            return Ok(StepOutcome { left: true, ..self.outcome(first, &view, number, stuck) });
        }
        reach(Point::Boundary);
        self.control.send(Command::Boundary { generation: view.generation });
        let next = self.wait_for_view(view.generation)?;
        Ok(self.outcome(first, &next, number, stuck))
    }

    fn outcome(&self, first: Generation, now: &Installed, number: u64, stuck: Option<Instant>) -> StepOutcome {
        let mut ledger = self.shared.lock();
        let view_changed = now.generation > ledger.seen;
        ledger.seen = ledger.seen.max(now.generation);
        let (generation, contributors) =
            ledger.computed.clone().map_or((first, Arc::from([])), |of| (of.generation, of.slots));
        let joined = ledger.is_sync_due();
        let held_up = stuck.map_or(Duration::ZERO, |since| since.elapsed());
        StepOutcome { step: number, generation, contributors, joined, view_changed, left: false, held_up }
    }
}
