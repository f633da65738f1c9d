"""The communicator of all ranks, which `init()` makes once a process."""

from __future__ import annotations

import atexit

from phalanx import _native
from phalanx.communicator import Communicator
from phalanx.errors import InvalidArgumentError, NotInitializedError
from phalanx.steps import ElasticCommunicator

__all__ = ["init", "is_initialized", "shutdown", "world"]

_world: Communicator | None = None


def init(*, on_fault: str = "heal") -> Communicator:
    """Connects to the other ranks that the environment names, once; a world of one if nothing suggests otherwise.

    The variables of `phalanx run`, mpirun, srun and torchrun are understood. Returns the communicator of all ranks.

    In an elastic job (`phalanx run --min-np N`), `on_fault` says what becomes of a call that is cut short because a
    rank fell: with `"heal"` it is made again by itself, among those that are left; with `"raise"` it raises
    `ViewChangedError` on every rank. It must be the same on every rank.
    """
    global _world
    if on_fault not in ("heal", "raise"):
        raise InvalidArgumentError(f"on_fault={on_fault!r} given, 'heal' or 'raise' expected")
    if _world is None:
        if _native.is_elastic():
            _world = ElasticCommunicator(_native.join(on_fault == "heal"))
        else:
            _world = Communicator(_native.connect())
        atexit.register(shutdown)
    _check_process(_world)
    return _world


def _check_process(communicator: Communicator) -> None:
    if isinstance(communicator, ElasticCommunicator):
        communicator.elastic.check_process()
    else:
        communicator.native.check_process()


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
        _check_process(ended)
    except RuntimeError:
        # In a forked child the world is the parent's.
        return
    ended.shutdown()


def is_initialized() -> bool:
    """Whether `init()` was called, and `shutdown()` was not since."""
    return _world is not None


def world() -> Communicator:
    """The communicator of all ranks."""
    if _world is None:
        raise NotInitializedError("Phalanx has not been initialised; call init() first")
    return _world
