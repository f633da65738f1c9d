"""Compares allreduce with the peers that are installed, in one run, turn by turn.

    python3 benches/compare.py                      2 and 4 ranks, 8 B to 128 MiB, against Open MPI and Gloo
    python3 benches/compare.py --ranks 2 --bytes 8,4096 --rounds 7 --json

Each round runs every contender once, one after the other, so that whatever else the machine does meets them all alike.
A figure is the median over the rounds; a ratio is the median of the rounds' ratios, below 1 where Phalanx is faster.

Needs the release build (`cargo build --release`). Open MPI is taken if `mpicc.openmpi` and `mpirun.openmpi` are there
(Debian's `libopenmpi-dev` and `openmpi-bin`), Gloo if `--torch-python`, target/venv or this Python can import torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHALANX = ROOT / "target" / "release" / "phalanx"

Times = dict[int, float]
Contender = Callable[[int, list[int]], Times]


def parse_size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def parse_sizes(text: str) -> list[int]:
    if ":" not in text:
        return [parse_size(size) for size in text.split(",")]
    size, last = map(parse_size, text.split(":"))
    sizes = []
    while size <= last:
        sizes.append(size)
        size *= 8
    return sizes


def run(command: list[str], **variables: str) -> str:
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600, check=False
    )
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {ended.returncode}:\n{ended.stderr or ended.stdout}")
    return ended.stdout


def parse_times(output: str) -> Times:
    return {int(line.split()[0]): float(line.split()[1]) for line in output.splitlines() if line.strip()}


def phalanx(transport: str) -> Contender:
    def measure(ranks: int, sizes: list[int]) -> Times:
        command = [str(PHALANX), "bench", "allreduce", "-np", str(ranks), "--transport", transport, "--json"]
        lines = run([*command, "--bytes", ",".join(map(str, sizes))]).splitlines()
        figures = [json.loads(line) for line in lines]
        wrong = sum(figure["wrong"] for figure in figures)
        if wrong:
            sys.exit(f"phalanx over {transport}: {wrong} wrong elements")
        return {figure["bytes"]: figure["time_us_p50"] for figure in figures}

    return measure


def open_mpi(binary: Path, *options: str) -> Contender:
    def measure(ranks: int, sizes: list[int]) -> Times:
        fits = ranks <= len(os.sched_getaffinity(0))
        place = ["--bind-to", "core"] if fits else ["--oversubscribe"]
        command = [shutil.which("mpirun.openmpi") or "mpirun", *place, *options, "-np", str(ranks), str(binary)]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return parse_times(run([*command, *map(str, sizes)], **root))

    return measure


def gloo(python: str) -> Contender:
    def measure(ranks: int, sizes: list[int]) -> Times:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cores = sorted(os.sched_getaffinity(0))
        program = [python, str(ROOT / "benches" / "peers" / "gloo_allreduce.py"), *map(str, sizes)]
        processes = []
        for rank in range(ranks):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
            place = ["taskset", "-c", str(cores[rank])] if ranks <= len(cores) else []
            environment = {**os.environ, **variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(subprocess.Popen([*place, *program], env=environment, stdout=subprocess.PIPE, text=True))
        output = "".join(process.communicate(timeout=600)[0] for process in processes)
        if any(process.returncode for process in processes):
            sys.exit("torch.distributed with Gloo failed")
        return parse_times(output)

    return measure


def find_contenders(torch_python: str | None) -> dict[str, Contender]:
    if not PHALANX.exists():
        sys.exit(f"{PHALANX} is not there: run cargo build --release first")
    contenders = {"phalanx shm": phalanx("shm"), "phalanx tcp": phalanx("tcp")}
    compiler = shutil.which("mpicc.openmpi")
    if compiler and shutil.which("mpirun.openmpi"):
        binary = ROOT / "target" / "mpi_allreduce"
        run([compiler, "-O2", str(ROOT / "benches" / "peers" / "mpi_allreduce.c"), "-o", str(binary)])
        contenders["Open MPI shm"] = open_mpi(binary)
        contenders["Open MPI tcp"] = open_mpi(binary, "--mca", "btl", "tcp,self")
    else:
        print("# Open MPI is not compared: no mpicc.openmpi and mpirun.openmpi", file=sys.stderr)
    for python in filter(None, [torch_python, str(ROOT / "target" / "venv" / "bin" / "python"), sys.executable]):
        if shutil.which(python) and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            contenders["Gloo"] = gloo(python)
            break
    else:
        print("# Gloo is not compared: no Python with torch; see --torch-python", file=sys.stderr)
    return contenders


def show_size(size: int) -> str:
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}iB"
    return f"{size} B"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks [default: 2,4]")
    parser.add_argument("--bytes", default="8:128M", help="sizes: FROM:TO by factors of 8, or a list [default: 8:128M]")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs [default: 3]")
    parser.add_argument("--torch-python", help="a Python that can import torch")
    parser.add_argument("--json", action="store_true", help="one JSON object for each size and number of ranks")
    options = parser.parse_args()
    contenders, sizes = find_contenders(options.torch_python), parse_sizes(options.bytes)
    for ranks in map(int, options.ranks.split(",")):
        rounds = []
        for number in range(options.rounds):
            times = {}
            for name, measure in contenders.items():
                print(f"# {ranks} ranks, round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
                times[name] = measure(ranks, sizes)
            rounds.append(times)
        report(ranks, sizes, list(contenders), rounds, options.json)


def report(ranks: int, sizes: list[int], names: list[str], rounds: list[dict[str, Times]], as_json: bool) -> None:
    pairs = [
        (own, peer)
        for own, peer in [
            ("phalanx shm", "Open MPI shm"),
            ("phalanx shm", "Open MPI tcp"),
            ("phalanx tcp", "Open MPI tcp"),
            ("phalanx tcp", "Gloo"),
        ]
        if peer in names
    ]
    if not as_json:
        print(f"\nallreduce of float32, {ranks} ranks: us, and ratios of Phalanx to a peer\n")
        heads = [*names, *(f"{own.split()[1]} / {peer}" for own, peer in pairs)]
        print("| size | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for size in sizes:
        times = {name: statistics.median(one[name][size] for one in rounds) for name in names}
        ratios = {
            f"{own} / {peer}": statistics.median(one[own][size] / one[peer][size] for one in rounds)
            for own, peer in pairs
        }
        if as_json:
            print(json.dumps({"ranks": ranks, "bytes": size, "us": times, "ratios": ratios}))
        else:
            cells = [f"{time:.3g}" if time < 1000 else f"{time:.0f}" for time in times.values()]
            print(
                f"| {show_size(size)} | " + " | ".join([*cells, *(f"{ratio:.2f}" for ratio in ratios.values())]) + " |"
            )


if __name__ == "__main__":
    main()
