"""Collectives on lists of tensors: each tensor's operation is started before the first is waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from phalanx.communicator import Communicator
from phalanx.ops import Average, ReduceOp
from phalanx.torch.collectives import (
    Compressors,
    Handle,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    allreduce_async_,
    is_differentiable,
    reducescatter,
    reducescatter_async,
)
from phalanx.torch.compression import Compression
from phalanx.torch.tensors import memory_of, op_of

__all__ = [
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
]


def _group(handles: list[Handle]) -> Handle:
    return Handle(handles, list)


def _each(start: Callable[[torch.Tensor], Handle], tensors: Sequence[torch.Tensor]) -> Handle:
    # All are checked before any is started, so that an error leaves the ranks in step.
    for tensor in tensors:
        memory_of("a tensor of the list", tensor)
    return _group([start(tensor) for tensor in tensors])


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> Handle:
    """Starts an `allreduce` of each tensor of a list."""
    reduction = op_of(average, op)
    factors = (prescale_factor, postscale_factor)
    return _each(lambda tensor: allreduce_async(tensor, None, name, reduction, *factors, process_set), tensors)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> Handle:
    """Starts an `allreduce_` of each tensor of a list."""
    reduction = op_of(average, op)
    factors = (prescale_factor, postscale_factor)
    return _each(lambda tensor: allreduce_async_(tensor, None, name, reduction, *factors, process_set), tensors)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> list[torch.Tensor]:
    """The `allreduce` of each tensor of a list. Differentiable."""
    if is_differentiable(*tensors):
        factors = (prescale_factor, postscale_factor)
        return [allreduce(tensor, average, name, compression, op, *factors, process_set) for tensor in tensors]
    pairs = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async(
        [tensor for tensor, _ in pairs], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(handle.wait(), pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> Sequence[torch.Tensor]:
    """The `allreduce_` of each tensor of a list. Returns the list."""
    grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()
    return tensors


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Communicator | None = None
) -> Handle:
    """Starts an `allgather` of each tensor of a list."""
    return _each(lambda tensor: allgather_async(tensor, name, process_set), tensors)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Communicator | None = None
) -> list[torch.Tensor]:
    """The `allgather` of each tensor of a list. Differentiable."""
    if is_differentiable(*tensors):
        return [allgather(tensor, name, process_set) for tensor in tensors]
    result: list[torch.Tensor] = grouped_allgather_async(tensors, name, process_set).wait()
    return result


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Communicator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts a `reducescatter` of each tensor of a list."""
    factors = (prescale_factor, postscale_factor)
    return _each(lambda tensor: reducescatter_async(tensor, name, op, process_set, *factors), tensors)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: ReduceOp = Average,
    process_set: Communicator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """The `reducescatter` of each tensor of a list. Differentiable."""
    factors = (prescale_factor, postscale_factor)
    return [reducescatter(tensor, name, compression, op, process_set, *factors) for tensor in tensors]
