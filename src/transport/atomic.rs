//! The atomics that the lock-free pieces are written in, so that the very same code runs in shared memory and under
//! the model checker.

use std::sync::atomic::Ordering;

/// A word that several threads or processes change.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Puts `new` in the place of `current`; whether that was what stood there.
    fn replace(&self, current: u32, new: u32) -> bool;
    /// Orders everything before it, stores included, before everything after it, loads included.
    fn full_fence();
}

/// A counter that one side changes and the other reads.
pub(super) trait Counter {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Orders what is before it and what is after it, across other memory too.
    fn fence(order: Ordering);
}

macro_rules! implement {
    ($atomic:path, $word:path, $fence:path) => {
        impl Word for $word {
            fn load(&self, order: Ordering) -> u32 {
                self.load(order)
            }
            fn swap(&self, value: u32, order: Ordering) -> u32 {
                self.swap(value, order)
            }
            fn replace(&self, current: u32, new: u32) -> bool {
                self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
            }
            fn full_fence() {
                $fence(Ordering::SeqCst);
            }
        }

        impl Counter for $atomic {
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
            fn fence(order: Ordering) {
                $fence(order);
            }
        }
    };
}

implement!(std::sync::atomic::AtomicU64, std::sync::atomic::AtomicU32, std::sync::atomic::fence);

#[cfg(all(loom, test))]
implement!(loom::sync::atomic::AtomicU64, loom::sync::atomic::AtomicU32, loom::sync::atomic::fence);
