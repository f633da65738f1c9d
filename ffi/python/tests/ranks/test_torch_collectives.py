"""Collectives on PyTorch tensors: every type, every form, and their gradients."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import phalanx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import phalanx.torch as hvd  # noqa: E402

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [getattr(torch, name) for name in ("uint32", "uint64") if hasattr(torch, name)]
DTYPES = [*FLOATS, *INTEGERS, *UNSIGNED]


def given(rank: int, dtype: Any, shape: tuple[int, ...] = (17, 3)) -> Any:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 3 + rank % 2).reshape(shape).to(dtype)


def same(left: Any, right: Any) -> bool:
    # Few operations know the wide unsigned types.
    return left.dtype == right.dtype and left.shape == right.shape and left.tolist() == right.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allreduce(dtype: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    wide = [given(other, torch.float64) for other in range(size)]
    for op, combine in (
        (hvd.Sum, torch.add),
        (hvd.Product, torch.mul),
        (hvd.Min, torch.minimum),
        (hvd.Max, torch.maximum),
    ):
        expected = functools.reduce(combine, wide).to(dtype)
        mine = given(rank, dtype)
        assert same(hvd.allreduce(mine, op=op), expected)
        assert same(hvd.synchronize(hvd.allreduce_async(mine, op=op)), expected)
        assert same(mine, given(rank, dtype))
        address = mine.data_ptr()
        assert hvd.allreduce_(mine, op=op) is mine
        assert mine.data_ptr() == address and same(mine, expected)
        again = given(rank, dtype)
        assert hvd.synchronize(hvd.allreduce_async_(again, op=op)) is again
        assert same(again, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_average_and_scaling(dtype: Any) -> None:
    size = hvd.size()
    mine = torch.full((5,), 2.0 * size * hvd.rank(), dtype=dtype)
    assert same(hvd.allreduce(mine), torch.full((5,), 2.0 * sum(range(size)), dtype=dtype))
    assert same(hvd.allreduce(mine, average=False), torch.full((5,), 2.0 * size * sum(range(size)), dtype=dtype))
    ones = torch.ones(5, dtype=dtype)
    scaled = hvd.allreduce_(ones, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert scaled is ones and same(ones, torch.full((5,), 2.0 * size, dtype=dtype))


def test_bools_and_bits() -> None:
    rank, size = hvd.rank(), hvd.size()
    flags = torch.tensor([rank == 0, True, False])
    assert same(hvd.allreduce(flags, op=hvd.Max), torch.tensor([True, True, False]))
    assert same(hvd.allreduce(flags, op=hvd.LogicalAnd), torch.tensor([size == 1, True, False]))
    bits = torch.tensor([1 << rank], dtype=torch.int32)
    assert same(hvd.allreduce(bits, op=hvd.BitOr), torch.tensor([(1 << size) - 1], dtype=torch.int32))


def test_scalars_and_empty_tensors() -> None:
    assert same(hvd.allreduce(torch.tensor(3.0), op=hvd.Sum), torch.tensor(3.0 * hvd.size()))
    assert same(hvd.allreduce(torch.empty(0, 4), op=hvd.Sum), torch.empty(0, 4))
    assert same(hvd.broadcast(torch.tensor(hvd.rank()), 0), torch.tensor(0))


def test_names_are_labels() -> None:
    assert same(hvd.allreduce(torch.ones(2), name="gradient", op=hvd.Sum), torch.full((2,), float(hvd.size())))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_moves(dtype: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    parts = [given(other, dtype, (other, 2)) for other in range(size)]
    expected = torch.cat([part.to(torch.float64) for part in parts]).to(dtype)
    assert same(hvd.allgather(parts[rank]), expected)
    assert same(hvd.synchronize(hvd.allgather_async(parts[rank])), expected)
    for root in range(size):
        mine = given(rank, dtype)
        assert same(hvd.broadcast(mine, root), given(root, dtype))
        assert same(hvd.synchronize(hvd.broadcast_async(mine, root)), given(root, dtype))
        assert same(mine, given(rank, dtype))
        assert hvd.synchronize(hvd.broadcast_async_(mine, root)) is mine
        assert same(hvd.broadcast_(given(rank, dtype), root), given(root, dtype)) and same(mine, given(root, dtype))
    sent = torch.arange(size).to(dtype)
    assert same(hvd.alltoall(sent), torch.full((size,), rank).to(dtype))
    if dtype is not torch.bool:
        whole = torch.ones(size + 1, 2).to(dtype)
        rows = phalanx.rows.divide(size + 1, size)[rank]
        reduced = torch.full((rows, 2), size).to(dtype)
        assert same(hvd.reducescatter(whole, op=hvd.Sum), reduced)
        assert same(hvd.synchronize(hvd.reducescatter_async(whole, op=hvd.Sum)), reduced)


def test_alltoall_with_splits() -> None:
    rank, size = hvd.rank(), hvd.size()
    splits = [rank + peer for peer in range(size)]
    rows = torch.full((sum(splits) + 1, 2), float(rank))
    expected = torch.cat([torch.full((rank + peer, 2), float(peer)) for peer in range(size)])
    for form in (splits, torch.tensor(splits, dtype=torch.int32)):
        output, received = hvd.alltoall(rows, form)
        assert same(output, expected) and same(received, torch.tensor(splits, dtype=torch.int32))
    output, received = hvd.synchronize(hvd.alltoall_async(rows, splits))
    assert same(output, expected) and received.tolist() == splits
    for wrong in (torch.tensor(splits), [splits], [1] * (size + 1), [100] * size):
        with pytest.raises((ValueError, TypeError)):
            hvd.alltoall(rows, wrong)


def test_lists_of_tensors() -> None:
    rank, size = hvd.rank(), hvd.size()
    tensors = [torch.full((number + 1,), float(rank)) for number in range(4)]
    total = float(sum(range(size)))
    expected = [torch.full((number + 1,), total) for number in range(4)]
    assert all(map(same, hvd.grouped_allreduce(tensors, op=hvd.Sum), expected))
    gathered = hvd.grouped_allgather([torch.tensor([rank]), torch.tensor([2 * rank])])
    assert [tensor.tolist() for tensor in gathered] == [list(range(size)), [2 * other for other in range(size)]]
    scattered = hvd.grouped_reducescatter([torch.ones(size), torch.ones(2 * size)], op=hvd.Sum)
    assert [tensor.tolist() for tensor in scattered] == [[size], [size, size]]
    handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum)
    assert all(left is right for left, right in zip(hvd.synchronize(handle), tensors, strict=True))
    assert hvd.poll(handle) and all(map(same, tensors, expected))
    with pytest.raises(ValueError, match="contiguous"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2, 3).T])


def test_half_precision_on_the_way() -> None:
    mine = torch.full((9,), 1.5 + hvd.rank())
    result = hvd.allreduce(mine, compression=hvd.Compression.fp16, op=hvd.Sum)
    assert same(result, torch.full((9,), sum(1.5 + rank for rank in range(hvd.size()))))
    whole = torch.arange(4)
    assert same(hvd.allreduce(whole, compression=hvd.Compression.fp16, op=hvd.Sum), whole * hvd.size())


def test_fewer_ranks() -> None:
    rank = hvd.rank()
    half = hvd.split(rank % 2)
    assert half is not None
    assert same(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=half), torch.tensor([float(half.size)]))
    small = torch.tensor([1.0])
    assert hvd.allreduce_(small, op=hvd.Sum, process_set=half).item() == half.size
    assert hvd.allgather(torch.tensor([rank]), process_set=half).tolist() == list(range(rank % 2, hvd.size(), 2))


def test_the_older_flag_is_a_truth_value() -> None:
    for average, expected in ((None, 1), (True, 1), (1, 1), (False, hvd.size()), (0, hvd.size())):
        assert hvd.allreduce(torch.ones(1), average=average).item() == expected
        assert hvd.allreduce_(torch.ones(1), average=average).item() == expected


def test_names_of_horovod_that_are_not_there_say_what_is() -> None:
    assert not hasattr(hvd, "Adasum") and not hasattr(hvd, "nonsense")
    with pytest.raises(AttributeError, match=r"hvd\.split"):
        hvd.add_process_set([0])


def test_what_cannot_be_given() -> None:
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_):
        with pytest.raises(ValueError, match="contiguous"):
            call(torch.ones(3, 4).T)
        with pytest.raises(ValueError, match="not supported"):
            call(torch.ones(3, dtype=torch.complex64))
        with pytest.raises(ValueError, match="layout"):
            call(torch.ones(3, 3).to_sparse())
        with pytest.raises(ValueError, match="host memory"):
            call(torch.ones(3, device="meta"))
        with pytest.raises(ValueError, match="together"):
            call(torch.ones(3), average=True, op=hvd.Sum)
        with pytest.raises(phalanx.InvalidArgumentError, match="give op=Max"):
            call(torch.ones(3), hvd.Max)
    for call in (
        *(hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_, hvd.allgather, hvd.allgather_async),
        *(hvd.alltoall, hvd.alltoall_async, hvd.reducescatter, hvd.reducescatter_async),
    ):
        with pytest.raises(phalanx.InvalidArgumentError, match="a tensor expected"):
            call([1.0])
    with pytest.raises(ValueError, match="Average or Sum"):
        hvd.reducescatter(torch.ones(4), op=hvd.Max)
    for call in (hvd.reducescatter, hvd.allgather, hvd.alltoall):
        with pytest.raises(ValueError, match="scalar"):
            call(torch.tensor(1.0))
    with pytest.raises(ValueError, match="handle"):
        hvd.synchronize(7)
    assert hvd.HorovodInternalError is phalanx.PhalanxError


def test_different_tensors_are_an_error_on_every_rank(several: None) -> None:
    odd = hvd.rank() == 0
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(3 if odd else 4))
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce_(torch.ones(3, dtype=torch.int32 if odd else torch.float32), op=hvd.Sum)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allgather(torch.ones(3, 2 if odd else 3))
    with pytest.raises(hvd.HorovodInternalError):
        hvd.alltoall(torch.ones(hvd.size(), 2 if odd else 3))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


# Gradients


def leaf(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(dtype).requires_grad_()


def test_gradient_of_allreduce() -> None:
    rank, size = hvd.rank(), hvd.size()
    for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 1 / size)):
        mine = leaf(4, 2)
        result = hvd.allreduce(mine, op=op)
        assert result.requires_grad
        result.backward(torch.full((4, 2), float(size * (rank + 1))))
        assert same(mine.grad, torch.full((4, 2), factor * size * sum(range(1, size + 1))))
    # A sum's gradient has gaps: it is one number, seen many times.
    mine = leaf(3)
    hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0).sum().backward()
    assert same(mine.grad, torch.full((3,), 2.0 * size))
    first, second = leaf(3), leaf(2)
    sum(tensor.sum() for tensor in hvd.grouped_allreduce([first, second], op=hvd.Sum)).backward()
    assert same(first.grad, torch.full((3,), float(size))) and same(second.grad, torch.full((2,), float(size)))


def test_no_gradient_is_made_where_none_is_wanted() -> None:
    with torch.no_grad():
        assert not hvd.allreduce(leaf(3)).requires_grad
    assert not hvd.allreduce(torch.ones(3)).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(leaf(3))).requires_grad


def test_gradient_of_allgather() -> None:
    rank, size = hvd.rank(), hvd.size()
    mine = leaf(rank + 1, 2)
    gathered = hvd.allgather(mine)
    weights = torch.arange(float(gathered.numel())).reshape(gathered.shape)
    (gathered * weights * (rank + 1) * size).sum().backward()
    start = sum(range(1, rank + 1))
    assert same(mine.grad, weights[start : start + rank + 1] * sum(range(1, size + 1)))


def test_gradient_of_broadcast() -> None:
    rank, size = hvd.rank(), hvd.size()
    root = size - 1
    mine = leaf(3)
    (hvd.broadcast(mine, root) * (rank + 1) * size).sum().backward()
    expected = float(sum(range(1, size + 1))) if rank == root else 0.0
    assert same(mine.grad, torch.full((3,), expected))


def test_gradient_of_alltoall() -> None:
    rank, size = hvd.rank(), hvd.size()
    splits = [peer + 1 for peer in range(size)]
    mine = leaf(sum(splits) + 2, 2)
    output, received = hvd.alltoall(mine, splits)
    assert not received.requires_grad
    (output * (rank + 1)).sum().backward()
    rows = [float(peer + 1) for peer in range(size) for _ in range(peer + 1)] + [0.0, 0.0]
    assert same(mine.grad, torch.tensor(rows)[:, None].repeat(1, 2))


def test_gradient_of_reducescatter() -> None:
    rank, size = hvd.rank(), hvd.size()
    for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
        mine = leaf(size + 1, 2)
        (hvd.reducescatter(mine, op=op) * (rank + 1)).sum().backward()
        rows = [peer + 1.0 for peer, count in enumerate(phalanx.rows.divide(size + 1, size)) for _ in range(count)]
        assert same(mine.grad, torch.tensor(rows)[:, None].repeat(1, 2) * factor)


def test_a_gradient_of_a_gradient() -> None:
    mine = leaf(3)
    (first,) = torch.autograd.grad((hvd.allreduce(mine, op=hvd.Sum) ** 2).sum(), mine, create_graph=True)
    first.sum().backward()
    assert same(mine.grad, torch.full((3,), 2.0 * hvd.size() ** 2))


def test_what_scripts_ask_about_the_build() -> None:
    # All ranks of these tests share one host.
    assert hvd.is_homogeneous() is True
    assert phalanx.world().native.hosts == [0] * hvd.size()
    assert hvd.mpi_threads_supported() is True
    assert hvd.nccl_built() == 21800
    for name in ("cuda", "rdma"):
        assert getattr(hvd, f"{name}_built")() is True
    for name in ("mpi", "gloo", "rocm", "ccl", "ddl"):
        assert getattr(hvd, f"{name}_built")() is False
    assert hvd.mpi_enabled() is False and hvd.gloo_enabled() is False
