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

use pyo3::prelude::*;

use crate::communicator::Communicator;

/// Connects to the other ranks that the environment names; a world of one if nothing suggests otherwise.
#[pyfunction]
fn connect(py: Python<'_>) -> PyResult<Communicator> {
    Ok(Communicator::new(py.detach(phalanx::init)?))
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
