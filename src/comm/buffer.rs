//! Users' buffers in memory that other ranks of the host can read.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::communicator::Communicator;
use crate::transport::heap::Lease;
use crate::types::{DataType, Element, Error, Result};

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
    /// 16 KiB whose buffers are all of this kind, on all ranks, are made without copies in between. An RDMA adapter reads
    /// long messages from it where they lie. Otherwise it is memory as any other, and good for any call of any communicator.
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
        let (start, memory) = self.take(T::DATA_TYPE, count)?;
        Ok(Buffer { start: start.cast(), count, memory, elements: PhantomData })
    }

    /// The bytes of `count` elements of a type that is known only when the program runs; [`alloc`](Self::alloc) has the
    /// rest.
    ///
    /// # Errors
    ///
    /// As for `alloc`.
    pub fn alloc_bytes(&self, dtype: DataType, count: usize) -> Result<Buffer<u8>> {
        let (start, memory) = self.take(dtype, count)?;
        Ok(Buffer { start, count: count * dtype.size(), memory, elements: PhantomData })
    }

    /// Zeroed memory for `count` elements, whose bytes can be counted then.
    fn take(&self, dtype: DataType, count: usize) -> Result<(NonNull<u8>, Memory)> {
        let lacks = |error: io::Error| {
            let what = format_args!("no memory for a buffer of {count} elements of {dtype}: {error}");
            Error::environment(what, "ask for less, or raise the memory limit of the machine or container")
        };
        let too_large = || lacks(io::ErrorKind::OutOfMemory.into());
        let bytes = count.checked_mul(dtype.size()).ok_or_else(too_large)?;
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), 64).map_err(|_| too_large())?;
        let board = if self.inner.world.is_connected { self.inner.world.engine.board() } else { None };
        if let Some(heap) = board.as_ref().and_then(|board| board.heap()) {
            let lease = heap.take(layout.size()).map_err(lacks)?;
            let start = NonNull::new(lease.start()).ok_or_else(too_large)?;
            return Ok((start, Memory::Shared(lease)));
        }
        tracing::debug!(count, "a buffer in ordinary memory: this process has none that others can read");
        // SAFETY: the layout is of one byte at least.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok((NonNull::new(start).ok_or_else(too_large)?, Memory::Own(layout)))
    }
}

impl<T> Buffer<T> {
    /// Whether other ranks of this host can read it where it is.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared(_))
    }

    /// The first element, for foreign code. Whoever goes through it keeps the rules of `&` and `&mut` himself.
    pub fn as_raw(&self) -> *mut T {
        self.start.as_ptr()
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
