"""What ranks cost while they wait and while they are: processor time and memory, read from /proc."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contenders import PHALANX, Failed
from sweep import Verdict

MIB = float(1 << 20)
TICKS = os.sysconf("SC_CLK_TCK")

# A rank waits for so many seconds: a clock tick of 10 ms more or less is well below the bar.
WAIT_SECONDS = 5.0


def read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        # It has ended.
        return ""


def ranks_of(launcher: int) -> list[int]:
    """Those below the launcher that have nobody below them: between is a guard for each rank."""
    below = [int(pid) for task in Path(f"/proc/{launcher}/task").glob("*/children") for pid in task.read_text().split()]
    return [rank for pid in below for rank in (ranks_of(pid) or [pid])]


def is_bench(pid: int) -> bool:
    return "\0bench\0" in read(pid, "cmdline") and "\0guard\0" not in read(pid, "cmdline")


def seconds_used(pid: int) -> float:
    """Of the processor, by all threads. The name of a program may have spaces: fields are counted behind it."""
    fields = read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


@contextmanager
def job(ranks: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A bench that goes on until it is ended, and the process of each of its ranks."""
    command = [str(PHALANX), "run", "-np", str(ranks), str(PHALANX), "bench", "--json", "--iters", "100000000"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while len(found := [pid for pid in ranks_of(process.pid) if is_bench(pid)]) < ranks:
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{ranks} ranks did not start: {process.stderr.read() if process.stderr else ''}")
            time.sleep(0.05)
        yield process, found
    finally:
        for pid in ranks_of(process.pid) if process.poll() is None else []:
            # A stopped one would not hear that it has to end.
            os.kill(pid, signal.SIGCONT)
        process.terminate()
        process.communicate(timeout=60)


def busy(pids: list[int], least: float) -> None:
    """Waits until all have worked for so long: then they are connected, and in their loop."""
    deadline = time.monotonic() + 60
    while any(seconds_used(pid) < least for pid in pids):
        if time.monotonic() > deadline:
            raise Failed("the ranks do not come to their loop")
        time.sleep(0.05)


def idle(transport: str) -> Verdict:
    """One rank of two is stopped in the middle of allreduces: the other waits. What does that cost?"""
    with job(2, "allreduce", "--bytes", "8", "--transport", transport) as (_, ranks):
        busy(ranks, 0.3)
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(0.5)
        before, began = seconds_used(ranks[0]), time.monotonic()
        time.sleep(WAIT_SECONDS)
        share = (seconds_used(ranks[0]) - before) / (time.monotonic() - began)
    what = f"idle rank waiting for {WAIT_SECONDS:.0f} s, {transport}: share of a core"
    return Verdict(what, "under 1 %", f"{100 * share:.2f} %", share < 0.01)


def memory(ranks: int, collective: str, seconds: float) -> tuple[float, float]:
    """The most resident memory of a rank, and the most of its own (shared pages in parts), in bytes."""
    with job(ranks, collective, "--bytes", "1M", "--transport", "shm") as (_, pids):
        busy(pids, 0.05)
        time.sleep(seconds)
        highest = [int(found[1]) for pid in pids if (found := re.search(r"VmHWM:\s+(\d+)", read(pid, "status")))]
        own = [int(found[1]) for pid in pids if (found := re.search(r"^Pss:\s+(\d+)", read(pid, "smaps_rollup"), re.M))]
    if len(highest) < ranks or len(own) < ranks:
        raise Failed(f"{ranks} ranks of {collective}: some ended while their memory was read")
    return max(highest) * 1024.0, max(own) * 1024.0


def memory_verdicts(seconds: float) -> list[Verdict]:
    """Measured at 64 ranks; at 1,000 from what each peer adds between 16 and 64."""
    verdicts = []
    for collective in ("allreduce", "alltoall"):
        _, few = memory(16, collective, seconds)
        highest, own = memory(64, collective, seconds)
        # Judged by what a rank adds to its host: the resident pages count what all share once for each.
        what = f"memory per rank at 64 ranks, {collective} of 1 MiB (buffers included)"
        measured = f"{own / MIB:.1f} MiB own (Pss), {highest / MIB:.1f} MiB at most resident (VmHWM)"
        verdicts.append(Verdict(what, "under 32 MiB", measured, own < 32 * MIB))
        a_peer = max(own - few, 0.0) / 48
        computed = own + a_peer * (1000 - 64)
        what = f"the same at 1,000 ranks, computed: {a_peer / 1024:.0f} KiB a peer"
        verdicts.append(Verdict(what, "none: stated", f"{computed / MIB:.0f} MiB own", None))
    return verdicts
