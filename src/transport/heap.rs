//! Memory for users' buffers that in-host peers can read where it is.
//!
//! A member's heap follows its board in the same segment, which only it can write. It has as many addresses as the
//! machine has memory, and takes memory only for what is in use; what was given back is used again, but stays with the
//! process, because a segment that others cannot write cannot be made to forget either.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::sys::{self, Mapping, Segment};

/// What large buffers start at a multiple of: a huge page, where there are any.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// One member's heap.
pub struct Heap {
    segment: Arc<Segment>,
    memory: Mapping,
    /// Where in the segment it begins.
    start: usize,
    free: Mutex<Free>,
    /// What is in use: where it begins, and its length.
    used: Mutex<BTreeMap<usize, usize>>,
    tenants: Mutex<Vec<Weak<dyn Tenant>>>,
    /// The process whose memory it is, not that of children forked from it.
    process: u32,
}

/// One who keeps something about memory in use, and hears before that is given back.
pub(super) trait Tenant: Send + Sync {
    /// What was taken at once and begins here is nobody's from now on.
    fn forget(&self, start: *const u8);
}

impl Heap {
    pub(super) fn new(segment: Arc<Segment>, memory: Mapping, start: usize) -> Self {
        memory.prefer_huge_pages();
        let free = Mutex::new(Free::new(memory.bytes()));
        let process = std::process::id();
        Self { segment, memory, start, free, used: Mutex::default(), tenants: Mutex::default(), process }
    }

    /// Takes `bytes`, zeroed.
    pub fn take(self: &Arc<Self>, bytes: usize) -> io::Result<Lease> {
        let bytes = bytes.max(1).checked_next_multiple_of(sys::page_bytes()).ok_or(io::ErrorKind::OutOfMemory)?;
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { sys::page_bytes() };
        let taken = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, align);
        let offset = taken.ok_or_else(|| {
            let what = format!("{bytes} bytes of memory that peers can read; the machine has {}", self.memory.bytes());
            io::Error::new(io::ErrorKind::OutOfMemory, what)
        })?;
        let lease = Lease { heap: self.clone(), offset, bytes };
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(offset, bytes);
        self.segment.reserve(&self.memory, self.start, offset, bytes)?;
        // SAFETY: the range was just taken, so it is nobody else's, and has memory.
        unsafe { lease.start().write_bytes(0, bytes) };
        Ok(lease)
    }

    /// The whole of what was taken at once and has these bytes in it.
    #[cfg(feature = "rdma")]
    pub(super) fn lease_at(&self, at: *const u8, bytes: usize) -> Option<(*const u8, usize)> {
        let first = usize::try_from(self.offset_of(at, bytes)?).ok()?;
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let (&offset, &length) = used.range(..=first).next_back()?;
        let lies_in_it = first.checked_add(bytes)? <= offset + length;
        lies_in_it.then(|| (self.memory.start().as_ptr().cast_const().wrapping_add(offset), length))
    }

    /// From now on this one is told when memory is given back.
    #[cfg(feature = "rdma")]
    pub(super) fn tell(&self, tenant: &Arc<dyn Tenant>) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|known| known.strong_count() > 0);
        tenants.push(Arc::downgrade(tenant));
    }

    /// Where in the heap a range lies, if it does.
    pub fn offset_of(&self, start: *const u8, bytes: usize) -> Option<u64> {
        let offset = start.addr().checked_sub(self.memory.start().addr().get())?;
        let end = offset.checked_add(bytes)?;
        (end <= self.memory.bytes()).then_some(offset as u64)
    }
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Heap({} bytes)", self.memory.bytes())
    }
}

/// A range of a heap in use. Given back when dropped.
#[derive(Debug)]
pub struct Lease {
    heap: Arc<Heap>,
    offset: usize,
    bytes: usize,
}

