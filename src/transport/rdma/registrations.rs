//! Users' memory that the adapter may read where it is.
//!
//! A buffer that `comm.alloc` gave is registered whole when a long message first leaves from it, and found again by its
//! address. It is forgotten before its memory is given back, and with the rail. Memory of any other kind is never
//! registered: nobody says when it is freed, and what lies at its address then.
//!
//! # Bounds
//!
//! There are at most [`MOST`] registrations; the one that was not used for the longest time makes room. So it does where
//! the system's limit of locked memory is met, but only if it has not been used for a while ([`REST`]): with more
//! buffers in use than the limit takes, all of them would be registered and forgotten in turn, which costs more than the
//! copy that it saves. What finds no room is copied as other memory is, and tried again later.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::sys::verbs::{Domain, Region};
use crate::transport::heap::{Heap, Tenant};

/// The most buffers that are registered at once on a rail. Adapters take tens of thousands.
const MOST: usize = 1024;

/// For how many uses of others a registration must have had none before it makes room for another under a limit of memory,
/// and what was refused rests before it is tried again. Some tens of megabytes go by, at the least.
const REST: u64 = 4096;

/// Registers memory; the device, or what stands in for it in tests.
pub(super) trait Register: Send + Sync + 'static {
    /// What is given back when it is dropped.
    type Region: Send + Sync + 'static;

    /// Registers a range for reading by the adapter.
    ///
    /// # Safety
    ///
    /// The range stays mapped until the region is dropped.
    unsafe fn register(&self, start: *const u8, bytes: usize) -> io::Result<Self::Region>;

    /// Whose limits these are, for people.
    fn name(&self) -> String;
}

impl Register for Arc<Domain> {
    type Region = Region;

    unsafe fn register(&self, start: *const u8, bytes: usize) -> io::Result<Region> {
        // SAFETY: the caller's promise.
        unsafe { Domain::register(self, start, bytes) }
    }

    fn name(&self) -> String {
        self.context().name().to_owned()
    }
}

/// The registrations of one protection domain.
pub(super) struct Registrations<R: Register> {
    register: R,
    most: usize,
    rest: u64,
    state: Mutex<State<R::Region>>,
}

impl<R: Register> std::fmt::Debug for Registrations<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registrations of {}", self.register.name())
    }
}

struct State<T> {
    /// By the address of their first byte. No two overlap.
    entries: BTreeMap<usize, Entry<T>>,
    /// The heaps that tell when memory is given back.
    heaps: Vec<Weak<Heap>>,
    /// Counts the uses.
    uses: u64,
    /// The limit was told.
    said: bool,
}

struct Entry<T> {
    bytes: usize,
    /// `None` for what could not be registered.
    region: Option<Arc<T>>,
    /// When it was used last, or refused.
    used: u64,
}

impl<R: Register> Registrations<R> {
    pub(super) fn new(register: R) -> Arc<Self> {
        Self::with_bounds(register, MOST, REST)
    }

    pub(super) fn with_bounds(register: R, most: usize, rest: u64) -> Arc<Self> {
        let state = State { entries: BTreeMap::new(), heaps: Vec::new(), uses: 0, said: false };
        Arc::new(Self { register, most, rest, state: Mutex::new(state) })
    }

