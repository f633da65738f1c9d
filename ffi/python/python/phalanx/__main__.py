"""`python -m phalanx run ...`: the `phalanx` program of this environment."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def main() -> None:
    """Becomes the program that was installed with this package."""
    folders = os.pathsep.join(
        [sysconfig.get_path("scripts"), os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    )
    program = shutil.which("phalanx", path=folders)
    if program is None:
        sys.exit("the phalanx program is not installed beside this package; install the package with pip")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
