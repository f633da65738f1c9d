"""Memory that the other ranks of the host read where it is: what can be done with it, and how long it lives."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import pytest

import phalanx
from phalanx import Sum

# Beyond what is copied through the ranks' lines; not a multiple of anything.
COUNT = 20_011

TYPES = ["f16", "bf16", "f32", "f64", "i8", "u8", "i16", "i32", "u32", "i64", "u64", "bool"]


def is_shared() -> bool:
    """Whether there is somebody to share memory with, as these tests start the ranks."""
    return phalanx.size() > 1 and os.environ.get("PHALANX_TRANSPORT", "auto") in ("auto", "shm")


def expected(index: int, dtype: str = "i64") -> int:
    """An element of the sum over all ranks of what `filled` puts there."""
    size = phalanx.size()
    total = size * (index % 50) + size * (size - 1) // 2
    return (total + 128) % 256 - 128 if dtype == "i8" else total


def filled(buffer: phalanx.Buffer) -> memoryview:
    """A view of a buffer of numbers that differ from rank to rank."""
    view = buffer.view()
    for index in range(len(view)):
        view[index] = index % 50 + phalanx.rank()
    return view


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u64", "i8"])
def test_collectives_take_it_as_it_is(dtype: str) -> None:
    buffer, other = phalanx.alloc(COUNT, dtype), phalanx.alloc(COUNT, dtype)
    assert (len(buffer), buffer.dtype, buffer.is_shared) == (COUNT, dtype, is_shared())
    assert buffer.nbytes == COUNT * buffer.view().itemsize
    assert set(buffer.view()) == {0}
    sums = [expected(index, dtype) for index in range(COUNT)]
    view = filled(buffer)
    assert phalanx.allreduce(buffer, Sum, out=other) is other
    assert list(other.view()) == sums
    assert phalanx.allreduce_(buffer, Sum) is buffer
    assert list(view) == sums
    filled(buffer)
    root = phalanx.size() - 1
    phalanx.broadcast_(buffer, root)
    assert list(view) == [index % 50 + root for index in range(COUNT)]
    gathered = phalanx.alloc(COUNT * phalanx.size(), dtype)
    phalanx.allgather(buffer, out=gathered)
    assert list(gathered.view()) == list(view) * phalanx.size()


def test_some_ranks_may_have_any_memory(several: None) -> None:
    import array

    buffer = phalanx.alloc(COUNT, "i64")
    given: Any = buffer if phalanx.rank() == 0 else array.array("q", bytes(8 * COUNT))
    view = memoryview(given if phalanx.rank() else buffer.view())
    for index in range(COUNT):
        view[index] = index % 50 + phalanx.rank()
    phalanx.allreduce_(given, Sum)
    assert list(view) == [expected(index) for index in range(COUNT)]


@pytest.mark.parametrize("dtype", TYPES)
def test_array_libraries_view_it(dtype: str) -> None:
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    buffer = phalanx.alloc(7, dtype)
    array = np.asarray(buffer)
    assert array.shape == (7,) and array.nbytes == buffer.nbytes
    assert array.ctypes.data == buffer.pointer and array.flags.writeable
    view = buffer.view()
    assert len(view.cast("B")) == buffer.nbytes and not view.readonly
    array.view("u1")[:] = 1
    assert bytes(view) == b"\x01" * buffer.nbytes
    if dtype == "bf16":
        assert array.dtype == "V2" and view.itemsize == 1
        return
    assert array.dtype == np.from_dlpack(buffer).dtype
    assert array.dtype.kind == {"b": "b" if dtype == "bool" else "?", "u": "u", "i": "i", "f": "f"}[dtype[0]]
    if dtype != "f16":
        assert np.frombuffer(view, array.dtype).tolist() == array.tolist() == view.tolist()
    # NumPy's own words for types.
    assert phalanx.alloc(7, array.dtype).dtype == phalanx.alloc(7, array.dtype.name).dtype == dtype


def test_it_has_the_buffer_protocol_where_python_asks() -> None:
    buffer = phalanx.alloc(3, "f32")
    if sys.version_info < (3, 12):
        with pytest.raises(TypeError, match="bytes-like"):
            memoryview(buffer)  # type: ignore[arg-type]
        buffer.view()[1] = 2.0
    else:
        memoryview(buffer)[1] = 2.0
        with pytest.raises(BufferError, match="no format"):
            memoryview(phalanx.alloc(3, "bf16"))
    assert buffer.view().tolist() == [0.0, 2.0, 0.0]


def test_dlpack_as_others_ask_for_it() -> None:
    buffer = phalanx.alloc(3, "i32")
    assert buffer.__dlpack_device__() == (1, 0)
    for keywords in ({}, {"max_version": (0, 8)}, {"max_version": (1, 1), "dl_device": (1, 0), "copy": False}):
        # Nobody takes the tensors over: the capsules give them back.
        assert type(buffer.__dlpack__(**keywords)).__name__ == "PyCapsule"
        assert phalanx._native.Memory.of(buffer).pointer == buffer.pointer
    for refused in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError, match="memory of the host"):
            buffer.__dlpack__(**refused)


@pytest.mark.parametrize("kind", ["view", "numpy", "torch", "torch.alloc", "memory"])
def test_memory_lives_as_long_as_a_view_of_it(kind: str) -> None:
    """What was given back is taken for the next buffer of that length: memory in use must never be."""
    buffer = phalanx.alloc(COUNT, "i32")
    last: Any
    if kind == "view":
        last = buffer.view()[5:9]
    elif kind == "numpy":
        last = pytest.importorskip("numpy").asarray(buffer)[5:9]
    elif kind == "memory":
        memory = phalanx._native.Memory.of(buffer).rows(5, 9)
        last = None
    else:
        torch = pytest.importorskip("torch")
        import phalanx.torch as hvd

        last = torch.from_dlpack(buffer) if kind == "torch" else hvd.alloc(COUNT, dtype=torch.int32)
        last = last.view(COUNT, 1)[5:9]
    view = buffer.view()
    for index in range(5, 9):
        view[index] = index
        if kind == "torch.alloc":
            last[index - 5] = index
    place = buffer.pointer
    del buffer, view
    gc.collect()
    # Zeroed when they are taken, and written to: nothing of it may show.
    others = [phalanx.alloc(COUNT, "i32") for _ in range(4)]
    for other in others:
        other.view().cast("B")[:] = b"\xff" * other.nbytes
    if kind == "memory":
        assert memory.pointer == place + 20 and all(other.pointer != place for other in others)
    else:
        assert [int(number) for number in last] == [5, 6, 7, 8]
    if is_shared() and kind in ("view", "numpy", "torch"):
        # With the last view the memory is free, and the first range that has room is taken.
        del last, others, other
        gc.collect()
        assert phalanx.alloc(COUNT, "i32").pointer == place


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors(dtype: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import phalanx.torch as hvd
    from phalanx.torch.tensors import CODES

    kind = next((kind for kind, code in CODES.items() if code == phalanx.alloc(0, dtype).code), None)
    if kind is None:
        pytest.skip(f"this PyTorch has no {dtype}")
    tensor = hvd.alloc(3, 5, dtype=kind)
    assert tensor.dtype == kind and tensor.shape == (3, 5) and tensor.is_contiguous() and not tensor.any()
    assert hvd.alloc(dtype=kind).shape == () and hvd.alloc([2, 0], dtype=kind).shape == (2, 0)
    # Long enough for calls to read it where it is.
    long = hvd.alloc(150, 200, dtype=kind)
    long.fill_(True)
    hvd.allreduce_(long, op=hvd.Max)
    assert (long == 1).all()


def test_a_tensor_of_a_group_is_of_the_default_type() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import phalanx.torch as hvd

    alone = phalanx.subgroup([phalanx.rank()])
    assert alone is not None
    tensor = hvd.alloc(4, process_set=alone)
    assert tensor.dtype == torch.float32 and alone.alloc(4).dtype == "f32"
    parameter = torch.nn.Parameter(tensor)
    (parameter * 2).sum().backward()
    assert parameter.grad is not None and parameter.grad.tolist() == [2.0] * 4


def test_what_cannot_be_is_refused() -> None:
    for wrong in (-1, 1 << 80):
        with pytest.raises(ValueError, match="count"):
            phalanx.alloc(wrong)
    for unknown in ("f31", 99, float):
        with pytest.raises(ValueError, match="element type"):
            phalanx.alloc(1, unknown)
    with pytest.raises(phalanx.PhalanxEnvironmentError, match="no memory for a buffer of 1152921504606846976 elements"):
        phalanx.alloc(1 << 60, "f64")
    with pytest.raises(ValueError, match="out="):
        phalanx.allreduce(phalanx.alloc(1))
    if "torch" in sys.modules:
        import phalanx.torch as hvd

        with pytest.raises(ValueError, match="complex64"):
            hvd.alloc(1, dtype=sys.modules["torch"].complex64)
        with pytest.raises(ValueError, match="shape"):
            hvd.alloc(-1)


def test_a_child_gives_nothing_back(several: None) -> None:
    """A forked child has the memory too. What it drops is not its own."""
    buffer = phalanx.alloc(COUNT, "u8")
    view = buffer.view()
    view[0] = 7
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            assert view[0] == 7
            try:
                phalanx.alloc(1)
            except RuntimeError:
                del view, buffer
                gc.collect()
                failed = 0
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    phalanx.allreduce_(buffer, Sum)
    assert view[0] == 7 * phalanx.size()
