"""Arrays on devices, by the interface of CUDA arrays or by DLPack: values, order, errors, lifetimes, deadline."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

import phalanx
from phalanx import _native

np = pytest.importorskip("numpy", reason="NumPy is not installed")

import stand_in  # noqa: E402
from stand_in import ByDlpack, ByInterface, On, Stream, values_of  # noqa: E402

pytestmark = stand_in.needs_stand_in

KINDS = [ByInterface, ByDlpack]
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]


def device() -> int:
    return phalanx.rank() % 2


def given(rank: int, dtype: str = "float32", shape: tuple[int, ...] = (6, 5)) -> Any:
    return (np.arange(np.prod(shape)).reshape(shape) % 7 + rank).astype(dtype)


def total(dtype: str = "float32", shape: tuple[int, ...] = (6, 5)) -> Any:
    return sum(given(rank, dtype, shape) for rank in range(phalanx.size()))


def same(left: Any, right: Any) -> bool:
    return bool(left.dtype == right.dtype and left.shape == right.shape and (left == right).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_in_place_and_into_a_new_array(kind: Any, dtype: str) -> None:
    array = kind(given(phalanx.rank(), dtype), device())
    result = phalanx.allreduce(array, phalanx.Sum)
    assert isinstance(result, phalanx.DeviceArray)
    assert (result.device, result.shape, result.nbytes) == (device(), (6, 5), array.dtype.itemsize * 30)
    assert same(values_of(result), total(dtype))
    assert same(array.values(), given(phalanx.rank(), dtype))
    assert phalanx.allreduce_(array, phalanx.Sum) is array
    assert same(array.values(), total(dtype))


def test_types_without_a_name_in_numpy() -> None:
    flags = ByDlpack(np.array([phalanx.rank() == 0, False]), device())
    assert values_of(phalanx.allreduce(flags, phalanx.Max)).tolist() == [True, False]
    # Halves of a float32: ones in bfloat16.
    array = phalanx.DeviceArray(device(), [3], "bf16")
    stream = Stream(device())
    stream.write(array.__cuda_array_interface__["data"][0], np.full(3, 0x3F80, np.uint16))
    stream.synchronize()
    phalanx.allreduce_(array)
    assert array.dtype == "bf16" and values_of(array, np.uint16).tolist() == [0x3F80] * 3


@pytest.mark.parametrize("count", [0, 1, 3_000_001])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_and_handles(kind: Any, count: int) -> None:
    mine = given(phalanx.rank(), shape=(count,))
    array = kind(mine, device())
    first = phalanx.allreduce_async(array, phalanx.Sum, prescale_factor=2.0)
    result = phalanx.synchronize(first)
    assert first.poll() and phalanx.synchronize(first) is result
    assert same(values_of(result), 2 * total(shape=(count,)))
    out = kind(np.zeros(count, np.float32), device())
    assert phalanx.allreduce_async(array, phalanx.Sum, out=out).wait() is out
    assert same(out.values(), total(shape=(count,)))
    assert phalanx.allreduce_async_(array, phalanx.Sum).wait() is array
    assert same(array.values(), total(shape=(count,)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_collectives(kind: Any) -> None:
    rank, size = phalanx.rank(), phalanx.size()
    root = size - 1
    array = kind(given(rank), device())
    reduced = phalanx.reduce(array, root, phalanx.Sum)
    assert (reduced is None) == (rank != root)
    if reduced is not None:
        assert same(values_of(reduced), total())
    assert same(values_of(phalanx.broadcast(array, root)), given(root))
    assert same(array.values(), given(rank))
    handle = phalanx.broadcast_async(array, root)
    assert same(values_of(handle.wait()), given(root))
    copy = kind(given(rank), device())
    assert phalanx.broadcast_(copy, root) is copy
    assert same(copy.values(), given(root))
    # Rows that differ in number from rank to rank.
    rows = kind(given(rank, shape=(rank + 1, 4)), device())
    gathered = np.concatenate([given(other, shape=(other + 1, 4)) for other in range(size)])
    assert same(values_of(phalanx.allgather(rows)), gathered)
    assert same(values_of(phalanx.allgather_async(rows).wait()), gathered)
    at_root = phalanx.gather(rows, root)
    assert (at_root is None) == (rank != root)
    if at_root is not None:
        assert same(values_of(at_root), gathered)
    per_rank = [6 // size + (other < 6 % size) for other in range(size)]
    start = sum(per_rank[:rank])
    scattered = phalanx.reducescatter(array, phalanx.Sum)
    assert same(values_of(scattered), total()[start : start + per_rank[rank]])
    assert same(values_of(phalanx.reducescatter_async(array, phalanx.Sum).wait()), values_of(scattered))
    part = kind(np.zeros(2, np.int32), device())
    whole = kind(np.arange(2 * size, dtype=np.int32), device()) if rank == root else None
    assert phalanx.scatter(whole, part, root) is part
    assert part.values().tolist() == [2 * rank, 2 * rank + 1]


@pytest.mark.parametrize("kind", KINDS)
def test_alltoall(kind: Any) -> None:
    rank, size = phalanx.rank(), phalanx.size()
    even = kind(np.array([[rank, other] for other in range(size)], np.int64), device())
    assert values_of(phalanx.alltoall(even)).tolist() == [[other, rank] for other in range(size)]
    # To rank r go r rows, and one row is left over.
    rows = sum(range(size)) + 1
    uneven = kind(np.full((rows, 2), rank, np.int32), device())
    result, received = phalanx.alltoall(uneven, list(range(size)))
    assert received == [rank] * size
    assert values_of(result).tolist() == [[other, other] for other in range(size) for _ in range(rank)]
    result, received = phalanx.alltoall_async(uneven, list(range(size))).wait()
    assert received == [rank] * size and len(result) == rank * size


def test_a_group_and_settings() -> None:
    group = phalanx.split(phalanx.rank() % 2)
    assert group is not None
    array = ByInterface(np.full(5, phalanx.rank(), np.int32), device())
    group.with_deterministic().allreduce_(array, phalanx.Sum)
    members = [rank for rank in range(phalanx.size()) if rank % 2 == phalanx.rank() % 2]
    assert array.values().tolist() == [sum(members)] * 5


def test_a_call_comes_after_its_stream_and_the_stream_waits_for_it() -> None:
    stream, other = Stream(device()), Stream(device())
    array = ByInterface(np.zeros(5000, np.float32), device(), stream)
    out = ByInterface(np.zeros(5000, np.float32), device(), other)
    stream.synchronize()
    other.synchronize()
    phalanx.barrier()
    # What is on the stream is not done: the call starts, and does not end.
    stand_in.stop(stream)
    stream.write(array.memory.address, np.full(5000, phalanx.rank() + 1, np.float32))
    handle = phalanx.allreduce_async(array, phalanx.Sum, out=out)
    assert not handle.poll()
    with pytest.raises(TimeoutError, match="still pending"):
        handle.wait(0.01)
    # Host calls go on meanwhile.
    assert phalanx.allreduce(np.ones(3, np.int32), phalanx.Sum).tolist() == [phalanx.size()] * 3
    assert not handle.poll()
    stand_in.release()
    assert handle.wait() is out
    # Read at once, on the stream that the result's array names.
    expected = sum(range(1, phalanx.size() + 1))
    assert (out.values(other) == expected).all()
    # The input's stream comes after the call too: what is put there may write over the input.
    stream.write(array.memory.address, np.zeros(5000, np.float32))
    assert (array.values() == 0).all()


def test_in_place_on_the_stream_that_the_array_names() -> None:
    stream = Stream(device())
    array = ByInterface(np.full(100_000, 2, np.float32), device(), stream)
    for _ in range(3):
        phalanx.allreduce_(array)
    stream.write(array.memory.address, np.full(1, 7, np.float32))
    values = array.values()
    assert values[0] == 7 and (values[1:] == 2).all()


def test_without_a_stream_the_result_is_there_when_the_wait_returns() -> None:
    nothing_known: list[Any] = [
        ByInterface(given(phalanx.rank()), device(), version=2, stream=None),
        ByInterface(given(phalanx.rank()), device(), stream=None),
        ByDlpack(given(phalanx.rank()), device()),
    ]
    for array in nothing_known:
        phalanx.allreduce_(array, phalanx.Sum)
        # On a stream that waits for nothing.
        assert same(array.values(Stream(device())), total())


def test_the_wait_for_a_result_without_a_stream_is_for_the_device_too() -> None:
    # Such a call is on the stream that new arrays name. What is put there after the call began keeps the result back.
    home = phalanx.DeviceArray(device(), [1], "u8").__cuda_array_interface__["stream"]
    array = ByInterface(given(phalanx.rank()), device(), stream=None)
    handle = phalanx.allreduce_async_(array, phalanx.Sum)
    stand_in.stop(home)
    with pytest.raises(TimeoutError, match="still pending"):
        handle.wait(0.5)
    assert not handle.poll()
    stand_in.release()
    assert handle.wait() is array
    assert same(array.values(Stream(device())), total())


def test_results_are_taken_over_in_order() -> None:
    array = ByInterface(given(phalanx.rank()), device())
    result = phalanx.allreduce(array, phalanx.Sum)
    # Again, on the result as it is; and by a library that takes it over by DLPack on its own stream.
    again = phalanx.allreduce(result, phalanx.Max)
    assert same(values_of(again), total())
    stream = Stream(device())
    before = stand_in.calls("cuStreamWaitEvent")
    for number in (stream.handle, 1, 2, None):
        again.__dlpack__(stream=number)
    assert stand_in.calls("cuStreamWaitEvent") == before + 4
    again.__dlpack__(stream=-1)
    assert stand_in.calls("cuStreamWaitEvent") == before + 4
    assert "dltensor_versioned" in repr(again.__dlpack__(stream=-1, max_version=(1, 0)))
    for wrong in ({"stream": 0}, {"stream": -2}, {"dl_device": (1, 0)}, {"copy": True}):
        with pytest.raises(BufferError):
            again.__dlpack__(**wrong)  # type: ignore[arg-type]


def refused(error: Any, match: str, call: Any) -> None:
    with pytest.raises(error, match=match):
        call()


def test_what_cannot_be_is_refused_and_nothing_was_sent() -> None:
    mine = given(phalanx.rank())

    def interface(**fields: Any) -> Any:
        return lambda: phalanx.allreduce_(ByInterface(mine, device(), **fields))

    address = ByInterface(mine, device())
    refused(phalanx.InvalidArgumentError, "read-only", interface(data=(address.memory.address, True)))
    refused(phalanx.InvalidArgumentError, "memory with gaps", interface(strides=(4, 24)))
    refused(phalanx.InvalidArgumentError, "with a mask", interface(mask=address))
    refused(phalanx.InvalidArgumentError, "stream 0", interface(stream=0))
    refused(phalanx.InvalidArgumentError, "stream -1", interface(stream=-1))
    refused(phalanx.InvalidArgumentError, "negative length", interface(shape=(-1,)))
    refused(TypeError, '"<c8" are not supported; float16', interface(typestr="<c8"))
    refused(TypeError, '">f4" are not supported', interface(typestr=">f4"))
    refused(phalanx.InvalidArgumentError, "not that of a CUDA device", interface(data=(4096, False)))
    gaps = ByDlpack(mine, device())
    gaps.strides = (1, 6)
    refused(phalanx.InvalidArgumentError, "memory with gaps", lambda: phalanx.allreduce_(gaps))
    # The strides of contiguous memory are none.
    fits = ByInterface(mine, device(), strides=(20, 4))
    phalanx.allreduce_(fits, phalanx.Sum)
    assert same(fits.values(), total())
    other = ByInterface(mine, 1 - device())
    refused(phalanx.InvalidArgumentError, "one device expected", lambda: phalanx.allreduce(fits, out=other))
    refused(phalanx.InvalidArgumentError, "both in one place", lambda: phalanx.allreduce(fits, out=np.zeros_like(mine)))
    refused(phalanx.InvalidArgumentError, "both in one place", lambda: phalanx.allreduce(mine, out=fits))
    short = ByInterface(mine[:2], device())
    refused(phalanx.InvalidArgumentError, "10 elements of f32 expected", lambda: phalanx.allreduce(fits, out=short))
    refused(phalanx.InvalidArgumentError, "overlap", lambda: phalanx.allreduce(fits, out=fits))
    refused(phalanx.InvalidArgumentError, "host memory expected", lambda: phalanx.send(fits, 0))
    refused(phalanx.InvalidArgumentError, "host memory expected", lambda: phalanx.recv(fits, 0))
    refused(phalanx.InvalidArgumentError, "device 7 given", lambda: phalanx.DeviceArray(7, [1], "f32"))
    refused(phalanx.InvalidArgumentError, "memory can have", lambda: phalanx.DeviceArray(0, [1 << 40, 1 << 40], "f32"))
    refused(phalanx.InvalidArgumentError, "a count of -1", lambda: phalanx.DeviceArray(0, [-1], "f32"))
    misplaced = _native.Memory(fits.memory.address, 30, "f32", fits, device=1 - device(), stream=None)
    refused(
        phalanx.InvalidArgumentError,
        "but the stream is of device",
        lambda: phalanx.world().native.broadcast(misplaced, 0),
    )
    # Ranks are still in step.
    phalanx.allreduce_(fits, phalanx.Max)
    assert same(fits.values(), total())


def test_memory_is_kept_as_long_as_it_is_used_and_freed_once() -> None:
    phalanx.allreduce_(ByInterface(given(0), device()))
    phalanx.barrier()
    gc.collect()
    before = stand_in.live()
    stream = Stream(device())
    stand_in.stop(stream)
    try:
        memory: list[Any] = []
        handles: list[Any] = []
        for kind in KINDS:
            array = kind(given(phalanx.rank(), shape=(10_000,)), device(), stream)
            handles += [phalanx.allreduce_async(array, phalanx.Sum), phalanx.broadcast_async(array, 0)]
            memory.append(array.memory)
            del array
        gc.collect()
        # The list has it, the call of this function, and the pending call.
        assert [sys.getrefcount(memory[at]) for at in range(2)] == [3, 3]
        # Nobody has the handles, the arrays or the results any more.
        memory.clear()
        handles.clear()
        gc.collect()
        # Inputs of two kinds, and two results and two copies of them.
        assert stand_in.live() >= before + 6
    finally:
        stand_in.release()
    probe = ByInterface(given(phalanx.rank()), device())
    phalanx.allreduce_(probe, phalanx.Sum)
    assert same(probe.values(), total())
    del probe, stream

    def is_freed() -> bool:
        # A call into the library lets go of what its thread is done with.
        phalanx.size()
        gc.collect()
        # What tests before this one left may go as well.
        return stand_in.live() <= before and stand_in.exported() == 0

    stand_in.until(is_freed, "something of a device was left over")
    assert stand_in.faults() == 0


def test_other_threads_run_while_one_waits() -> None:
    stream = Stream(device())
    array = ByInterface(np.ones(1000, np.float32), device(), stream)
    waiting = threading.Event()
    stand_in.stop(stream)

    def wait() -> None:
        waiting.set()
        phalanx.allreduce_(array, phalanx.Sum)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(stand_in.LIMIT)
    # It waits for the device; this thread gets the interpreter and lets it go on.
    assert sum(range(1000)) == 499_500
    stand_in.release()
    thread.join(stand_in.LIMIT)
    assert not thread.is_alive()
    assert (array.values() == phalanx.size()).all()


def test_an_array_of_nothing_is_on_the_device_of_the_calls(several: None) -> None:
    # A group of its own, which has made no call on a device.
    group = phalanx.split(0)
    assert group is not None
    rank, last = phalanx.rank(), phalanx.size() - 1
    nothing = ByInterface(np.zeros((0, 5), np.float32), device(), data=(0, False))
    with On(device()):
        result = group.allgather(nothing)
    assert (result.device, result.shape) == (device(), (0, 5))
    assert group.allreduce(nothing).shape == (0, 5)
    # What decides is a call with elements.
    array = ByInterface(given(rank), device())
    group.allreduce_(array, phalanx.Sum)
    assert same(array.values(), total())
    # The last rank has no rows, and gets those of the others where its calls are.
    rows = nothing if rank == last else ByInterface(given(rank), device())
    gathered = group.allgather(rows)
    assert gathered.device == device()
    assert same(values_of(gathered), np.concatenate([given(other) for other in range(last)]))
    out = ByInterface(np.zeros((0, 5), np.float32), device())
    assert group.allreduce(nothing, out=out) is out
    mixed, received = group.alltoall(rows, [0 if rank == last else 6] + [0] * last)
    assert mixed.device == device() and received == ([6] * last + [0] if rank == 0 else [0] * phalanx.size())


def test_an_interrupt_gives_a_blocking_call_up_on_every_rank(several: None) -> None:
    # A group of its own: its device calls are over after that.
    group = phalanx.split(0)
    assert group is not None
    stream = Stream(device())
    array = ByInterface(np.ones(1000, np.float32), device(), stream)
    since = time.monotonic()
    if phalanx.rank() == 0:
        stand_in.stop(stream)
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                group.allreduce_(array, phalanx.Sum)
            timer.join()
        finally:
            signal.signal(signal.SIGINT, previous)
        stand_in.release()
    with pytest.raises(phalanx.PhalanxError, match="the wait was interrupted"):
        group.allreduce_(array, phalanx.Sum)
    assert time.monotonic() - since < 30
    # The call writes no more.
    assert (array.values() == 1).all()
    phalanx.barrier()


def test_a_device_that_does_not_come_is_a_timeout_that_the_others_hear_of(several: None) -> None:
    # A group of its own: its device calls are over after the first that fails.
    group = phalanx.split(0)
    assert group is not None
    stream = Stream(device())
    array = ByInterface(np.ones(1000, np.float32), device(), stream)
    is_late = phalanx.rank() == 0
    if is_late:
        stand_in.stop(stream)
    since = time.monotonic()
    limited = group.with_timeout(0.3 if is_late else 40.0)
    with pytest.raises(phalanx.PhalanxError) as failure:
        limited.allreduce_(array, phalanx.Sum)
    assert "had not come to the call by its deadline" in str(failure.value)
    assert isinstance(failure.value, phalanx.PhalanxEnvironmentError if is_late else phalanx.PeerFailedError)
    assert time.monotonic() - since < 35
    with pytest.raises(type(failure.value)):
        limited.allreduce_(array, phalanx.Sum)
    stand_in.release()
    # Other communicators go on.
    phalanx.barrier()
    stream.synchronize()
    phalanx.allreduce_(array, phalanx.Sum)
    assert (array.values() == phalanx.size()).all()


def test_calls_that_differ_are_a_mismatch(several: None) -> None:
    group = phalanx.split(0)
    assert group is not None
    count = 5000 if phalanx.rank() == 0 else 5001
    array = ByInterface(np.zeros(count, np.float32), device())
    with pytest.raises((phalanx.MismatchError, phalanx.PeerFailedError)) as failure:
        group.allreduce_(array, phalanx.Sum)
    if phalanx.size() == 2:
        assert "count 5000" in str(failure.value) and "count 5001" in str(failure.value)
    phalanx.barrier()


def test_what_the_build_has_and_the_machine_gives() -> None:
    assert phalanx.cuda_built() is True and phalanx.cuda_available() is True
    assert phalanx.nccl_built() == 21800
    assert phalanx.rdma_built() is True and phalanx.rdma_available() in (False, True)
    assert phalanx.mpi_built() is ("mpi" in _native.features()) and phalanx.mpi_enabled() is False
