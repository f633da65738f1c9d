//! Calls on device memory that NCCL carries.
//!
//! A call over NCCL that some rank does not make, or makes otherwise, hangs or spoils memory. So NCCL is given a call only
//! when all ranks have agreed that it is the same and each rank's device has come to it. From there on the thread asks in
//! turn whether the device is done, whether NCCL failed, and whether another rank gave the call up, until the deadline.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::agreement::{Agreed, Heir, decode_text, encode_text};
use super::as_nccl;
use super::succession::descend;
use super::waiting::{self, pause, signature, wait_until, word_of_others};
use super::worker::{Failure, Job, late};
use crate::comm::call::{Call, Extent};
use crate::comm::communicator::Communicator;
use crate::device::nccl::{Change, CollectiveCall, CollectiveWork, Group, Library, Opened, Progress, UniqueId, Way};
use crate::device::{Device, DeviceBuffer, Event, Stream};
use crate::types::{Collective, DataType, Deadline, Digest, Error, Result, Signature};

/// What is told on the way of a call; 1 is what ranks have.
const ID: u8 = 2;
const MADE: u8 = 3;
const AGREED: u8 = 4;
const ID_TO_GROW: u8 = 5;
const SUCCEEDED: u8 = 6;
const COUNTS: u8 = 7;

/// Bytes of an id.
const ID_BYTES: usize = 128;

/// How long what is still on its way to other ranks may take when the communicator ends: as long as the host's own last
/// messages may.
const END_LIMIT: Duration = Duration::from_secs(3);

/// How long the device may take to let go of memory after an abort, and before it where nothing else is to be aborted.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Where a communicator of NCCL is kept: with its thread, or with the process, for the views that come.
pub(in crate::comm) type NcclPlace = Mutex<Option<OverNccl>>;

/// A communicator of NCCL on this rank.
pub(in crate::comm) struct OverNccl {
    group: Group<Opened>,
    stream: Arc<Stream>,
    /// Which it is: the same number on each of its ranks.
    lineage: u64,
    /// Whether the device may be at work with the memory of a call.
    is_in_flight: bool,
    /// What an alltoall in place sends from.
    scratch: Option<DeviceBuffer<u8>>,
    /// Whether it is to carry what it rounds otherwise.
    insists: bool,
    /// Why calls went another way, of which the log has told.
    told: Vec<&'static str>,
}

impl OverNccl {
    /// Makes the communicator, with all ranks: of the one that an earlier view left, or of nothing. The inner error says
    /// why there is none, on any rank.
    pub(super) fn start(
        job: &Job,
        library: &Library,
        agreed: &Agreed,
        old: Option<Self>,
    ) -> Result<Result<Self, Error>, Failure> {
        let (way, change) = descend(agreed, job);
        tracing::debug!(?way, "how NCCL's communicator is made");
        if way != Way::Anew {
            let before = agreed.heirs.iter().flatten().next().map_or(0, |heir| heir.lineage);
            let with = [before.to_le_bytes(), change.generation.0.to_le_bytes()].concat();
            match Self::succeed(job, library, way, &change, old)? {
                Ok(made) => {
                    return Ok(Ok(Self { lineage: lineage(&with), insists: agreed.insists, ..made }));
                }
                Err(cause) if job.communicator.rank() == 0 => {
                    tracing::warn!("NCCL's communicator is made of nothing: {cause}");
                }
                Err(_) => {}
            }
        } else if let Some(old) = old {
            old.give_up(&Error::internal("another one is made of nothing"));
        }
        Self::anew(job, library, agreed.insists)
    }

    /// Of nothing.
    fn anew(job: &Job, library: &Library, insists: bool) -> Result<Result<Self, Error>, Failure> {
        let id = match spread_id(job, ID, || library.unique_id())? {
            Ok(id) => id,
            Err(cause) => return Ok(Err(cause)),
        };
        let stream = Arc::new(Stream::new(&job.device)?);
        let place = (job.communicator.rank(), job.communicator.size());
        let generation = job.communicator.view().generation;
        let calls = library.on(&job.device);
        let group = Group::start(calls, place, generation, &id, Instant::now(), job.deadline);
        let made = meet(job, group, "ncclCommInitRankConfig", MADE)?;
        Ok(made.map(|group| Self { lineage: lineage(&id.0), insists, ..Self::new(group, stream) }))
    }

