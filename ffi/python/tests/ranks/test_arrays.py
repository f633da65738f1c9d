"""Collectives on NumPy arrays, and on what else has memory to give."""

from __future__ import annotations

import array
import ctypes
import functools
import operator
from typing import Any

import pytest

import phalanx
from phalanx import Average, BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, Max, Min, Product, Sum

np = pytest.importorskip("numpy", reason="NumPy is not installed")

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
COUNTS = [0, 1, 2, 7, 1000]


def given(rank: int, count: int, dtype: str) -> Any:
    """Numbers whose sums and products over four ranks are exact in every type."""
    return (np.arange(count) % 3 + (rank % 2)).astype(dtype)


def all_given(count: int, dtype: str) -> list[Any]:
    return [given(rank, count, dtype) for rank in range(phalanx.size())]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("op", "combine"), [(Sum, np.add), (Product, np.multiply), (Min, np.minimum), (Max, np.maximum)]
)
def test_allreduce(op: phalanx.ReduceOp, combine: Any, dtype: str, count: int) -> None:
    expected = functools.reduce(combine, all_given(count, dtype))
    mine = given(phalanx.rank(), count, dtype)
    result = phalanx.allreduce(mine, op)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == dtype
    np.testing.assert_array_equal(mine, given(phalanx.rank(), count, dtype))
    address = mine.ctypes.data
    assert phalanx.allreduce_(mine, op) is mine
    assert mine.ctypes.data == address
    np.testing.assert_array_equal(mine, expected)


