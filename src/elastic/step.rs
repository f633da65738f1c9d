//! One training step: collectives whose inputs are kept, until all ranks agree that they count.
//!
//! A step runs in a view. Should the view end before the step counts, the registry's verdict says for everybody alike
//! whether it counts all the same, or is run again, by those who are left, from the inputs that were kept. What the caller
//! sees of it is who contributed.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Command;
use super::ledger::{Held, Installed};
use super::{Elastic, Keep};
use crate::comm::{Call, Communicator, Handle};
use crate::sys::points::{Point, reach};
use crate::types::{Element, Error, Generation, ReduceOp, Reduction, Result};
use crate::wire::registry::Parting;

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

/// Whether members may come and go behind a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changes {
    /// They may: the program is between two training steps there, with a state that newcomers can go on from.
    #[default]
    Allowed,
    /// Newcomers and those that are asked to go wait for a later step. Those that fall do not: the step is run again
    /// without them all the same.
    PutOff,
}

/// One attempt at a step: the view that it is run in.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// The members' communicator.
    pub communicator: &'a Communicator,
    /// Their slots, in rank order.
    pub slots: &'a [usize],
}

/// When a step that does not count is run again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Never: nothing was kept of it.
    Never,
    /// Unless newcomers, who know nothing of it, had to be let in.
    Alike,
    /// With whoever is there.
    Always,
}

