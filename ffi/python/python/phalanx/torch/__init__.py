"""Data-parallel training with PyTorch, in the manner of Horovod.

    import phalanx.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Tensors are in host memory, and are never copied on the way, or on a CUDA device: then a call comes after what is on the
current stream, and what is put on that stream after `synchronize` sees the results.
"""

from __future__ import annotations

import torch

if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
    raise ImportError(f"phalanx.torch needs PyTorch 2.1 or newer, but this is {torch.__version__}")

from typing import NoReturn

from phalanx import cross_rank, cross_size, local_rank, local_size, rank, size, split, subgroup
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
from phalanx.communicator import Communicator
from phalanx.elastic.errors import HorovodInternalError, HostsUpdatedInterrupt
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
from phalanx.torch import elastic
from phalanx.torch.collectives import (
    Handle,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from phalanx.torch.compression import Compression, Compressor
from phalanx.torch.functions import broadcast_optimizer_state, broadcast_parameters
from phalanx.torch.grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from phalanx.torch.optimizer import DistributedOptimizer
from phalanx.torch.tensors import alloc
from phalanx.world import init, is_initialized, shutdown

__all__ = [
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Communicator",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "LogicalAnd",
    "LogicalOr",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "alloc",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_available",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
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
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "split",
    "subgroup",
    "synchronize",
]

# What scripts for Horovod may ask for, and what there is instead.
_ELSEWHERE = {
    "Adasum": "Adasum is not there yet; use op=hvd.Average",
    "ProcessSet": "give process_set a communicator from hvd.split or hvd.subgroup",
    "SyncBatchNorm": "SyncBatchNorm is not there yet",
    "add_process_set": "give process_set a communicator from hvd.split or hvd.subgroup",
    "global_process_set": "leave process_set out, or give None",
    "join": "join is not there yet; every rank must make the same number of steps",
}


def __getattr__(name: str) -> NoReturn:
    advice = _ELSEWHERE.get(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + (f": {advice}" if advice else ""))
