"""New arrays of the kind that was given, whatever kind that is. NumPy and PyTorch are used, never imported for it.

On a device, new arrays are PyTorch's for PyTorch's, and a `DeviceArray` for all others, which their libraries take over
as it is.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from phalanx._native import DeviceArray, Memory
from phalanx.buffers import Buffer
from phalanx.errors import InvalidArgumentError

__all__ = ["copy_of", "new_like"]

T = TypeVar("T")


def _is_tensor(given: object) -> bool:
    """Whether it is PyTorch's, of whatever class."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def new_like(given: T, memory: Memory, shape: Sequence[int]) -> T:
    """An array of the given kind and element type, with its elements unset."""
    made: Any
    kind: Any = given
    count = math.prod(shape)
    if _is_tensor(given):
        made = kind.new_empty(tuple(shape))
    elif memory.device is not None:
        made = DeviceArray(memory.device, shape, memory.dtype)
    elif isinstance(given, Buffer):
        raise InvalidArgumentError("no other buffer is made for a result; give its memory as out=, or work in place")
    elif hasattr(given, "__array_interface__"):
        made = sys.modules["numpy"].empty(tuple(shape), dtype=kind.dtype)
    elif isinstance(given, array.array):
        made = array.array(given.typecode, bytes(count * given.itemsize))
    elif isinstance(given, bytes | bytearray):
        made = bytearray(count)
    else:
        try:
            view = memoryview(kind)
        except TypeError:
            raise InvalidArgumentError(
                f"no array like a {type(given).__qualname__} can be made here; give the result's memory as out="
            ) from None
        made = memoryview(bytearray(count * view.itemsize)).cast(view.format)  # type: ignore[call-overload]
        if count > 0 and len(shape) != 1:
            made = made.cast("B").cast(view.format, list(shape))
    result: T = made
    return result


def copy_of(given: T, memory: Memory) -> tuple[T, Memory]:
    """A copy of an array, and the copy's memory."""
    made = new_like(given, memory, memory.shape)
    made_memory = Memory.of(made)
    made_memory.copy_from(memory)
    return made, made_memory
