//! Calls on device memory.
//!
//! A call starts at once: an event marks where the user's stream is, and the thread `phalanx-device`, one for each
//! communicator that is used so, does the rest (`worker`). With the first call all ranks agree on what carries them
//! (`agreement`). Where NCCL does (`over_nccl`), or memory of peers (`over_peers`),
//! [`DeviceHandle::wait`] waits until the device is done (`waiting`). Otherwise (`staged`) the thread copies pieces of
//! the memory (`pieces`) through pinned slots, has them combined on the host by whatever transport there is, and copies
//! the results back; `wait` waits until the last copy is on its way, and makes the stream that is given wait for it:
//! the device may still be copying, and work that is put on that stream comes after.
//!
//! Device calls have a communicator of their own beneath the user's, so that they and host calls may be made side by
//! side; each kind must be made in the same order on all ranks.
//!
//! The first call that fails ends device calls on its communicator: every later one fails with the same cause, on every
//! rank. A device that fails on one rank is told to the others at once.

mod agreement;
#[cfg(feature = "nccl")]
mod as_nccl;
mod outcome;
#[cfg(feature = "nccl")]
mod over_nccl;
mod over_peers;
mod pieces;
mod staged;
#[cfg(feature = "nccl")]
mod succession;
mod waiting;
mod worker;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) use self::outcome::InFlight;
use self::outcome::Outcome;
#[cfg(feature = "nccl")]
pub(super) use self::over_nccl::NcclPlace;
use self::worker::{Job, Worker};
use super::call::Call;
use super::communicator::Communicator;
use super::handle::Handle;
use crate::device::{Device, DeviceBuffer, Event, Stream};
use crate::types::{Deadline, Element, Error, Reduction, Result, Signature};

/// How much longer than its deadline a call may take to be told: what is under way on the device is waited for.
const GRACE: Duration = Duration::from_secs(30);

/// What carries calls on device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCarrier {
    /// NCCL.
    Nccl,
    /// Kernels that read the memory of the other ranks' devices.
    Peers,
    /// Pinned host memory, and what carries calls on host memory.
    Staged,
}

/// A communicator's device calls.
pub(super) struct DeviceCalls {
    communicator: Communicator,
    jobs: ManuallyDrop<mpsc::Sender<Job>>,
    dead: Arc<Mutex<Option<Error>>>,
    /// What carried the last call.
    carrier: Arc<Mutex<Option<DeviceCarrier>>>,
    /// The device of the first call of which this rank had elements, and so of all such calls.
    device: OnceLock<Device>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceCalls {
    /// `is_of_all` says that the user's communicator is that of all members of its view.
    fn start(communicator: Communicator, is_of_all: bool) -> Result<Self> {
        let (jobs, taken) = mpsc::channel();
        let (dead, carrier) = (Arc::default(), Arc::default());
        let worker = Worker::new(taken, Arc::clone(&dead), Arc::clone(&carrier), communicator.clone(), is_of_all);
        let thread = std::thread::Builder::new().name("phalanx-device".into()).spawn(|| worker.run());
        let thread = thread.map_err(|error| {
            Error::environment(format_args!("cannot start a thread: {error}"), "see the limits on threads and memory")
        })?;
        let (jobs, device) = (ManuallyDrop::new(jobs), OnceLock::new());
        Ok(Self { communicator, jobs, dead, carrier, device, thread: Some(thread) })
    }
}

impl Drop for DeviceCalls {
    fn drop(&mut self) {
        // SAFETY: dropped here only. The thread ends when there is no sender.
        unsafe { ManuallyDrop::drop(&mut self.jobs) };
        if let Some(thread) = self.thread.take() {
            // Every call ends by its deadline. A panic was told to its call.
            let _ = thread.join();
        }
    }
}

/// A pending call on device memory. Dropping it is safe: the call goes on.
pub struct DeviceHandle {
    outcome: Arc<Outcome>,
    deadline: Deadline,
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceHandle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl DeviceHandle {
    /// Waits until the call has ended, and makes `stream` wait for its results: what is put on it from now on sees
    /// them.
    ///
    /// # Errors
    ///
    /// What ended the call. Its memory is the caller's again then, with unspecified content.
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        let limit = self.deadline.remaining(Instant::now()) + GRACE;
        self.settle(self.outcome.wait(limit).unwrap_or_else(|| Err(Self::lost())), stream)
    }

    /// Waits at most `limit`. `None` says that the call is still pending; it goes on.
    pub fn wait_for(&self, limit: Duration, stream: &Stream) -> Option<Result<()>> {
        let overdue = self.deadline.overdue(Instant::now()) > GRACE;
        let outcome = self.outcome.wait(limit).or_else(|| overdue.then(|| Err(Self::lost())))?;
        Some(self.settle(outcome, stream))
    }

