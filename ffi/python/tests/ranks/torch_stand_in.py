"""PyTorch tensors on a device that is not there.

The PyTorch of the tests knows no device. A `Tensor` here lies in memory of the stand-in (which is host memory, so that
PyTorch computes on it) and says of itself that it is on a device; what is made from it is of the same kind. `use` gives
PyTorch streams of the stand-in.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import stand_in
import torch

__all__ = ["StandInStream", "Tensor", "use"]


class Tensor(torch.Tensor):
    """A tensor in the memory of a device."""

    is_cpu = False
    is_cuda = True
    ordinal = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", type(self).ordinal)

    @classmethod
    def room(cls, shape: Any, dtype: torch.dtype) -> Tensor:
        shape = torch.Size(shape)
        nbytes = shape.numel() * torch.empty(0, dtype=dtype).element_size()
        flat = torch.empty(0, dtype=dtype)
        if nbytes:
            memory = stand_in.Memory(cls.ordinal, nbytes)
            held = (ctypes.c_char * nbytes).from_address(memory.address)
            # The tensor keeps the buffer, and that the memory.
            held.memory = memory  # type: ignore[attr-defined]
            flat = torch.frombuffer(held, dtype=dtype, count=shape.numel())
        made = flat.view(shape).as_subclass(cls)
        assert isinstance(made, Tensor)
        return made

    @classmethod
    def of(cls, source: torch.Tensor) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            made = cls.room(source.shape, source.dtype)
            made.copy_(source.detach())
            return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = super().__torch_function__(function, types, arguments, keywords or {})
        if not isinstance(result, cls):
            return result
        with torch._C.DisableTorchFunctionSubclass():
            # New memory is the host's. What has a history is for PyTorch alone.
            is_new = not result.requires_grad and result.numel() > 0 and not stand_in.knows(result.data_ptr())
        return cls.of(result) if is_new else result


class StandInStream:
    """What is asked of `torch.cuda.Stream`."""

    def __init__(self, ordinal: int) -> None:
        self.device = torch.device("cuda", ordinal)
        self.stream = stand_in.Stream(ordinal)

    @property
    def cuda_stream(self) -> int:
        return self.stream.handle

    def wait_stream(self, other: StandInStream) -> None:
        stand_in.order(self.stream.device, self.stream.handle, other.stream.handle)


class Current:
    """The streams that are current, one for each device."""

    def __init__(self) -> None:
        self.streams = {ordinal: StandInStream(ordinal) for ordinal in (0, 1)}
        self.asked = 0

    def __call__(self, device: Any) -> StandInStream:
        self.asked += 1
        return self.streams[device if isinstance(device, int) else torch.device(device).index]


def use(patch: pytest.MonkeyPatch) -> Current:
    """Gives PyTorch streams of the stand-in."""
    current = Current()
    patch.setattr(torch.cuda, "current_stream", current)
    return current
