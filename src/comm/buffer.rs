//! Users' buffers in memory that other ranks of the host can read.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::communicator::Communicator;
use crate::transport::heap::Lease;
use crate::types::{Element, Error, Result};

/// Elements of their own, as in a `Vec` whose length is fixed, that the other ranks of this host can read where they are:
/// see [`Communicator::alloc`]. At least on the start of a cache line.
pub struct Buffer<T> {
    start: NonNull<T>,
    count: usize,
    memory: Memory,
    elements: PhantomData<T>,
}

/// What keeps the elements.
enum Memory {
    /// Others can read it.
    Shared(#[allow(dead_code, reason = "given back when it is dropped")] Lease),
    /// This process's own.
    Own(std::alloc::Layout),
}

// SAFETY: a `Buffer` owns its elements, like a `Vec`; other processes only read them, and believe nothing that they read
// while this one may write.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl Communicator {
    /// `count` elements of zero, in memory that the other ranks of this host can read where it is. Collectives of more than
    /// 16 KiB whose buffers are all of this kind, on all ranks, are made without copies in between. Otherwise it is memory
    /// as any other, and good for any call of any communicator.
    ///
    /// Where a process's limits (`ulimit -v`, `-f`) or the kernel leave no room for such memory, this is ordinary memory.
    /// What is dropped is used again by later calls, and goes back to the system when the last communicator of this world
    /// is gone.
    ///
    /// A child made by `fork` shares this memory instead of getting a copy: it must not write to it.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when there is not so much memory.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        let lacks = |error: io::Error| {
            let what = format_args!("no memory for a buffer of {count} elements of {}: {error}", T::DATA_TYPE);
            Error::environment(what, "ask for less, or raise the memory limit of the machine or container")
        };
        let too_large = || lacks(io::ErrorKind::OutOfMemory.into());
        let layout = std::alloc::Layout::array::<T>(count.max(1)).and_then(|layout| layout.align_to(64));
        let layout = layout.map_err(|_| too_large())?;
        let board = if self.inner.world.is_connected { self.inner.world.engine.board() } else { None };
        if let Some(heap) = board.as_ref().and_then(|board| board.heap()) {
            let lease = heap.take(layout.size()).map_err(lacks)?;
            let start = NonNull::new(lease.start().cast()).ok_or_else(too_large)?;
            return Ok(Buffer { start, count, memory: Memory::Shared(lease), elements: PhantomData });
        }
        tracing::debug!(count, "a buffer in ordinary memory: this process has none that others can read");
        // SAFETY: the layout is of one byte at least.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start.cast()).ok_or_else(too_large)?;
        Ok(Buffer { start, count, memory: Memory::Own(layout), elements: PhantomData })
    }
}

impl<T> Buffer<T> {
    /// Whether other ranks of this host can read it where it is.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared(_))
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements, zero or written through `deref_mut`, which zeroed memory is valid for; owned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably. Peers that read it meanwhile do so in a call that was given up.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T: fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Memory::Own(layout) = self.memory {
            // SAFETY: allocated in `alloc` with this layout. Elements are `Copy`: nothing is to be dropped.
            unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}
