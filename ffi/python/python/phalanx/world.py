"""The communicator of all ranks, which `init()` makes once a process."""

from __future__ import annotations

import atexit
import sys
from types import TracebackType

from phalanx import _native
from phalanx.communicator import Communicator
from phalanx.errors import InvalidArgumentError, NotInitializedError
from phalanx.steps import ElasticCommunicator

__all__ = ["init", "is_initialized", "shutdown", "world"]

_world: Communicator | None = None
_is_failing = False


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
            _notice_failure()
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


def _notice_failure() -> None:
    """Notices that the program ends with an exception that nobody caught."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _is_failing
        _is_failing = True
        before(kind, error, trace)

    sys.excepthook = hook


def _end() -> None:
    """The interpreter ends. A member that fails says no goodbye: the others would take it for one that is done, and
    nobody would take its place."""
    if _is_failing and isinstance(_world, ElasticCommunicator):
        _world.elastic.forsake()
    else:
        shutdown()


def shutdown() -> None:
    """Waits for what is in flight and says goodbye to the other ranks. Does nothing where there is nothing to do.

    Called at the interpreter's end too, unless the program fails in an elastic job.
    """
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
    ended.shutdown()


def is_initialized() -> bool:
    """Whether `init()` was called, and `shutdown()` was not since."""
    return _world is not None


def world() -> Communicator:
    """The communicator of all ranks."""
    if _world is None:
        raise NotInitializedError("Phalanx has not been initialised; call init() first")
    return _world
