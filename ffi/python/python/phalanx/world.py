"""The communicator of all ranks, which `init()` makes once a process."""

from __future__ import annotations

import atexit
import sys

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
        atexit.register(_end)
    _check_process(_world)
    return _world


def _check_process(communicator: Communicator) -> None:
    if isinstance(communicator, ElasticCommunicator):
        communicator.elastic.check_process()
    else:
        communicator.native.check_process()


def _end() -> None:
    """The interpreter ends. A member of an elastic job whose training function has not returned says goodbye alone: its
    exit code, which nobody knows here, is going to tell whether its work is done."""
    _leave(is_done=not isinstance(_world, ElasticCommunicator) or _world.is_done)


def shutdown() -> None:
    """Waits for what is in flight and says goodbye to the other ranks. Does nothing where there is nothing to do.

    In an elastic job it says as well that this rank's work is done, unless an exception is under way, as in a
    `finally`. Called at the interpreter's end too; then it says so when the function under `elastic.run` has returned.
    Where a rank has not said so, its exit code does.
    """
    _leave(is_done=sys.exc_info()[0] is None)


def _leave(*, is_done: bool) -> None:
    global _world
    ended, _world = _world, None
    atexit.unregister(_end)
    if ended is None:
        return
    try:
        _check_process(ended)
    except RuntimeError:
        # In a forked child the world is the parent's.
        return
    if is_done or not isinstance(ended, ElasticCommunicator):
        ended.shutdown()
    else:
        ended.close()


def is_initialized() -> bool:
    """Whether `init()` was called, and `shutdown()` was not since."""
    return _world is not None


def world() -> Communicator:
    """The communicator of all ranks."""
    if _world is None:
        raise NotInitializedError("Phalanx has not been initialised; call init() first")
    return _world
