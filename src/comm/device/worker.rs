//! The thread that drives a communicator's calls on device memory.
//!
//! Calls are done one after the other, in the order in which they were made, since that is the order of the other
//! ranks. Within a call up to four pieces are on their way: fetched from the device, with the network, delivered to it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::pieces::{Pieces, SLOT_BYTES};
use crate::comm::communicator::Communicator;
use crate::comm::handle::Handle;
use crate::device::{Device, Event, Stager};
use crate::types::{Deadline, Error, Result};

/// Slots on their way at a time, and how many of them are with the network.
const SLOTS: usize = 4;
const WITH_NETWORK: usize = 2;

/// How often the thread looks whether what it keeps can be let go of.
const PERIOD: Duration = Duration::from_millis(1);

/// A call to be done.
pub(super) struct Job {
    /// What the call is, for errors.
    pub what: String,
    pub pieces: Pieces,
    pub input: u64,
    pub output: u64,
    pub device: Device,
    /// After which the memory may be touched.
    pub ready: Event,
    /// The communicator of device calls, with the caller's settings.
    pub communicator: Communicator,
    pub deadline: Deadline,
    pub keep: Option<Box<dyn Any + Send>>,
    pub outcome: Arc<Outcome>,
}

/// What became of a call.
#[derive(Default)]
pub(super) struct Outcome {
    told: Mutex<Option<Result<Arc<Event>>>>,
    changed: Condvar,
}

