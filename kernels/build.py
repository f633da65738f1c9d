#!/usr/bin/env python3
"""Compiles the kernels with nvcc for every architecture, and reads the report of its assembler.

    python3 kernels/build.py --nvcc PATH --output target/kernels/phalanx.fatbin
    python3 kernels/build.py --nvcc PATH --self-test      shows that the check below can fail

A warning fails, and so does a kernel that spills registers or keeps anything in local memory. Prints, for each
architecture, how many kernels there are and the most registers that one of them uses.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
# Contraction would round a * b + c once, where the host rounds twice.
OPTIONS = ["-std=c++17", "-O3", "-fmad=false", "-Werror", "all-warnings"]
OPTIONS += ["-Xptxas", "-v,-warn-spills,-warn-lmem-usage"]

# Of local memory: an array that is indexed by what only the launch tells.
SPILLS = """
extern "C" __global__ void spills(int *target, const int *source) {
    int kept[64];
    for (int at = 0; at < 64; ++at) kept[source[at] & 63] = source[at * threadIdx.x];
    target[threadIdx.x] = kept[target[threadIdx.x] & 63];
}
"""


@dataclass
class Report:
    """What the assembler says of one architecture's kernels."""

    architecture: int
    kernels: int
    registers: int
    faults: list[str]


def read_report(architecture: int, text: str) -> Report:
    faults = []
    name = "?"
    kernels = 0
    registers = [0]
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
            kernels += 1
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if any(int(number) for number in match.groups()):
                faults.append(f"{name} for sm_{architecture}: {line.strip()}")
        elif match := re.search(r"Used (\d+) registers", line):
            registers.append(int(match[1]))
        if re.search(r"\b(warning|error)\b", line):
            faults.append(line.strip())
    if not kernels:
        faults.append(f"sm_{architecture}: the assembler reports no kernel")
    return Report(architecture, kernels, max(registers), faults)


def compile_for(nvcc: str, source: Path, architecture: int, output: Path) -> Report:
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = [nvcc, *OPTIONS, code, "-cubin", "-o", str(output), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = read_report(architecture, done.stdout + done.stderr)
    if done.returncode != 0:
        if not report.faults:
            report.faults += (done.stdout + done.stderr).splitlines()[-20:]
        report.faults.insert(0, f"nvcc for sm_{architecture} ended with {done.returncode}:")
    return report


def build(nvcc: str, output: Path) -> bool:
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        images = {number: Path(folder) / f"sm_{number}.cubin" for number in ARCHITECTURES}

        def one(number: int) -> Report:
            return compile_for(nvcc, HERE / "phalanx.cu", number, images[number])

        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(one, ARCHITECTURES))
        for report in reports:
            print(f"sm_{report.architecture}: {report.kernels} kernels, at most {report.registers} registers")
        faults = [fault for report in reports for fault in report.faults]
        if len({report.kernels for report in reports}) > 1:
            faults.append("not every architecture has the same number of kernels")
        for fault in faults:
            print(fault, file=sys.stderr)
        if faults:
            return False
        parts = [f"--image3=kind=elf,sm={number},file={image}" for number, image in images.items()]
        subprocess.run([str(Path(nvcc).with_name("fatbinary")), "-64", f"--create={output}", *parts], check=True)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB, no spills, no local memory, no warnings")
    return True


def self_test(nvcc: str) -> bool:
    """Whether a kernel that uses local memory is found out."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "spills.cu"
        source.write_text(SPILLS, encoding="utf-8")
        report = compile_for(nvcc, source, ARCHITECTURES[0], Path(folder) / "spills.cubin")
    found = any("spills for" in fault for fault in report.faults)
    print("a kernel that uses local memory is found out" if found else f"nothing was found in:\n{report}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc", help="the compiler, of CUDA 12.8 or later [default: nvcc]")
    parser.add_argument("--output", type=Path, default=Path("target/kernels/phalanx.fatbin"))
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    good = self_test(options.nvcc) if options.self_test else build(options.nvcc, options.output)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
