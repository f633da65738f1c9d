"""Tensors as memory: what can be given, and what it is called there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from phalanx._native import Memory
from phalanx.buffers import Buffer
from phalanx.communicator import Communicator, Waitable
from phalanx.errors import InvalidArgumentError
from phalanx.ops import Average, ReduceOp, Sum
from phalanx.world import world

__all__ = [
    "CODES",
    "alloc",
    "communicator_of",
    "detached",
    "follow",
    "followed",
    "memory_of",
    "op_of",
    "refuse",
    "stream_of",
]

CODES: dict[torch.dtype, int] = {
    torch.float16: 0,
    torch.bfloat16: 1,
    torch.float32: 2,
    torch.float64: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 9,
    torch.bool: 11,
}
# Unsigned types wider than a byte came with PyTorch 2.3.
for _name, _code in (("uint32", 8), ("uint64", 10)):
    if hasattr(torch, _name):
        CODES[getattr(torch, _name)] = _code


def refuse(what: str, tensor: object) -> InvalidArgumentError:
    """Why a tensor cannot be given."""
    if not isinstance(tensor, torch.Tensor):
        return InvalidArgumentError(f"{what}: a {type(tensor).__qualname__} given, a tensor expected")
    if tensor.layout is not torch.strided:
        return InvalidArgumentError(f"{what}: a tensor of layout {tensor.layout} given, a dense one expected")
    if not tensor.is_cpu and not tensor.is_cuda:
        return InvalidArgumentError(
            f"{what}: a tensor on {tensor.device} given, one in host memory or on a CUDA device expected"
        )
    if tensor.dtype not in CODES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)
        return InvalidArgumentError(f"{what}: tensors of {tensor.dtype} are not supported; one of {known} expected")
    return InvalidArgumentError(f"{what}: the tensor is required to be contiguous; give tensor.contiguous()")


def memory_of(what: str, tensor: torch.Tensor) -> Memory:
    """A tensor's memory. Nothing is copied. On a CUDA device it is used on the current stream."""
    code = CODES.get(tensor.dtype) if isinstance(tensor, torch.Tensor) else None
    if code is None or tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise refuse(what, tensor)
    if tensor.is_cpu:
        return Memory(tensor.data_ptr(), tensor.numel(), code, tensor)
    if not tensor.is_cuda:
        raise refuse(what, tensor)
    stream = torch.cuda.current_stream(tensor.device)
    return Memory(
        tensor.data_ptr(), tensor.numel(), code, tensor, device=tensor.device.index, stream=stream.cuda_stream
    )


def stream_of(tensor: torch.Tensor) -> torch.cuda.Stream | None:
    """The current stream of a tensor's device; none of a tensor in host memory."""
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None


def follow(stream: torch.cuda.Stream | None) -> None:
    """Has what comes next on the current stream come after what is on another one."""
    if stream is not None:
        current = torch.cuda.current_stream(stream.device)
        if current != stream:
            current.wait_stream(stream)


class Followed:
    """An operation that was started on one stream, and whose results may be wanted on another."""

    __slots__ = ("_stream", "_waitable")

    def __init__(self, waitable: Waitable, stream: torch.cuda.Stream) -> None:
        self._waitable = waitable
        self._stream = stream

    def wait(self, timeout: float | None = None) -> Any:
        value = self._waitable.wait(timeout)
        follow(self._stream)
        return value

    def poll(self) -> bool:
        return self._waitable.poll()


def followed(waitable: Waitable | None, tensor: torch.Tensor) -> Waitable | None:
    """What is to be waited for, so that the stream that is current then sees the results in a tensor."""
    stream = stream_of(tensor)
    return waitable if waitable is None or stream is None else Followed(waitable, stream)


def alloc(
    *shape: int | Sequence[int], dtype: torch.dtype | None = None, process_set: Communicator | None = None
) -> torch.Tensor:
    """A tensor of zeros in memory that the other ranks of this host read where it is, which lives as long as the tensor
    or a view of it. `Communicator.alloc` says what it is good for.

    `shape` and `dtype` are as those of `torch.zeros`.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    code = CODES.get(dtype)
    if code is None:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)
        raise InvalidArgumentError(f"alloc: tensors of {dtype} are not supported; one of {known} expected")
    given: Any = shape if len(shape) != 1 or isinstance(shape[0], int) else shape[0]
    lengths = torch.Size(given)
    if any(length < 0 for length in lengths):
        raise InvalidArgumentError(f"alloc: shape {tuple(lengths)} given, lengths of at least 0 expected")
    buffer = Buffer(communicator_of(process_set).native, lengths.numel(), code)
    tensor: torch.Tensor = from_dlpack(buffer)
    return tensor.view(lengths)


def op_of(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The operation from its own name or the older flag."""
    if isinstance(average, ReduceOp):
        # The flag comes before `op`: as a flag, every operation but the first would mean an average.
        raise InvalidArgumentError(f"{average!r} given as average; give op={average.name}")
    if op is not None:
        if average is not None:
            raise InvalidArgumentError("average and op given together; give op")
        return op
    return Average if average is None or average else Sum


def detached(what: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history."""
    if not isinstance(tensor, torch.Tensor):
        raise refuse(what, tensor)
    return tensor.detach()


def communicator_of(process_set: Communicator | None) -> Communicator:
    """The given communicator, or that of all ranks."""
    return world() if process_set is None else process_set