    /// The registration of the buffer of `heap` that these bytes lie in. `None` if they lie in none, or it cannot be
    /// registered now.
    pub(super) fn find(self: &Arc<Self>, heap: &Arc<Heap>, at: *const u8, bytes: usize) -> Option<Arc<R::Region>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.uses += 1;
        let (uses, first) = (state.uses, at.addr());
        let end = first.checked_add(bytes)?;
        if let Some((start, entry)) = state.entries.range_mut(..=first).next_back()
            && end <= start + entry.bytes
        {
            match &entry.region {
                Some(region) => {
                    entry.used = uses;
                    return Some(region.clone());
                }
                None if uses - entry.used < self.rest => return None,
                None => {}
            }
        }
        let (start, bytes) = heap.lease_at(at, bytes)?;
        // Before anything of it is registered, so that nothing that is given back is missed.
        if !state.heaps.iter().any(|known| known.as_ptr() == Arc::as_ptr(heap)) {
            state.heaps.retain(|known| known.strong_count() > 0);
            state.heaps.push(Arc::downgrade(heap));
            let tenant: Arc<dyn Tenant> = self.clone();
            heap.tell(&tenant);
        }
        let region = self.register(state, start, bytes).map(Arc::new);
        state.entries.insert(start.addr(), Entry { bytes, region: region.clone(), used: uses });
        region
    }

    fn register(&self, state: &mut State<R::Region>, start: *const u8, bytes: usize) -> Option<R::Region> {
        let registered = state.entries.values().filter(|entry| entry.region.is_some()).count();
        if registered >= self.most && !state.make_room(0) {
            return None;
        }
        loop {
            // SAFETY: the range is a lease of a heap, which tells before it ends; the heap is mapped as long as it has one.
            let error = match unsafe { self.register.register(start, bytes) } {
                Ok(region) => return Some(region),
                Err(error) => error,
            };
            if is_by_limit(&error) && state.make_room(self.rest) {
                continue;
            }
            if !std::mem::replace(&mut state.said, true) {
                let what = refused(&self.register.name(), bytes, &error);
                tracing::warn!("{what}");
            }
            return None;
        }
    }

    #[cfg(test)]
    pub(super) fn registered(&self) -> Vec<usize> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.iter().filter(|(_, entry)| entry.region.is_some()).map(|(start, _)| *start).collect()
    }
}

impl<T> State<T> {
    /// Gives up what was used the longest time ago, if that was more than `rest` uses ago and nobody reads from it now.
    fn make_room(&mut self, rest: u64) -> bool {
        let is_free = |entry: &Entry<T>| entry.region.as_ref().is_some_and(|region| Arc::strong_count(region) == 1);
        let oldest = self.entries.iter().filter(|(_, entry)| is_free(entry)).min_by_key(|(_, entry)| entry.used);
        let Some((&start, entry)) = oldest else { return false };
        if self.uses - entry.used < rest {
            return false;
        }
        self.entries.remove(&start);
        true
    }
}

impl<R: Register> Tenant for Registrations<R> {
    fn forget(&self, start: *const u8) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = state.entries.remove(&start.addr());
        if gone.is_some_and(|entry| entry.region.is_some()) {
            // There is room again for what was refused.
            state.entries.retain(|_, entry| entry.region.is_some());
        }
    }
}

/// Whether the limit of locked memory may be why.
fn is_by_limit(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM))
}