impl Lease {
    /// The first byte, on the start of a page.
    pub fn start(&self) -> *mut u8 {
        self.heap.memory.start().as_ptr().wrapping_add(self.offset)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child shares the memory, which is its parent's, and has no adapter that knows of it.
        if std::process::id() != self.heap.process {
            return;
        }
        let tenants = self.heap.tenants.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for tenant in tenants.iter().filter_map(Weak::upgrade) {
            tenant.forget(self.start());
        }
        self.heap.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.offset);
        self.heap.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.offset, self.bytes);
    }
}

/// Which ranges are free: their starts, and their lengths. No two touch.
#[derive(Debug)]
struct Free(BTreeMap<usize, usize>);

impl Free {
    fn new(bytes: usize) -> Self {
        Self(BTreeMap::from([(0, bytes)]))
    }

    /// Takes the first range that has room.
    fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let fits = |(&start, &length): (&usize, &usize)| {
            let first = start.checked_next_multiple_of(align)?;
            (first.checked_add(bytes)? <= start + length).then_some((start, length, first))
        };
        let (start, length, first) = self.0.iter().find_map(fits)?;
        self.0.remove(&start);
        if first > start {
            self.0.insert(start, first - start);
        }
        let (rest, end) = (first + bytes, start + length);
        if rest < end {
            self.0.insert(rest, end - rest);
        }
        Some(first)
    }

    fn give_back(&mut self, mut start: usize, mut bytes: usize) {
        if let Some(after) = self.0.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((&before, length)) = self.0.range_mut(..start).next_back()
            && before + *length == start
        {
            bytes += *length;
            start = before;
        }
        self.0.insert(start, bytes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[cfg(feature = "rdma")]
    mod told {
        use super::*;
        use crate::transport::sleep::Sleeper;

        /// Hears what is given back.
        #[derive(Default)]
        struct Ear(Mutex<Vec<usize>>);

        impl Tenant for Ear {
            fn forget(&self, start: *const u8) {
                self.0.lock().unwrap().push(start.addr());
            }
        }

        /// A forked child that drops its copy says nothing, and gives nothing back.
        #[test]
        fn memory_is_given_back_once_and_by_its_process() {
            let sleeper = Sleeper::new().unwrap();
            let heap = sleeper.board().unwrap().heap().unwrap();
            let ear = Arc::new(Ear::default());
            let tenant: Arc<dyn Tenant> = ear.clone();
            heap.tell(&tenant);
            let lease = heap.take(1).unwrap();
            let start = lease.start().addr();
            // SAFETY: the child makes only calls that are allowed after the fork of a program with threads: no lock that is
            // taken here is another thread's.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(lease);
                let has_said = !ear.0.lock().unwrap().is_empty();
                let has_given_back = heap.used.lock().unwrap().is_empty();
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(has_said || has_given_back)) };
            }
            assert!(child > 0, "{}", io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: our own child; the number is written.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's copy was taken for the memory");
            drop(lease);
            assert_eq!(*ear.0.lock().unwrap(), [start]);
            assert!(heap.used.lock().unwrap().is_empty());
        }
    }

    proptest! {
        /// What is in use overlaps nothing, and when all is given back the whole is one piece again.
        #[test]
        fn ranges_are_taken_and_given_back(steps in proptest::collection::vec((1_usize..40, 0_usize..4, any::<bool>()), 0..200)) {
            let mut free = Free::new(256);
            let mut used: Vec<(usize, usize)> = Vec::new();
            for (number, align, takes) in steps {
                if takes {
                    let align = 1 << align;
                    if let Some(start) = free.take(number, align) {
                        prop_assert!(start.is_multiple_of(align) && start + number <= 256);
                        prop_assert!(used.iter().all(|(other, length)| start + number <= *other || other + length <= start));
                        used.push((start, number));
                    }
                } else if !used.is_empty() {
                    let (start, bytes) = used.swap_remove(number % used.len());
                    free.give_back(start, bytes);
                }
                let in_use: usize = used.iter().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(free.0.values().sum::<usize>() + in_use, 256);
            }
            used.into_iter().for_each(|(start, bytes)| free.give_back(start, bytes));
            prop_assert_eq!(free.0, BTreeMap::from([(0, 256)]));
        }
    }
}
