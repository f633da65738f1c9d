"""Checks forecasts of `phalanx simulate` against what this machine can run, and draws those for worlds it cannot.

    python3 benches/worlds.py                         measure, calibrate, predict, compare; as root, a few minutes
    python3 benches/worlds.py --scenes shm2,tcp2      without root
    python3 benches/worlds.py --only-plots            forecasts for large worlds alone

Each scene is a world that fits here: ranks over shared memory, over TCP on loopback, and in network namespaces with
links of 1 Gbit/s. What a message costs comes from three figures of the scene: a
barrier, a short one-shot allreduce, in which everybody speaks to everybody, and a long two-shot allreduce. They make a
fabric, in which `phalanx simulate` predicts other algorithms at other sizes; those are then measured by force. The
errors are printed and written to docs/figures/worlds-calibration.csv, with the plots beside.

Needs the release build, and matplotlib for the plots; iproute2 and root for the namespaces.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plot import Points, log_plot, name_bytes

ROOT = Path(__file__).resolve().parent.parent
PHALANX = ROOT / "target" / "release" / "phalanx"
FIGURES = ROOT / "docs" / "figures"
CORES = len(os.sched_getaffinity(0))

SHORT, LONG = 8, 4 << 20
SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
# Up to this many bytes, many rounds are quick.
SMALL = 64 << 10
FLAT = ["ring", "double_tree", "recursive_doubling", "halving_doubling"]
# Bytes a second of a cable: what it is shaped to, less the headers of TCP, IP and Ethernet.
GOODPUT = 1e9 / 8 * 1448 / 1514
LARGE_ALGORITHMS = [*FLAT, "hierarchical"]

Cell = tuple[str, int]
Row = dict[str, str | int | float]
Costs = tuple[float, float, float]


@dataclass(frozen=True)
class Scene:
    """A world that fits here."""

    name: str
    ranks: int
    # Namespaces; 0 for one host.
    hosts: int = 0
    transport: str = "shm"
    # The scene whose ranks each have a host, which says what a message between hosts costs.
    network: str = ""

    @property
    def in_turn(self) -> int:
        """Ranks for each core."""
        return -(-self.ranks // CORES)


SCENES = {
    scene.name: scene
    for scene in [
        Scene("shm2", 2),
        Scene("shm4", 4),
        Scene("tcp2", 2, transport="tcp"),
        Scene("tcp4", 4, transport="tcp"),
        Scene("net4", 4, hosts=4, transport="tcp"),
        Scene("net8", 8, hosts=8, transport="tcp"),
        Scene("net4x2", 8, hosts=4, network="net8"),
        Scene("net4x4", 16, hosts=4, network="net8"),
    ]
}

# 8 and 16 ranks in namespaces take longer than their figures are worth on two cores, unless asked for.
DEFAULT = [name for name in SCENES if name not in ("net8", "net4x4")]


def run(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {ended.returncode}:\n{ended.stderr or ended.stdout}")
    return ended.stdout


def namespace(host: int) -> str:
    return f"phxw{host}"


@contextmanager
def namespaces(count: int) -> Iterator[None]:
    """Hosts on one bridge, each cable with 1 Gbit/s each way; none for 0."""
    if count == 0:
        yield
        return
    hosts = ["env", "HOSTS_PREFIX=phxw", "bash", str(ROOT / "tests" / "hosts.sh")]
    try:
        run([*hosts, "up", str(count), "1gbit"])
        yield
    finally:
        run([*hosts, "down"])


def bench(scene: Scene, collective: str, sizes: list[int], algorithm: str | None, rounds: int) -> dict[int, float]:
    """Median seconds by size."""
    where = ["--hosts", ",".join(namespace(host) for host in range(1, scene.hosts + 1))] if scene.hosts else []
    if not (scene.hosts and scene.network):
        where += ["--transport", scene.transport]
    times = {}
    for part, iterations in [
        ([s for s in sizes if s <= SMALL], 20 * rounds),
        ([s for s in sizes if s > SMALL], rounds),
    ]:
        if part:
            command = [str(PHALANX), "bench", collective, "--np", str(scene.ranks), *where, "--json"]
            command += ["--bytes", ",".join(map(str, part)), "--iters", str(iterations)]
            if collective == "allreduce":
                command += ["--in-place"]
            command += ["--algorithm", algorithm] if algorithm else []
            for line in run(command).splitlines():
                row = json.loads(line)
                times[int(row["bytes"])] = row["time_us_p50"] * 1e-6
    return times


def port(scene: Scene, rounds: int) -> Costs:
    """Latency and overhead of a message, and bytes a second that each rank sends and receives at once."""
    turns, others = scene.in_turn, scene.ranks - 1
    # A round of a barrier is a message out and one in, for each rank of a core; one-shot is that for each other rank.
    # Forced, both go the way of all schedules.
    in_a_barrier = bench(scene, "barrier", [0], "dissemination", rounds)[0] / (scene.ranks - 1).bit_length()
    everybody = bench(scene, "allreduce", [SHORT], "one_shot", rounds)[SHORT]
    if others > 1:
        overhead = max(everybody - in_a_barrier, 0.0) / (2 * turns * (others - 1))
        overhead = min(overhead, in_a_barrier / (2 * turns))
    else:
        # Two ranks cannot tell the one from the other.
        overhead = in_a_barrier / 4
    latency = in_a_barrier - 2 * turns * overhead
    # Two-shot sends, and receives, all but a rank's own part twice.
    long = bench(scene, "allreduce", [LONG], "two_shot", rounds)[LONG] - 2 * everybody
    return latency, overhead, 2 * others / scene.ranks * LONG / long


def calibrate(scene: Scene, ports: dict[str, Costs]) -> str:
    """The scene's fabric, as text."""
    near = ports["shm4" if scene.hosts else scene.name]
    # One host's ranks each send and receive at once, on cores that they share.
    memory_rate = near[2] * 2 * SCENES["shm4" if scene.hosts else scene.name].in_turn
    lines = {
        "name": scene.name,
        "ranks-per-host": max(scene.ranks // max(scene.hosts, 1), 1),
        "cores-per-host": CORES,
        "one-machine": "true" if scene.hosts else "false",
        "memory-latency": f"{near[0] * 1e6} us",
        "memory-overhead": f"{near[1] * 1e6} us",
        "memory-rate": f"{memory_rate / 1e9} GB/s",
        "hop-latency": "0 us",
    }
    if scene.hosts:
        latency, overhead, _ = ports[scene.network or scene.name]
        lines |= {"network-latency": f"{latency * 1e6} us", "network-overhead": f"{overhead * 1e6} us"}
        # The cables bound a long exchange, so that what cores could do is known from loopback.
        loopback = ports["tcp4"][2] * 2 * SCENES["tcp4"].in_turn
        lines |= {"network-rate": f"{loopback / 1e9} GB/s", "nic-rate": f"{GOODPUT / 1e9} GB/s"}
    return "".join(f"{key} = {value}\n" for key, value in lines.items())


def predict(fabric: Path, ranks: str, sizes: list[int], algorithms: list[str]) -> list[Row]:
    command = [str(PHALANX), "simulate", "allreduce", "--ranks", ranks, "--bytes", ",".join(map(str, sizes))]
    command += ["--fabric", str(fabric), "--algorithms", ",".join(algorithms), "--json"]
    return [json.loads(line) for line in run(command).splitlines()]


def check(names: list[str], rounds: int, folder: Path) -> list[Row]:
    """Every scene: calibrated, predicted, measured."""
    ports: dict[str, Costs] = {}
    rows: list[Row] = []
    for name in needed(names):
        scene = SCENES[name]
        with namespaces(scene.hosts):
            if not scene.network:
                ports[name] = port(scene, rounds)
            if name not in names:
                continue
            fabric = folder / f"{name}.fabric"
            fabric.write_text(calibrate(scene, ports), encoding="utf-8")
            algorithms = [*FLAT, "hierarchical"] if scene.network else FLAT
            forecasts: dict[Cell, float] = {
                (str(row["algorithm"]), int(row["bytes"])): float(row["seconds"])
                for row in predict(fabric, str(scene.ranks), SIZES, algorithms)
            }
            for algorithm in algorithms:
                for size, seconds in bench(scene, "allreduce", SIZES, algorithm, rounds).items():
                    forecast = forecasts[algorithm, size]
                    rows.append(
                        {
                            "scene": name,
                            "algorithm": algorithm,
                            "bytes": size,
                            "measured_us": round(seconds * 1e6, 2),
                            "predicted_us": round(forecast * 1e6, 2),
                            "error": round(forecast / seconds - 1, 3),
                        }
                    )
    return rows


def needed(names: list[str]) -> list[str]:
    """The scenes asked for and those that their calibration needs, in order."""
    wanted = set(names)
    for name in names:
        scene = SCENES[name]
        if scene.hosts:
            wanted |= {"shm4", "tcp4", scene.network or name}
    return [name for name in SCENES if name in wanted]


def report(rows: list[Row]) -> str:
    """A table of errors, a row for each scene and algorithm, and the medians of their sizes."""
    lines = ["| scene | algorithm | " + " | ".join(map(name_bytes, SIZES)) + " |", "|---" * (2 + len(SIZES)) + "|"]
    keys = dict.fromkeys((str(row["scene"]), str(row["algorithm"])) for row in rows)
    for scene, algorithm in keys:
        errors = {
            int(row["bytes"]): float(row["error"])
            for row in rows
            if (row["scene"], row["algorithm"]) == (scene, algorithm)
        }
        cells = " | ".join(f"{errors[size]:+.0%}" if size in errors else "" for size in SIZES)
        lines.append(f"| {scene} | `{algorithm}` | {cells} |")
    for scene in dict.fromkeys(str(row["scene"]) for row in rows):
        errors_of_scene = [abs(float(row["error"])) for row in rows if row["scene"] == scene]
        lines.append(f"# {scene}: median error {statistics.median(errors_of_scene):.0%}")
    lines.append(f"# all: median error {statistics.median(abs(float(row['error'])) for row in rows):.0%}")
    return "\n".join(lines)


def hits(rows: list[Row]) -> str:
    """Whether the forecast names the fastest algorithm, and what it costs where it does not."""
    costs = []
    for key in dict.fromkeys((row["scene"], row["bytes"]) for row in rows):
        cells = [row for row in rows if (row["scene"], row["bytes"]) == key]
        named = min(cells, key=lambda row: float(row["predicted_us"]))
        best = min(cells, key=lambda row: float(row["measured_us"]))
        costs.append(float(named["measured_us"]) / float(best["measured_us"]) - 1)
    near = sum(cost <= 0.15 for cost in costs)
    return f"# the algorithm forecast as fastest is within 15 % of the fastest in {near} of {len(costs)} cells"


def kept(names: list[str]) -> list[Row]:
    """What an earlier run found of other scenes."""
    path = FIGURES / "worlds-calibration.csv"
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [
            {"scene": row["scene"], "algorithm": row["algorithm"], "bytes": int(row["bytes"])}
            | {name: float(row[name]) for name in ("measured_us", "predicted_us", "error")}
            for row in csv.DictReader(file)
            if row["scene"] in SCENES and row["scene"] not in names
        ]


def draw_large() -> None:
    """Time against ranks on the preset of a Clos, for a short and a long buffer."""
    rows = predict(Path("clos-400g-4to1"), "8:16384", [1 << 20, 64 << 20], LARGE_ALGORITHMS)
    for size, name in [(1 << 20, "1m"), (64 << 20, "64m")]:
        series: dict[str, Points] = {
            algorithm: [
                (float(row["ranks"]), float(row["seconds"]) * 1e6)
                for row in rows
                if row["algorithm"] == algorithm and row["bytes"] == size and row["seconds"] is not None
            ]
            for algorithm in LARGE_ALGORITHMS
        }
        title = f"allreduce of {name_bytes(size)} on clos-400g-4to1, predicted"
        log_plot(FIGURES / f"worlds-{name}.svg", title, "ranks", "us", series)


def draw_calibration(rows: list[Row]) -> None:
    """Forecasts beside measurements, in the largest flat scene there is."""
    scenes = [str(row["scene"]) for row in rows if not SCENES[str(row["scene"])].network]
    if not scenes:
        return
    scene = scenes[-1]
    series: dict[str, Points] = {}
    for algorithm in FLAT:
        cells = [row for row in rows if row["scene"] == scene and row["algorithm"] == algorithm]
        for what in ["measured", "predicted"]:
            series[f"{algorithm}, {what}"] = [(float(row["bytes"]), float(row[f"{what}_us"])) for row in cells]
    log_plot(FIGURES / "worlds-calibration.svg", f"allreduce in scene {scene}", "bytes", "us", series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default=",".join(DEFAULT), help="those to check, with commas")
    parser.add_argument(
        "--rounds", type=int, default=10, help="timed iterations of long calls; short ones 20 times as many"
    )
    parser.add_argument("--only-plots", action="store_true", help="draw, measure nothing")
    parser.add_argument("--no-plots", action="store_true", help="print and write figures alone")
    arguments = parser.parse_args()
    names = [name for name in arguments.scenes.split(",") if name]
    if unknown := [name for name in names if name not in SCENES]:
        sys.exit(f"--scenes {','.join(unknown)} given, {', '.join(SCENES)} expected")
    if not PHALANX.exists():
        sys.exit(f"{PHALANX.relative_to(ROOT)} is missing: cargo build --release")
    FIGURES.mkdir(parents=True, exist_ok=True)
    if not arguments.only_plots:
        with tempfile.TemporaryDirectory() as folder:
            rows = check(names, arguments.rounds, Path(folder))
        rows = kept(names) + rows
        rows.sort(key=lambda row: list(SCENES).index(str(row["scene"])))
        with open(FIGURES / "worlds-calibration.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(report(rows))
        print(hits(rows))
    if not arguments.no_plots:
        draw_calibration(kept([]))
        draw_large()


if __name__ == "__main__":
    main()