    /// Whether the call has ended, well or not. Does not wait.
    pub fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Gives the call up on every rank, unless it has ended. When this returns, its memory is the caller's again.
    ///
    /// As with any call that fails, device calls on its communicator are over then, on every rank.
    pub fn give_up(&self, why: &str) {
        self.outcome.give_up(Error::invalid(why));
        // What is under way on the device is waited for. Should the device not come to an end, its memory is kept.
        let _ = self.outcome.wait(GRACE);
    }

    fn settle(&self, outcome: Result<Arc<Event>>, stream: &Stream) -> Result<()> {
        outcome.and_then(|event| stream.wait_for(&event))
    }

    fn lost() -> Error {
        Error::internal("a device call did not end by its deadline")
    }
}

/// A pending call that owns its device buffer, and gives it back with the result.
#[derive(Debug)]
#[must_use = "a call that nobody waits for may fail unnoticed"]
pub struct DevicePending<T> {
    handle: DeviceHandle,
    buffer: Arc<Mutex<Option<DeviceBuffer<T>>>>,
}

impl<T> DevicePending<T> {
    /// Waits for the result, as [`DeviceHandle::wait`] does.
    ///
    /// # Errors
    ///
    /// What ended the call.
    pub fn wait(self, stream: &Stream) -> Result<DeviceBuffer<T>> {
        self.handle.wait(stream)?;
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner).take();
        buffer.ok_or_else(|| Error::internal("a device call lost its buffer"))
    }

    /// Whether the call has ended, well or not. Does not wait.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }
}

/// Collectives on device memory. They need a CUDA device, and nothing else: NCCL carries them where all ranks have it,
/// within a host they go over memory of peers, and otherwise whatever network the ranks have carries them. Each
/// comes after what is on `stream` when it is called; when it returns, its results are on their way, and what is put on
/// `stream` from then on sees them.
impl Communicator {
    /// As [`allreduce`](Self::allreduce), on device memory.
    pub fn allreduce_device<T: Element>(
        &self,
        data: &mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<()> {
        self.device_in_place(Call::allreduce(T::DATA_TYPE, data.len(), reduction), data, stream)
    }

    /// As [`reduce`](Self::reduce), on device memory.
    pub fn reduce_device<T: Element>(
        &self,
        data: &mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.device_in_place(Call::reduce(T::DATA_TYPE, data.len(), reduction, root), data, stream)
    }

    /// As [`broadcast`](Self::broadcast), on device memory.
    pub fn broadcast_device<T: Element>(&self, data: &mut DeviceBuffer<T>, root: usize, stream: &Stream) -> Result<()> {
        self.device_in_place(Call::broadcast(T::DATA_TYPE, data.len(), root), data, stream)
    }

    /// As [`allgather`](Self::allgather), on device memory.
    pub fn allgather_device<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.call_device(&Call::allgather(T::DATA_TYPE, input.len()), input, output, stream)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), on device memory.
    pub fn reduce_scatter_device<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<()> {
        self.call_device(&Call::reduce_scatter(T::DATA_TYPE, output.len(), reduction), input, output, stream)
    }