/// Why memory is copied that need not be, with the limit, the need and the remedy where a limit is what it is.
fn refused(device: &str, bytes: usize, error: &io::Error) -> String {
    let what = format!("{device} cannot read from a buffer of {bytes} bytes where it is: {error}. It is copied");
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        Some(limit) if is_by_limit(error) => format!(
            "{what}. The limit of locked memory of this process is {limit} bytes; buffers that are sent from, and 1 MiB \
             for each link, have to fit. Raise it: {}",
            super::RAISE_MEMLOCK
        ),
        _ => what,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::transport::heap::Lease;
    use crate::transport::sleep::Sleeper;

    /// Registers up to a limit.
    struct Limited {
        limit: usize,
        taken: Arc<AtomicUsize>,
        calls: Arc<AtomicUsize>,
    }

    #[derive(Debug)]
    struct Taken(usize, Arc<AtomicUsize>);

    impl Drop for Taken {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0, Ordering::Relaxed);
        }
    }

    impl Register for Limited {
        type Region = Taken;

        unsafe fn register(&self, _: *const u8, bytes: usize) -> io::Result<Taken> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            if self.taken.load(Ordering::Relaxed) + bytes > self.limit {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            self.taken.fetch_add(bytes, Ordering::Relaxed);
            Ok(Taken(bytes, self.taken.clone()))
        }

        fn name(&self) -> String {
            "limited".into()
        }
    }

    const PAGE: usize = 4096;

    struct Case {
        sleeper: Sleeper,
        cache: Arc<Registrations<Limited>>,
        taken: Arc<AtomicUsize>,
        calls: Arc<AtomicUsize>,
    }

    impl Case {
        fn new(limit: usize, most: usize, rest: u64) -> Self {
            let (taken, calls) = (Arc::default(), Arc::default());
            let register = Limited { limit, taken: Arc::clone(&taken), calls: Arc::clone(&calls) };
            let cache = Registrations::with_bounds(register, most, rest);
            Self { sleeper: Sleeper::new().unwrap(), cache, taken, calls }
        }

        fn heap(&self) -> &Arc<Heap> {
            self.sleeper.board().unwrap().heap().unwrap()
        }

        fn lease(&self, pages: usize) -> Lease {
            self.heap().take(pages * PAGE).unwrap()
        }

        fn find(&self, lease: &Lease, offset: usize, bytes: usize) -> bool {
            self.cache.find(self.heap(), lease.start().wrapping_add(offset), bytes).is_some()
        }

        fn counts(&self) -> (usize, usize) {
            (self.taken.load(Ordering::Relaxed) / PAGE, self.calls.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn a_buffer_is_registered_once_and_forgotten_with_its_memory() {
        let case = Case::new(usize::MAX, 8, 0);
        let (one, other) = (case.lease(3), case.lease(2));
        for offset in [0, 1, 5000, 3 * PAGE - 100] {
            assert!(case.find(&one, offset, 100));
        }
        assert_eq!(case.counts(), (3, 1));
        assert!(case.find(&other, 0, 2 * PAGE));
        assert_eq!(case.counts(), (5, 2));
        // Not what reaches beyond it, nor memory of another kind.
        assert!(!case.find(&one, 3 * PAGE - 100, 101));
        let mine = [0_u8; 100];
        assert!(case.cache.find(case.heap(), mine.as_ptr(), 100).is_none());
        let start = one.start();
        drop(one);
        assert_eq!(case.counts(), (2, 2));
        // What lies there next is another buffer, of another length.
        let next = case.lease(1);
        assert_eq!(next.start(), start);
        assert!(case.find(&next, 0, PAGE) && !case.find(&next, 0, PAGE + 1));
        assert_eq!(case.counts(), (3, 3));
        // All of them go with the rail, though the memory stays.
        let Case { cache, taken, .. } = case;
        drop(cache);
        assert_eq!(taken.load(Ordering::Relaxed), 0);
        drop((next, other));
    }

    #[test]
    fn the_one_not_used_for_the_longest_time_makes_room() {
        let case = Case::new(usize::MAX, 2, 1000);
        let leases = [case.lease(1), case.lease(1), case.lease(1)];
        let starts = |at: &[usize]| {
            let mut starts: Vec<usize> = at.iter().map(|&at| leases[at].start().addr()).collect();
            starts.sort_unstable();
            starts
        };
        for at in [0, 1, 0, 2] {
            assert!(case.find(&leases[at], 0, PAGE));
        }
        assert_eq!(case.cache.registered(), starts(&[0, 2]));
        // What is being read from stays, and if everything is, the newcomer is copied.
        let reading = [0, 2].map(|at| case.cache.find(case.heap(), leases[at].start(), PAGE).unwrap());
        assert!(!case.find(&leases[1], 0, PAGE));
        assert_eq!(case.cache.registered(), starts(&[0, 2]));
        drop(reading);
        assert_eq!(case.counts().0, 2);
    }

    #[test]
    fn under_a_limit_what_is_in_use_stays_and_what_rests_makes_room() {
        let case = Case::new(3 * PAGE, 8, 10);
        let (one, other) = (case.lease(2), case.lease(2));
        assert!(case.find(&one, 0, PAGE));
        // Refused, and not asked for again at each use.
        for _ in 0..5 {
            assert!(!case.find(&other, 0, PAGE));
        }
        assert_eq!(case.counts(), (2, 2));
        assert!(case.find(&one, 0, PAGE));
        for _ in 0..20 {
            case.find(&other, 0, PAGE);
        }
        assert!(case.find(&other, 0, PAGE), "the other one has rested");
        assert_eq!(case.cache.registered(), [other.start().addr()]);
        // Memory that is given back is room at once.
        assert!(!case.find(&one, 0, PAGE));
        drop(other);
        assert!(case.find(&one, 0, PAGE));
        assert_eq!(case.counts().0, 2);
    }

    #[test]
    fn a_limit_is_told_with_need_and_remedy() {
        let text = refused("mlx5_0", 12_345_678, &io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(text.contains("mlx5_0") && text.contains("12345678 bytes"), "{text}");
        if rustix::process::getrlimit(rustix::process::Resource::Memlock).current.is_some() {
            assert!(text.contains("limit of locked memory") && text.contains("ulimit -l unlimited"), "{text}");
        }
        let other = refused("mlx5_0", 12_345_678, &io::Error::from_raw_os_error(libc::EINVAL));
        assert!(other.ends_with("It is copied"), "{other}");
    }
}
