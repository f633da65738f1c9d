"""The distributed optimizer, and the same state on every rank."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

import phalanx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import phalanx.torch as hvd  # noqa: E402


class Layers(torch.nn.Module):
    """Layers of whole numbers, so that sums are exact whatever their order."""

    def __init__(self, count: int = 4, width: int = 5, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter((torch.arange(width) + layer).to(dtype)) for layer in range(count)
        )

    def forward(self, inputs: Any, used: Any = None) -> Any:
        total = 0
        for number in used if used is not None else range(len(self.layers)):
            total = total + (self.layers[number] * inputs * (number + 1)).sum()
        return total


def inputs_of(rank: int, width: int = 5) -> Any:
    return torch.arange(float(width)) + rank


def gradients_of(layer: int, factor: float = 1.0) -> Any:
    """What the sum over all ranks of a layer's gradient is."""
    return sum(inputs_of(rank) for rank in range(hvd.size())) * (layer + 1) * factor


def make(model: Any, rate: float = 0.0, **options: Any) -> Any:
    options.setdefault("op", hvd.Sum)
    options.setdefault("named_parameters", model.named_parameters())
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=rate), **options)


def check(model: Any, factor: float = 1.0) -> None:
    for number, parameter in enumerate(model.layers):
        assert parameter.grad.tolist() == gradients_of(number, factor).tolist()


@pytest.mark.parametrize("bucket_bytes", [1, 41, 1 << 20])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_summed_up(bucket_bytes: int, set_to_none: bool) -> None:
    model = Layers()
    optimizer = make(model, bucket_bytes=bucket_bytes)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(inputs_of(hvd.rank())).backward()
        optimizer.step()
        check(model)


def test_the_average_moves_the_parameters_alike() -> None:
    model = Layers()
    optimizer = make(model, rate=2.0, op=hvd.Average)
    model(inputs_of(hvd.rank()) * hvd.size()).backward()
    before = [parameter.detach().clone() for parameter in model.layers]
    optimizer.step()
    for number, parameter in enumerate(model.layers):
        assert parameter.tolist() == (before[number] - 2.0 * gradients_of(number)).tolist()


def test_it_is_still_an_optimizer_of_its_class() -> None:
    model = Layers()
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups is plain.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    scheduler.step()
    check(model)
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    check(model)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.step()
    assert calls == ["before"]


def test_a_scheduler_made_before_does_not_bypass_the_reduction() -> None:
    model = Layers()
    plain = torch.optim.SGD(model.parameters(), lr=0.0)
    torch.optim.lr_scheduler.StepLR(plain, step_size=1)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    check(model)


def test_ranks_may_use_different_layers_in_different_order(several: None) -> None:
    model = Layers(6)
    optimizer = make(model, bucket_bytes=1)
    rank, size = hvd.rank(), hvd.size()
    # Each rank leaves one layer out, and goes through the others its own way.
    used = [(number + rank) % 6 for number in range(5)]
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs_of(rank), used).backward()
        optimizer.step()
        for number, parameter in enumerate(model.layers):
            users = [other for other in range(size) if number in [(step + other) % 6 for step in range(5)]]
            expected = sum((inputs_of(other) for other in users), torch.zeros(5)) * (number + 1)
            assert parameter.grad.tolist() == expected.tolist()


def test_buckets_travel_while_the_backward_pass_goes_on(several: None) -> None:
    layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    hvd.broadcast_parameters(layers.state_dict(), 0)
    optimizer = make(layers, bucket_bytes=1)
    inputs = torch.ones(2, 8, requires_grad=True)
    launched = []
    inputs.register_hook(lambda _: launched.append(optimizer._phalanx.launched))
    layers(inputs).sum().backward()
    # The inputs' gradient is the last to be made; that of the last layers was on its way by then.
    assert launched[0] >= 4
    optimizer.step()


def test_gradients_stay_where_they_travel_from(several: None) -> None:
    model = Layers()
    optimizer = make(model)
    places = []
    for _ in range(3):
        model(inputs_of(hvd.rank())).backward()
        optimizer.step()
        places.append([parameter.grad.data_ptr() for parameter in model.layers])
        check(model)
        optimizer.zero_grad(set_to_none=False)
    assert places[0] == places[1] == places[2]


# So large that a gradient travels alone.
WIDE = (1 << 18) + 3


def test_a_large_gradient_travels_from_where_it_lies(several: None) -> None:
    model = Layers(2, WIDE)
    optimizer = make(model)
    reducer = optimizer._phalanx
    assert [len(bucket.parameters) for bucket in reducer.buckets] == [1, 1]
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs_of(hvd.rank(), WIDE)).backward()
        places = [parameter.grad.data_ptr() for parameter in model.layers]
        optimizer.step()
        assert [parameter.grad.data_ptr() for parameter in model.layers] == places
        for number, parameter in enumerate(model.layers):
            total = sum(inputs_of(rank, WIDE) for rank in range(hvd.size())) * (number + 1)
            assert torch.equal(parameter.grad, total)
    # Kept, it is summed up where other ranks can read it.
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        assert not any(parameter.grad.any() for parameter in model.layers)
        model(inputs_of(hvd.rank(), WIDE)).backward()
        assert [parameter.grad.data_ptr() for parameter in model.layers] == [
            parameter.view.data_ptr() for parameter in reducer.parameters
        ]
        optimizer.step()
        assert torch.equal(model.layers[1].grad, sum(inputs_of(rank, WIDE) for rank in range(hvd.size())) * 2)


