//! What this build can use, and what of it this machine has.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use phalanx::bootstrap::{self, Variables};
use phalanx::sys::library::Library;
use phalanx::transport::rdma;
use phalanx::types::TransportKind;
use pyo3::prelude::*;

/// The Cargo features of this build.
#[pyfunction]
pub fn features() -> Vec<&'static str> {
    let all = [
        ("cuda", cfg!(feature = "cuda")),
        ("mpi", cfg!(feature = "mpi")),
        ("nccl", cfg!(feature = "nccl")),
        ("rdma", cfg!(feature = "rdma")),
    ];
    all.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name).collect()
}

/// How many CUDA devices this process sees; none where there is no driver.
#[pyfunction]
pub fn cuda_devices(py: Python<'_>) -> usize {
    #[cfg(feature = "cuda")]
    return py.detach(|| phalanx::device::Driver::load().and_then(|driver| driver.device_count()).unwrap_or(0));
    #[cfg(not(feature = "cuda"))]
    {
        let _ = py;
        0
    }
}

/// The version of the NCCL that would be loaded, as NCCL counts it: 22703 is 2.27.3. 0 where none can be used.
#[pyfunction]
pub fn nccl_version(py: Python<'_>) -> u32 {
    #[cfg(feature = "nccl")]
    return py.detach(|| {
        let version = phalanx::device::nccl::Library::load().map(|library| library.version());
        version.map_or(0, |version| version.major * 10_000 + version.minor * 100 + version.patch)
    });
    #[cfg(not(feature = "nccl"))]
    {
        let _ = py;
        0
    }
}

/// Whether there is an RDMA device that would be used, and the library for it.
#[pyfunction]
pub fn has_rdma(py: Python<'_>) -> PyResult<bool> {
    let settings = bootstrap::settings(&Variables::of_process())?;
    Ok(py.detach(|| {
        let near = IpAddr::V4(Ipv4Addr::LOCALHOST);
        rdma::BUILT_IN
            && rdma::choose(&rdma::devices(Path::new("/")), &settings.rdma, near).is_ok()
            && Library::open(&["libibverbs.so.1", "libibverbs.so"], &[]).is_ok()
    }))
}

/// Whether everything is to be carried by MPI.
#[pyfunction]
pub fn is_over_mpi() -> PyResult<bool> {
    let settings = bootstrap::settings(&Variables::of_process())?;
    Ok(cfg!(feature = "mpi") && settings.transport == Some(TransportKind::Mpi))
}
