"""What Phalanx raises.

Every class is a `PhalanxError`, and with it a `RuntimeError`; some are Python's own class for the case too. The
attributes `fault` (`"caller"`, `"peer"`, `"environment"` or `"bug"`), `retryable` and `hint` say whose fault it is,
whether the same call may succeed when tried again, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "EvictedError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NotInitializedError",
    "PeerFailedError",
    "PhalanxEnvironmentError",
    "PhalanxError",
    "PhalanxTimeoutError",
    "RankGoneError",
    "StateDiffersError",
    "ViewChangedError",
]


class PhalanxError(RuntimeError):
    """The base of all errors of this package."""

    fault: str = "caller"
    retryable: bool = False
    hint: str = ""


class InvalidArgumentError(PhalanxError, ValueError):
    """An argument cannot be used. Nothing was sent; the communicator is unharmed."""


class NotInitializedError(PhalanxError, ValueError):
    """A call that needs the other ranks, before `init()` or after `shutdown()`."""


class MismatchError(PhalanxError):
    """Two ranks made different calls at the same place in their programs.

    `ours` and `theirs` are pairs of a rank and its call, `sequence` is the number of the operation.
    """

    sequence: int | None = None
    ours: tuple[int, str] | None = None
    theirs: tuple[int, str] | None = None


class PeerFailedError(PhalanxError):
    """The rank `rank`, which the operation needs, is gone, or did what no sound peer does."""

    fault = "peer"
    rank: int | None = None


class RankGoneError(PhalanxError):
    """In an elastic job, the rank `rank`, of which a call asks something that no other rank can give, is gone.

    It is raised on every rank, and the call had no effect on any.
    """

    fault = "peer"
    retryable = True
    hint = "restore the state of the last commit, and go on with the ranks that are left"
    rank: int | None = None


class ViewChangedError(PhalanxError):
    """The members of an elastic job changed, and the call cannot be made again by itself.

    So it is for a training step, on every rank alike, where a fault is to be raised; for groups, which last as long as
    the members are the same; and where ranks had to be let in in the middle of a step, because there were too few.
    """

    fault = "peer"
    retryable = True


class EvictedError(PhalanxError):
    """The other ranks of an elastic job went on without this one. What it does has no effect on them."""

    fault = "peer"


class StateDiffersError(PhalanxError):
    """Ranks that should have the same state have not. The message names two of them."""


class PhalanxTimeoutError(PhalanxError, TimeoutError):
    """The deadline passed after `waited` seconds. `waiting_for` has the ranks that were being waited for."""

    fault = "peer"
    retryable = True
    waiting_for: list[int] = []  # noqa: RUF012 - replaced, never changed
    waited: float = 0.0


class ClosedError(PhalanxError):
    """The communicator was shut down on this rank while the operation was pending or before it began."""


class PhalanxEnvironmentError(PhalanxError):
    """Something about the machine, the network, the launcher or an environment variable."""

    fault = "environment"
    retryable = True


class InternalError(PhalanxError):
    """A defect of Phalanx. Please report it."""

    fault = "bug"
