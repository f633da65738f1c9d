"""Elastic jobs under `phalanx run`, whose ranks are scripts that tell what they do, line by line."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Nothing here takes a tenth of it; it ends a test that hangs.
PATIENCE = 120

# What every rank's script begins with.
PRELUDE = """
import os, sys
import phalanx
from phalanx import elastic

def tell(what, *words):
    # In one write, so that no other rank's line comes in between.
    sys.stdout.write(f"{what}: {elastic.slot()} {os.getpid()} {' '.join(map(str, words))}\\n")
    sys.stdout.flush()
"""


class Job:
    """A running job. `lines` has what its ranks and the launcher said so far."""

    def __init__(self, folder: Path, script: str, *options: str, prelude: str = PRELUDE, **environment: str) -> None:
        self.file = folder / "rank.py"
        self.file.write_text(prelude + script)
        self.folder = folder
        self.lines: list[str] = []
        self.pids: dict[int, int] = {}
        settings = {"PHALANX_TIMEOUT": "60", "OMP_NUM_THREADS": "1", "JOB_FOLDER": str(folder)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "run", *options, sys.executable, str(self.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | settings | environment,
        )
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line(self) -> str | None:
        """The next line; none at the end."""
        try:
            line = self._queue.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"nothing was said for {PATIENCE} s after\n{self.text}") from None
        if line is not None:
            self.lines.append(line)
            told = re.match(r"\[\d+\] \w+: (\d+) (\d+)\b", line)
            if told:
                self.pids[int(told[1])] = int(told[2])
        return line

    def wait_for(self, pattern: str, count: int = 1) -> list[re.Match[str]]:
        """Waits until as many lines as that have been said, from now on."""
        found: list[re.Match[str]] = []
        until = time.monotonic() + PATIENCE
        while len(found) < count:
            line = self.line()
            # Ranks that go on say more and more.
            assert line is not None and time.monotonic() < until, f"no {pattern!r} in\n{self.text[-20_000:]}"
            match = re.search(pattern, line)
            if match:
                found.append(match)
        return found

    def signal(self, slot: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pids[slot], number)

    def write(self, name: str) -> None:
        """Makes a file that the ranks look for."""
        (self.folder / name).write_text("")

    def end(self, code: int | None = 0) -> str:
        """Waits for the end, with this exit code if one is given."""
        while self.line() is not None:
            pass
        ended = self._process.wait(PATIENCE)
        assert code in (None, ended), f"exit code {ended}\n{self.text}"
        return self.text

    def told(self, what: str) -> list[tuple[int, str]]:
        """What ranks told under a name: their slots, and their words."""
        found = re.findall(rf"(?m)^\[\d+\] {what}: (\d+) \d+ ?(.*)$", self.text)
        return [(int(slot), words) for slot, words in found]


def check_ends(job: Job, slots: list[int]) -> None:
    """All that are left ended alike."""
    ends = job.told("end")
    assert sorted(slot for slot, _ in ends) == slots, job.text
    assert len({words for _, words in ends}) == 1, ends
    assert "Traceback" not in job.text, job.text
