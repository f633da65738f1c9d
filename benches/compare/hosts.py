"""Four hosts with links of 1 Gbit/s, which are network namespaces: how near to the links' goodput Phalanx comes.

Also the program that measures the goodput: `hosts.py RANK BYTES ADDRESS...` on each host, every one sending to the
next while it receives from the one before.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "phxcmp"
PORT = 29777
MIB = 1 << 20


def goodput(rank: int, total: int, addresses: list[str]) -> None:
    """Prints the seconds from when all are connected until everything is received."""
    size = len(addresses)
    listener = socket.create_server((addresses[rank], PORT))
    following = (addresses[(rank + 1) % size], PORT)
    deadline = time.monotonic() + 20
    while True:
        try:
            to_next = socket.create_connection(following, timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    from_previous, _ = listener.accept()
    to_next.settimeout(60)
    from_previous.settimeout(60)
    # Twice around: then all are connected, and begin within a few hundred microseconds.
    for _ in range(2 * size):
        to_next.sendall(b"?")
        from_previous.recv(1, socket.MSG_WAITALL)
    began = time.monotonic()
    block = memoryview(bytearray(MIB))
    sender = threading.Thread(target=lambda: [to_next.sendall(block) for _ in range(total // MIB)])
    sender.start()
    left = total
    while left:
        count = from_previous.recv_into(block)
        if not count:
            sys.exit("the host before ended early")
        left -= count
    taken = time.monotonic() - began
    sender.join()
    print(taken)


@contextmanager
def four_hosts() -> Iterator[list[str]]:
    """The names of four hosts. Raises Failed where there can be none."""
    from contenders import ROOT, run

    script, variables = str(ROOT / "tests" / "hosts.sh"), {"HOSTS_PREFIX": PREFIX}
    run(["bash", script, "up", "4", "1gbit"], **variables)
    try:
        yield [f"{PREFIX}{number}" for number in range(1, 5)]
    finally:
        run(["bash", script, "down"], **variables)


def link_goodput(names: list[str], total: int) -> float:
    """Bytes a second of the slowest link, all of them busy both ways."""
    from contenders import Failed

    addresses = [f"10.78.0.{number}" for number in range(1, len(names) + 1)]
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, __file__, str(rank), str(total), *addresses],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(names)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise Failed("the goodput of the links could not be measured; why is above")
    return total / max(map(float, said))


def sent(name: str) -> int:
    """Bytes that a host has sent so far, as the switch counts them."""
    port = name.replace(PREFIX, f"{PREFIX}port")
    return int(Path(f"/sys/class/net/{port}/statistics/rx_bytes").read_text())


def verdicts(rounds: int) -> list[object]:
    from contenders import Failed, bench
    from sweep import Verdict, say

    if os.geteuid() != 0:
        return [Verdict("4 hosts with 1 Gbit/s links", "", "not measured: network namespaces need root", None)]
    shares, times, carried = [], [], {"": [], "ring": []}
    try:
        with four_hosts() as names:
            place = ["--hosts", ",".join(names)]
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}, 4 hosts")
                speed = link_goodput(names, 64 * MIB)
                small, large = bench("allreduce", "-np", "4", *place, "--bytes", "64K,64M", "--iters", "10")
                shares.append(float(str(large["busbw_gbs"])) * 1e9 / speed)
                needed = 1.5 * 65536 / speed * 1e6
                times.append(float(str(small["time_us_p50"])) / needed)
            for algorithm, found in carried.items():
                forced = ["--algorithm", algorithm] if algorithm else []
                before = sent(names[0])
                call = ["-np", "4", "--hosts", ",".join(names[:2]), "--bytes", "16M", "--iters", "20", "--warmup", "0"]
                bench("allreduce", *call, *forced)
                found.append((sent(names[0]) - before) / 20 / (16 * MIB))
    except Failed as error:
        return [Verdict("4 hosts with 1 Gbit/s links", "", f"not measured: {error}", None)]
    share, slower = statistics.median(shares), statistics.median(times)
    ours, ring = carried[""][0], carried["ring"][0]
    return [
        Verdict(
            "4 hosts with 1 Gbit/s links, 64 MiB: busbw of the links' goodput",
            "at least 0.97 (beyond: 0.99)",
            f"{share:.3f}",
            share >= 0.97,
            share >= 0.99,
        ),
        Verdict(
            "the same, 64 KiB: time over what the bytes alone need",
            "at most 2x (beyond: 1.4x)",
            f"{slower:.2f}x",
            slower <= 2,
            slower <= 1.4,
        ),
        Verdict(
            "2 hosts x 2 ranks, 16 MiB: bytes on a link for each byte of the buffer",
            "half of the 3.0 that a flat ring's two ranks send",
            f"{ours:.2f} (a forced ring, whose neighbours share hosts where they can: {ring:.2f})",
            ours <= 1.5,
        ),
    ]


if __name__ == "__main__":
    goodput(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
