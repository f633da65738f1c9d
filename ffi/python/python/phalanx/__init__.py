"""Collective communication for data-parallel training.

    import numpy as np
    import phalanx

    phalanx.init()
    total = phalanx.allreduce(np.full(4, phalanx.rank(), np.float32), phalanx.Sum)

`init()` makes the communicator of all ranks; the functions here are its methods. Start the ranks with `phalanx run`.
For PyTorch there is `phalanx.torch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from phalanx import elastic
from phalanx._native import DeviceArray, __version__
from phalanx.buffers import Buffer, DType
from phalanx.capabilities import (
    ccl_built,
    cuda_available,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_available,
    nccl_built,
    rdma_available,
    rdma_built,
    rocm_built,
)
from phalanx.communicator import Communicator, Handle
from phalanx.errors import (
    ClosedError,
    EvictedError,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerFailedError,
    PhalanxEnvironmentError,
    PhalanxError,
    PhalanxTimeoutError,
    RankGoneError,
    StateDiffersError,
    ViewChangedError,
)
from phalanx.objects import allgather_object, broadcast_object
from phalanx.ops import (
    Average,
    BitAnd,
    BitOr,
    BitXor,
    LogicalAnd,
    LogicalOr,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from phalanx.world import init, is_initialized, shutdown, world

__all__ = [
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Buffer",
    "ClosedError",
    "Communicator",
    "DeviceArray",
    "EvictedError",
    "Handle",
    "InternalError",
    "InvalidArgumentError",
    "LogicalAnd",
    "LogicalOr",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerFailedError",
    "PhalanxEnvironmentError",
    "PhalanxError",
    "PhalanxTimeoutError",
    "Product",
    "RankGoneError",
    "ReduceOp",
    "StateDiffersError",
    "Sum",
    "ViewChangedError",
    "__version__",
    "allgather",
    "allgather_async",
    "allgather_object",
    "alloc",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_available",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gather",
    "gather_async",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_available",
    "nccl_built",
    "poll",
    "rank",
    "rdma_available",
    "rdma_built",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "shutdown",
    "size",
    "split",
    "subgroup",
    "synchronize",
    "world",
]

T = TypeVar("T")


def rank() -> int:
    """This process's number, 0 to size - 1."""
    return world().rank


def size() -> int:
    """The number of ranks."""
    return world().size


def local_rank() -> int:
    """This rank's number among the ranks of its host."""
    return world().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return world().local_size


def cross_rank() -> int:
    """This rank's number among the ranks with the same local rank, one a host."""
    return world().cross_rank


def cross_size() -> int:
    """The number of hosts that have a rank with this local rank."""
    return world().cross_size


