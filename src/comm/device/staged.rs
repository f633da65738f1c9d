//! A call on device memory by way of the host.
//!
//! Within a call up to four pieces are on their way: fetched from the device, with the network, delivered to it.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::Instant;

use super::pieces::{Pieces, SLOT_BYTES};
use super::waiting::wait_apart;
use super::worker::{Failure, Job, late};
use crate::comm::buffer::Buffer;
use crate::comm::handle::Handle;
use crate::device::{Event, PinnedBuffer, Stager};
use crate::types::{DataType, Error, Result};

/// Slots on their way at a time, and how many of them are with the network.
const SLOTS: usize = 4;
const WITH_NETWORK: usize = 2;

/// The slots of a communicator, from its first staged call on.
#[derive(Default)]
pub(super) struct Staged {
    stager: Option<Stager>,
    /// What is with the network, oldest first. Left here when a call fails.
    flying: VecDeque<(usize, Handle)>,
}

impl Staged {
    /// Moves all pieces of a job.
    pub fn carry_out(&mut self, job: &Job) -> Result<Event, Failure> {
        let Self { stager, flying } = self;
        let pieces = Pieces::new(&job.call, job.communicator.rank(), job.communicator.size());
        let piece = |number| pieces.piece(number, job.input, job.output);
        let (count, bytes) = (pieces.count(), piece(0).bytes);
        let stager = with_slots(stager, job, bytes)?;
        let slots = stager.slot_count();
        // Nothing is put on the device before its turn, so that a call which is given up leaves nothing there.
        wait_apart(job, |_| Ok(job.ready.is_done()?.then_some(())), || late(job))?;
        for number in 0..count.min(slots) {
            // SAFETY: whoever made the job answers for its memory until its outcome is told, and after a failure that is
            // not before everything is drained.
            unsafe { stager.fetch(number, &piece(number).fetch)? };
        }
        for number in 0..count {
            let slot = number % slots;
            wait_apart(job, |_| Ok(stager.is_fetched(slot)?.then_some(())), || late(job))?;
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
                land(stager, job, &pieces, flying)?;
            }
        }
        while !flying.is_empty() {
            land(stager, job, &pieces, flying)?;
        }
        Ok(stager.mark()?)
    }

    /// Gives up what is with the network, on every rank.
    pub fn give_up(&mut self, cause: &Error) {
        for (_, handle) in self.flying.drain(..) {
            Handle::give_up_for(&handle, cause.clone());
        }
    }

    /// Waits a while for the last copies. `false`: some may be under way.
    pub fn drain(&mut self) -> bool {
        self.stager.as_mut().is_none_or(Stager::drain)
    }

    /// Gives the slots back.
    pub fn let_go(&mut self) {
        self.stager = None;
    }
}

/// A call of which this rank has no elements. It touches no device: it need not know one.
pub(super) fn carry_out_nothing(job: &Job) -> Result<Event, Failure> {
    // A mark that is nowhere, and counts as come.
    let done = Event::new(&job.device)?;
    let pieces = Pieces::new(&job.call, job.communicator.rank(), job.communicator.size());
    // SAFETY: there are no elements here.
    unsafe { job.run(&pieces.piece(0, 0, 0).call, std::ptr::null(), std::ptr::null_mut())? };
    Ok(done)
}

/// A stager with slots of at least so many bytes.
fn with_slots<'a>(stager: &'a mut Option<Stager>, job: &Job, bytes: usize) -> Result<&'a mut Stager> {
    // The smaller slots go before there are larger ones.
    let fitting = stager.take().filter(|stager| stager.slot_bytes() >= bytes);
    let fitting = match fitting {
        Some(fitting) => fitting,
        None => {
            let slots = if bytes > SLOT_BYTES * 2 { 1 } else { SLOTS };
            Stager::new(&job.device, slots, || slot(job, bytes.max(SLOT_BYTES)))?
        }
    };
    Ok(stager.insert(fitting))
}

/// Pinned memory of so many bytes that ranks of this host and adapters read where it is, or any where there is no such.
fn slot(job: &Job, bytes: usize) -> Result<PinnedBuffer> {
    let shared = job.communicator.alloc_bytes(DataType::U8, bytes).ok().filter(Buffer::is_shared);
    if let Some(shared) = shared
        && let Some(start) = NonNull::new(shared.as_raw())
    {
        // SAFETY: the buffer's bytes are its own while it lives. A stager drops its slots when no copy is under way.
        match unsafe { PinnedBuffer::pin(&job.device, start, bytes, Box::new(shared)) } {
            Ok(pinned) => return Ok(pinned),
            Err(cause) => tracing::debug!(%cause, "staging through memory of this process alone"),
        }
    }
    PinnedBuffer::new(&job.device, bytes)
}

/// Waits for the oldest piece that is with the network, delivers it, and fetches the next one into its slot.
fn land(
    stager: &mut Stager,
    job: &Job,
    pieces: &Pieces,
    flying: &mut VecDeque<(usize, Handle)>,
) -> Result<(), Failure> {
    let Some((number, handle)) = flying.pop_front() else { return Ok(()) };
    job.await_host(&handle).map_err(Failure::Network)?;
    let slots = stager.slot_count();
    let piece = |number| pieces.piece(number, job.input, job.output);
    // SAFETY: as in `carry_out`.
    unsafe {
        stager.deliver(number % slots, &piece(number).deliver)?;
        if number + slots < pieces.count() {
            stager.fetch(number % slots, &piece(number + slots).fetch)?;
        }
    }
    Ok(())
}
