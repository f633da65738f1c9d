"""The loop around a training function."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from phalanx.elastic.errors import HostsUpdatedInterrupt, is_restorable
from phalanx.elastic.state import State
from phalanx.errors import PhalanxError
from phalanx.steps import ElasticCommunicator, StepOutcome
from phalanx.world import world

__all__ = ["last_step", "members", "run", "slot"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Makes a training function elastic: `func(state, ...)`, which goes on from its state whenever it is called.

    The state is brought to the ranks that lack it first. When ranks join, the function is called again on all of them,
    with the state as it is; when a step was given up on all of them, with the state of the last commit. A rank that is
    sent SIGTERM ends its step, leaves at the next commit, and exits with code 0.

    A rank whose function has returned is done. One that ends otherwise is judged by its exit code: with 0 it is done,
    with another one it has failed, and is replaced.

    Nothing that needs other ranks may be called before it in the program.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        communicator = world()
        if not isinstance(communicator, ElasticCommunicator):
            state.sync()
            return func(state, *args, **kwargs)
        communicator.is_done = False
        with _leaving_on_sigterm(communicator):
            result = _run(func, communicator, state, args, kwargs)
        # What comes after it needs no replacement for this rank.
        communicator.is_done = True
        return result

    return wrapper


def _run(
    func: Callable[..., R],
    communicator: ElasticCommunicator,
    state: State,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> R:
    failure: PhalanxError | None = None
    is_reset = False
    synced = 0
    while True:
        try:
            if failure is not None:
                communicator.settle()
                if communicator.generation == synced and type(failure) is not PhalanxError:
                    # Nobody fell: the same would come again.
                    raise failure
                failure = None
            if is_reset:
                state.on_reset()
                is_reset = False
            state.sync()
            synced = communicator.generation
            return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt:
            is_reset = True
        except PhalanxError as error:
            if error is failure or not is_restorable(error):
                raise
            communicator.abandon()
            state.restore()
            failure, is_reset = error, True


@contextmanager
def _leaving_on_sigterm(communicator: ElasticCommunicator) -> Iterator[None]:
    """Within it, SIGTERM asks this rank to leave. A handler of the program's own stays."""
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if is_ours:
        signal.signal(signal.SIGTERM, lambda *_: communicator.elastic.request_leave())
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def last_step() -> StepOutcome | None:
    """How this rank's last call ended: which ranks contributed, and in which view. `None` before the first, and in a
    job that is not elastic."""
    communicator = world()
    return communicator.last_step if isinstance(communicator, ElasticCommunicator) else None


def members() -> tuple[int, ...]:
    """The members' slots, in rank order. A slot is a rank's number for life; where the job is not elastic, its rank."""
    communicator = world()
    if isinstance(communicator, ElasticCommunicator):
        return communicator.members
    return tuple(range(communicator.size))


def slot() -> int:
    """This rank's number for the life of the job."""
    communicator = world()
    return communicator.slot if isinstance(communicator, ElasticCommunicator) else communicator.rank
