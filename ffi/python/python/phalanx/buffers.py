"""Memory that the other ranks of this host read where it is."""

from __future__ import annotations

import ctypes
from typing import Any, final

from phalanx import _native

__all__ = ["Buffer", "DType"]

# A type's name or code, or something with a name, such as NumPy's `dtype`.
DType = Any

# Python's letters for elements in memory. It has none for bf16, and views of f16 can only be looked at.
_FORMATS = {
    "f32": "f",
    "f64": "d",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "bool": "?",
}


@final
class Buffer(_native.Buffer):
    """Elements, zero at first, in memory that the other ranks of this host read where it is: see `Communicator.alloc`.

    Collectives take it as it is. `numpy.asarray(buffer)`, `torch.from_dlpack(buffer)` and `buffer.view()` are views of
    its elements; the memory is given back when the buffer and all its views are gone, also after `shutdown()`.
    """

    __slots__ = ()

    def view(self) -> memoryview:
        """The elements as a `memoryview`; of f16 and bf16, which Python cannot take out of one, the bytes."""
        holder = (ctypes.c_ubyte * self.nbytes).from_address(self.pointer)
        # The view keeps the holder, and that this.
        holder.owner = self  # type: ignore[attr-defined]
        return memoryview(holder).cast("B").cast(_FORMATS.get(self.dtype, "B"))  # type: ignore[call-overload, no-any-return]

    def __buffer__(self, flags: int) -> memoryview:
        # Python asks from 3.12 on. NumPy turns to `__array_interface__` after an error.
        if self.dtype not in _FORMATS:
            raise BufferError(f"elements of {self.dtype} have no format in Python; view() gives their bytes")
        return self.view()


def allocate(communicator: _native.Communicator, count: int, dtype: DType) -> Buffer:
    """A buffer of `count` elements."""
    named: Any = getattr(dtype, "name", dtype)
    return Buffer(communicator, count, named)
