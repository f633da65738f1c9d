"""The communicator of all ranks, which `init()` makes once a process."""

from __future__ import annotations

import atexit

from phalanx import _native
from phalanx.communicator import Communicator
from phalanx.errors import NotInitializedError

__all__ = ["init", "is_initialized", "shutdown", "world"]

_world: Communicator | None = None


def init() -> Communicator:
    """Connects to the other ranks that the environment names, once; a world of one if nothing suggests otherwise.

    The variables of `phalanx run`, mpirun, srun and torchrun are understood. Returns the communicator of all ranks.
    """
    global _world
    if _world is None:
        _world = Communicator(_native.connect())
        atexit.register(shutdown)
    _world.native.check_process()
    return _world


def shutdown() -> None:
    """Waits for what is in flight and says goodbye to the other ranks. Does nothing where there is nothing to do.

    Called at the interpreter's end too.
    """
    global _world
    ended, _world = _world, None
    atexit.unregister(shutdown)
    if ended is None:
        return
    try:
        ended.native.check_process()
    except RuntimeError:
        # In a forked child the world is the parent's.
        return
    ended.native.shutdown()


def is_initialized() -> bool:
    """Whether `init()` was called, and `shutdown()` was not since."""
    return _world is not None


def world() -> Communicator:
    """The communicator of all ranks."""
    if _world is None:
        raise NotInitializedError("Phalanx has not been initialised; call init() first")
    return _world