    /// Of an earlier view's, which is gone afterwards. Takes half of the time that there is, so that all can begin again.
    fn succeed(
        job: &Job,
        library: &Library,
        way: Way,
        change: &Change,
        old: Option<Self>,
    ) -> Result<Result<Self, Error>, Failure> {
        let now = Instant::now();
        let deadline = Deadline::after(now, job.deadline.remaining(now) / 2);
        let own = |old: &mut Option<Self>| match old {
            Some(old) => old.group.id_to_grow(),
            None => Err(Error::internal("this rank has nothing to grow")),
        };
        let mut old = old;
        let id = match way {
            Way::Grow => match spread_id(job, ID_TO_GROW, || own(&mut old))? {
                Ok(id) => Some(id),
                Err(cause) => return Ok(Err(cause)),
            },
            _ => None,
        };
        let what = if way == Way::Grow { "ncclCommGrow" } else { "ncclCommShrink" };
        let (group, stream, scratch) = match (old, id) {
            (Some(Self { mut group, stream, scratch, .. }), id) => {
                let id = id.filter(|_| job.communicator.rank() == 0);
                group.change(change, way, id.as_ref(), now, deadline);
                (group, stream, scratch)
            }
            (None, Some(id)) => {
                let stream = Arc::new(Stream::new(&job.device)?);
                (Group::join(library.on(&job.device), change, &id, now, deadline), stream, None)
            }
            (None, None) => return Err(Error::internal("a rank without a communicator is to shrink it").into()),
        };
        let made = meet(job, group, what, SUCCEEDED)?;
        Ok(made.map(|group| Self { scratch, ..Self::new(group, stream) }))
    }

    fn new(group: Group<Opened>, stream: Arc<Stream>) -> Self {
        Self { group, stream, lineage: 0, is_in_flight: false, scratch: None, insists: false, told: Vec::new() }
    }

    /// Whether it is of this communicator's view.
    pub(super) fn is_of(&self, communicator: &Communicator) -> bool {
        self.group.generation() == communicator.view().generation
    }

    /// What it is for the views that come.
    pub(super) fn heir(&self) -> Heir {
        let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Heir { lineage: self.lineage, rank: number(self.group.rank()), size: number(self.group.size()) }
    }

