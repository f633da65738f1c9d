"""Any Python object, pickled on the way to the other ranks.

The other ranks unpickle what comes, which can run any code: the ranks of a job trust each other. `cloudpickle`, where
it is installed, can pickle more.
"""

from __future__ import annotations

import array
import io
import pickle
from typing import Any

from phalanx._native import Memory
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

    def broadcast(view: Communicator, wait: bool) -> tuple[Any, None]:
        root = view.rank_here(root_rank)
        is_root = view.rank == root
        data = _pickled(obj) if is_root else bytearray()
        length = array.array("q", [len(data)])
        view.native.broadcast(Memory.of(length), root)
        data = data if is_root else bytearray(length[0])
        view.native.broadcast(Memory.of(data), root)
        return (obj if is_root else pickle.loads(data)), None

    return communicator.call(broadcast)


def allgather_object(obj: Any, name: str | None = None, process_set: Communicator | None = None) -> list[Any]:
    """Every rank's object, in rank order; `name` is only a label."""
    communicator = world() if process_set is None else process_set
    data = _pickled(obj)

    def allgather(view: Communicator, wait: bool) -> tuple[list[Any], None]:
        lengths = view.native.exchange([len(data)])
        everything = bytearray(sum(lengths))
        view.native.allgather(Memory.of(data), Memory.of(everything), lengths)
        objects, start = [], 0
        for length in lengths:
            objects.append(pickle.loads(memoryview(everything)[start : start + length]))
            start += length
        return objects, None

    return communicator.call(allgather)
