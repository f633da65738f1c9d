"""Counts the instructions of hot paths under valgrind, and compares them with those recorded beside this file.

    python3 benches/instructions.py             fails if a path got more expensive, and says which, and by how much
    python3 benches/instructions.py --record    writes the counts anew, after a change that is meant
    python3 benches/instructions.py --self-test a path that is made slower must be noticed, and no other

Times differ from run to run and from machine to machine; counts hardly do. Valgrind shows every program the same
processor, without AVX-512, whatever there is below: the kernels that are chosen at run time are those for AVX2. Counts
are those of one compiler. Under another one, a path is held against the others: it may not have grown by more than they
did in the median. Needs `cargo build --release --benches` and valgrind; exit status 3 says what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches" / "instructions.json"

# What counts may differ without a reason: layout of code and heap, the C library's version. And under another compiler.
TOLERANCE, LOOSE = 0.03, 0.15

# Work is done so often, and so often; the difference of the counts is of the work alone.
FEW, MANY = 100, 1100

# What cannot be checked here.
CANNOT = 3

Counts = dict[str, float]


def cannot(why: str) -> int:
    print(f"instructions are not counted: {why}")
    return CANNOT


def compiler() -> str:
    return subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def program() -> Path:
    """The bench as it was last built: its file is named by Cargo."""
    command = ["cargo", "build", "--release", "--locked", "--bench", "instructions", "--message-format", "json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    messages = [json.loads(line) for line in built.splitlines() if line.startswith("{")]
    # The command line's binary is built along, and named too.
    named = [message for message in messages if message.get("target", {}).get("name") == "instructions"]
    found = [message["executable"] for message in named if message.get("executable")]
    return Path(found[-1])


def instructions(binary: Path, path: str, times: int, slower: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder}/out"]
        # Nothing of the user's environment may be counted.
        environment = {"PATH": os.environ["PATH"], "SLOWER_PATH": slower}
        ended = subprocess.run(
            [*valgrind, str(binary), path, str(times)], capture_output=True, text=True, env=environment, timeout=300
        )
    found = re.search(r"I\s+refs:\s+([\d,]+)", ended.stderr)
    if ended.returncode != 0 or not found:
        sys.exit(f"{binary.name} {path} {times} failed under valgrind:\n{ended.stderr}")
    return int(found[1].replace(",", ""))


def count(binary: Path, slower: str = "") -> Counts:
    """Instructions of each path, done once."""
    paths = subprocess.run([str(binary), "--list"], capture_output=True, text=True, check=True).stdout.split()
    counts = {}
    for path in paths:
        few, many = (instructions(binary, path, times, slower) for times in (FEW, MANY))
        counts[path] = round((many - few) / (MANY - FEW), 1)
    return counts


def compare(recorded: Counts, counted: Counts, same_compiler: bool) -> list[str]:
    """Prints each path, and returns what is wrong, a sentence each."""
    wrong = [f"{path} is recorded and no longer there: record anew" for path in recorded if path not in counted]
    wrong += [f"{path} is new: record anew" for path in counted if path not in recorded]
    growth = {path: counted[path] / recorded[path] for path in recorded if path in counted}
    usual = 1.0 if same_compiler or not growth else statistics.median(growth.values())
    tolerance = TOLERANCE if same_compiler else LOOSE
    for path, grown in growth.items():
        change = 100 * (grown / usual - 1)
        print(f"{path:16} {recorded[path]:10.1f} -> {counted[path]:10.1f}  {change:+6.1f} %")
        if grown / usual > 1 + tolerance:
            wrong.append(
                f"{path} takes {change:+.1f} % instructions ({recorded[path]} recorded, {counted[path]} counted, "
                f"{100 * tolerance:.0f} % allowed): mend it, or if it is worth it, record anew"
            )
        elif grown / usual < 1 - tolerance:
            print(f"  {path} got cheaper: record anew, so that it stays so")
    return wrong


def self_test(binary: Path) -> list[str]:
    """One path is made a tenth slower: it is noticed, and nothing else is."""
    usual, wrong = count(binary), []
    for path in ("frame", "message-store"):
        noticed = compare(usual, count(binary, slower=path), same_compiler=True)
        if len(noticed) != 1 or not noticed[0].startswith(f"{path} takes +"):
            wrong.append(f"{path} was made 10 % slower, and what was noticed is: {noticed}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the counts anew")
    parser.add_argument("--self-test", action="store_true", help="show that a slower path is noticed")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        return cannot(f"the recorded counts are of x86_64, this is {platform.machine()}")
    if not shutil.which("valgrind"):
        return cannot("valgrind is not there; Debian has it in valgrind")
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        return cannot("the recorded counts are of the kernels for AVX2, which this processor lacks")
    binary = program()
    if options.self_test:
        wrong = self_test(binary)
    elif options.record:
        record = {"rustc": compiler(), "counts": count(binary)}
        RECORD.write_text(json.dumps(record, indent=4) + "\n")
        wrong = []
    else:
        record, own = json.loads(RECORD.read_text()), compiler()
        if record["rustc"] != own:
            print(f"recorded with {record['rustc']}, built with {own}: paths are held against each other")
        wrong = compare(record["counts"], count(binary), record["rustc"] == own)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
