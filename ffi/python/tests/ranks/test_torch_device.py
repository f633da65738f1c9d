"""PyTorch tensors on a device: in every collective and the optimizer, on the current stream."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import phalanx

pytest.importorskip("numpy", reason="NumPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import stand_in  # noqa: E402
import torch_stand_in  # noqa: E402
from torch_stand_in import Current, Tensor  # noqa: E402

import phalanx.torch as hvd  # noqa: E402

pytestmark = stand_in.needs_stand_in


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Iterator[Current]:
    monkeypatch.setattr(Tensor, "ordinal", phalanx.rank() % 2)
    yield torch_stand_in.use(monkeypatch)


def given(rank: int, dtype: Any = torch.float32, shape: tuple[int, ...] = (6, 5)) -> Any:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 7 + rank).to(dtype)


def total(dtype: Any = torch.float32) -> Any:
    return sum(given(rank, torch.float64) for rank in range(hvd.size())).to(dtype)  # type: ignore[union-attr]


def mine(dtype: Any = torch.float32) -> Any:
    return Tensor.of(given(hvd.rank(), dtype))


def values(tensor: Any) -> Any:
    """The elements, after what is on the stream that is current."""
    assert type(tensor) is Tensor
    torch.cuda.current_stream(tensor.device).stream.synchronize()
    return tensor.tolist()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8]
)
def test_allreduce(current: Current, dtype: Any) -> None:
    tensor = mine(dtype)
    expected = total(dtype).tolist()
    assert values(hvd.allreduce(tensor, op=hvd.Sum)) == expected
    assert values(hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum))) == expected
    assert values(tensor) == given(hvd.rank(), dtype).tolist()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert values(tensor) == expected
    again = mine(dtype)
    assert hvd.synchronize(hvd.allreduce_async_(again, op=hvd.Sum)) is again
    assert values(again) == expected
    assert current.asked > 0


def test_the_other_collectives(current: Current) -> None:
    rank, size = hvd.rank(), hvd.size()
    tensor = mine()
    assert values(hvd.broadcast(tensor, 0)) == given(0).tolist()
    assert values(hvd.broadcast_(mine(), size - 1)) == given(size - 1).tolist()
    gathered = [row for other in range(size) for row in given(other).tolist()]
    assert values(hvd.allgather(tensor)) == gathered
    assert values(hvd.synchronize(hvd.allgather_async(tensor))) == gathered
    shares = [6 // size + (other < 6 % size) for other in range(size)]
    own = total()[sum(shares[:rank]) : sum(shares[: rank + 1])].tolist()
    assert values(hvd.reducescatter(tensor, op=hvd.Sum)) == own
    # Row r of what each rank has goes to rank r.
    rows = Tensor.of(torch.arange(size * 2).reshape(size, 2) + 100 * rank)
    expected = [[100 * other + 2 * rank, 100 * other + 2 * rank + 1] for other in range(size)]
    assert values(hvd.alltoall(rows)) == expected
    result, received = hvd.alltoall(rows, splits=[1] * size)
    assert values(result) == expected and received.tolist() == [1] * size
    for result in hvd.grouped_allreduce([tensor, mine()], op=hvd.Sum):
        assert values(result) == total().tolist()
    for result in hvd.grouped_allgather([tensor]) + hvd.grouped_reducescatter([tensor], op=hvd.Sum):
        assert type(result) is Tensor
    halves = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert type(halves) is Tensor and halves.dtype == torch.float32


def test_arrays_are_tensors_of_its_kind_at_the_other_door(current: Current) -> None:
    tensor = mine()
    result = phalanx.allreduce(tensor, phalanx.Sum)
    assert type(result) is Tensor and values(result) == total().tolist()
    assert phalanx.allreduce_(tensor, phalanx.Sum) is tensor
    assert values(tensor) == total().tolist()
    assert values(phalanx.broadcast(mine(), 0)) == given(0).tolist()


def test_a_call_is_on_the_stream_that_is_current(current: Current) -> None:
    ordinal = Tensor.ordinal
    side, main = current.streams[ordinal], torch_stand_in.StandInStream(ordinal)
    tensor = Tensor.of(torch.zeros(1000))
    phalanx.barrier()
    stand_in.stop(side.stream)
    side.stream.write(tensor.data_ptr(), given(hvd.rank(), shape=(1000,)).numpy())
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
    # Another stream becomes current: it sees the results of what is waited for on it.
    current.streams[ordinal] = main
    assert not hvd.poll(handle)
    stand_in.release()
    assert hvd.synchronize(handle) is tensor
    expected = sum(given(rank, shape=(1000,)) for rank in range(hvd.size()))
    assert values(tensor) == expected.tolist()  # type: ignore[union-attr]


def test_gradients_on_a_device(current: Current) -> None:
    layers = [Tensor.of(torch.arange(5.0) + number).requires_grad_() for number in range(3)]
    host = torch.arange(4.0).requires_grad_()
    named = [(f"layer {number}", layer) for number, layer in enumerate([*layers, host])]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*layers, host], lr=0.0), named_parameters=named, op=hvd.Sum)
    for factor in (1.0, 2.0):
        optimizer.zero_grad()
        inputs = (torch.arange(5.0) + hvd.rank()) * factor
        loss = (host * inputs[:4]).sum()
        for number, layer in enumerate(layers):
            loss = loss + (layer * inputs * (number + 1)).sum().as_subclass(torch.Tensor)
        loss.backward()
        optimizer.synchronize()
        current.streams[Tensor.ordinal].stream.synchronize()
        summed = sum((torch.arange(5.0) + rank) * factor for rank in range(hvd.size()))
        for number, layer in enumerate(layers):
            assert layer.grad is not None and layer.grad.tolist() == (summed * (number + 1)).tolist()
        assert host.grad is not None and host.grad.tolist() == summed[:4].tolist()  # type: ignore[index]
        with optimizer.skip_synchronize():
            optimizer.step()


def test_parameters_and_state_are_broadcast(current: Current) -> None:
    layer = mine().requires_grad_()
    hvd.broadcast_parameters({"layer": layer, "host": torch.ones(2)}, root_rank=0)
    assert values(layer) == given(0).tolist()


def test_what_cannot_be_is_refused(current: Current) -> None:
    with pytest.raises(phalanx.InvalidArgumentError, match="required to be contiguous"):
        hvd.allreduce(mine().t())
    with pytest.raises(phalanx.InvalidArgumentError, match="not supported"):
        hvd.allreduce_(Tensor.of(torch.zeros(2, dtype=torch.complex64)))
    with pytest.raises(
        phalanx.InvalidArgumentError, match="a tensor on meta given, one in host memory or on a CUDA device"
    ):
        hvd.allreduce(torch.empty(2, device="meta"))
    # The host's memory, of which something says that it is a device's.
    with pytest.raises(phalanx.InvalidArgumentError, match="not device memory"):
        hvd.allreduce_(torch.zeros(2, requires_grad=True).as_subclass(Tensor))


def test_tensors_of_the_host_ask_for_no_device() -> None:
    code = """
import torch, phalanx.torch as hvd
def refuse(*_): raise AssertionError("a device was asked for")
torch.cuda.current_stream = torch.cuda._lazy_init = refuse
hvd.init()
layer = torch.nn.Linear(3, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(layer.parameters()), layer.named_parameters())
hvd.broadcast_parameters(layer.state_dict(), 0)
layer(torch.ones(3)).sum().backward()
optimizer.step()
hvd.broadcast_optimizer_state(optimizer, 0)
for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.reducescatter, hvd.alltoall):
    call(torch.ones(4))
hvd.broadcast_(torch.ones(4), 0)
assert not torch.cuda.is_initialized()
with open("/proc/self/maps") as maps:
    assert "libcuda.so" not in maps.read()
print("well")
"""
    if hvd.rank() == 0:
        command = [sys.executable, "-m", "phalanx", "run", "-np", "2", sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout.count("well")) == (0, 2), result.stderr
