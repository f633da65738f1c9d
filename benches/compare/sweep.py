"""Runs contenders in alternation, and what comes of it: medians over rounds, and ratios within rounds."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bars import Bar, Group
from contenders import Contender, Failed, Figure, Figures

from plot import name_bytes

# What the machine allows each way of Phalanx.
LIMITS = {
    "Phalanx shm": "limit of private buffers",
    "Phalanx registered": "limit",
    "Phalanx tcp": "limit of sockets",
}


def say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


@dataclass
class Outcome:
    """One group's figures, round by round: by contender, then by size."""

    group: Group
    rounds: list[dict[str, Figures]] = field(default_factory=list)

    def names(self) -> list[str]:
        """Who ran in every round."""
        return [name for name in self.group.contenders if all(name in figures for figures in self.rounds)]

    def figure(self, name: str, size: int) -> Figure:
        """The median over the rounds."""
        own = [figures[name][size] for figures in self.rounds]
        return Figure(statistics.median(one.p50 for one in own), statistics.median(one.p99 for one in own))

    def ratio(self, own: str, peer: str, size: int) -> float:
        """The median of the rounds' ratios of median times: whatever else the machine did met both."""
        return statistics.median(figures[own][size].p50 / figures[peer][size].p50 for figures in self.rounds)


def run(groups: list[Group], contenders: Mapping[str, Contender], rounds: int) -> list[Outcome]:
    """Every round runs every group, and in it every contender after the other, each time from another one on."""
    outcomes = [Outcome(group) for group in groups]
    began, done = time.monotonic(), 0
    for number in range(rounds):
        for outcome in outcomes:
            names = [name for name in outcome.group.contenders if name in contenders]
            turn = number % max(len(names), 1)
            figures: dict[str, Figures] = {}
            for name in names[turn:] + names[:turn]:
                say(f"round {number + 1} of {rounds}, {outcome.group.title}: {name}")
                try:
                    figures[name] = contenders[name](outcome.group.work)
                except Failed as error:
                    if name.startswith("Phalanx"):
                        raise
                    # A peer that fails is not compared; that it failed is said.
                    say(f"{name} left out: {error}")
            outcome.rounds.append(figures)
            done += 1
            elapsed = time.monotonic() - began
            say(f"{done} of {rounds * len(outcomes)} done in {elapsed:.0f} s, {elapsed / done:.0f} s each")
    return outcomes


@dataclass(frozen=True)
class Verdict:
    """A bar held against what was measured. `met` is None where there is no bar, or nothing was measured."""

    what: str
    wanted: str
    measured: str
    met: bool | None
    beyond: bool | None = None


def judge(bar: Bar, outcomes: list[Outcome]) -> Verdict:
    """Whether a bar is met at every size; met is None when one of the two was not there."""
    span = (
        name_bytes(bar.most) if bar.least == bar.most else f"{name_bytes(max(bar.least, 8))} to {name_bytes(bar.most)}"
    )
    is_barrier = bar.group.startswith("barrier")
    what = f"{bar.group}{'' if is_barrier else ', ' + span}: {bar.own} against {bar.peer}"
    wanted = f"at most {bar.bar:.2f}x"
    if bar.beyond is not None:
        wanted += f" (beyond: {bar.beyond:.2f}x)"
    outcome = next((outcome for outcome in outcomes if outcome.group.title == bar.group), None)
    if outcome is None or bar.own not in outcome.names() or bar.peer not in outcome.names():
        return Verdict(what, wanted, "not measured", None)
    sizes = [size for size in outcome.group.work.sizes if bar.least <= size <= bar.most]
    if not sizes:
        return Verdict(what, wanted, "no such size was measured", None)
    ratios = {size: outcome.ratio(bar.own, bar.peer, size) for size in sizes}
    worst = max(ratios, key=lambda size: ratios[size])
    best, largest = min(ratios.values()), ratios[worst]
    measured = f"{largest:.2f}x" if len(sizes) == 1 else f"{best:.2f}x to {largest:.2f}x, most at {name_bytes(worst)}"
    limit = LIMITS[bar.own]
    if largest > bar.bar and limit != bar.peer and limit in outcome.names():
        # Of the sizes at which it is missed, those at which the machine's limit misses it as well.
        missed = [size for size in sizes if ratios[size] > bar.bar]
        beyond_reach = {size: outcome.ratio(limit, bar.peer, size) for size in missed}
        beyond_reach = {size: ratio for size, ratio in beyond_reach.items() if ratio > bar.bar}
        listed = ", ".join(f"{ratio:.2f}x at {name_bytes(size)}" for size, ratio in beyond_reach.items())
        measured += f"; missed at {', '.join(map(name_bytes, missed))}"
        measured += f"; the {limit} itself takes {listed}" if listed else ""
    return Verdict(what, wanted, measured, largest <= bar.bar, bar.beyond is not None and largest <= bar.beyond)
