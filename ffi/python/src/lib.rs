//! The extension module `phalanx._native`: what the Python package `phalanx` is built on.
//!
//! Python code gives elements as a `Memory`, makes calls on a `Communicator`
//! and waits for a `Handle`. The interpreter is released in every wait. There is no state here: the
//! world that `phalanx.init()` makes is held by the package.

mod buffer;
mod communicator;
mod dlpack;
mod handle;
mod memory;
mod numbers;
mod process;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use phalanx::Error;
use pyo3::prelude::*;

use crate::communicator::Communicator;
use crate::handle::SIGNAL_PERIOD;

/// Connects to the other ranks that the environment names; a world of one if nothing suggests otherwise.
///
/// The ranks meet on a thread of its own, so that Ctrl-C can end the wait: what comes of the meeting then is dropped.
#[pyfunction]
fn connect(py: Python<'_>) -> PyResult<Communicator> {
    phalanx::observe::log_to_stderr()?;
    let (tell, mut told) = mpsc::channel();
    let meet = move || {
        // Nobody listens any more after Ctrl-C.
        let _ = tell.send(phalanx::init());
    };
    let spawned = thread::Builder::new().name("phalanx-meet".into()).spawn(meet);
    spawned.map_err(|error| Error::environment(error, "see the limits on threads and memory"))?;
    loop {
        let outcome;
        (told, outcome) = py.detach(move || {
            let outcome = told.recv_timeout(SIGNAL_PERIOD);
            (told, outcome)
        });
        match outcome {
            Ok(Ok(world)) => return Ok(Communicator::new(world)),
            Ok(Err(error)) => {
                py.check_signals()?;
                return Err(error.into());
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::internal("the ranks' meeting panicked").into()),
        }
    }
}

/// The compiled part of Phalanx.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::connect;
    #[pymodule_export]
    use super::handle::Handle;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