/// How a step is run.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    pub changes: Changes,
    pub again: Again,
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

    /// Whether the collectives that were started have ended, well or not. Does not wait.
    pub fn poll(&self) -> bool {
        self.kept.iter().filter_map(|kept| kept.handle.as_ref()).all(|handle| handle.poll().is_some())
    }

    /// Waits for the collectives, agrees with the others that they count, and delivers the results.
    ///
    /// # Errors
    ///
    /// As [`Elastic::step`].
    pub fn finish(&mut self, elastic: &Elastic) -> Result<StepOutcome> {
        self.finish_with(elastic, Changes::Allowed, &mut |_| Ok(()))
    }

    /// As [`finish`](Self::finish), with more to do in the step: `also` is called in each view that the step is tried in,
    /// once the collectives are done, and may make any calls there. What it gives counts only when this returns `Ok`.
    ///
    /// # Errors
    ///
    /// As [`Elastic::step`], and what `also` returns: [`Error::ViewChanged`] and [`Error::PeerFailed`] (of a rank of the
    /// attempt's communicator) say that the view is over, any other error ends the step on this rank.
    pub fn finish_with(
        &mut self,
        elastic: &Elastic,
        changes: Changes,
        also: &mut dyn FnMut(Attempt<'_>) -> Result<()>,
    ) -> Result<StepOutcome> {
        if self.kept.is_empty() {
            elastic.expect_no_change()?;
        }
        let again = if elastic.keep() == Keep::Inputs { Again::Alike } else { Again::Never };
        let manner = Manner { changes, again };
        let outcome = elastic.run_step(self.view.clone(), manner, &mut |view| {
            self.run(elastic, view)?;
            also(Attempt { communicator: &view.communicator, slots: &view.slots })
        })?;
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
            if let (Keep::Nothing, Some(view)) = (elastic.keep(), &self.view) {
                elastic.expect_agreed(view)?;
            }
        }
        self.kept.push(kept);
        let started = match (&self.view, self.kept.last_mut()) {
            (Some(view), Some(last)) => last.start(view),
            _ => Ok(()),
        };
        if started.is_err() {
            // Nothing was sent: the step is as it was.
            self.kept.pop();
        }
        started
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

    /// Runs `body` as a step: in one view after the other until it counts. Its calls are made on the attempt's
    /// communicator, and its last value is returned with the outcome.
    ///
    /// # Errors
    ///
    /// As [`RawStep::finish_with`].
    pub fn step_in_views<T>(
        &self,
        changes: Changes,
        mut body: impl FnMut(Attempt<'_>) -> Result<T>,
    ) -> Result<(T, StepOutcome)> {
        let mut value = None;
        let outcome = RawStep::default().finish_with(self, changes, &mut |attempt| {
            value = Some(body(attempt)?);
            Ok(())
        })?;
        // A step that counts has been run to its end.
        value.map(|value| (value, outcome)).ok_or_else(|| Error::internal("a step that counts was not run"))
    }

    /// After a step that failed on every member, before the next: agrees with the others on the view, so that
    /// [`agreed`](Self::agreed) is the same on all of them again. Where newcomers joined it is so already.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn settle(&self) -> Result<()> {
        if self.shared.lock().is_sync_due() {
            return Ok(());
        }
        let manner = Manner { changes: Changes::PutOff, again: Again::Alike };
        self.run_step(None, manner, &mut |_| Ok(())).map(drop)
    }

    /// Runs `attempt` in one view after the other until it counts; first in `begun`, the view in which something of it
    /// has been started already.
    pub(super) fn run_step(
        &self,
        begun: Option<Installed>,
        manner: Manner,
        attempt: &mut dyn FnMut(&Installed) -> Result<()>,
    ) -> Result<StepOutcome> {
        let number = self.shared.lock().counted + 1;
        let mut view = match begun {
            Some(view) => view,
            None => {
                let view = self.wait_for_view(Generation(0))?;
                if manner.again == Again::Never {
                    self.expect_agreed(&view)?;
                }
                view
            }
        };
        let mut stuck: Option<Instant> = None;
        let first = view.generation;
        loop {
            match attempt(&view).and_then(|()| self.commit(&view, number, manner.changes)) {
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
            if manner.again == Again::Never || (given_up && manner.again == Again::Alike) {
                let mut ledger = self.shared.lock();
                ledger.is_told = true;
                ledger.seen = ledger.seen.max(view.generation);
                return Err(Error::ViewChanged { generation: view.generation, cause: view.cause.clone() });
            }
        }
    }

    /// Enters the commit of step `number`: an agreement that every member has all results. Returns whether a change is
    /// wanted now, by anyone.
    fn commit(&self, view: &Installed, number: u64, changes: Changes) -> Result<bool> {
        reach(Point::Here);
        let closed = changes == Changes::PutOff;
        // Steps of two kinds are different ones.
        let kind = (number << 1) | u64::from(closed);
        let mut words = {
            let mut ledger = self.shared.lock();
            // From here on this member can be told that the step counts. Not if the view has ended meanwhile: the
            // results are then not those of the view in which it would be said.
            if !ledger.runs_in(view.generation) {
                return Err(Error::ViewChanged { generation: view.generation, cause: "the view is over".into() });
            }
            ledger.held = Some(Held { view: view.clone(), closed });
            [u64::from(ledger.wanted && !closed), kind, !kind]
        };
        if view.communicator.size() > 1 {
            let call = Call::allreduce(u64::DATA_TYPE, words.len(), ReduceOp::Max).in_place(true);
            let words = words.as_mut_ptr().cast();
            // SAFETY: the array lives until the handle has ended: `wait` returns when it has.
            let handle = unsafe { view.communicator.submit_to_wait(&call, std::ptr::null(), words)? };
            reach(Point::Commit);
            self.wait(&handle)?;
        }
        reach(Point::Committed);
        let [wanted, highest, lowest] = words;
        if highest != kind || lowest != !kind {
            let name = |kind: u64| format!("{}{}", kind >> 1, if kind & 1 == 1 { " (changes put off)" } else { "" });
            return Err(Error::invalid(format_args!(
                "ranks commit different steps: {} and {}, this rank {}",
                name(!lowest),
                name(highest),
                name(kind)
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
            self.leave(Parting::Asked, "it was asked to go");
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
            ledger.computed.as_ref().map_or((first, Arc::from([])), |of| (of.generation, of.slots.clone()));
        let joined = ledger.is_sync_due();
        let held_up = stuck.map_or(Duration::ZERO, |since| since.elapsed());
        StepOutcome { step: number, generation, contributors, joined, view_changed, left: false, held_up }
    }
}
