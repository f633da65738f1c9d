"""Compares Phalanx with the peers that are installed and with the machine's limit, in one run, turn by turn.

    python3 benches/compare                         everything: half an hour
    python3 benches/compare --quick                 a few sizes, one round: some minutes
    python3 benches/compare --only "allreduce, 2 ranks" --only hosts     what has one of these in its title
    python3 benches/compare --csv times.csv --plots docs/figures --page docs/performance.md

Prints, in Markdown, each bar with what was measured, and a table for each collective, carrier and number of ranks. Each
round runs every contender once, one after the other, so that whatever else the machine does meets them all alike. A
figure is the median over the rounds; a ratio is the median of the rounds' ratios, below 1 where Phalanx is faster.

Needs the release build (`cargo build --release`). Open MPI is taken if `mpicc.openmpi` and `mpirun.openmpi` are there
(Debian's libopenmpi-dev and openmpi-bin), MPICH likewise (libmpich-dev, mpich), Gloo and the Python programs if
`--torch-python`, target/venv or this Python can import torch (and phalanx), plots if it can import matplotlib, the four
hosts if this is root. What is missing is said.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

# plot.py serves others, too.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import bars
import hosts
import processes
import programs
from contenders import PHALANX, Failed, cores, find, python_with_torch
from report import sweep_table, verdict_table, write_csv, write_page, write_plots
from sweep import Verdict, judge, run, say

QUICK_SIZES = (8, 4 << 10, 256 << 10, 2 << 20, 16 << 20)

# With so much else to do for each core, figures are not worth keeping.
BUSY = 0.3


def chosen(title: str, words: list[str]) -> bool:
    return not words or any(word in title for word in words)


def other_figures(options: argparse.Namespace, words: list[str], rounds: int) -> list[Verdict]:
    """What is no sweep. Each says itself why it could not be measured, or is said here."""
    python = python_with_torch(options.torch_python)
    absent = "not measured: no Python with torch and phalanx"
    parts: dict[str, Callable[[], list[Verdict]]] = {
        "halves": lambda: programs.halves(rounds),
        "python": lambda: programs.python_call(python, rounds) if python else [Verdict("python", "", absent, None)],
        "training step": lambda: (
            programs.training_step(python, 2 * rounds) if python else [Verdict("training step", "", absent, None)]
        ),
        "idle": lambda: [processes.idle("shm"), processes.idle("tcp")],
        "memory": lambda: processes.memory_verdicts(2.0 if options.quick else 5.0),
        "hosts": lambda: hosts.verdicts(rounds),
    }
    found: list[Verdict] = []
    for title, part in parts.items():
        if chosen(title, words):
            say(title)
            try:
                found += part()
            except Failed as error:
                say(f"{title}: {error}")
                found.append(Verdict(title, "", f"not measured: {str(error).splitlines()[0]}", None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few sizes, one round")
    parser.add_argument("--rounds", type=int, help="how often each contender runs [default: 5]")
    parser.add_argument("--only", default=[], action="append", metavar="WORDS", help="what has them in its title")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="every round's times, and the bars")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="latency and bandwidth against size, as SVG")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables between this page's marks, too")
    parser.add_argument("--torch-python", help="a Python that can import torch")
    options = parser.parse_args()
    if not PHALANX.exists():
        sys.exit(f"{PHALANX} is not there: run cargo build --release first")
    rounds = options.rounds or (1 if options.quick else 5)

    # Of the minute before: what else ran then will go on.
    load = os.getloadavg()[0]
    contenders, absent = find(options.torch_python)
    for why in absent:
        say(f"not compared: {why}")
    groups = [group for group in bars.groups() if chosen(group.title, options.only)]
    if options.quick:
        shorter = [tuple(size for size in group.work.sizes if size in (0, *QUICK_SIZES)) for group in groups]
        groups = [replace(g, work=replace(g.work, sizes=s)) for g, s in zip(groups, shorter, strict=True)]
    outcomes = run(groups, contenders, rounds)
    titles = {group.title for group in groups}
    verdicts = [judge(bar, outcomes) for bar in bars.bars() if bar.group in titles]
    verdicts += other_figures(options, options.only, rounds)

    system = f"{platform.machine()}, {len(cores())} cores, Linux {platform.release().split('-')[0]}"
    taken = f"{system}, {rounds} round{'' if rounds == 1 else 's'}"
    if load > BUSY * len(cores()):
        say("the machine was busy with other things: these figures say little")
        taken += f", **beside other work** (load average {load:.1f} before the start): they say little"
    parts = [f"Taken on {taken}." + "".join(f"\nNot compared: {why.splitlines()[0]}." for why in absent)]
    parts += ["### Bars\n\n" + verdict_table(verdicts)] if verdicts else []
    parts += [sweep_table(outcome) for outcome in outcomes]
    print("\n\n".join(parts))
    if options.csv:
        write_csv(options.csv, outcomes, verdicts)
    drawn = write_plots(options.plots, outcomes) if options.plots else []
    if options.page:
        pictures = []
        for name in drawn:
            path = os.path.relpath(options.plots.resolve() / name, options.page.resolve().parent)
            pictures.append(f"![{name.removesuffix('.svg').replace('-', ' ')}]({path})")
        write_page(options.page, "\n\n".join([*parts, *pictures]))
    if any(verdict.met is False for verdict in verdicts):
        say("some bars are not met")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(str(error))