    /// As [`alltoall`](Self::alltoall), on device memory.
    pub fn alltoall_device<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        let count = self.share(input.len(), "alltoall")?;
        self.call_device(&Call::alltoall(T::DATA_TYPE, count), input, output, stream)
    }

    /// Any call from `input` to `output` in device memory: those above, gather and scatter, and those with counts.
    pub fn call_device<T: Element>(
        &self,
        call: &Call,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_buffers::<T>(call, input.len(), output.len())?;
        let input = if call.is_in_place(self.rank()) { 0 } else { input.pointer() };
        // SAFETY: both have the lengths that the call asks for, and are borrowed until it has ended: a wait ends with
        // the call, and the copies that may still be under way are waited for when the memory is freed.
        unsafe { self.submit_device(call, input, output.pointer(), stream, None)? }.wait(stream)
    }

    /// Starts an [`allreduce_device`](Self::allreduce_device) of `data`, and returns at once.
    pub fn start_allreduce_device<T: Element>(
        &self,
        data: DeviceBuffer<T>,
        reduction: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<DevicePending<T>> {
        let call = Call::allreduce(T::DATA_TYPE, data.len(), reduction).in_place(true);
        let pointer = data.pointer();
        let buffer = Arc::new(Mutex::new(Some(data)));
        // SAFETY: the call's count is the length of the buffer, which the call keeps.
        let handle = unsafe { self.submit_device(&call, 0, pointer, stream, Some(Box::new(buffer.clone())))? };
        Ok(DevicePending { handle, buffer })
    }

    fn device_in_place<T: Element>(&self, call: Call, data: &mut DeviceBuffer<T>, stream: &Stream) -> Result<()> {
        let call = call.in_place(true);
        // SAFETY: as in `call_device`.
        unsafe { self.submit_device(&call, 0, data.pointer(), stream, None)? }.wait(stream)
    }

    /// Starts a call on device memory, after what is on `stream`. `keep` is kept alive until nothing touches the memory
    /// any more.
    ///
    /// # Errors
    ///
    /// When the arguments cannot be used, the memory is not of the stream's device, or a device call failed before.
    /// Everything else is the handle's outcome.
    ///
    /// # Safety
    ///
    /// `input` and `output` must have the elements that the call needs on this rank (see [`Call`]) and stay valid until
    /// the call has ended and what its handle makes a stream wait for has come: input for reads, output for reads and
    /// writes by nobody else. They must not overlap. Either may be 0 when it has no elements, and `input` must be 0 in
    /// place.
    pub unsafe fn submit_device(
        &self,
        call: &Call,
        input: u64,
        output: u64,
        stream: &Stream,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<DeviceHandle> {
        call.validate(self.rank(), self.size())?;
        let (inputs, outputs) = call.buffer_counts(self.rank(), self.size());
        for (what, pointer, count) in [("input", input, inputs), ("output", output, outputs)] {
            if count > 0 {
                stream.device().check_pointer(&format!("{} of {}", what, call.collective()), pointer)?;
            }
        }
        let calls = self.device_calls()?;
        if let Some(cause) = calls.dead.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Err(cause);
        }
        let given = stream.device();
        // What has no elements may be nowhere, and is on any device.
        let device = if inputs + outputs > 0 {
            calls.device.get_or_init(|| given.clone())
        } else {
            calls.device.get().unwrap_or(given)
        };
        if inputs + outputs > 0 && device != given {
            return Err(Error::invalid(format_args!(
                "a stream of device {} given, but the calls of this communicator are on device {}; a subgroup of all ranks \
                 has calls of its own",
                given.ordinal(),
                device.ordinal()
            )));
        }
        let ready = Event::new(stream.device())?;
        ready.record(stream)?;
        let deadline = self.deadline();
        let outcome = Arc::new(Outcome::default());
        let job = Job {
            call: call.clone(),
            input,
            output,
            device: device.clone(),
            ready,
            communicator: calls.communicator.with_settings(self.settings()),
            deadline,
            carrier: Cell::default(),
            keep,
            outcome: outcome.clone(),
        };
        self.inner.world.device_calls.add(&outcome);
        // A thread that is gone drops the job, which tells its outcome.
        let _ = calls.jobs.send(job);
        Ok(DeviceHandle { outcome, deadline })
    }

    /// What carried this communicator's last call on device memory: the same on all ranks after the same call. `None`
    /// before the first.
    pub fn device_carrier(&self) -> Option<DeviceCarrier> {
        let calls = self.inner.device.get()?;
        *calls.carrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device of this communicator's calls: that of the first one of which this rank had elements.
    pub fn device_of_calls(&self) -> Option<&Device> {
        self.inner.device.get()?.device.get()
    }

    fn device_calls(&self) -> Result<&DeviceCalls> {
        if let Some(calls) = self.inner.device.get() {
            return Ok(calls);
        }
        let _making = self.inner.making_device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = self.inner.device.get() {
            return Ok(calls);
        }
        let calls = DeviceCalls::start(self.beneath_for_devices()?, self.inner.id.is_world())?;
        Ok(self.inner.device.get_or_init(|| calls))
    }

    /// Why `call`, were it the next one here, would fail, if that is known.
    fn refusal(&self, call: &Signature) -> Option<Error> {
        self.inner.world.engine.refusal(self.inner.id, call)
    }

    /// The number of its last operation.
    #[cfg(feature = "nccl")]
    fn last_number(&self) -> u64 {
        self.inner.world.engine.next_number(self.inner.id).saturating_sub(1)
    }

    /// Whether its view is over.
    #[cfg(feature = "nccl")]
    fn is_over(&self) -> bool {
        self.inner.world.engine.is_over(self.inner.id)
    }

    /// As [`refusal`](Self::refusal), of what is told of the call: that a rank is gone does not count.
    fn abandonment(&self, call: &Signature) -> Option<Error> {
        self.inner.world.engine.abandonment(self.inner.id, call)
    }

    /// Takes the next place in the order of calls, and gives it up on every rank.
    fn refuse_next(&self, cause: &Error) {
        self.inner.world.engine.refuse(self.inner.id, cause.clone());
    }
}

impl Handle {
    /// Gives the operation up on every rank, for a cause.
    fn give_up_for(&self, cause: Error) {
        self.world.engine.give_up(&self.completion, cause);
    }
}
