"""Any Python object, pickled on the way to the other ranks.

The other ranks unpickle what comes, which can run any code: the ranks of a job trust each other. `cloudpickle`, where
it is installed, can pickle more.
"""

from __future__ import annotations

import array
import io
import pickle
from typing import Any

from phalanx.communicator import Communicator
from phalanx.world import world

__all__ = ["allgather_object", "broadcast_object"]


def _pickled(obj: object) -> bytearray:
    buffer = io.BytesIO()
    try:
        import cloudpickle
    except ImportError:
        pickle.dump(obj, buffer, protocol=pickle.HIGHEST_PROTOCOL)
    else:
        cloudpickle.dump(obj, buffer, protocol=pickle.HIGHEST_PROTOCOL)
    return bytearray(buffer.getbuffer())


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Communicator | None = None
) -> Any:
    """The root's object. What other ranks give does not matter; `name` is only a label."""
    communicator = world() if process_set is None else process_set
    is_root = communicator.rank == root_rank
    data = _pickled(obj) if is_root else bytearray()
    length = communicator.broadcast_(array.array("q", [len(data)]), root_rank)[0]
    data = communicator.broadcast_(data if is_root else bytearray(length), root_rank)
    return obj if is_root else pickle.loads(data)


def allgather_object(obj: Any, name: str | None = None, process_set: Communicator | None = None) -> list[Any]:
    """Every rank's object, in rank order; `name` is only a label."""
    communicator = world() if process_set is None else process_set
    data = _pickled(obj)
    lengths = communicator.allgather(array.array("q", [len(data)]))
    everything = memoryview(communicator.allgather(data))
    objects, start = [], 0
    for length in lengths:
        objects.append(pickle.loads(everything[start : start + length]))
        start += length
    return objects