def test_large_gradients_of_every_kind(several: None) -> None:
    """None at all, one with a history, one with gaps, one tensor for two parameters, half precision."""
    rank, size = hvd.rank(), hvd.size()
    model = Layers(4, WIDE)
    optimizer = make(model)
    gaps = torch.zeros(WIDE, 2)
    gaps[:, 0] = rank + 1
    history = torch.ones(WIDE, requires_grad=True) * (rank + 1)
    shared = torch.full((WIDE,), float(rank))
    model.layers[0].grad = None if rank == 0 else torch.ones(WIDE)
    model.layers[1].grad = history if rank == 0 else gaps[:, 0]
    model.layers[2].grad = model.layers[3].grad = shared
    optimizer.step()
    for number, total in enumerate([size - 1, size * (size + 1) // 2, size * (size - 1) // 2, size * (size - 1) // 2]):
        assert (model.layers[number].grad == total).all(), number
    assert (history == rank + 1).all()
    model = Layers(4, WIDE)
    optimizer = make(model, compression=hvd.Compression.fp16)
    for set_to_none in (True, False):
        optimizer.zero_grad(set_to_none=set_to_none)
        (sum(layer.sum() for layer in model.layers) * (rank + 1)).backward()
        optimizer.step()
        assert all((layer.grad == size * (size + 1) // 2).all() for layer in model.layers)


def test_small_gradients_are_packed_around_large_ones(several: None) -> None:
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(width)) for width in (3, WIDE, 4, WIDE, 5))
    optimizer = make(model)
    sizes = [[parameter.tensor.numel() for parameter in bucket.parameters] for bucket in optimizer._phalanx.buckets]
    # Each bucket when its last gradient is there, from the last parameter to the first.
    assert sizes == [[WIDE], [WIDE], [5, 4, 3]]
    sum(parameter.sum() * (hvd.rank() + 1) for parameter in model).backward()
    optimizer.step()
    assert all((parameter.grad == hvd.size() * (hvd.size() + 1) // 2).all() for parameter in model)


def test_what_a_forked_child_computes_is_its_own(several: None) -> None:
    model = Layers()
    optimizer = make(model)
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    model(inputs_of(hvd.rank())).backward()
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            for _ in range(2):
                model(torch.ones(5)).backward()
            assert model.layers[1].grad.tolist() == [4.0] * 5
            try:
                optimizer.step()
            except RuntimeError as error:
                failed = 0 if "forked" in str(error) else 2
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    optimizer.step()
    check(model)


def test_several_backward_passes() -> None:
    model = Layers()
    optimizer = make(model, backward_passes_per_step=2)
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs_of(hvd.rank())).backward()
        model(inputs_of(hvd.rank())).backward()
        optimizer.step()
        check(model, 2.0)
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    check(model)
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)


def test_too_many_backward_passes(several: None) -> None:
    model = Layers()
    optimizer = make(model)
    model(inputs_of(hvd.rank())).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(inputs_of(hvd.rank())).backward()
    optimizer.synchronize()


def test_clipping_between_synchronize_and_step() -> None:
    model = Layers()
    optimizer = make(model)
    model(inputs_of(hvd.rank())).backward()
    optimizer.synchronize()
    check(model)
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    for parameter in model.layers:
        assert parameter.grad.max() <= 1.0


def test_a_step_after_synchronize_is_warned_of_once(several: None) -> None:
    model = Layers()
    optimizer = make(model)
    model(inputs_of(hvd.rank())).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize") as caught:
        optimizer.step()
    assert len(caught) == 1


def test_gradients_on_their_way_are_not_forgotten(several: None) -> None:
    model = Layers()
    optimizer = make(model)
    model(inputs_of(hvd.rank())).backward()
    with pytest.raises(AssertionError, match="on their way"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def test_a_closure_is_reduced() -> None:
    model = Layers()
    optimizer = make(model)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(inputs_of(hvd.rank()))
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == model(inputs_of(hvd.rank())).item()
    check(model)


@pytest.mark.parametrize("groups", [1, 3, "lists"])
def test_groups(groups: Any) -> None:
    model = Layers(5)
    wanted = [[model.layers[0], model.layers[4]], [model.layers[2]]] if groups == "lists" else groups
    optimizer = make(model, groups=wanted)
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    check(model)
    for wrong in (-1, [[model.layers[0]], [model.layers[0]]], [3]):
        with pytest.raises(ValueError, match="groups"):
            make(model, groups=wrong)


def test_predivision_half_precision_and_own_compression() -> None:
    class Doubled(hvd.Compressor):
        shapes: list[Any] = []  # noqa: RUF012

        @staticmethod
        def compress(tensor: Any) -> Any:
            Doubled.shapes.append(tuple(tensor.shape))
            return tensor.to(torch.float64), tensor.dtype

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor.to(ctx)

    for options in (
        {"op": hvd.Average, "gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"compression": Doubled},
    ):
        model = Layers()
        optimizer = make(model, **options)
        factor = hvd.size() if options.get("op") == hvd.Average else 1
        model(inputs_of(hvd.rank()) * factor).backward()
        optimizer.step()
        check(model)
    # What is not known to treat each element alone gets each gradient alone.
    assert hvd.size() == 1 or Doubled.shapes == [(5,)] * 4
    with pytest.raises(ValueError, match="op=Average only"):
        make(Layers(), gradient_predivide_factor=2.0)


def test_types_travel_in_buckets_of_their_own() -> None:
    model = torch.nn.ParameterList(
        torch.nn.Parameter(torch.ones(3, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32, torch.bfloat16)
    )
    optimizer = make(model)
    sum((parameter.double() * (hvd.rank() + 1)).sum() for parameter in model).backward()
    optimizer.step()
    for parameter in model:
        assert parameter.grad.tolist() == [float(sum(range(1, hvd.size() + 1)))] * 3
        assert parameter.grad.dtype == parameter.dtype


def test_sparse_gradients() -> None:
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = make(embedding, sparse_as_dense=True)
    embedding(torch.tensor([hvd.rank() % 4])).sum().backward()
    optimizer.step()
    if hvd.size() > 1:
        used = [sum(rank % 4 == row for rank in range(hvd.size())) for row in range(4)]
        assert embedding.weight.grad.tolist() == [[float(count)] * 2 for count in used]
        other = torch.nn.Embedding(4, 2, sparse=True)
        make(other)
        with pytest.raises(ValueError, match="sparse_as_dense"):
            other(torch.tensor([0])).sum().backward()


def test_parameters_without_gradient_take_no_part() -> None:
    model = Layers()
    model.layers[1].requires_grad_(False)
    optimizer = make(model)
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    assert model.layers[1].grad is None
    assert model.layers[2].grad.tolist() == gradients_of(2).tolist()


def test_names_are_checked() -> None:
    model = Layers()
    pairs = list(model.named_parameters())
    for wrong, words in (
        ([*pairs, pairs[0]], "more than once"),
        (pairs[1:], "lacks 1"),
        ([parameter for _, parameter in pairs], "pairs"),
    ):
        with pytest.raises(ValueError, match=words):
            make(model, named_parameters=wrong)
    with pytest.raises(ValueError, match="at least 1"):
        make(model, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="Average or Sum"):
        make(model, op=hvd.Max)


def test_other_models_are_an_error_on_every_rank(several: None) -> None:
    with pytest.raises(phalanx.MismatchError, match="same model"):
        make(Layers(width=5 if hvd.rank() == 0 else 6))


def test_fewer_ranks() -> None:
    half = phalanx.split(hvd.rank() % 2)
    assert half is not None
    model = Layers()
    optimizer = make(model, process_set=half)
    model(inputs_of(hvd.rank())).backward()
    optimizer.step()
    members = range(hvd.rank() % 2, hvd.size(), 2)
    for number, parameter in enumerate(model.layers):
        expected = sum(inputs_of(rank) for rank in members) * (number + 1)
        assert parameter.grad.tolist() == expected.tolist()


# The same state on every rank


def test_broadcast_parameters() -> None:
    rank = hvd.rank()
    for form in (
        lambda model: model.state_dict(),
        lambda model: model.named_parameters(),
        lambda model: list(model.parameters()),
    ):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        for parameter in model.parameters():
            parameter.data.fill_(rank + 1)
        model[1].running_mean.fill_(rank + 1)
        hvd.broadcast_parameters(form(model), root_rank=0)
        assert all((parameter == 1).all() for parameter in model.parameters())
    gaps = torch.full((3, 4), float(rank)).T
    hvd.broadcast_parameters({"gaps": gaps}, 0)
    assert (gaps == 0).all()
    for wrong in (3, torch.ones(1), {"a": "b"}):
        with pytest.raises(ValueError, match="expected"):
            hvd.broadcast_parameters(wrong, 0)


@pytest.mark.parametrize("distributed", [False, True])
def test_broadcast_of_adams_state(distributed: bool) -> None:
    rank = hvd.rank()
    model = Layers()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.5 if rank == 0 else 0.25)
    if rank == 0:
        # Only the root has made a step, as after loading a checkpoint.
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    weights = [parameter.tolist() for parameter in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert [parameter.tolist() for parameter in model.parameters()] == weights
    assert all(parameter.grad is None for parameter in model.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.5
    states = hvd.allgather_object(repr(optimizer.state_dict()))
    assert states == [states[0]] * hvd.size()
    assert all(optimizer.state[parameter]["step"] == 1 for parameter in model.parameters())
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


def test_training_gives_the_same_weights_on_every_rank() -> None:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=256)
    losses = []
    for _ in range(20):
        inputs = torch.randn(8, 6)
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    assert sum(losses[-5:]) < sum(losses[:5])
    weights = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
    assert weights == [weights[0]] * hvd.size()
