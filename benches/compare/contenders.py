"""Who is compared, and how each is run: Phalanx over a carrier, an MPI, Gloo, and the limit of the memory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PHALANX = ROOT / "target" / "release" / "phalanx"
PEERS = ROOT / "benches" / "peers"

# What a peer may take for one size, in milliseconds: MPICH with more ranks than cores takes 8 ms for anything.
BUDGET_MS = 1000


class Failed(Exception):
    """A program that did not end well, with what it said."""


@dataclass(frozen=True)
class Figure:
    """Times of one size in us: of the slowest rank in each iteration."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Work:
    """One collective of float32 over so many ranks of this machine, at several sizes."""

    collective: str
    ranks: int
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.collective}, {self.ranks} ranks"


Figures = dict[int, Figure]
Contender = Callable[[Work], Figures]


def run(command: list[str], **variables: str) -> str:
    """What a program prints. Raises Failed with what it complained about."""
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=900, check=False
    )
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip()[-2000:]
        raise Failed(f"{' '.join(command)} failed with status {ended.returncode}:\n{said}")
    return ended.stdout


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def bench(*options: str) -> list[dict[str, object]]:
    """The rows of `phalanx bench`. Wrong elements are a failure: it says so by its status."""
    return [json.loads(line) for line in run([str(PHALANX), "bench", "--json", *options]).splitlines()]


def figures_of(rows: list[dict[str, object]]) -> Figures:
    def number(row: dict[str, object], key: str) -> float:
        return float(str(row[key]))

    return {int(number(row, "bytes")): Figure(number(row, "time_us_p50"), number(row, "time_us_p99")) for row in rows}


def named_sizes(work: Work) -> list[str]:
    # A barrier has no size, and the bench takes none.
    return [] if work.collective == "barrier" else ["--bytes", ",".join(map(str, work.sizes))]


def phalanx(*options: str) -> Contender:
    def measure(work: Work) -> Figures:
        return figures_of(bench(work.collective, "-np", str(work.ranks), *options, *named_sizes(work)))

    return measure


def limit(work: Work, what: str = "shared") -> Figures:
    """What the machine allows to threads: see `phalanx bench --limit`."""
    return figures_of(bench(work.collective, f"--limit={what}", "-np", str(work.ranks), *named_sizes(work)))


def parse_times(output: str) -> Figures:
    rows = [line.split() for line in output.splitlines() if line.strip()]
    return {int(size): Figure(float(p50), float(p99)) for size, p50, p99 in rows}


def mpi(launcher: str, binary: Path, *options: str, bound: list[str], crowded: list[str]) -> Contender:
    """One process a core where there are enough, otherwise several: `bound` and `crowded` are the options for it."""

    def measure(work: Work) -> Figures:
        place = bound if work.ranks <= len(cores()) else crowded
        command = [launcher, *place, *options, "-np", str(work.ranks), str(binary), work.collective, str(BUDGET_MS)]
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return parse_times(run([*command, *map(str, work.sizes)], **as_root))

    return measure


def gloo(python: str) -> Contender:
    def measure(work: Work) -> Figures:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        program = [python, str(PEERS / "gloo_allreduce.py"), str(BUDGET_MS), *map(str, work.sizes)]
        processes = []
        for rank in range(work.ranks):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(work.ranks), "OMP_NUM_THREADS": "1"}
            place = ["taskset", "-c", str(cores()[rank % len(cores())])]
            environment = {**os.environ, **variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(subprocess.Popen([*place, *program], env=environment, stdout=subprocess.PIPE, text=True))
        output = "".join(process.communicate(timeout=900)[0] for process in processes)
        if any(process.returncode for process in processes):
            raise Failed("torch.distributed with Gloo failed; its words are above")
        return parse_times(output)

    return measure


def build(compiler: str, launcher: str) -> Path:
    """The program that measures an MPI, built with its own compiler."""
    binary = ROOT / "target" / f"mpi_collectives-{launcher}"
    run([compiler, "-O2", str(PEERS / "mpi_collectives.c"), "-o", str(binary)])
    return binary


def python_with_torch(given: str | None) -> str | None:
    for python in filter(None, [given, str(ROOT / "target" / "venv" / "bin" / "python"), sys.executable]):
        if shutil.which(python) and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    return None


def find(torch_python: str | None) -> tuple[dict[str, Contender], list[str]]:
    """All that can be run here by name, and for each that cannot, why."""
    there: dict[str, Contender] = {
        "Phalanx shm": phalanx("--transport", "shm"),
        "Phalanx registered": phalanx("--transport", "shm", "--registered"),
        "Phalanx tcp": phalanx("--transport", "tcp"),
        "limit": limit,
        "limit of private buffers": lambda work: limit(work, "private"),
        "limit of sockets": lambda work: limit(work, "sockets"),
    }
    absent = []
    mpis = {
        "Open MPI": (
            "openmpi",
            "libopenmpi-dev and openmpi-bin",
            ["--bind-to", "core"],
            ["--oversubscribe", "--bind-to", "core:overload-allowed"],
        ),
        "MPICH": ("mpich", "libmpich-dev and mpich", ["-bind-to", "core"], []),
    }
    for name, (suffix, packages, bound, crowded) in mpis.items():
        compiler, launcher = shutil.which(f"mpicc.{suffix}"), shutil.which(f"mpirun.{suffix}")
        if not compiler or not launcher:
            absent.append(f"{name}: no mpicc.{suffix} and mpirun.{suffix}; Debian has them in {packages}")
            continue
        try:
            binary = build(compiler, suffix)
        except Failed as error:
            absent.append(f"{name}: {error}; Debian has what it needs in {packages}")
            continue
        there[f"{name} shm"] = mpi(launcher, binary, bound=bound, crowded=crowded)
        if suffix == "openmpi":
            only_tcp = ["--mca", "btl", "tcp,self", "--mca", "pml", "ob1"]
            there[f"{name} tcp"] = mpi(launcher, binary, *only_tcp, bound=bound, crowded=crowded)
    python = python_with_torch(torch_python)
    if python:
        there["Gloo"] = gloo(python)
    else:
        absent.append("Gloo: no Python with torch; see --torch-python")
    return there, absent
