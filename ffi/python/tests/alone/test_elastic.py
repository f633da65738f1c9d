"""Parts of elastic training that need no other ranks."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

import phalanx
from phalanx import elastic
from phalanx.elastic import image, sampler
from phalanx.elastic.errors import is_restorable


class Ranks:
    """Ranks in one process: each has a sampler, and a loader that takes some batches ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, length: int, seed: int, ahead: int) -> None:
        self.alive = [0, 1, 2, 3]
        self.length, self.seed, self.ahead = length, seed, ahead
        self.samplers = {slot: elastic.ElasticSampler(length, seed=seed) for slot in self.alive}
        self.queues: dict[int, deque[list[int]]] = {}
        self.streams: dict[int, Any] = {}
        self.own = 0
        self.contributors = tuple(self.alive)
        monkeypatch.setattr(sampler, "slot", lambda: self.own)
        monkeypatch.setattr(sampler, "members", lambda: self.contributors)
        monkeypatch.setattr(sampler, "world", lambda: None)

    def begin(self, batch: int) -> None:
        """All begin an iteration."""
        self.contributors = tuple(self.alive)
        for slot in self.alive:
            self.own = slot
            self.streams[slot] = iter(self.samplers[slot])
            self.queues[slot] = deque()
            for _ in range(self.ahead + 1):
                self.pull(slot, batch)

    def pull(self, slot: int, batch: int) -> None:
        self.own = slot
        taken = list(islice(self.streams[slot], batch))
        if taken:
            self.queues[slot].append(taken)

    def step(self, batch: int, falls: list[int]) -> list[int]:
        """A step in which some fall; the samples that count."""
        batches = {slot: self.queues[slot].popleft() for slot in self.alive if self.queues[slot]}
        assert len(batches) in (0, len(self.alive)), "all have as many batches"
        if not batches:
            return []
        assert len({len(taken) for taken in batches.values()}) == 1
        self.alive = [slot for slot in self.alive if slot not in falls]
        self.contributors = tuple(self.alive)
        for slot in self.alive:
            self.own = slot
            self.samplers[slot].record_batch(0, len(batches[slot]))
            self.pull(slot, batch)
        states = [self.samplers[slot].state_dict() for slot in self.alive]
        assert all(state == states[0] for state in states)
        return [sample for slot in self.alive for sample in batches[slot]]

    def join(self, slot: int) -> None:
        self.samplers[slot] = elastic.ElasticSampler(self.length)
        self.samplers[slot].load_state_dict(image.unpack(image.pack(self.samplers[self.alive[0]].state_dict())))
        self.alive.append(slot)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_each_sample_counts_once_an_epoch(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    for seed in range(60):
        noise = random.Random(seed)
        length = noise.choice([0, 3, 17, 100, 257])
        ranks = Ranks(monkeypatch, length, seed, ahead)
        seen: list[int] = []
        newest = 3
        while True:
            batch = noise.randrange(1, 6)
            ranks.begin(batch)
            begun = len(seen)
            while True:
                falls = [slot for slot in ranks.alive if noise.random() < 0.03][: len(ranks.alive) - 1]
                counted = ranks.step(batch, falls)
                seen += counted
                one = ranks.samplers[ranks.alive[0]]
                assert sorted(seen) == sorted(one.processed_indices), f"seed {seed}"
                assert sorted(seen + one.remaining_indices) == list(range(length)), f"seed {seed}"
                if not counted:
                    break
                if noise.random() < 0.05:
                    newest += 1
                    ranks.join(newest)
                    break
            if len(seen) == begun:
                break
        assert length - len(seen) < len(ranks.alive), f"seed {seed}"


def test_epochs_have_orders_of_their_own() -> None:
    def orders(script: str) -> str:
        begin = "import phalanx, sys\nphalanx.init()\ns = phalanx.elastic.ElasticSampler(50, seed=4)\n"
        return subprocess.run(
            [sys.executable, "-c", begin + script], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    first = orders("print(list(s))")
    assert first == orders("print(list(s))") and sorted(eval(first)) == list(range(50))
    second = orders("s.set_epoch(1); print(list(s))")
    assert second != first and sorted(eval(second)) == list(range(50))
    # The epoch under way goes on.
    rest = orders(
        "i = iter(s); t = [next(i) for _ in range(20)]; s.record_batch(0, 20); s.set_epoch(0); print(t + list(s))"
    )
    assert rest == first


def test_equal_values_are_equal_bytes() -> None:
    word = "".join(["a", "word"])
    one: Any = {"names": ["aword", "aword"], "kinds": {"x", "yy", "zzz"}, "numbers": (1, 2.5, None)}
    other: Any = {"names": [word, "".join(["aw", "ord"])], "kinds": {"zzz", "yy", "x"}, "numbers": (1, 2.5, None)}
    assert image.pack(one) == image.pack(other)
    assert image.unpack(image.pack(one)) == one
    assert image.pack(one) != image.pack({**one, "numbers": (1, 2.0, None)})


def test_a_state_goes_back_to_what_was_saved() -> None:
    class Part:
        def __init__(self) -> None:
            self.value = [1]

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    part = Part()
    state = elastic.ObjectState(part=part, step=0, log=["begun"])
    part.value.append(2)
    state.step, state.log = 5, [*state.log, "more"]
    state.save()
    part.value.append(3)
    state.step = 6
    state.log.append("lost")
    for _ in range(2):
        state.restore()
        assert (state.part is part, part.value, state.step, state.log) == (True, [1, 2], 5, ["begun", "more"])
        part.value.append(4)


def test_a_commit_that_is_given_up_keeps_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Member:
        """A member whose next boundary ends as it is told."""

        members = (0, 1)
        end: Exception | None = None
        joined = False

        def boundary(self) -> Any:
            if self.end is not None:
                raise self.end
            return SimpleNamespace(left=False, joined=self.joined)

    member = Member()
    monkeypatch.setattr(elastic.state, "_elastic", lambda: member)
    state = elastic.ObjectState(step=0)
    state.step = 1
    state.commit()
    state.step = 2
    member.end = phalanx.ViewChangedError("given up")
    with pytest.raises(phalanx.ViewChangedError):
        state.commit()
    # The others may not have come to this commit.
    state.restore()
    assert state.step == 1
    state.step = 3
    member.end, member.joined = None, True
    with pytest.raises(elastic.HostsUpdatedInterrupt):
        state.commit()
    state.restore()
    assert state.step == 3


def test_which_errors_send_a_function_back_to_its_last_commit() -> None:
    assert elastic.HorovodInternalError is phalanx.PhalanxError
    restorable = [phalanx.ViewChangedError, phalanx.RankGoneError, phalanx.PeerFailedError, phalanx.PhalanxError]
    assert all(is_restorable(kind("why")) for kind in restorable)
    others = [phalanx.EvictedError, phalanx.StateDiffersError, phalanx.InvalidArgumentError, phalanx.MismatchError]
    assert not any(is_restorable(kind("why")) for kind in others)


def test_states_of_other_samplers_are_refused() -> None:
    state = elastic.ElasticSampler(10).state_dict()
    for wrong in ({**state, "order": [11, True, 0]}, {**state, "taken": 11}, {**state, "returned": [10]}):
        with pytest.raises(ValueError, match="sampler"):
            elastic.ElasticSampler(10).load_state_dict(wrong)


def test_what_is_to_happen_at_a_fault_is_one_of_two_things() -> None:
    with pytest.raises(ValueError, match="'heal' or 'raise' expected"):
        phalanx.init(on_fault="ignore")
