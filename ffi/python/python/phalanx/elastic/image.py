"""The bytes of a training state: the same on every rank that has the same state.

Ranks compare their states by digest, so that equal values must be equal bytes. Python's pickle is that once it does not
note which of the values are one object; arrays and tensors go beside it as they lie in memory.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

__all__ = ["pack", "unpack"]


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=4)
        # Two equal texts are written twice, whether they are one object or not.
        self.fast = True

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, set | frozenset):
            # Their order depends on the process.
            return type(obj), (sorted(obj, key=lambda item: pack(item)),)
        return NotImplemented


def pack(value: Any) -> bytes:
    """The bytes of a value. What cannot be pickled raises."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def unpack(data: bytes | memoryview) -> Any:
    """The value of bytes from a rank of the same job, which are trusted as its code is."""
    return pickle.loads(data)
