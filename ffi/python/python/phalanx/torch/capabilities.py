"""What Horovod's scripts ask about how it was built, answered for Phalanx.

Nothing is chosen when Phalanx is built, and no MPI, NCCL or Gloo carries its bytes: it has carriers of its own, which
`phalanx doctor` lists.
"""

from __future__ import annotations

from collections import Counter

from phalanx.world import world

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def is_homogeneous() -> bool:
    """Whether every host has as many ranks as the others."""
    return len(set(Counter(world().native.hosts).values())) == 1


def mpi_built() -> bool:
    """False: MPI may start the ranks, but carries nothing."""
    return False


def mpi_enabled() -> bool:
    """False: see `mpi_built`."""
    return False


def mpi_threads_supported() -> bool:
    """Whether calls may come from several threads at once. They may, and no MPI is asked."""
    world()
    return True


def gloo_built() -> bool:
    """False: shared memory and TCP are Phalanx's own."""
    return False


def gloo_enabled() -> bool:
    """False: see `gloo_built`."""
    return False


def nccl_built() -> int:
    """0: tensors are in host memory."""
    return 0


def cuda_built() -> bool:
    """False: tensors are in host memory."""
    return False


def rocm_built() -> bool:
    """False: tensors are in host memory."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False


def ddl_built() -> bool:
    """False: IBM's DDL is not used."""
    return False