    /// Whether a call is under way, or has failed and not been seen to.
    pub(super) fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }

    /// As it is, if another can be made of it on this device. Otherwise it is aborted.
    pub(super) fn for_another_view(mut self, device: &Device) -> Option<Self> {
        let is_here = self.stream.device().ordinal() == device.ordinal();
        // NCCL may have found something since.
        let is_sound = self.group.poll(Instant::now()) == Ok(Progress::Ready) && self.group.is_alive();
        if is_here && is_sound {
            return Some(self);
        }
        self.give_up(&Error::internal("it cannot be used for another view"));
        None
    }

    /// The job's call as NCCL takes it, if it does. Depends on nothing but what all ranks have agreed on or compare with
    /// the call.
    pub(super) fn carries(&mut self, job: &Job) -> Option<CollectiveCall> {
        match as_nccl::take(job, self.insists) {
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
    pub(super) fn carry_out(&mut self, job: &Job, collective: CollectiveCall) -> Result<Event, Failure> {
        let Self { group, stream, scratch, is_in_flight, .. } = self;
        // What can fail on this rank alone comes first, while the others can still hear of it.
        let done = Event::new(&job.device)?;
        wait_until(job, |_| Ok(job.ready.is_done()?.then_some(())), || late(job))?;
        let mut input = job.input;
        if collective.collective == Collective::Alltoall && job.call.is_in_place(job.communicator.rank()) {
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
        if let Extent::Exchange { send, recv } = &job.call.extent {
            compare_counts(job, send, recv)?;
        }
        job.tell(Call::barrier(), AGREED, &[], &mut [])?;
        let name = collective.name.clone();
        // SAFETY: whoever made the job answers for its memory until its outcome is told, which is not before the stream
        // is past the work, or it was aborted and the stream is drained.
        let work = unsafe { CollectiveWork::new(collective, input, job.output, stream.clone()) };
        *is_in_flight = true;
        group
            .enqueue(&work, job.communicator.view().generation, Instant::now(), job.deadline)
            .map_err(|error| explained(job, error))?;
        wait(job, &name, |now| {
            let progress = group.poll(now).map_err(|error| explained(job, error))?;
            Ok((progress == Progress::Ready).then_some(()))
        })?;
        done.record(stream)?;
        wait(job, &name, |now| {
            if done.is_done()? {
                return Ok(Some(()));
            }
            group.poll(now).map_err(|error| explained(job, error))?;
            Ok(None)
        })?;
        *is_in_flight = false;
        Ok(done)
    }

    /// After a call that its view's end has ended: this communicator for the next view, with nothing in flight any more.
    /// Otherwise it is aborted; `false` as in [`give_up`](Self::give_up).
    pub(super) fn leave(mut self, cause: &Error) -> (Option<Self>, bool) {
        if self.is_in_flight {
            let now = Instant::now();
            let deadline = Deadline::after(now, DRAIN_LIMIT);
            self.group.stop(now, deadline);
            self.settle();
            // NCCL has told the device. Whether it has heard is known by what is on its stream.
            self.is_in_flight = !(self.group.is_alive() && self.is_drained(deadline));
        }
        if self.is_in_flight || !self.group.is_alive() {
            return (None, self.give_up(cause));
        }
        (Some(self), true)
    }

    fn is_drained(&self, deadline: Deadline) -> bool {
        self.stream.synchronize(deadline).is_ok_and(|done| done)
    }

    /// Aborts what is in flight. `false`: the device may still have work with the memory of a call.
    pub(super) fn give_up(mut self, cause: &Error) -> bool {
        self.group.give_up(cause.clone());
        let drained = self.is_drained(Deadline::after(Instant::now(), DRAIN_LIMIT));
        if !drained {
            std::mem::forget(self.scratch.take());
        }
        drained
    }

    /// Ends the communicator when no call will come: what other ranks still await of this one is handed to them.
    pub(super) fn end(mut self) {
        let now = Instant::now();
        self.group.end(now, Deadline::after(now, END_LIMIT));
        self.settle();
    }

    /// Waits for what the group has begun, well or not. The deadline is the group's.
    fn settle(&mut self) {
        let mut polls = 0;
        while matches!(self.group.poll(Instant::now()), Ok(Progress::Pending)) {
            pause(&mut polls);
        }
    }
}

/// A number for a communicator, by what it is made with.
fn lineage(with: &[u8]) -> u64 {
    let mut digest = Digest::new();
    digest.add(with);
    digest.0
}

/// Waits for a communicator that was begun, and for the other ranks' to be there. The inner error says why there is none,
/// on any rank.
fn meet(job: &Job, mut group: Group<Opened>, what: &str, number: u8) -> Result<Result<Group<Opened>, Error>, Failure> {
    let made = wait(job, what, |now| match group.poll(now) {
        Ok(Progress::Pending) => Ok(None),
        Ok(Progress::Ready) => Ok(Some(())),
        Ok(Progress::Ended) => Err(Error::internal("a communicator of NCCL ended before it was made").into()),
        Err(cause) => Err(explained(job, cause)),
    });
    let cause = match made {
        Ok(()) => match job.tell(Call::barrier(), number, &[], &mut []) {
            Ok(()) => return Ok(Ok(group)),
            Err(Failure::Network(cause) | Failure::Own(cause)) => cause,
        },
        Err(Failure::Network(cause)) => {
            group.give_up(cause.clone());
            // It was given up, which this rank is told here, so that all count alike.
            let _ = job.tell(Call::barrier(), number, &[], &mut []);
            cause
        }
        Err(Failure::Own(cause)) if job.deadline.has_passed(Instant::now()) => {
            job.communicator.refuse_next(&cause);
            group.give_up(cause.clone());
            return Err(Failure::Network(cause));
        }
        // The others hear of it in place of the barrier. Of the causes that are told, a timeout is passed on as it is, and
        // taken for the end of nobody; this one has not waited.
        Err(Failure::Own(cause)) => {
            let told = Error::Timeout {
                operation: what.into(),
                waiting_for: vec![job.communicator.rank()],
                waited: Duration::ZERO,
                detail: cause.to_string().into(),
            };
            job.communicator.refuse_next(&told);
            told
        }
    };
    group.give_up(cause.clone());
    match cause {
        Error::Timeout { operation, waiting_for, waited, detail } if *operation == *what && waited.is_zero() => {
            let rank = waiting_for.first().copied().unwrap_or_default();
            Ok(Err(Error::environment(format_args!("on rank {rank}: {detail}"), "look at the output of that rank")))
        }
        // Where the view is over, a rank is gone or did not come, nothing can be made in another way either.
        cause => Err(Failure::Network(cause)),
    }
}

/// Of an exchange only its two ranks know the length: each tells the other what it sends.
fn compare_counts(job: &Job, send: &[usize], recv: &[usize]) -> Result<(), Failure> {
    let told: Vec<u8> = send.iter().flat_map(|count| (*count as u64).to_le_bytes()).collect();
    let mut heard = vec![0; told.len()];
    job.tell(Call::alltoall(DataType::U8, size_of::<u64>()), COUNTS, &told, &mut heard)?;
    for (peer, (sent, expected)) in heard.chunks_exact(size_of::<u64>()).zip(recv).enumerate() {
        let sent = u64::from_le_bytes(std::array::from_fn(|byte| sent[byte]));
        if sent != *expected as u64 {
            let call = |count| Signature { count, ..signature(job) };
            return Err(Error::Mismatch {
                sequence: job.communicator.last_number(),
                ours: (job.communicator.rank(), call(*expected as u64)),
                theirs: (peer, call(sent)),
            }
            .into());
        }
    }
    Ok(())
}

/// What NCCL says first may be the end of another rank, which the host learns of a moment later, and by name.
fn explained(job: &Job, error: Error) -> Failure {
    word_of_others(job).map_or(Failure::Own(error), Failure::Network)
}

/// An id by which ranks meet: made by rank 0, and told over connections that know who is at the other end. The inner error
/// says why there is none.
fn spread_id(
    job: &Job,
    number: u8,
    make: impl FnOnce() -> Result<UniqueId>,
) -> Result<Result<UniqueId, Error>, Failure> {
    let mut told = vec![0; 1 + ID_BYTES];
    let mut reason = String::new();
    if job.communicator.rank() == 0 {
        match make() {
            Ok(id) => {
                told[0] = 1;
                told[1..].copy_from_slice(&id.0);
            }
            Err(error) => reason = error.to_string(),
        }
    }
    told.extend(encode_text(&reason));
    // Not a broadcast, whose root goes on alone: no rank is to fail in what follows before all are there.
    let mut all = vec![0; told.len() * job.communicator.size()];
    job.tell(Call::allgather(DataType::U8, told.len()), number, &told, &mut all)?;
    if all[0] == 1 {
        return Ok(Ok(UniqueId(std::array::from_fn(|byte| all[1 + byte]))));
    }
    let reason = decode_text(&all[1 + ID_BYTES..told.len()]);
    Ok(Err(Error::environment(
        format_args!("rank 0 has no id of NCCL to meet by: {reason}"),
        "look at rank 0's output",
    )))
}

/// As [`waiting::wait`]: the deadline is NCCL's to answer for.
fn wait<T>(job: &Job, what: &str, ask: impl FnMut(Instant) -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    waiting::wait(job, what, "over NCCL, which does not say whom it waits for; it was aborted", ask)
}
