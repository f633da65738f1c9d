//! What all communicators of one process share: the engine, the connections, the counters.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::executor::Engine;
use crate::types::Deadline;

/// Counters of one process, over all its communicators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Operations submitted.
    pub operations: u64,
    /// Bytes of the larger buffer of each, added up.
    pub bytes: u64,
    /// How long threads waited for operations, added up; for the shortest operations estimated from every eighth.
    pub waited: Duration,
}

/// The shared part. Dropping the last reference says goodbye.
pub(super) struct World {
    pub engine: Engine,
    /// Whatever must live as long as the connections do; dropped after goodbye.
    connector: std::sync::Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether its members are processes with connections of their own making, which may share memory.
    pub is_connected: bool,
    /// Calls on device memory that have not ended.
    #[cfg(feature = "cuda")]
    pub device_calls: super::device::InFlight,
    closed: AtomicBool,
    operations: AtomicU64,
    bytes: AtomicU64,
    waited_ns: AtomicU64,
    /// NCCL's communicator of all members, which the next view's is made of.
    #[cfg(feature = "nccl")]
    pub nccl: std::sync::Arc<super::device::NcclPlace>,
}

/// One in so many short operations is timed.
const TIMED: u64 = 8;

/// How long a rank that is done may take to hand its last messages over.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

impl World {
    pub fn new(engine: Engine, connector: Option<Box<dyn Any + Send>>) -> Self {
        let is_connected = connector.is_some();
        let mut world = Self::without_shared_memory(engine, connector);
        world.is_connected = is_connected;
        world
    }

    /// As [`new`](Self::new), with members that share no memory.
    pub fn without_shared_memory(engine: Engine, connector: Option<Box<dyn Any + Send>>) -> Self {
        Self {
            engine,
            is_connected: false,
            connector: std::sync::Mutex::new(connector),
            #[cfg(feature = "cuda")]
            device_calls: super::device::InFlight::default(),
            closed: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            #[cfg(feature = "nccl")]
            nccl: std::sync::Arc::default(),
        }
    }

    /// Counts an operation, and returns its number.
    pub fn count_operation(&self, bytes: usize) -> u64 {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a short operation with this number is timed: one in eight is, and counts for all. Two looks at the clock
    /// cost a fifth of such an operation.
    pub fn is_timed(number: u64) -> bool {
        number.is_multiple_of(TIMED)
    }

    /// Counts the wait for an operation that is timed.
    pub fn count_timed_wait(&self, since: Instant) {
        let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(waited.saturating_mul(TIMED), Ordering::Relaxed);
    }

    pub fn count_wait(&self, since: Instant) {
        let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(waited, Ordering::Relaxed);
    }

    pub fn statistics(&self) -> Statistics {
        Statistics {
            operations: self.operations.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
        }
    }

    /// Waits for what is in flight, says goodbye and drains. Once.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            // They have nothing with the engine between two pieces.
            #[cfg(feature = "cuda")]
            self.device_calls.end(Deadline::after(Instant::now(), CLOSE_LIMIT));
            self.engine.close(Deadline::after(Instant::now(), CLOSE_LIMIT));
            self.connector.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        }
    }
}

impl World {
    /// Ends as a process that dies does, without goodbye.
    pub fn vanish(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.engine.vanish();
        self.connector.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.close();
    }
}
