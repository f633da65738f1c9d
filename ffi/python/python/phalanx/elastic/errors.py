"""What tells a training function that it is to begin again."""

from __future__ import annotations

from phalanx.errors import PeerFailedError, PhalanxError, RankGoneError, ViewChangedError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "is_restorable"]

# The class that scripts catch.
HorovodInternalError = PhalanxError


class HostsUpdatedInterrupt(Exception):
    """Ranks joined. The state is as it should be, and goes to them before training goes on.

    Raised by `commit` and `check_host_updates`, on every rank; `run` catches it.
    """


def is_restorable(error: PhalanxError) -> bool:
    """Whether all ranks have the error, and can go on from the state of the last commit."""
    return isinstance(error, ViewChangedError | PeerFailedError | RankGoneError) or type(error) is PhalanxError
