//! Device memory on its way through host memory.
//!
//! A [`Stager`] has slots of pinned memory, a stream for copies out of the device and one for copies back. A slot goes
//! round: fetched from the device, handed to a collective on the host, delivered to the device, fetched again. The
//! streams run side by side, so that one slot is fetched and another delivered while the network has a third.
//!
//! The host never makes the user's stream wait for what is not on a stream yet. A stream that waits for a word which
//! the host writes later (`cuStreamWaitValue`), or for a host function, can keep back the very copies that are to come:
//! streams share hardware queues, and the driver does not see the dependence. So the user's stream waits only for events
//! that are recorded, and a collective that fails cannot stop it.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use super::context::Device;
use super::pinned::PinnedBuffer;
use super::stream::{Event, Stream};
use crate::types::{Deadline, Error, Result};

/// How long copies that were begun may take when nobody wants them any more. Then their memory is lost.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// A run of bytes on the device, and where it lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address on the device.
    pub device: u64,
    /// The first byte within the slot.
    pub at: usize,
    /// How many bytes.
    pub bytes: usize,
}

struct Slot {
    memory: PinnedBuffer,
    fetched: Event,
    delivered: Event,
}

/// Slots of pinned memory, and the streams that fill and empty them.
pub struct Stager {
    device: Device,
    out: Stream,
    back: Stream,
    slots: Vec<Slot>,
    /// Whether copies were waited for in vain.
    abandoned: bool,
}

impl Stager {
    /// So many slots, each of memory that `memory` gives, all of it of the same length.
    ///
    /// # Errors
    ///
    /// What `memory` fails with, and when the driver makes no stream or event.
    pub fn new(device: &Device, slots: usize, memory: impl Fn() -> Result<PinnedBuffer>) -> Result<Self> {
        let slot = |_| Ok(Slot { memory: memory()?, fetched: Event::new(device)?, delivered: Event::new(device)? });
        let (out, back) = (Stream::new(device)?, Stream::new(device)?);
        Ok(Self {
            device: device.clone(),
            out,
            back,
            slots: (0..slots).map(slot).collect::<Result<_>>()?,
            abandoned: false,
        })
    }

    /// The bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slots.first().map_or(0, |slot| slot.memory.bytes())
    }

    /// The number of slots.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The memory of a slot, for whoever has awaited what is in it.
    pub fn memory(&mut self, slot: usize) -> *mut u8 {
        self.slots[slot].memory.pointer()
    }

    /// Begins to copy segments from the device into a slot, after what was delivered from it. Does not wait.
    ///
    /// # Errors
    ///
    /// When the driver refuses; when a segment does not lie in the slot.
    ///
    /// # Safety
    ///
    /// The segments must be memory of this device, valid until [`is_fetched`](Self::is_fetched) or
    /// [`drain`](Self::drain) has said that the copy is done.
    pub unsafe fn fetch(&mut self, slot: usize, segments: &[Segment]) -> Result<()> {
        self.check(slot, segments)?;
        let slot = &mut self.slots[slot];
        self.out.wait_for(&slot.delivered)?;
        let entered = self.device.enter()?;
        for segment in segments {
            // SAFETY: the segment lies within the slot, and the device's side is the caller's promise.
            let code = unsafe {
                let target = slot.memory.pointer().add(segment.at).cast::<c_void>();
                (self.device.driver().calls().cuMemcpyDtoHAsync_v2)(
                    target,
                    segment.device,
                    segment.bytes,
                    self.out.handle(),
                )
            };
            self.device.check("cuMemcpyDtoHAsync_v2", code)?;
        }
        drop(entered);
        slot.fetched.record(&self.out)
    }

    /// Whether what was fetched into a slot is there.
    ///
    /// # Errors
    ///
    /// When work on the device failed.
    pub fn is_fetched(&self, slot: usize) -> Result<bool> {
        self.slots[slot].fetched.is_done()
    }

    /// Begins to copy segments from a slot to the device. Does not wait.
    ///
    /// # Errors
    ///
    /// When the driver refuses; when a segment does not lie in the slot.
    ///
    /// # Safety
    ///
    /// The segments must be memory of this device, used by nobody else until the event of [`mark`](Self::mark) has come
    /// or [`drain`](Self::drain) has said that the copy is done.
    pub unsafe fn deliver(&mut self, slot: usize, segments: &[Segment]) -> Result<()> {
        self.check(slot, segments)?;
        let slot = &mut self.slots[slot];
        let entered = self.device.enter()?;
        for segment in segments {
            // SAFETY: as in `fetch`.
            let code = unsafe {
                let source = slot.memory.pointer().add(segment.at).cast_const().cast::<c_void>();
                (self.device.driver().calls().cuMemcpyHtoDAsync_v2)(
                    segment.device,
                    source,
                    segment.bytes,
                    self.back.handle(),
                )
            };
            self.device.check("cuMemcpyHtoDAsync_v2", code)?;
        }
        drop(entered);
        slot.delivered.record(&self.back)
    }

    /// Marks everything delivered so far.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    pub fn mark(&self) -> Result<Event> {
        let event = Event::new(&self.device)?;
        event.record(&self.back)?;
        Ok(event)
    }

    /// Waits a while until no copy is under way. `false`: one still is, or the device does not say.
    pub fn drain(&mut self) -> bool {
        if self.abandoned {
            return false;
        }
        let deadline = Deadline::after(Instant::now(), DRAIN_LIMIT);
        let is_idle = [&self.out, &self.back].into_iter().all(|stream| is_idle(stream, deadline));
        self.abandoned = !is_idle;
        is_idle
    }

    fn check(&self, slot: usize, segments: &[Segment]) -> Result<()> {
        let bytes = self.slots[slot].memory.bytes();
        let fits = |segment: &Segment| segment.at.checked_add(segment.bytes).is_some_and(|end| end <= bytes);
        if segments.iter().all(fits) {
            return Ok(());
        }
        Err(Error::internal("a segment that reaches beyond its staging slot"))
    }
}

/// Whether a stream has nothing left by the deadline. Asked twice, should the driver refuse the first time.
fn is_idle(stream: &Stream, deadline: Deadline) -> bool {
    let done = || stream.synchronize(deadline);
    done().or_else(|_| done()).is_ok_and(|done| done)
}

impl Drop for Stager {
    fn drop(&mut self) {
        if !self.drain() {
            // A copy may still be under way into it: better lost than used again.
            self.slots.drain(..).for_each(|slot| std::mem::forget(slot.memory));
        }
    }
}
