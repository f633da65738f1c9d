"""What a training function goes on from: on this rank after a fault, on others when they join."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from phalanx.elastic.errors import HostsUpdatedInterrupt
from phalanx.elastic.image import pack, unpack
from phalanx.objects import broadcast_object
from phalanx.steps import ElasticCommunicator, StepOutcome
from phalanx.world import is_initialized, shutdown, world

__all__ = ["ObjectState", "State"]

Callback = Callable[[], Any]


def _elastic() -> ElasticCommunicator | None:
    communicator = world()
    return communicator if isinstance(communicator, ElasticCommunicator) else None


class State:
    """The base of states: when it is saved, and what happens when ranks come and go."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callback] = []
        self._members: tuple[int, ...] | None = None
        if is_initialized():
            self._note_members()

    def register_reset_callbacks(self, callbacks: Iterable[Callback]) -> None:
        """Has functions called, on every rank that stays, once the members are others: at the next `commit` or
        `check_host_updates` when ranks fell, and before the state goes to ranks that joined.

        They may look at `rank` and `size`, and make groups with `subgroup`. Calls that wait for other ranks have no
        place there: ranks that joined make none."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The members are others."""
        self._note_members()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For classes derived from this one: the members are others."""

    def commit(self) -> None:
        """Saves the state, to go back to it when a step is given up, and lets ranks come and go.

        Every rank must call it at the same place. Raises `HostsUpdatedInterrupt` on every rank when some joined; ends
        this process when it was asked to leave.
        """
        self._pass_boundary(saves=True)

    def check_host_updates(self) -> None:
        """As `commit`, without saving."""
        self._pass_boundary(saves=False)

    def _pass_boundary(self, saves: bool) -> None:
        communicator = _elastic()
        outcome = None if communicator is None else communicator.boundary()
        if saves:
            # Not before all agree that they are here. Were that given up, those that had come so far would otherwise go
            # back to this commit, and the others to the one before.
            self.save()
        if communicator is None or outcome is None:
            return
        self._end_if_left(outcome)
        if outcome.joined:
            raise HostsUpdatedInterrupt
        if self._members != communicator.members:
            self._note_members()
            for callback in self._reset_callbacks:
                callback()

    def _note_members(self) -> None:
        communicator = _elastic()
        self._members = None if communicator is None else communicator.members

    @staticmethod
    def _end_if_left(outcome: StepOutcome) -> None:
        if outcome.left:
            shutdown()
            raise SystemExit(0)

    def save(self) -> None:
        """Keeps a copy of the state in this process."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the copy that `save` kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Brings the state to the ranks that lack it: to those that joined, at the beginning from rank 0 to all.

        Every rank must call it; `run` does. The states of ranks that have one must be the same.
        """
        communicator = _elastic()
        if communicator is None:
            data, own = broadcast_object((self._give(), self._give_own()), root_rank=0)
            self._load(data)
            self._take_own(own)
        else:
            outcome = communicator.sync(self._give, self._load, self._give_own, self._take_own)
            self._end_if_left(outcome)
            if self._members is None:
                self._note_members()
            # Otherwise ranks that fell meanwhile are found at the next commit.
        self.save()

    # What derived classes say of their content.

    def _give(self) -> bytes:
        """The content, the same bytes on every rank that has the same state."""
        raise NotImplementedError

    def _load(self, data: bytes) -> None:
        """Takes over content."""
        raise NotImplementedError

    def _give_own(self) -> bytes:
        """What may differ between ranks."""
        return b""

    def _take_own(self, data: bytes) -> None:
        """Takes over what may differ."""


class ObjectState(State):
    """A state of named values, which are its attributes: numbers, arrays, whatever can be pickled.

    A value with `state_dict` and `load_state_dict`, such as a sampler or a scheduler, is a part that stays the same
    object: its state dictionary is what is saved and sent. The names that start with an underscore are not sent.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._values: list[str] = list(values)
        self._saved: dict[str, Any] = {}
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def _parts(self) -> dict[str, Any]:
        """The names and what is kept of each: its state dictionary, if it has one."""
        return {name: _content(getattr(self, name)) for name in self._values}

    def save(self) -> None:
        self._saved = copy.deepcopy(self._parts())

    def restore(self) -> None:
        self._put(copy.deepcopy(self._saved))

    def _put(self, parts: dict[str, Any]) -> None:
        for name, content in parts.items():
            value = getattr(self, name)
            if _is_stateful(value):
                value.load_state_dict(content)
            else:
                setattr(self, name, content)

    def _give(self) -> bytes:
        return pack(self._parts())

    def _load(self, data: bytes) -> None:
        self._put(unpack(data))


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type)


def _content(value: Any) -> Any:
    return value.state_dict() if _is_stateful(value) else value
