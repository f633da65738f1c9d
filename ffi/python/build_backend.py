"""Builds the wheel: maturin makes the extension module, and the `phalanx` program goes in beside it.

maturin builds either an extension module or a program from one package, but the wheel needs both: `phalanx run` keeps
one small guard process for each rank, and starts it as itself, so that it should be the program proper and not a
Python interpreter that calls into the extension module. This file is the build back end that `pyproject.toml` names.
It builds the program first, puts it where maturin takes files for the environment's `bin` folder from, and hands
everything else on to maturin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "phalanx.data" / "scripts"
# maturin wants the folder to be there, also when it is only asked about the package.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_program() -> None:
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "rustc", "--release", "--package", "phalanx", "--bin", "phalanx", "--message-format=json"]
    command += ["--manifest-path", str(HERE / "Cargo.toml"), "--", "-C", "strip=symbols"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    programs = [message["executable"] for message in messages if message.get("executable")]
    shutil.copy2(programs[-1], SCRIPTS / "phalanx")


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_program()
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_program()
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return name
