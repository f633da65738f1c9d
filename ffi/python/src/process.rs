//! Which process a communicator belongs to. Its connections cannot be shared with a child made by `fork`.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How many forks lie between the first process and this one. Counted in the child, so that the check costs a load
/// instead of a system call, and notices forks that Python does not know of.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made.
#[derive(Clone, Copy)]
pub struct Birth {
    forks: u32,
    pid: u32,
}

impl Birth {
    /// In this process, now.
    pub fn here() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the function is safe to call in a forked child (it only adds to an atomic), and a loaded
            // extension module is never unloaded.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this process is still the one.
    pub fn is_here(self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Refuses use in a forked child.
    pub fn check(self) -> PyResult<()> {
        if self.is_here() { Ok(()) } else { Err(self.refusal()) }
    }

    #[cold]
    fn refusal(self) -> PyErr {
        PyRuntimeError::new_err(format!(
            "Phalanx was initialised in process {}, and this is process {}, forked from it: a child cannot use its \
             parent's connections. Start worker processes before init(), with the start method \"spawn\" or \
             \"forkserver\", or call no Phalanx function in them",
            self.pid,
            std::process::id()
        ))
    }
}
