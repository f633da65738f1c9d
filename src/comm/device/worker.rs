//! The thread that drives a communicator's calls on device memory.
//!
//! Calls are done one after the other, in the order in which they were made, since that is the order of the other
//! ranks. With the first of them the ranks agree on what carries them (`agreement`): NCCL, or the way by the host,
//! which also takes what NCCL does not do as Phalanx defines it.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "nccl")]
use std::sync::MutexGuard;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::DeviceCarrier;
use super::agreement::{self, Agreed, OverPeersWish};
use super::outcome::Outcome;
#[cfg(feature = "nccl")]
use super::over_nccl::{NcclPlace, OverNccl};
use super::over_peers::OverPeers;
use super::staged::{self, Staged};
#[cfg(feature = "nccl")]
use super::succession;
use crate::comm::call::Call;
use crate::comm::communicator::Communicator;
use crate::comm::handle::Handle;
use crate::device::{Device, Event};
use crate::types::{Algorithm, Deadline, Error, Result};

/// How often the thread looks whether what it keeps can be let go of.
const PERIOD: Duration = Duration::from_millis(1);

/// How often it looks whether a call that is with the network was given up.
const LOOK: Duration = Duration::from_millis(20);

/// A call to be done.
pub(super) struct Job {
    pub call: Call,
    pub input: u64,
    pub output: u64,
    pub device: Device,
    /// After which the memory may be touched.
    pub ready: Event,
    /// The communicator of device calls, with the caller's settings.
    pub communicator: Communicator,
    pub deadline: Deadline,
    /// What carries it, if that is not the host, once it is known.
    pub carrier: Cell<Option<Algorithm>>,
    pub keep: Option<Box<dyn Any + Send>>,
    pub outcome: Arc<Outcome>,
}

impl Job {
    /// Runs `call` on host memory on the way of this job's call, whose signature it bears: a rank that makes another
    /// call is found out. `number` tells such calls on one way apart.
    pub fn tell(&self, call: Call, number: u8, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
        let call = call.on_the_way_of(&self.call, number, self.carrier.get());
        let input = if input.is_empty() { std::ptr::null() } else { input.as_ptr() };
        // SAFETY: the callers give as many bytes as their calls of bytes need, borrowed until the call has ended.
        unsafe { self.run(&call, input, output.as_mut_ptr()) }
    }

    /// Runs a call on host memory, by the deadline of this job's.
    ///
    /// # Safety
    ///
    /// As [`Communicator::run`].
    pub unsafe fn run(&self, call: &Call, input: *const u8, output: *mut u8) -> Result<(), Failure> {
        let communicator = self.communicator.with_timeout(self.deadline.remaining(Instant::now()));
        // SAFETY: the caller's promise.
        let outcome = unsafe { communicator.run_with(call, input, output, |handle| self.await_host(handle)) };
        // Whatever it is, all ranks meet it here.
        outcome.map_err(Failure::Network)
    }

    /// Waits for a part of this job that is with the network, and gives it up on every rank when the job is.
    pub fn await_host(&self, handle: &Handle) -> Result<()> {
        loop {
            if let Some(outcome) = handle.wait_for(LOOK) {
                return outcome;
            }
            if let Some(cause) = self.outcome.given_up() {
                handle.give_up_for(cause);
                return handle.wait();
            }
        }
    }

    /// Whether this rank has elements of the call, and so memory on a device.
    pub fn has_elements(&self) -> bool {
        let (inputs, outputs) = self.call.buffer_counts(self.communicator.rank(), self.communicator.size());
        inputs + outputs > 0
    }
}

/// A job that is dropped without an outcome was lost with its thread.
impl Drop for Job {
    fn drop(&mut self) {
        self.outcome.tell(Err(Error::internal("the thread of device calls ended before a call")));
    }
}

/// Whose failure ended a call.
#[derive(Debug)]
pub(super) enum Failure {
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
    jobs: mpsc::Receiver<Job>,
    /// Why no call can be made any more.
    dead: Arc<Mutex<Option<Error>>>,
    /// What carried the last call.
    carrier: Arc<Mutex<Option<DeviceCarrier>>>,
    /// What all ranks agreed on with the first call.
    agreed: Option<Agreed>,
    staged: Staged,
    /// The communicator of device calls.
    #[cfg(feature = "nccl")]
    communicator: Communicator,
    /// NCCL's: with the process where it is that of all members, so that the next view's can be made of it.
    #[cfg(feature = "nccl")]
    nccl: Arc<NcclPlace>,
    peers: Option<OverPeers>,
    /// What calls were given to keep, until the device is done with them.
    retired: VecDeque<(Arc<Event>, Box<dyn Any + Send>)>,
}

