"""What this build can use, and what of it this machine has.

`..._built` are Horovod's names and tell of the build, `..._available` of the machine. NVIDIA's libraries and RDMA's are
loaded when they are first wanted, so that a build may have what the machine lacks. `phalanx doctor` says more, and why.
"""

from __future__ import annotations

from collections import Counter

from phalanx import _native
from phalanx.world import world

__all__ = [
    "ccl_built",
    "cuda_available",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_available",
    "nccl_built",
    "rdma_available",
    "rdma_built",
    "rocm_built",
]

# The oldest NCCL that is used, as NCCL counts: 2.18.0.
_OLDEST_NCCL = 21800

_FEATURES = frozenset(_native.features())


def is_homogeneous() -> bool:
    """Whether every host has as many ranks as the others."""
    return len(set(Counter(world().native.hosts).values())) == 1


def cuda_built() -> bool:
    """Whether arrays on CUDA devices can be given."""
    return "cuda" in _FEATURES


def cuda_available() -> bool:
    """Whether there is a driver here that is new enough, and a device that this process sees."""
    return _native.cuda_devices() > 0


def nccl_built() -> int:
    """The oldest version of NCCL that this build can use, as NCCL counts (21800 is 2.18.0); 0 if it can use none."""
    return _OLDEST_NCCL if "nccl" in _FEATURES else 0


def nccl_available() -> int:
    """The version of the NCCL here, as NCCL counts; 0 if there is none that can be used."""
    return _native.nccl_version()


def rdma_built() -> bool:
    """Whether RDMA can carry what goes between hosts."""
    return "rdma" in _FEATURES


def rdma_available() -> bool:
    """Whether there is a device here that would be used, and the library for it."""
    return _native.has_rdma()


def mpi_built() -> bool:
    """Whether MPI can carry everything. It may start the ranks in any build."""
    return "mpi" in _FEATURES


def mpi_enabled() -> bool:
    """Whether MPI carries everything in this job (`PHALANX_TRANSPORT=mpi`)."""
    return _native.is_over_mpi()


def mpi_threads_supported() -> bool:
    """Whether calls may come from several threads at once. They may; over MPI, where that has `MPI_THREAD_MULTIPLE`, of
    which rank 0 tells in its log."""
    world()
    return True


def gloo_built() -> bool:
    """False: shared memory and TCP are Phalanx's own."""
    return False


def gloo_enabled() -> bool:
    """False: see `gloo_built`."""
    return False


def rocm_built() -> bool:
    """False: AMD's devices are not used."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False


def ddl_built() -> bool:
    """False: IBM's DDL is not used."""
    return False
