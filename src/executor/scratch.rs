//! Memory lent to operations.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// Aligned memory with unspecified contents.
pub(super) struct Scratch {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: a `Scratch` owns its memory, like a `Vec`.
unsafe impl Send for Scratch {}

impl Scratch {
    /// Cache lines; also enough for every vector width.
    const ALIGN: usize = 64;

    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, Self::ALIGN).unwrap_or_else(|_| {
            // More than half of the address space: no allocator has it.
            handle_alloc_error(Layout::new::<u8>())
        });
        // SAFETY: the pool never asks for zero bytes.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// Keeps a few buffers for the next operation: fresh pages cost more than the copy into them.
#[derive(Default)]
pub(super) struct ScratchPool {
    free: Vec<Scratch>,
}

impl ScratchPool {
    /// Buffers kept. Operations in flight at once rarely exceed this.
    const KEPT: usize = 4;

    /// The largest buffer kept: what is larger is rare, and too much to hold for nothing.
    const KEPT_BYTES: usize = 64 << 20;

    /// At least `bytes` of memory.
    pub(super) fn take(&mut self, bytes: usize) -> Scratch {
        let wanted = bytes.max(4096).checked_next_power_of_two().unwrap_or(bytes);
        let fitting = self.free.iter().position(|scratch| scratch.layout.size() == wanted);
        fitting.map(|at| self.free.swap_remove(at)).unwrap_or_else(|| Scratch::new(wanted))
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&mut self, scratch: Scratch) {
        if scratch.layout.size() <= Self::KEPT_BYTES {
            if self.free.len() == Self::KEPT {
                self.free.remove(0);
            }
            self.free.push(scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_large_enough_and_used_again() {
        let mut pool = ScratchPool::default();
        let first = pool.take(5000);
        assert_eq!(first.start() as usize % Scratch::ALIGN, 0);
        assert_eq!(first.layout.size(), 8192);
        let start = first.start();
        pool.give_back(first);
        assert_eq!(pool.take(8000).start(), start);
        for bytes in 0..10 {
            let scratch = pool.take(4096 << bytes);
            pool.give_back(scratch);
        }
        assert!(pool.free.len() <= ScratchPool::KEPT);
    }
}
