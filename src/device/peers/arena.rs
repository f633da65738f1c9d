//! A rank's own memory that the others read.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::mapping::{Exported, Mapped};
use crate::device::buffer::DeviceBuffer;
use crate::device::context::Device;
use crate::device::module::Kernels;
use crate::device::pinned::PinnedBuffer;
use crate::device::stream::Stream;
use crate::types::{Deadline, Error, Result};

/// Bytes of input that are combined at once.
pub(super) const REGION: usize = 16 << 20;

/// Where the share is that this rank combines for the others: of two or more ranks, rounded up to sixteen bytes.
pub(super) const STAGE_AT: usize = REGION;
const STAGE_BYTES: usize = REGION / 2 + 4096;

/// Where the flags are: rows with one for each block. A row is used by one communicator and never again. A rank that
/// was stopped, and whose kernel still waits on an old row, must not take it for the meeting that it waits for.
const FLAGS_AT: usize = STAGE_AT + STAGE_BYTES;
const ROW_BYTES: usize = 4 * MOST_BLOCKS as usize + 128;

/// Behind a row's flags, on a line of its own, the word by which a kernel tells those after it that it gave up.
const STATUS_AT: usize = 4 * MOST_BLOCKS as usize;
const ROWS: usize = 64;

/// The most blocks of a grid that meets others. More would not move more between devices.
pub(crate) const MOST_BLOCKS: u32 = 128;

/// Bytes of the abort word's memory: it has its line alone.
const WORD_BYTES: usize = 128;

/// Arenas that others may still have mapped. They are not freed, but used again: whoever still reads there is a rank
/// that was given up, and spoils nothing. With each is kept what to let go of would wait for the device, which may have
/// work that does not end: what the rank had mapped, and its kernels.
static KEPT: Mutex<Vec<(Arena, Held)>> = Mutex::new(Vec::new());

/// What a rank had of others, and its kernels.
pub(super) type Held = Option<(Vec<Option<Mapped>>, Arc<Kernels>)>;

/// Device memory with a place for the input, one for this rank's share, and the flags; and a word of the host.
pub(crate) struct Arena {
    memory: DeviceBuffer<u8>,
    words: PinnedBuffer,
    abort: u64,
    row: usize,
}

impl Arena {
    /// One that was kept, or a new one. The flags of its row are zero when this returns.
    ///
    /// # Errors
    ///
    /// When the device has not so much memory, or does not come to it by the deadline.
    pub fn take(device: &Device, deadline: Deadline) -> Result<Self> {
        let kept = {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            // Of one whose rows are used up nothing can be used any more.
            let is_usable = |(arena, _): &(Arena, Held)| arena.memory.device() == device && arena.row + 1 < ROWS;
            let place = kept.iter().position(is_usable);
            place.map(|place| kept.swap_remove(place))
        };
        let arena = match kept {
            Some((arena, held)) => {
                drop(held);
                Self { row: arena.row + 1, ..arena }
            }
            None => {
                let memory = DeviceBuffer::new(device, FLAGS_AT + ROWS * ROW_BYTES)?;
                let mut words = PinnedBuffer::new(device, WORD_BYTES)?;
                let abort = words.pointer().expose_provenance() as u64;
                Self { memory, words, abort, row: 0 }
            }
        };
        arena.word().store(0, Ordering::Release);
        let cleared = Stream::new(device).and_then(|stream| arena.clear_flags(&stream, deadline));
        match cleared {
            Ok(()) => Ok(arena),
            Err(error) => {
                arena.keep(None);
                Err(error)
            }
        }
    }

    fn clear_flags(&self, stream: &Stream, deadline: Deadline) -> Result<()> {
        let device = self.memory.device();
        let zeros = [0u8; ROW_BYTES];
        let entered = device.enter()?;
        // SAFETY: the row lies in the memory, and nobody knows of it yet. A copy from memory that is
        // not pinned has read it when the call returns.
        let code = unsafe {
            let flags = self.base() + self.flags_at();
            let calls = device.driver().calls();
            (calls.cuMemcpyHtoDAsync_v2)(flags, zeros.as_ptr().cast(), ROW_BYTES, stream.handle())
        };
        drop(entered);
        device.check("cuMemcpyHtoDAsync_v2", code)?;
        if stream.synchronize(deadline)? {
            return Ok(());
        }
        let what = format_args!("device {} had not come to a copy of {ROW_BYTES} bytes in time", device.ordinal());
        Err(Error::environment(what, "look at what else runs on the device"))
    }

    /// What others map it by.
    ///
    /// # Errors
    ///
    /// When the driver makes no handle.
    pub fn export(&self) -> Result<Exported> {
        Exported::of(&self.memory, self.flags_at())
    }

    /// Where this rank's flags are.
    pub(super) fn flags_at(&self) -> u64 {
        (FLAGS_AT + self.row * ROW_BYTES) as u64
    }

    /// Whether flags may be there, as another rank says of its own.
    pub(super) fn is_row(at: u64) -> bool {
        let first = FLAGS_AT as u64;
        (first..first + (ROWS * ROW_BYTES) as u64).contains(&at) && (at - first).is_multiple_of(ROW_BYTES as u64)
    }

    pub(super) fn base(&self) -> u64 {
        self.memory.pointer()
    }

    pub(super) fn input(&self) -> u64 {
        self.base()
    }

    /// The word that kernels watch, as the device names it. With unified addresses, which every device has that kernels
    /// are compiled for, that is the host's name.
    pub(super) fn abort_word(&self) -> u64 {
        self.abort
    }

    /// The word in which a kernel says that it gave up.
    pub(super) fn status_word(&self) -> u64 {
        self.base() + self.flags_at() + STATUS_AT as u64
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `words` has these bytes, aligned, for as long as `self`; host and device use them as atomic words
        // alone.
        unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut::<u32>(self.abort as usize)) }
    }

    pub(super) fn abort(&self) {
        self.word().store(1, Ordering::Release);
    }

    /// Keeps it for another time, since others may still have it mapped.
    pub(super) fn keep(self, held: Held) {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push((self, held));
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("memory", &self.memory).field("words", &self.words.bytes()).finish()
    }
}

/// Whether a share of any number of peers fits its place.
const _: () = assert!(REGION.is_multiple_of(16) && STAGE_BYTES >= REGION / 2 + 16 * 8 && FLAGS_AT.is_multiple_of(128));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_at_the_beginning_of_a_row() {
        let at = |offset: usize| Arena::is_row((FLAGS_AT + offset) as u64);
        assert!(at(0) && at(ROW_BYTES) && at((ROWS - 1) * ROW_BYTES));
        assert!(!at(4) && !at(ROWS * ROW_BYTES) && !Arena::is_row(0) && !Arena::is_row(u64::MAX));
    }
}
