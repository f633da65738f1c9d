//! The extension module `phalanx._native`: what the Python package `phalanx` is built on.
//!
//! Python code gives elements as a `Memory`, or has them in a `Buffer` that other ranks can read, makes calls on a
//! `Communicator` and waits for a `Handle`. The interpreter is released in every wait. There is no state here: the
//! world that `phalanx.init()` makes is held by the package.

mod allocation;
mod buffer;
mod capabilities;
mod communicator;
#[cfg(feature = "cuda")]
mod cuda_interface;
#[cfg_attr(not(feature = "cuda"), path = "without_device.rs")]
mod device;
mod device_array;
mod dlpack;
mod dlpack_out;
mod elastic;
mod handle;
mod memory;
mod numbers;
mod process;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use phalanx::elastic::Keep;
use phalanx::{Error, TransportKind, bootstrap};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::communicator::Communicator;
use crate::elastic::Elastic;
use crate::handle::SIGNAL_PERIOD;

/// Waits for `meeting` on a thread of its own, so that Ctrl-C can end the wait: what comes of the meeting then is dropped.
fn meet<T: Send + 'static>(py: Python<'_>, meeting: fn() -> phalanx::Result<T>) -> PyResult<T> {
    phalanx::observe::log_to_stderr()?;
    let (tell, mut told) = mpsc::channel();
    let meet = move || {
        // Nobody listens any more after Ctrl-C.
        let _ = tell.send(meeting());
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
            Ok(Ok(world)) => return Ok(world),
            Ok(Err(error)) => {
                py.check_signals()?;
                return Err(error.into());
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::internal("the ranks' meeting panicked").into()),
        }
    }
}

/// Connects to the other ranks that the environment names; a world of one if nothing suggests otherwise.
#[pyfunction]
fn connect(py: Python<'_>) -> PyResult<Communicator> {
    let settings = bootstrap::settings(&bootstrap::Variables::of_process())?;
    if settings.transport == Some(TransportKind::Mpi) {
        // MPI belongs to the thread that starts it, which has to be the program's. Ctrl-C waits for the deadline here.
        phalanx::observe::log_to_stderr()?;
        return Ok(Communicator::new(py.detach(phalanx::init)?));
    }
    meet(py, phalanx::init).map(Communicator::new)
}

/// Whether the environment names an elastic job.
#[pyfunction]
fn is_elastic() -> PyResult<bool> {
    Ok(bootstrap::settings(&bootstrap::Variables::of_process())?.registry.is_some())
}

/// Joins the elastic job that the environment names. With `keeps_inputs`, a step that is cut short is run again;
/// otherwise it fails on every member.
#[pyfunction]
fn join(py: Python<'_>, keeps_inputs: bool) -> PyResult<Elastic> {
    let keep = if keeps_inputs { Keep::Inputs } else { Keep::Nothing };
    meet(py, phalanx::elastic::join).map(|elastic| Elastic::new(elastic.with_keep(keep)))
}

/// The order of the samples of an epoch, as the bytes of 32-bit numbers: shuffled if there is a seed.
#[pyfunction]
#[pyo3(signature = (length, seed, epoch))]
fn epoch_order<'py>(py: Python<'py>, length: u32, seed: Option<u64>, epoch: u64) -> Bound<'py, PyBytes> {
    let order = py.detach(|| phalanx::elastic::epoch_order(length, seed, epoch));
    PyBytes::new(py, &order.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())
}

/// The compiled part of Phalanx.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::allocation::Buffer;
    #[pymodule_export]
    use super::capabilities::{cuda_devices, features, has_rdma, is_over_mpi, nccl_version};
    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::connect;
    #[pymodule_export]
    use super::device_array::DeviceArray;
    #[pymodule_export]
    use super::elastic::{Elastic, Step};
    #[pymodule_export]
    use super::handle::Handle;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::{epoch_order, is_elastic, join};
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
