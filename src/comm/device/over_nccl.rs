//! Calls on device memory that NCCL carries.
//!
//! A call over NCCL that some rank does not make, or makes otherwise, hangs or spoils memory. So NCCL is given a call only
//! when all ranks have agreed that it is the same and each rank's device has come to it. From there on the thread asks in
//! turn whether the device is done, whether NCCL failed, and whether another rank gave the call up, until the deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agreement::{decode_text, encode_text};
use super::waiting::{self, pause, signature, wait_until};
use super::worker::{Failure, Job, late};
use crate::comm::call::{Call, Extent};
use crate::device::nccl::{CollectiveCall, CollectiveWork, Group, Library, Opened, Progress, UniqueId};
use crate::device::{DeviceBuffer, Event, Stream};
use crate::types::{Collective, DataType, Deadline, Error, Result};

/// What is told on the way of a call; 1 is what ranks have.
const ID: u8 = 2;
const MADE: u8 = 3;
const AGREED: u8 = 4;

/// Bytes of an id.
const ID_BYTES: usize = 128;

/// How long what is still on its way to other ranks may take when the communicator ends.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How long the device may take to let go of memory after an abort.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// A communicator of NCCL on this rank.
pub(super) struct OverNccl {
    group: Group<Opened>,
    stream: Arc<Stream>,
    /// What an alltoall in place sends from.
    scratch: Option<DeviceBuffer<u8>>,
    /// Whether it is to carry what it rounds otherwise.
    insists: bool,
    /// Why calls went another way, of which the log has told.
    told: Vec<&'static str>,
}

impl OverNccl {
    /// Makes the communicator, with all ranks. The inner error says why there is none, on any rank.
    pub fn start(job: &Job, library: &Library, insists: bool) -> Result<Result<Self, Error>, Failure> {
        let id = match spread_id(job, library)? {
            Ok(id) => id,
            Err(cause) => return Ok(Err(cause)),
        };
        let stream = Arc::new(Stream::new(&job.device)?);
        let place = (job.communicator.rank(), job.communicator.size());
        let generation = job.communicator.view().generation;
        let calls = library.on(&job.device);
        let mut group = Group::start(calls, place, generation, &id, Instant::now(), job.deadline);
        let made = wait(job, "ncclCommInitRankConfig", |now| match group.poll(now) {
            Ok(Progress::Pending) => Ok(None),
            Ok(_) => Ok(Some(Ok(()))),
            Err(cause) => Ok(Some(Err(cause))),
        });
        let cause = match made {
            Ok(Ok(())) => match job.tell(Call::barrier(), MADE, &[], &mut []) {
                Ok(()) => return Ok(Ok(Self { group, stream, scratch: None, insists, told: Vec::new() })),
                Err(Failure::Network(cause) | Failure::Own(cause)) => cause,
            },
            // The others hear of it in place of the barrier.
            Ok(Err(cause)) => {
                job.communicator.refuse_next(&cause);
                cause
            }
            Err(Failure::Network(cause)) => {
                group.give_up(cause.clone());
                // It was given up, which this rank is told here, so that all count alike.
                let _ = job.tell(Call::barrier(), MADE, &[], &mut []);
                cause
            }
            Err(Failure::Own(cause)) => {
                job.communicator.refuse_next(&cause);
                group.give_up(cause.clone());
                return Err(Failure::Network(cause));
            }
        };
        group.give_up(cause.clone());
        Ok(Err(cause))
    }

    /// The job's call as NCCL takes it, if it does. Depends on nothing but what all ranks have agreed on or compare with
    /// the call.
    pub fn carries(&mut self, job: &Job) -> Option<CollectiveCall> {
        match as_nccl_takes_it(job, self.insists) {
            Ok(collective) => collective,
            Err(why) => {
                if job.communicator.rank() == 0 && !self.told.contains(&why) {
                    self.told.push(why);
                    tracing::warn!("NCCL does not carry {} of {}: {why}", job.call.collective, job.call.dtype);
                }
                None
            }
        }
    }

