"""Figures of whole programs: half types beside f32, the call from Python beside the one from Rust, a training step."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from contenders import PHALANX, ROOT, bench, figures_of, run
from sweep import Verdict, say

KIB, MIB = 1 << 10, 1 << 20


def halves(rounds: int) -> list[Verdict]:
    """Elements a second of f16 and bf16 over those of f32, at equal bytes."""
    sizes = [256 * KIB, 2 * MIB, 16 * MIB]
    ratios: dict[str, dict[int, list[float]]] = {half: {size: [] for size in sizes} for half in ("f16", "bf16")}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}, halves beside f32")
        call = ["allreduce", "-np", "2", "--transport", "shm", "--bytes", ",".join(map(str, sizes)), "--dtype"]
        whole = figures_of(bench(*call, "f32"))
        for half, found in ratios.items():
            times = figures_of(bench(*call, half))
            for size in sizes:
                # In as many bytes there are twice as many.
                found[size].append(2 * whole[size].p50 / times[size].p50)
    verdicts = []
    for half, found in ratios.items():
        medians = {size: statistics.median(values) for size, values in found.items()}
        least = min(medians.values())
        said = ", ".join(f"{size // KIB} KiB: {median:.2f}x" for size, median in medians.items())
        what = f"{half} sum, allreduce over shm: elements/s of f32 at equal bytes"
        verdicts.append(Verdict(what, "at least 0.80x (beyond: 2x, equal bytes/s)", said, least >= 0.8, least >= 2))
    return verdicts


def python_call(python: str, rounds: int) -> list[Verdict]:
    """What `phalanx.torch.allreduce_` of 8 B adds to the call from Rust."""
    added = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}, a call from Python")
        script = str(ROOT / "benches" / "allreduce_overhead.py")
        launched = [str(PHALANX), "run", "-np", "2", "--bind-to", "core", "--transport", "shm", "--no-prefix"]
        printed = run([*launched, python, script]).splitlines()
        figures = json.loads(next(line for line in printed if line.startswith("{")))
        rust = figures_of(bench("allreduce", "-np", "2", "--transport", "shm", "--bytes", "8"))[8].p50
        added.append(figures["torch_us_p50"] - rust)
    more = statistics.median(added)
    what = "one phalanx.torch.allreduce_ of 8 B: more than the call from Rust"
    return [Verdict(what, "at most 10 us (beyond: 3 us)", f"{more:.2f} us", more <= 10, more <= 3)]


def training_step(python: str, rounds: int) -> list[Verdict]:
    """A step of a model of 25 million parameters over that step without communication."""
    script = Path("benches") / "ddp_step.py"
    launched = [str(PHALANX), "run", "-np", "2", "--bind-to", "core", "--transport", "shm", "--no-prefix"]
    say("a training step with and without communication")
    printed = run([*launched, python, str(ROOT / script), "--rounds", str(rounds)]).splitlines()
    verdicts = []
    for figure in (json.loads(line) for line in printed if line.startswith("{")):
        hidden, compute = figure["ratio"], figure["compute_ms"]
        longer = figure["compute_ms"] > figure["allreduce_ms"]
        what = f"training step, 25 M parameters, 2 ranks, batch {figure['batch']}: over the step without communication"
        measured = f"{hidden:.3f}x ({compute:.0f} ms alone; its gradients alone {figure['allreduce_ms']:.0f} ms)"
        wanted = "at most 1.10x" if longer else "none: compute is shorter"
        verdicts.append(Verdict(what, wanted, measured, hidden <= 1.10 if longer else None))
    return verdicts
