"""The communicator of an elastic job's members, whoever they are at the time.

Every call is a step: it is made in one view after the other until it counts, on all ranks alike. Between two steps
`rank` and `size` are the same view's on every rank: that in which the last step that counted was computed, or that of
the newcomers where ranks joined. Ranks that fall are thus noticed by what a call returns, never in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from phalanx import _native
from phalanx._native import Memory
from phalanx.communicator import Call, Communicator, Handle, Waitable
from phalanx.errors import InvalidArgumentError, RankGoneError

__all__ = ["ElasticCommunicator", "Pending", "StepOutcome"]

T = TypeVar("T")


class StepOutcome(NamedTuple):
    """How a step ended that counts."""

    step: int
    """Its number in the job."""
    generation: int
    """The view in which its results came to be."""
    contributors: tuple[int, ...]
    """The slots of those whose inputs are in the results, in rank order. A slot is a rank's number for life."""
    joined: bool
    """Whether ranks joined behind it."""
    view_changed: bool
    """Whether the view is another than when the step before ended."""
    left: bool
    """Whether this rank has left, as it was asked to."""
    held_up: float
    """The seconds for which a change of the view held the step up."""


def _outcome(told: tuple[int, int, list[int], bool, bool, bool, float]) -> StepOutcome:
    step, generation, contributors, joined, view_changed, left, held_up = told
    return StepOutcome(step, generation, tuple(contributors), joined, view_changed, left, held_up)


class _View(Communicator):
    """The members in one attempt at a step, as the caller's ranks see them."""

    __slots__ = ("_asked", "_slots")

    def __init__(self, native: _native.Communicator, slots: Sequence[int], asked: Sequence[int]) -> None:
        super().__init__(native)
        self._slots = list(slots)
        self._asked = list(asked)

    def rank_here(self, rank: int) -> int:
        if not 0 <= rank < len(self._asked):
            raise InvalidArgumentError(f"rank {rank} given, but ranks are 0 to {len(self._asked) - 1}")
        return self._here(rank, "the call")

    def check_members(self, what: str) -> None:
        for rank in range(len(self._asked)):
            self._here(rank, what)

    def _here(self, rank: int, what: str) -> int:
        slot = self._asked[rank]
        if slot not in self._slots:
            error = RankGoneError(f"rank {rank} (slot {slot}), of which {what} asks its part, is gone")
            error.rank = rank
            raise error
        return self._slots.index(slot)


class _Open:
    """A step under construction: allreduces that run while the program computes, and calls for its end."""

    def __init__(self, communicator: ElasticCommunicator) -> None:
        self._communicator = communicator
        self._native = communicator.elastic.begin()
        self._calls: list[Callable[[Communicator], Any]] = []
        self._results: list[Any] = []
        self._error: BaseException | None = None
        # A call that was refused leaves nothing to finish.
        self.is_empty = True
        self.outcome: StepOutcome | None = None

    def reduce(self, input: Memory | None, output: Memory, op: int, prescale: float, postscale: float) -> Waitable:
        self._native.allreduce(input, output, op, prescale, postscale)
        self.is_empty = False
        return Pending(self, None)

    def add(self, call: Callable[[Communicator], Any]) -> Waitable:
        self._calls.append(call)
        self.is_empty = False
        return Pending(self, len(self._calls) - 1)

    def poll(self) -> bool:
        return self.is_over or self._native.poll()

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self._error is not None

    def abandon(self) -> None:
        """Gives the step up. Every rank must."""
        if not self.is_over:
            self._error = InvalidArgumentError("the operation was given up")
            self._native.abandon()

    def finish(self) -> None:
        if self._error is not None:
            raise self._error
        if self.outcome is not None:
            return
        asked = self._communicator.elastic.slots

        def calls(native: _native.Communicator, slots: list[int]) -> None:
            view = _View(native, slots, asked)
            self._results = [call(view) for call in self._calls]

        try:
            self.outcome = _outcome(self._native.finish(calls if self._calls else None))
        except BaseException as error:
            self._error = error
            self._native.abandon()
            raise
        self._communicator.last_step = self.outcome

    def result(self, at: int | None) -> Any:
        self.finish()
        return None if at is None else self._results[at]