impl Worker {
    pub fn new(
        jobs: mpsc::Receiver<Job>,
        dead: Arc<Mutex<Option<Error>>>,
        carrier: Arc<Mutex<Option<DeviceCarrier>>>,
        communicator: Communicator,
        is_of_all: bool,
    ) -> Self {
        #[cfg(feature = "nccl")]
        let nccl = if is_of_all { communicator.inner.world.nccl.clone() } else { Arc::default() };
        #[cfg(not(feature = "nccl"))]
        let _ = (communicator, is_of_all);
        Self {
            jobs,
            dead,
            carrier,
            agreed: None,
            staged: Staged::default(),
            #[cfg(feature = "nccl")]
            communicator,
            #[cfg(feature = "nccl")]
            nccl,
            peers: None,
            retired: VecDeque::new(),
        }
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
        // What still has copies after that is lost rather than used again.
        self.settle_kept();
        #[cfg(feature = "nccl")]
        self.end_nccl();
        if let Some(peers) = self.peers.take() {
            peers.end();
        }
    }

    /// What NCCL has for this communicator: nothing from the moment on that its view is over, when the next view's
    /// thread may take it.
    #[cfg(feature = "nccl")]
    fn own_nccl<'a>(&self, place: &'a NcclPlace) -> Option<MutexGuard<'a, Option<OverNccl>>> {
        if self.communicator.is_over() {
            return None;
        }
        let held = place.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().is_some_and(|nccl| nccl.is_of(&self.communicator)).then_some(held)
    }

    /// When no call will come. Where the view is over, what is there stays for the next one; so that nothing here waits for
    /// ranks that are gone.
    #[cfg(feature = "nccl")]
    fn end_nccl(&mut self) {
        if let Some(mut held) = self.own_nccl(&self.nccl)
            && let Some(nccl) = held.take()
        {
            nccl.end();
        }
    }

    /// After a call that failed. `false`: the device may still be at work with its memory.
    #[cfg(feature = "nccl")]
    fn give_up_nccl(&mut self, cause: &Error) -> bool {
        let mut held = self.nccl.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(nccl) = held.take_if(|nccl| nccl.is_of(&self.communicator)) else { return true };
        if !matches!(cause, Error::ViewChanged { .. }) {
            return nccl.give_up(cause);
        }
        let (left, drained) = nccl.leave(cause);
        *held = left;
        drained
    }

    /// Lets go of what the device is done with. Only here, between calls: to free device memory waits for the device,
    /// and what is under way on it may wait for this thread.
    fn let_go(&mut self) {
        // An event that cannot be asked for belongs to a device that does nothing any more.
        while self.retired.front().is_some_and(|(event, _)| event.is_done().unwrap_or(true)) {
            self.retired.pop_front();
        }
    }

    fn settle_kept(&mut self) {
        let drained = self.staged.drain();
        for (_, kept) in self.retired.drain(..).filter(|_| !drained) {
            std::mem::forget(kept);
        }
    }

    fn do_one(&mut self, mut job: Job) {
        let dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(cause) = dead {
            return job.outcome.tell(Err(cause));
        }
        let outcome = match job.outcome.begin() {
            Ok(()) => catch_unwind(AssertUnwindSafe(|| self.carry_out(&job))),
            Err(cause) => Ok(Err(Failure::Own(cause))),
        };
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
        self.staged.give_up(&cause);
        if is_news {
            job.communicator.refuse_next(&cause);
        }
        // Pieces that other ranks have sent or await cannot be told from those of a next call: there will be none.
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| cause.clone());
        // The memory is the caller's again once the device has no work with it.
        let drained = self.staged.drain();
        #[cfg(feature = "nccl")]
        let drained = self.give_up_nccl(&cause) && drained;
        let peers_drained = self.peers.as_ref().is_none_or(OverPeers::give_up);
        if !drained || !peers_drained {
            std::mem::forget(job.keep.take());
        }
        job.outcome.tell(Err(cause));
        // To give memory back waits for whatever else is on the device.
        self.staged.let_go();
        let peers = self.peers.take();
        if !peers_drained {
            std::mem::forget(peers);
        }
    }

    /// Does what a job asks for, by whatever carries it.
    fn carry_out(&mut self, job: &Job) -> Result<Event, Failure> {
        let carrier = self.carrier.clone();
        let carried_by = |what| {
            job.carrier.set(match what {
                DeviceCarrier::Nccl => Some(Algorithm::Nccl),
                DeviceCarrier::Peers => Some(Algorithm::Peers),
                DeviceCarrier::Staged => None,
            });
            *carrier.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
        };
        if self.agreed.is_none() && agreement::is_due(&job.call, job.communicator.size()) {
            self.agreed = Some(self.agree(job)?);
        }
        let is_void = agreement::is_void(&job.call);
        #[cfg(feature = "nccl")]
        if let Some(mut held) = self.own_nccl(&self.nccl).filter(|_| !is_void)
            && let Some(nccl) = held.as_mut()
            && let Some(collective) = nccl.carries(job)
        {
            carried_by(DeviceCarrier::Nccl);
            return nccl.carry_out(job, collective);
        }
        if let Some(call) = OverPeers::carries(job).filter(|_| !is_void)
            && let Some(peers) = self.peers(job)?
        {
            carried_by(DeviceCarrier::Peers);
            return peers.carry_out(job, call);
        }
        carried_by(DeviceCarrier::Staged);
        if job.has_elements() { self.staged.carry_out(job) } else { staged::carry_out_nothing(job) }
    }

    /// Memory of peers, if it is used; made ready with the first call that may go over it.
    fn peers(&mut self, job: &Job) -> Result<Option<&mut OverPeers>, Failure> {
        let Some(agreed) = &mut self.agreed else { return Ok(None) };
        if self.peers.is_none() && agreed.peers != OverPeersWish::No {
            match OverPeers::start(job)? {
                Ok(peers) => self.peers = Some(peers),
                Err(cause) if agreed.peers == OverPeersWish::Insists => return Err(Failure::Network(cause)),
                Err(cause) => {
                    // All ranks have heard it, and do not try again.
                    agreed.peers = OverPeersWish::No;
                    if job.communicator.rank() == 0 && job.communicator.size() > 1 {
                        tracing::info!("calls on device memory go through host memory: {cause}");
                    }
                }
            }
        }
        Ok(self.peers.as_mut())
    }

    /// Agrees with the other ranks on what carries the calls, and makes it ready.
    fn agree(&mut self, job: &Job) -> Result<Agreed, Failure> {
        #[cfg(feature = "nccl")]
        let mut library = None;
        let nccl = || {
            #[cfg(feature = "nccl")]
            {
                let library = library.insert(crate::device::nccl::Library::load()?);
                let version = library.version();
                let abilities = succession::told(library.abilities());
                Ok(agreement::HasNccl { version: [version.major, version.minor, version.patch], abilities })
            }
            #[cfg(not(feature = "nccl"))]
            Err(Error::environment("this build has no NCCL", "build with the feature nccl"))
        };
        #[cfg(feature = "nccl")]
        let heir = succession::heir(job, &self.nccl)?;
        #[cfg(not(feature = "nccl"))]
        let heir = None;
        let agreed = agreement::agree(job, nccl, heir)?;
        #[cfg(feature = "nccl")]
        let mut agreed = agreed;
        #[cfg(feature = "nccl")]
        {
            let mut held = self.nccl.lock().unwrap_or_else(PoisonError::into_inner);
            let old = held.take();
            match (agreed.carrier, &library, old) {
                (agreement::Carrier::Nccl, Some(library), old) => match OverNccl::start(job, library, &agreed, old)? {
                    Ok(nccl) => *held = Some(nccl),
                    Err(cause) => agreed = agreed.without_nccl(cause)?,
                },
                (_, _, Some(old)) => {
                    old.give_up(&Error::internal("the ranks go another way in this view"));
                }
                _ => {}
            }
        }
        tracing::debug!(carrier = ?agreed.carrier, insists = agreed.insists, "what carries device calls");
        if let (0, Some(why)) = (job.communicator.rank(), &agreed.why_not) {
            tracing::warn!("device memory goes through host memory, or over memory of peers, not over NCCL: {why}");
        }
        Ok(agreed)
    }
}

/// The device did not get to the call.
pub(super) fn late(job: &Job) -> Error {
    let (what, device) = (job.call.collective(), job.device.ordinal());
    Error::environment(
        format_args!("{what}: device {device} had not come to the call by its deadline"),
        "look at the work that is on the stream before the call: it does not end; PHALANX_TIMEOUT sets the limit",
    )
}
