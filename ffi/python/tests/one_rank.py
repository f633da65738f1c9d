"""The tests of `ranks/`, as one rank of several: `phalanx run -np N python one_rank.py [pytest's arguments]`.

Rank 0 shows what it tests. The other ranks are quiet, unless something fails there. All end at the first failure,
since the ranks are out of step after it.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

import phalanx

RANKS = Path(__file__).resolve().parent / "ranks"


def main() -> int:
    phalanx.init()
    arguments = ["-x", "-p", "no:cacheprovider", *sys.argv[1:]]
    if not any(argument.endswith(".py") or "::" in argument for argument in arguments):
        arguments.append(str(RANKS))
    if phalanx.rank() == 0:
        return int(pytest.main(arguments))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = int(pytest.main(arguments))
    if code != 0:
        print(shown.getvalue(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