    /// Carries a job out. Returns when the device is done with it.
    pub fn carry_out(&mut self, job: &Job, collective: CollectiveCall) -> Result<Event, Failure> {
        let Self { group, stream, scratch, .. } = self;
        // What can fail on this rank alone comes first, while the others can still hear of it.
        let done = Event::new(&job.device)?;
        wait_until(job, |_| Ok(job.ready.is_done()?.then_some(())), || late(job))?;
        let mut input = job.input;
        if collective.collective == Collective::Alltoall && input == 0 {
            let bytes = collective.count * collective.width * collective.size;
            let buffer = match scratch.take().filter(|buffer| buffer.len() >= bytes) {
                Some(buffer) => buffer,
                None => DeviceBuffer::new(&job.device, bytes)?,
            };
            let buffer = scratch.insert(buffer);
            // SAFETY: the call's output has as many bytes, and is the call's alone until it has ended. The scratch is not
            // freed before.
            unsafe { buffer.copy_from(stream, job.output, bytes)? };
            input = buffer.pointer();
        }
        job.tell(Call::barrier(), AGREED, &[], &mut [])?;
        let name = collective.name.clone();
        // SAFETY: whoever made the job answers for its memory until its outcome is told, which is not before the stream
        // is past the work, or it was aborted and the stream is drained.
        let work = unsafe { CollectiveWork::new(collective, input, job.output, stream.clone()) };
        group.enqueue(&work, job.communicator.view().generation, Instant::now(), job.deadline)?;
        wait(job, &name, |now| Ok((group.poll(now)? == Progress::Ready).then_some(())))?;
        done.record(stream)?;
        wait(job, &name, |now| {
            if done.is_done()? {
                return Ok(Some(()));
            }
            group.poll(now)?;
            Ok(None)
        })?;
        Ok(done)
    }

    /// Aborts what is in flight. `false`: the device may still have work with the memory of a call.
    pub fn give_up(mut self, cause: &Error) -> bool {
        self.group.give_up(cause.clone());
        let drained = self.stream.synchronize(Deadline::after(Instant::now(), DRAIN_LIMIT)).is_ok_and(|done| done);
        if !drained {
            std::mem::forget(self.scratch.take());
        }
        drained
    }

    /// Ends the communicator when no call will come: what other ranks still await of this one is handed to them.
    pub fn end(mut self) {
        let now = Instant::now();
        let deadline = Deadline::after(now, END_LIMIT);
        self.group.end(now, deadline);
        let mut polls = 0;
        // The deadline is the group's.
        while matches!(self.group.poll(Instant::now()), Ok(Progress::Pending)) {
            pause(&mut polls);
        }
    }
}

/// The id by which the ranks meet: made by rank 0, and told over connections that know who is at the other end. The inner
/// error says why there is none.
fn spread_id(job: &Job, library: &Library) -> Result<Result<UniqueId, Error>, Failure> {
    let mut told = vec![0; 1 + ID_BYTES];
    if job.communicator.rank() == 0 {
        match library.unique_id() {
            Ok(id) => {
                told[0] = 1;
                told[1..].copy_from_slice(&id.0);
                told.extend(encode_text(""));
            }
            Err(error) => told.extend(encode_text(&error.to_string())),
        }
    } else {
        told.extend(encode_text(""));
    }
    // Not a broadcast, whose root goes on alone: no rank is to fail in what follows before all are there.
    let mut all = vec![0; told.len() * job.communicator.size()];
    job.tell(Call::allgather(DataType::U8, told.len()), ID, &told, &mut all)?;
    if all[0] == 1 {
        return Ok(Ok(UniqueId(std::array::from_fn(|byte| all[1 + byte]))));
    }
    let reason = decode_text(&all[1 + ID_BYTES..told.len()]);
    Ok(Err(Error::environment(
        format_args!("rank 0 has no id of NCCL to meet by: {reason}"),
        "look at rank 0's output",
    )))
}

/// A call as NCCL takes it; `None` for one that moves nothing. The error says why NCCL does not carry it.
fn as_nccl_takes_it(job: &Job, insists: bool) -> Result<Option<CollectiveCall>, &'static str> {
    let (call, settings) = (&job.call, job.communicator.settings());
    let (rank, size) = (job.communicator.rank(), job.communicator.size());
    let count = match (call.collective, &call.extent) {
        (Collective::Allreduce | Collective::Reduce | Collective::Broadcast, Extent::Whole(count)) => *count,
        (Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall, Extent::Equal(count)) => *count,
        _ => return Err("NCCL has no such collective"),
    };
    if count == 0 {
        return Ok(None);
    }
    if settings.deterministic && call.is_inexact() {
        return Err("it is to be reduced in the order of the ranks");
    }
    if settings.algorithm.is_some() && !insists {
        return Err("an algorithm is forced");
    }
    Ok(Some(CollectiveCall {
        name: signature(job).to_string(),
        collective: call.collective,
        numbers: CollectiveCall::numbers(call.dtype, call.reduction.as_ref(), size, insists)?,
        root: call.root,
        count,
        width: call.dtype.size(),
        rank,
        size,
    }))
}

/// As [`waiting::wait`]: the deadline is NCCL's to answer for.
fn wait<T>(job: &Job, what: &str, ask: impl FnMut(Instant) -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    waiting::wait(job, what, "over NCCL, which does not say whom it waits for; it was aborted", ask)
}