def test_average_is_the_default_and_integers_are_rounded_towards_zero() -> None:
    size = phalanx.size()
    np.testing.assert_array_equal(
        phalanx.allreduce(np.full(3, size * phalanx.rank(), "f8")), np.full(3, sum(range(size)))
    )
    total = sum(-rank for rank in range(size))
    np.testing.assert_array_equal(
        phalanx.allreduce(np.full(2, -phalanx.rank(), "i4"), Average), np.full(2, -(-total // size), "i4")
    )


@pytest.mark.parametrize(("op", "combine"), [(BitAnd, operator.and_), (BitOr, operator.or_), (BitXor, operator.xor)])
def test_bits(op: phalanx.ReduceOp, combine: Any) -> None:
    numbers = [np.array([rank * 5 + 1, 0xFF], "u4") for rank in range(phalanx.size())]
    np.testing.assert_array_equal(phalanx.allreduce(numbers[phalanx.rank()], op), functools.reduce(combine, numbers))


def test_logic_and_bools() -> None:
    rank, size = phalanx.rank(), phalanx.size()
    np.testing.assert_array_equal(phalanx.allreduce(np.array([rank, 1, 0], "f4"), LogicalAnd), [0, 1, 0])
    np.testing.assert_array_equal(phalanx.allreduce(np.array([rank, 1, 0], "i8"), LogicalOr), [size > 1, 1, 0])
    flags = np.array([rank == 0, True, False])
    np.testing.assert_array_equal(phalanx.allreduce(flags, Max), [True, True, False])
    np.testing.assert_array_equal(phalanx.allreduce(flags, Min), [size == 1, True, False])


def test_scaling() -> None:
    size = phalanx.size()
    result = phalanx.allreduce(np.full(5, 2.0, "f4"), Sum, prescale_factor=0.5, postscale_factor=3.0)
    np.testing.assert_array_equal(result, np.full(5, 3.0 * size, "f4"))


def test_out_is_used() -> None:
    out = np.empty(4, "f4")
    assert phalanx.allreduce(np.ones(4, "f4"), Sum, out=out) is out
    np.testing.assert_array_equal(out, np.full(4, phalanx.size()))


def test_other_memory_than_arrays() -> None:
    size = phalanx.size()
    data = bytearray([1, 2, 3])
    assert phalanx.allreduce_(data, Sum) is data
    assert data == bytes([size, 2 * size, 3 * size])
    assert phalanx.allreduce(bytearray([1]), Sum) == bytearray([size])
    assert phalanx.allreduce(b"\x02", Sum) == bytearray([2 * size])
    assert phalanx.allreduce(array.array("d", [0.5, 1.0]), Sum) == array.array("d", [0.5 * size, float(size)])
    view = memoryview(bytearray(16)).cast("i", [2, 2])
    view[1, 1] = 3
    result = phalanx.allreduce(view, Sum)
    assert result.shape == (2, 2) and result.format == "i" and result[1, 1] == 3 * size
    numbers = (ctypes.c_int32 * 2)(4, 5)
    phalanx.allreduce_(numbers, Sum)
    assert list(numbers) == [4 * size, 5 * size]


class Lender:
    """Something that knows DLPack and nothing else."""

    def __init__(self, owned: Any, versioned: bool) -> None:
        self.owned = owned
        self.versioned = versioned

    def __dlpack__(self, **keywords: Any) -> Any:
        if keywords and not self.versioned:
            raise TypeError("no keywords are known")
        return self.owned.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.owned.__dlpack_device__()


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack(versioned: bool) -> None:
    owned = np.ones((2, 3), "f4")
    lender = Lender(owned, versioned)
    phalanx.allreduce_(lender, Sum)
    np.testing.assert_array_equal(owned, np.full((2, 3), phalanx.size()))
    with pytest.raises(phalanx.InvalidArgumentError, match="out="):
        phalanx.allreduce(lender, Sum)
    out = np.empty((2, 3), "f4")
    phalanx.allreduce(lender, Sum, out=out)
    np.testing.assert_array_equal(out, owned * phalanx.size())
    with pytest.raises(ValueError, match="gaps"):
        phalanx.allreduce_(Lender(owned.T, versioned), Sum)


def test_dlpack_of_another_kind_of_device_is_refused() -> None:
    class OnDevice(Lender):
        def __dlpack_device__(self) -> Any:
            return 10, 0

    with pytest.raises(TypeError, match="device type 10 given, that of the host or of a CUDA device expected"):
        phalanx.allreduce_(OnDevice(np.ones(1), True))


def test_handles_can_be_waited_for_in_any_order() -> None:
    size = phalanx.size()
    arrays = [np.full(100 * (number + 1), number, "f4") for number in range(5)]
    handles = [phalanx.allreduce_async_(one, Sum) for one in arrays]
    fresh = phalanx.allreduce_async(arrays[0] * 0 + 1, Sum)
    np.testing.assert_array_equal(phalanx.synchronize(fresh), np.full(100, size))
    for number, handle in reversed(list(enumerate(handles))):
        assert handle.wait() is arrays[number]
        assert phalanx.poll(handle)
        np.testing.assert_array_equal(arrays[number], np.full(100 * (number + 1), number * size))
    # Waiting again gives the same.
    assert handles[0].wait() is arrays[0]


def test_a_dropped_handle_does_no_harm() -> None:
    for _ in range(10):
        phalanx.allreduce_async(np.ones(1000, "f4"), Sum)
    assert phalanx.allreduce(np.ones(1), Sum)[0] == phalanx.size()


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_of_different_lengths(dtype: str) -> None:
    parts = [np.full((rank, 2), rank, dtype) for rank in range(phalanx.size())]
    result = phalanx.allgather(parts[phalanx.rank()])
    np.testing.assert_array_equal(result, np.concatenate(parts))
    handle = phalanx.allgather_async(parts[phalanx.rank()])
    np.testing.assert_array_equal(handle.wait(), np.concatenate(parts))


def test_allgather_refuses_other_rows_on_every_rank(several: None) -> None:
    odd = phalanx.rank() == phalanx.size() - 1
    for mine in (np.zeros((2, 3 if odd else 4)), np.zeros(2, "f4" if odd else "f8"), np.zeros((2, 3) if odd else (2,))):
        with pytest.raises(phalanx.MismatchError, match="only the number of rows may differ"):
            phalanx.allgather(mine)
    with pytest.raises(ValueError, match="scalar"):
        phalanx.allgather(np.float32(1))
    assert phalanx.allgather(np.ones(1)).sum() == phalanx.size()


def test_broadcast() -> None:
    for root in range(phalanx.size()):
        mine = np.arange(5, dtype="i2") * (phalanx.rank() + 1)
        copy = phalanx.broadcast(mine, root)
        np.testing.assert_array_equal(copy, np.arange(5) * (root + 1))
        np.testing.assert_array_equal(mine, np.arange(5) * (phalanx.rank() + 1))
        assert phalanx.broadcast_async_(mine, root).wait() is mine
        np.testing.assert_array_equal(mine, copy)
        np.testing.assert_array_equal(phalanx.broadcast_async(mine, root).wait(), copy)
    with pytest.raises(phalanx.InvalidArgumentError, match="root"):
        phalanx.broadcast(np.ones(1), phalanx.size())


def test_reducescatter_gives_the_first_ranks_one_more() -> None:
    rank, size = phalanx.rank(), phalanx.size()
    rows = size + 1
    result = phalanx.reducescatter(np.arange(rows * 2, dtype="f4").reshape(rows, 2), Sum)
    whole = np.arange(rows * 2).reshape(rows, 2) * size
    np.testing.assert_array_equal(result, np.array_split(whole, size)[rank])
    few = phalanx.reducescatter(np.ones(1, "f4"), Sum)
    np.testing.assert_array_equal(few, np.full(1 if rank == 0 else 0, size))


def test_alltoall() -> None:
    rank, size = phalanx.rank(), phalanx.size()
    result = phalanx.alltoall(np.arange(2 * size, dtype="i4") + 100 * rank)
    np.testing.assert_array_equal(
        result, np.concatenate([np.arange(2 * rank, 2 * rank + 2) + 100 * peer for peer in range(size)])
    )
    # Rank r sends r + p rows to rank p; the last row is kept.
    splits = [rank + peer for peer in range(size)]
    result, received = phalanx.alltoall(np.full((sum(splits) + 1, 3), rank, "f4"), splits)
    assert received == splits
    np.testing.assert_array_equal(result, np.repeat(np.arange(size, dtype="f4"), splits)[:, None].repeat(3, axis=1))
    handle = phalanx.alltoall_async(np.full(size, rank, "u1"))
    result, received = handle.wait()
    np.testing.assert_array_equal(result, np.arange(size))
    assert received == [1] * size


def test_alltoall_refuses_splits_that_cannot_be() -> None:
    size = phalanx.size()
    for rows, splits in ((size, [1] * (size + 1)), (size, [2] * size), (size, [-1] * size)):
        with pytest.raises(ValueError, match="splits"):
            phalanx.alltoall(np.zeros(rows), splits)
    if size > 1:
        with pytest.raises(ValueError, match="evenly"):
            phalanx.alltoall(np.zeros(size + 1))


@pytest.mark.parametrize("wait", [True, False])
def test_to_and_from_the_root(wait: bool) -> None:
    rank, size = phalanx.rank(), phalanx.size()
    root = size - 1
    mine, rows = np.full(3, rank, "f4"), np.full(rank + 1, rank, "i4")
    everything = np.arange(2 * size, dtype="f8") if rank == root else None
    out = np.empty(2)
    if wait:
        total = phalanx.reduce(mine, root, Sum)
        gathered = phalanx.gather(rows, root)
        part = phalanx.scatter(everything, out, root)
    else:
        reducing = phalanx.reduce_async(mine, root, Sum)
        gathering = phalanx.gather_async(rows, root)
        scattering = phalanx.scatter_async(everything, out, root)
        part, gathered, total = scattering.wait(), phalanx.synchronize(gathering), reducing.wait()
    if rank == root:
        assert total is not None and gathered is not None
        np.testing.assert_array_equal(total, np.full(3, sum(range(size))))
        np.testing.assert_array_equal(gathered, np.repeat(np.arange(size), np.arange(1, size + 1)))
    else:
        assert total is None and gathered is None
    assert part is out
    np.testing.assert_array_equal(part, [2 * rank, 2 * rank + 1])


def test_messages_around_the_ring(several: None) -> None:
    rank, size = phalanx.rank(), phalanx.size()
    handle = phalanx.recv_async(np.empty(4, "f4"), (rank - 1) % size, tag=3)
    phalanx.send(np.full(4, rank, "f4"), (rank + 1) % size, tag=3)
    np.testing.assert_array_equal(handle.wait(), np.full(4, (rank - 1) % size))
    if rank == 0:
        phalanx.send_async(b"hello", 1).wait()
    elif rank == 1:
        assert phalanx.recv(bytearray(5), 0) == b"hello"


def test_memory_that_cannot_be_used_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="gaps"):
        phalanx.allreduce(np.zeros((4, 4))[:, ::2])
    with pytest.raises(ValueError, match="read-only"):
        phalanx.allreduce_(np.broadcast_to(np.zeros(1), (1,)))
    with pytest.raises(ValueError, match="read-only"):
        phalanx.broadcast_(b"abc", 0)
    with pytest.raises(TypeError, match="not supported"):
        phalanx.allreduce(np.zeros(3, "complex64"))
    with pytest.raises(TypeError, match="not supported"):
        phalanx.allreduce(np.zeros(3, ">f4"))
    with pytest.raises(TypeError, match="buffer protocol, DLPack or __cuda_array_interface__"):
        phalanx.allreduce([1, 2, 3])
    both = np.zeros(8, "f4")
    with pytest.raises(ValueError, match="overlap"):
        phalanx.allreduce(both[:6], out=both[2:])
    with pytest.raises(ValueError, match="elements of f64 expected"):
        phalanx.allreduce(both, out=np.zeros(8))
    with pytest.raises(phalanx.InvalidArgumentError, match="not defined"):
        phalanx.allreduce(both, BitAnd)
    # Every refusal is an error of the package too, and never Python's OverflowError.
    for unusable in (np.zeros((4, 4)).T, np.broadcast_to(np.zeros(1), (2,))):
        with pytest.raises(phalanx.InvalidArgumentError):
            phalanx.allreduce_(unusable)
    for op in (True, None, 99, 1.5, "median"):
        with pytest.raises(phalanx.InvalidArgumentError, match="reduce op"):
            phalanx.allreduce(both, op)
    for call in (
        lambda: phalanx.broadcast(both, -1),
        lambda: phalanx.send(both, -1),
        lambda: phalanx.send(both, 0, tag=1 << 32),
        lambda: phalanx.split(-1),
        lambda: phalanx.subgroup([-1]),
    ):
        with pytest.raises(phalanx.InvalidArgumentError, match=r"(rank|tag|colour) -?\d+ given, (at least 0|0 to )"):
            call()
    with pytest.raises(TypeError):
        phalanx.broadcast(both, "a")
    assert phalanx.allreduce(np.ones(1), Sum)[0] == phalanx.size()


def test_bfloat16_of_another_library() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    numbers = np.ones(3, ml_dtypes.bfloat16)
    phalanx.allreduce_(numbers, Sum)
    np.testing.assert_array_equal(numbers.astype("f4"), np.full(3, phalanx.size()))


def test_a_large_array() -> None:
    numbers = np.arange(1 << 20, dtype="f4")
    phalanx.allreduce_(numbers, Sum)
    np.testing.assert_array_equal(numbers, np.arange(1 << 20, dtype="f4") * phalanx.size())