def allreduce(
    array: T, op: ReduceOp = Average, *, out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> T:
    """The world's `Communicator.allreduce`."""
    return world().allreduce(array, op, out=out, prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def allreduce_async(
    array: T, op: ReduceOp = Average, *, out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> Handle[T]:
    """The world's `Communicator.allreduce_async`."""
    return world().allreduce_async(
        array, op, out=out, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def allreduce_(array: T, op: ReduceOp = Average, *, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> T:
    """The world's `Communicator.allreduce_`."""
    return world().allreduce_(array, op, prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def allreduce_async_(
    array: T, op: ReduceOp = Average, *, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> Handle[T]:
    """The world's `Communicator.allreduce_async_`."""
    return world().allreduce_async_(array, op, prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def reduce(
    array: T,
    root_rank: int,
    op: ReduceOp = Average,
    *,
    out: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> T | None:
    """The world's `Communicator.reduce`."""
    return world().reduce(
        array, root_rank, op, out=out, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def reduce_async(
    array: T,
    root_rank: int,
    op: ReduceOp = Average,
    *,
    out: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[T | None]:
    """The world's `Communicator.reduce_async`."""
    return world().reduce_async(
        array, root_rank, op, out=out, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def reducescatter(
    array: T, op: ReduceOp = Average, *, out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> T:
    """The world's `Communicator.reducescatter`."""
    return world().reducescatter(array, op, out=out, prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def reducescatter_async(
    array: T, op: ReduceOp = Average, *, out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> Handle[T]:
    """The world's `Communicator.reducescatter_async`."""
    return world().reducescatter_async(
        array, op, out=out, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def broadcast(array: T, root_rank: int) -> T:
    """The world's `Communicator.broadcast`."""
    return world().broadcast(array, root_rank)


def broadcast_async(array: T, root_rank: int) -> Handle[T]:
    """The world's `Communicator.broadcast_async`."""
    return world().broadcast_async(array, root_rank)


def broadcast_(array: T, root_rank: int) -> T:
    """The world's `Communicator.broadcast_`."""
    return world().broadcast_(array, root_rank)


def broadcast_async_(array: T, root_rank: int) -> Handle[T]:
    """The world's `Communicator.broadcast_async_`."""
    return world().broadcast_async_(array, root_rank)


def scatter(array: Any, out: T, root_rank: int) -> T:
    """The world's `Communicator.scatter`."""
    return world().scatter(array, out, root_rank)


def scatter_async(array: Any, out: T, root_rank: int) -> Handle[T]:
    """The world's `Communicator.scatter_async`."""
    return world().scatter_async(array, out, root_rank)


def allgather(array: T, *, out: Any = None) -> T:
    """The world's `Communicator.allgather`."""
    return world().allgather(array, out=out)


def allgather_async(array: T, *, out: Any = None) -> Handle[T]:
    """The world's `Communicator.allgather_async`."""
    return world().allgather_async(array, out=out)


def gather(array: T, root_rank: int) -> T | None:
    """The world's `Communicator.gather`."""
    return world().gather(array, root_rank)


def gather_async(array: T, root_rank: int) -> Handle[T | None]:
    """The world's `Communicator.gather_async`."""
    return world().gather_async(array, root_rank)


@overload
def alltoall(array: T, splits: None = None) -> T: ...
@overload
def alltoall(array: T, splits: Sequence[int]) -> tuple[T, list[int]]: ...
def alltoall(array: T, splits: Sequence[int] | None = None) -> T | tuple[T, list[int]]:
    """The world's `Communicator.alltoall`."""
    return world().alltoall(array, splits)


def alltoall_async(array: T, splits: Sequence[int] | None = None) -> Handle[tuple[T, list[int]]]:
    """The world's `Communicator.alltoall_async`."""
    return world().alltoall_async(array, splits)


def barrier() -> None:
    """The world's `Communicator.barrier`."""
    world().barrier()


def barrier_async() -> Handle[None]:
    """The world's `Communicator.barrier_async`."""
    return world().barrier_async()


def send(array: Any, to: int, tag: int = 0) -> None:
    """The world's `Communicator.send`."""
    world().send(array, to, tag)


def recv(array: T, source: int, tag: int = 0) -> T:
    """The world's `Communicator.recv`."""
    return world().recv(array, source, tag)


def send_async(array: Any, to: int, tag: int = 0) -> Handle[None]:
    """The world's `Communicator.send_async`."""
    return world().send_async(array, to, tag)


def recv_async(array: T, source: int, tag: int = 0) -> Handle[T]:
    """The world's `Communicator.recv_async`."""
    return world().recv_async(array, source, tag)


def alloc(count: int, dtype: DType = "f32") -> Buffer:
    """The world's `Communicator.alloc`."""
    return world().alloc(count, dtype)


def split(color: int | None, key: int = 0) -> Communicator | None:
    """The world's `Communicator.split`."""
    return world().split(color, key)


def subgroup(ranks: Sequence[int]) -> Communicator | None:
    """The world's `Communicator.subgroup`."""
    return world().subgroup(ranks)


def synchronize(handle: Handle[T]) -> T:
    """Waits for an operation; its result."""
    return handle.wait()


def poll(handle: Handle[Any]) -> bool:
    """Whether an operation has ended. Does not wait."""
    return handle.poll()


# `help(phalanx.allreduce)` shows what the method's does.
for _name in __all__:
    _method = vars(Communicator).get(_name)
    if callable(_method) and _method.__doc__ and callable(globals()[_name]):
        globals()[_name].__doc__ = _method.__doc__
del _name, _method
