"""All tests of the Python package: `python run.py [--ranks 1,2,3,4] [pytest's arguments]`.

The tests of `alone/` run in one process, those of `elastic/` start jobs of their own, those of `ranks/` run under
`phalanx run` with each number of ranks. The package must be installed; tests that need NumPy or PyTorch are skipped,
with the reason, where these are not. Device memory is that of a stand-in of the CUDA driver, which is built here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parents[2] / "tests" / "device" / "driver.cpp"


def build_stand_in(folder: str) -> None:
    """The stand-in of the CUDA driver, if there is a compiler; without it the tests that need it are skipped."""
    compiler = shutil.which("c++")
    if compiler is not None and DRIVER.exists():
        options = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-pthread"]
        subprocess.run([compiler, *options, str(DRIVER), "-o", str(Path(folder, "libcuda.so.1"))], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1,2,3,4", help="the numbers of ranks, with commas between")
    options, rest = parser.parse_known_args()
    # A wait that should have ended must not hold up the tests for the usual five minutes.
    environment = os.environ | {"PHALANX_TIMEOUT": os.environ.get("PHALANX_TIMEOUT", "60"), "OMP_NUM_THREADS": "1"}
    single = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    commands = [[*single, str(HERE / part), *rest] for part in ("alone", "elastic")]
    for ranks in options.ranks.split(","):
        launcher = [sys.executable, "-m", "phalanx", "run", "-np", ranks]
        commands.append([*launcher, sys.executable, str(HERE / "one_rank.py"), *rest])
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        build_stand_in(folder)
        environment["PHALANX_LIBRARIES"] = folder
        for command in commands:
            print("==", " ".join(command), flush=True)
            if subprocess.run(command, env=environment, check=False).returncode != 0:
                failed.append(command)
    for command in failed:
        print("failed:", " ".join(command), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