class Pending:
    """An operation of a step that is under way."""

    __slots__ = ("_at", "step")

    def __init__(self, step: _Open, at: int | None) -> None:
        self.step = step
        self._at = at

    def wait(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            raise InvalidArgumentError(
                "wait(timeout) given in an elastic job, where all ranks wait until the operation counts; "
                "leave it out, and set PHALANX_TIMEOUT"
            )
        return self.step.result(self._at)

    def poll(self) -> bool:
        return self.step.poll()

    @property
    def outcome(self) -> StepOutcome | None:
        """How its step ended, once it did."""
        return self.step.outcome


class ElasticCommunicator(Communicator):
    """The members of an elastic job, whoever they are at the time."""

    __slots__ = ("_open", "elastic", "is_done", "last_step", "training_step")

    def __init__(self, elastic: _native.Elastic) -> None:
        self.elastic = elastic
        # Whether the training function has returned.
        self.is_done = False
        self.last_step: StepOutcome | None = None
        # The last one of a distributed optimizer.
        self.training_step: StepOutcome | None = None
        self._open: _Open | None = None

    @property
    def native(self) -> _native.Communicator:  # type: ignore[override]
        """The communicator of the agreed view: calls on it fail when the view is over."""
        return self.elastic.communicator()

    @property
    def slot(self) -> int:
        """This rank's number for the life of the job."""
        return self.elastic.slot

    @property
    def members(self) -> tuple[int, ...]:
        """The members' slots, in rank order."""
        return tuple(self.elastic.slots)

    @property
    def generation(self) -> int:
        """The number of the view that `rank` and `size` are of."""
        return self.elastic.generation

    def call(self, call: Call[T]) -> T:
        self.settle_open()
        result: T = self._opened().add(lambda view: call(view, True)[0]).wait()
        return result

    def start(self, call: Call[T]) -> Handle[T]:
        return Handle(self._opened().add(lambda view: call(view, True)[0]), None)

    def reduce_memory(
        self, input: Memory | None, output: Memory, op: int, prescale: float, postscale: float, wait: bool
    ) -> Waitable | None:
        if wait:
            self.settle_open()
        if output.device is None:
            waitable = self._opened().reduce(input, output, op, prescale, postscale)
        else:
            # Made when the step ends, and again in each view; so what goes in must not be where the result comes.
            source = output.copied() if input is None else input
            waitable = self._opened().add(lambda view: view.native.allreduce(source, output, op, prescale, postscale))
        if wait:
            waitable.wait()
        return waitable

    def reduce_at(self, pointer: int, count: int, dtype: int, op: int) -> None:
        self.settle_open()
        self.last_step = _outcome(self.elastic.allreduce_pointer(pointer, count, dtype, op))

    def _opened(self) -> _Open:
        if self._open is None or self._open.is_over:
            self._open = _Open(self)
        return self._open

    def settle_open(self) -> None:
        """Finishes the step that is under way, if there is one."""
        step, self._open = self._open, None
        if step is not None and not step.is_empty and not step.is_over:
            step.finish()

    def abandon(self) -> None:
        """Gives up the step that is under way, if there is one. Every rank must."""
        step, self._open = self._open, None
        if step is not None:
            step.abandon()

    def boundary(self) -> StepOutcome:
        """A step of its own, behind which ranks may come and go."""
        self.settle_open()
        return _outcome(self.elastic.boundary())

    def settle(self) -> None:
        """Agrees with the others on the members, after a step that failed on all of them."""
        self.abandon()
        self.elastic.settle()

    def sync(
        self,
        save: Callable[[], Any],
        load: Callable[[bytes], None],
        save_own: Callable[[], Any],
        load_own: Callable[[bytes], None],
    ) -> StepOutcome:
        """Brings the state to the ranks that lack it."""
        self.settle_open()
        return _outcome(self.elastic.sync(save, load, save_own, load_own))

    def close(self) -> None:
        """Says goodbye to the other ranks."""
        self.elastic.close()

    def shutdown(self) -> None:
        """Says that the work is done, and goodbye to the other ranks."""
        self.elastic.shutdown()
