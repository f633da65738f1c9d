//! What a carrier of byte streams provides; `stream` builds an endpoint of one or several.

use std::sync::Arc;

use super::board::Neighbour;
use crate::types::TransportKind;

/// Why a lane can carry no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneError {
    /// The peer closed; everything it wrote has been read.
    Closed,
    /// The connection broke. The text says how.
    Broken(Arc<str>),
}

/// One ordered stream of bytes to a peer and one back, neither of which ever blocks.
///
/// The reading side is a window: `fill` shows what has arrived, `consume` moves on. `read_into` moves bytes straight
/// to their place when the window is empty, so that a socket's payload is not copied twice.
pub trait Lane: Send {
    /// Which carrier this is.
    fn kind(&self) -> TransportKind;

    /// The link in words, such as `tcp 10.0.0.2:41000` or `shm rank 3`.
    fn link(&self) -> Arc<str>;

    /// Writes as much of `head` and then `body` as fits, and returns how many bytes that was; 0 when full.
    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError>;

    /// Whether the carrier ever goes on reading what was written by [`write_lent`](Self::write_lent).
    fn lends(&self) -> bool {
        false
    }

    /// As [`write`](Self::write), but the carrier may go on reading from `body` when this has returned. Then it gives the
    /// loan a number, higher than those before: it ends when [`returned`](Self::returned) comes to that, or with
    /// [`take_back`](Self::take_back).
    ///
    /// # Safety
    ///
    /// `body` must stay readable, and be written by nobody, until the loan ends or the lane is dropped.
    unsafe fn write_lent(&mut self, head: &[u8], body: &[u8]) -> Result<(usize, Option<u64>), LaneError> {
        Ok((self.write(head, body)?, None))
    }

    /// The highest number up to which all loans have ended.
    fn returned(&mut self) -> u64 {
        0
    }

    /// Ends all loans: nothing that was lent is read when this returns. A carrier that cannot wait for that ends itself.
    fn take_back(&mut self) {}

    /// What has arrived and is not consumed, in one piece; reads more from the carrier when there are fewer than
    /// `wanted` bytes. Fewer than `wanted` means that the rest has not arrived. `wanted` is at most
    /// [`MIN_WINDOW`].
    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError>;

    /// Drops the first `count` bytes of what `fill` showed.
    fn consume(&mut self, count: usize);

    /// Moves up to `bytes` arrived bytes to `target`: what `fill` would show first, then straight from the carrier.
    /// Returns how many; 0 when none have arrived.
    ///
    /// # Safety
    ///
    /// `target .. target + bytes` must be writable, and read or written by nobody else during the call.
    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError>;

    /// Whether another look may find bytes, or the end, that the last one did not: false when that one took everything
    /// that had arrived.
    fn may_have_more(&self) -> bool {
        true
    }

    /// Returns true when nothing can be read now (nor written, if `wants_write`), and from then on the arrival of
    /// bytes or their closing (or room to write, if `wants_write`) wakes the sleeper. False means: try again.
    fn prepare_sleep(&mut self, wants_write: bool) -> bool;

    /// Whether everything that was written is out of this process's hands: in the peer's memory, or the kernel's.
    fn is_flushed(&self) -> bool {
        true
    }

    /// What the peer shows in shared memory, where there is any.
    fn neighbour(&self) -> Option<&Neighbour> {
        None
    }
}

/// The most bytes that [`Lane::fill`] may be asked for at once.
pub const MIN_WINDOW: usize = 4096 + 256;
