"""The package by itself: what it needs, what it says when it was not initialised, what its errors are."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import phalanx
from phalanx import _native, rows


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )


def test_neither_numpy_nor_torch_is_imported() -> None:
    code = "import sys, phalanx; phalanx.init(); x = phalanx.allreduce(bytearray([2]), phalanx.Sum)\n"
    code += "assert x == bytearray([2]); print([name for name in ('numpy', 'torch') if name in sys.modules])"
    result = run(code)
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


def test_before_init_and_after_shutdown() -> None:
    for call in (phalanx.rank, phalanx.size, phalanx.barrier, phalanx.world):
        with pytest.raises(phalanx.NotInitializedError, match="init"):
            call()
    assert not phalanx.is_initialized()
    phalanx.shutdown()
    code = "import phalanx; world = phalanx.init(); phalanx.shutdown(); assert not phalanx.is_initialized()\n"
    code += "try: world.barrier()\nexcept phalanx.ClosedError as error: print(error.fault)"
    result = run(code)
    assert (result.returncode, result.stdout) == (0, "caller\n"), result.stderr


@pytest.mark.parametrize("module", ["", "numpy", "torch"])
def test_a_buffer_outlives_its_world(module: str) -> None:
    if module:
        pytest.importorskip(module)
    code = f"""
import gc, sys
import phalanx
phalanx.init()
assert phalanx.size() == 2
buffer = phalanx.alloc(50_000, "i64")
assert buffer.is_shared
view = buffer.view()
view[49_999] = 5
phalanx.allreduce_(buffer, phalanx.Sum)
if {module!r} == "numpy":
    import numpy
    view = numpy.asarray(buffer)
if {module!r} == "torch":
    import torch
    view = torch.from_dlpack(buffer)[1:]
    assert view[-1] == 10
del buffer
phalanx.shutdown()
gc.collect()
view[0] = 3
assert (view[0], view[-1]) == (3, 10), (view[0], view[-1])
print("well")
"""
    result = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "-np", "2", sys.executable, "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout.count("well")) == (0, 2), result.stderr


def test_errors_are_pythons_own_too() -> None:
    assert issubclass(phalanx.PhalanxTimeoutError, TimeoutError)
    assert issubclass(phalanx.InvalidArgumentError, ValueError)
    assert issubclass(phalanx.NotInitializedError, ValueError)
    for name in phalanx.errors.__all__:
        kind = getattr(phalanx, name)
        assert issubclass(kind, phalanx.PhalanxError) and issubclass(kind, RuntimeError)
        assert kind("words").fault in ("caller", "peer", "environment", "bug")


def test_help_on_a_function_is_that_on_the_method() -> None:
    assert "postscale_factor * op(" in (phalanx.allreduce.__doc__ or "")
    for name in phalanx.__all__:
        assert "The world's" not in (getattr(phalanx, name).__doc__ or ""), name


def test_codes_are_the_librarys() -> None:
    owner = bytearray(8)
    for op in phalanx.ReduceOp:
        assert int(op) == list(phalanx.ReduceOp).index(op)
    assert len(phalanx.ReduceOp) == 10
    for code, name in enumerate(rows._NAMES):
        assert _native.Memory(0, 0, code, owner).dtype_name == name
        assert _native.Memory(0, 0, name, owner).dtype == code
    with pytest.raises(ValueError, match="unknown element type"):
        _native.Memory(0, 0, 12, owner)


def test_memory_knows_what_it_was_made_of() -> None:
    memory = _native.Memory.of(memoryview(bytearray(24)).cast("i", [3, 2]))
    assert (memory.shape, memory.count, memory.dtype_name, memory.writable) == ([3, 2], 6, "i32", True)
    part = memory.rows(1, 3)
    assert (part.shape, part.pointer) == ([2, 2], memory.pointer + 8)
    for start, stop in ((2, 1), (0, 4)):
        with pytest.raises(ValueError, match="rows"):
            memory.rows(start, stop)
    assert not _native.Memory.of(b"read only").writable
    # A buffer that is held cannot move.
    held = bytearray(4)
    memory = _native.Memory.of(held)
    with pytest.raises(BufferError):
        held.append(1)
    del memory
    held.append(1)


def test_rows_are_divided_with_the_first_ranks_getting_more() -> None:
    assert rows.divide(7, 3) == [3, 2, 2]
    assert rows.divide(1, 3) == [1, 0, 0]
    assert rows.divide(0, 2) == [0, 0]


def test_variables_set_by_halves_are_an_error_that_names_them() -> None:
    result = run("import phalanx; phalanx.init()", PHALANX_RANK="1")
    assert result.returncode != 0
    assert "PhalanxEnvironmentError" in result.stderr and "PHALANX_SIZE" in result.stderr


def test_a_misspelt_variable_is_named() -> None:
    result = run("import phalanx; phalanx.init()", PHALANX_TIMOUT="3")
    assert result.returncode == 0
    assert "PHALANX_TIMOUT" in result.stderr and "no such variable" in result.stderr
    result = run("import phalanx; phalanx.init()", PHALANX_LOG="phalanx=loud")
    assert result.returncode != 0 and "PHALANX_LOG" in result.stderr


def test_an_interrupt_ends_the_wait_for_ranks_that_do_not_come() -> None:
    code = "import os, signal, threading, phalanx\n"
    code += "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    code += "try: phalanx.init()\nexcept KeyboardInterrupt: print('interrupted', phalanx.is_initialized())"
    started = time.monotonic()
    result = run(code, PHALANX_RANK="1", PHALANX_SIZE="2", PHALANX_RENDEZVOUS="local", PHALANX_JOB=f"{os.getpid()}")
    assert (result.returncode, result.stdout) == (0, "interrupted False\n"), result.stderr
    assert time.monotonic() - started < 20


def test_the_program_is_installed_beside_the_package() -> None:
    result = subprocess.run([sys.executable, "-m", "phalanx", "--version"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert phalanx.__version__ in result.stdout
