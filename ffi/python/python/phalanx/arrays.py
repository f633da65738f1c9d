"""New arrays of the kind that was given, whatever kind that is. NumPy and PyTorch are used, never imported for it."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from phalanx._native import Memory
from phalanx.buffers import Buffer
from phalanx.errors import InvalidArgumentError

__all__ = ["copy_of", "new_like"]

T = TypeVar("T")


def _library(given: object) -> str:
    return type(given).__module__.partition(".")[0]


def new_like(given: T, memory: Memory, shape: Sequence[int]) -> T:
    """An array of the given kind and element type, with its elements unset."""
    made: Any
    kind: Any = given
    count = math.prod(shape)
    if _library(given) == "torch":
        made = kind.new_empty(tuple(shape))
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