impl Outcome {
    /// Ends the call, once: what comes later is not heard.
    fn tell(&self, outcome: Result<Arc<Event>>) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        self.changed.notify_all();
    }

    /// What became of it, if it has ended.
    pub fn get(&self) -> Option<Result<Arc<Event>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for it, at most `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Result<Arc<Event>>> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = self.changed.wait_timeout_while(told, limit, |told| told.is_none());
        told.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// A job that is dropped without an outcome was lost with its thread.
impl Drop for Job {
    fn drop(&mut self) {
        self.outcome.tell(Err(Error::internal("the thread of device calls ended before a call")));
    }
}

/// Whose failure ended a call.
enum Failure {
    /// The other ranks know.
    Network(Error),
    /// This rank's device; the others are still to be told.
    Own(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

/// The thread's own.
pub(super) struct Worker {
    pub jobs: mpsc::Receiver<Job>,
    /// Why no call can be made any more.
    pub dead: Arc<Mutex<Option<Error>>>,
    stager: Option<(Device, Stager)>,
    /// What calls were given to keep, until their last copies are done.
    retired: VecDeque<(Arc<Event>, Box<dyn Any + Send>)>,
}

impl Worker {
    pub fn new(jobs: mpsc::Receiver<Job>, dead: Arc<Mutex<Option<Error>>>) -> Self {
        Self { jobs, dead, stager: None, retired: VecDeque::new() }
    }

    /// Does jobs until there will be no more.
    pub fn run(mut self) {
        loop {
            self.let_go();
            let job = if self.retired.is_empty() {
                self.jobs.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
            } else {
                self.jobs.recv_timeout(PERIOD)
            };
            match job {
                Ok(job) => self.do_one(job),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        self.drain();
    }

    fn let_go(&mut self) {
        // An event that cannot be asked for belongs to a device that does nothing any more.
        while self.retired.front().is_some_and(|(event, _)| event.is_done().unwrap_or(true)) {
            self.retired.pop_front();
        }
    }

    /// Waits for the last copies. What still has some after that is lost rather than used again.
    fn drain(&mut self) {
        let drained = self.stager.as_mut().is_none_or(|(_, stager)| stager.drain());
        for (_, kept) in self.retired.drain(..).filter(|_| !drained) {
            std::mem::forget(kept);
        }
    }

    fn do_one(&mut self, mut job: Job) {
        let dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(cause) = dead {
            return job.outcome.tell(Err(cause));
        }
        let mut flying = VecDeque::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.carry_out(&job, &mut flying)));
        let failure = match outcome {
            Ok(Ok(event)) => {
                let event = Arc::new(event);
                if let Some(keep) = job.keep.take() {
                    self.retired.push_back((event.clone(), keep));
                }
                return job.outcome.tell(Ok(event));
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Own(Error::internal("the thread of device calls panicked")),
        };
        let (cause, is_news) = match failure {
            Failure::Network(cause) => (cause, false),
            Failure::Own(cause) => (cause, true),
        };
        for (_, handle) in flying {
            Handle::give_up_for(&handle, cause.clone());
        }
        if is_news {
            job.communicator.refuse_next(&cause);
        }
        // Pieces that other ranks have sent or await cannot be told from those of a next call: there will be none.
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| cause.clone());
        // The memory is the caller's again once nothing is copied from or to it.
        let drained = self.stager.as_mut().is_none_or(|(_, stager)| stager.drain());
        if !drained {
            std::mem::forget(job.keep.take());
        }
        self.stager = None;
        job.outcome.tell(Err(cause));
    }

    /// A stager of the job's device with slots of at least so many bytes.
    fn stager(&mut self, device: &Device, bytes: usize) -> Result<&mut Stager> {
        let fits = |(of, stager): &(Device, Stager)| of == device && stager.slot_bytes() >= bytes;
        if !self.stager.as_ref().is_some_and(fits) {
            self.stager = None;
        }
        let (_, stager) = match self.stager.take() {
            Some(stager) => self.stager.insert(stager),
            None => {
                let slots = if bytes > SLOT_BYTES * 2 { 1 } else { SLOTS };
                let stager = Stager::new(device, slots, bytes.max(SLOT_BYTES))?;
                self.stager.insert((device.clone(), stager))
            }
        };
        Ok(stager)
    }

    /// Moves all pieces of a job. What is with the network when this fails is left in `flying`.
    fn carry_out(&mut self, job: &Job, flying: &mut VecDeque<(usize, Handle)>) -> Result<Event, Failure> {
        let piece = |number| job.pieces.piece(number, job.input, job.output);
        let (count, bytes) = (job.pieces.count(), piece(0).bytes);
        let stager = self.stager(&job.device, bytes)?;
        let slots = stager.slot_count();
        stager.follow(&job.ready)?;
        for number in 0..count.min(slots) {
            // SAFETY: whoever made the job answers for its memory until its outcome is told, and after a failure that is
            // not before everything is drained.
            unsafe { stager.fetch(number, &piece(number).fetch)? };
        }
        for number in 0..count {
            let slot = number % slots;
            if !stager.await_fetched(slot, job.deadline)? {
                return Err(Failure::Own(late(job)));
            }
            let piece = piece(number);
            let start = stager.memory(slot);
            let timeout = job.deadline.remaining(Instant::now());
            let communicator = job.communicator.with_timeout(timeout);
            // SAFETY: the slot has room for the whole piece, and is not used again before the operation has ended.
            let handle = unsafe {
                let input = piece.input.map_or(std::ptr::null(), |at| start.add(at).cast_const());
                communicator.submit(&piece.call, input, start.add(piece.output), None)?
            };
            flying.push_back((number, handle));
            if flying.len() == WITH_NETWORK.min(slots) {
                land(stager, job, flying)?;
            }
        }
        while !flying.is_empty() {
            land(stager, job, flying)?;
        }
        Ok(stager.mark()?)
    }
}

/// Waits for the oldest piece that is with the network, delivers it, and fetches the next one into its slot.
fn land(stager: &mut Stager, job: &Job, flying: &mut VecDeque<(usize, Handle)>) -> Result<(), Failure> {
    let Some((number, handle)) = flying.pop_front() else { return Ok(()) };
    handle.wait().map_err(Failure::Network)?;
    let slots = stager.slot_count();
    let piece = |number| job.pieces.piece(number, job.input, job.output);
    // SAFETY: as in `carry_out`.
    unsafe {
        stager.deliver(number % slots, &piece(number).deliver)?;
        if number + slots < job.pieces.count() {
            stager.fetch(number % slots, &piece(number + slots).fetch)?;
        }
    }
    Ok(())
}

/// The device did not get to the copy.
fn late(job: &Job) -> Error {
    let what = format_args!("{}: device {} had not come to the call by its deadline", job.what, job.device.ordinal());
    Error::environment(
        what,
        "look at the work that is on the stream before the call: it does not end; PHALANX_TIMEOUT sets the limit",
    )
}
