"""The same state on every rank: parameters, an optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from phalanx.communicator import Communicator
from phalanx.errors import InvalidArgumentError
from phalanx.objects import broadcast_object
from phalanx.torch.tensors import communicator_of, memory_of

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]

Parameters = Mapping[str, Any] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def _broadcast_in_place(tensors: Iterable[torch.Tensor], root_rank: int, process_set: Communicator | None) -> None:
    """Broadcasts tensors of any layout, the dense and contiguous ones without a copy."""
    sources = [tensor.detach() for tensor in tensors]
    pairs = [(source, source.contiguous()) for source in sources]

    def broadcast(view: Communicator, wait: bool) -> tuple[None, None]:
        root = view.rank_here(root_rank)
        pending = [view.native.broadcast(memory_of("broadcast", dense), root, wait=False) for _, dense in pairs]
        for handle in pending:
            handle.wait()
        return None, None

    communicator_of(process_set).call(broadcast)
    for source, dense in pairs:
        if dense.data_ptr() != source.data_ptr():
            source.copy_(dense)


def broadcast_parameters(params: Parameters, root_rank: int, process_set: Communicator | None = None) -> None:
    """Replaces parameters by the root's.

    `params` is a dictionary such as `model.state_dict()`, or tensors or pairs such as `model.named_parameters()`.
    """
    items: list[Any]
    if isinstance(params, Mapping):
        items = [value for _, value in sorted(params.items())]
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str | bytes):
        items = [item[1] if isinstance(item, tuple) else item for item in params]
    else:
        raise InvalidArgumentError(
            f"parameters of type {type(params).__qualname__} given, a dictionary or list expected"
        )
    tensors = [item for item in items if item is not None]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(f"a parameter of type {type(tensor).__qualname__} given, a tensor expected")
    _broadcast_in_place(tensors, root_rank, process_set)


class _Tensor:
    """Stands for a tensor in a state that is pickled without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type


def _take_tensors(state: Any, taken: list[torch.Tensor]) -> Any:
    """A copy of a nested state with stand-ins for its tensors, which are added to `taken`."""
    if isinstance(state, torch.Tensor):
        taken.append(state)
        return _Tensor(state)
    if isinstance(state, dict):
        return {key: _take_tensors(value, taken) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_take_tensors(value, taken) for value in state)
    return state


def _make_tensors(state: Any, made: list[torch.Tensor], devices: Mapping[str, torch.device]) -> Any:
    """A copy of a nested state with new tensors for its stand-ins, which are added to `made` in the same order."""
    if isinstance(state, _Tensor):
        made.append(torch.empty(state.shape, dtype=state.dtype, device=devices.get(state.device, state.device)))
        return made[-1]
    if isinstance(state, dict):
        return {key: _make_tensors(value, made, devices) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_make_tensors(value, made, devices) for value in state)
    return state


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: Communicator | None = None,
) -> None:
    """Replaces an optimizer's state and options by the root's, which alone decides what state there is.

    No step is made for it, so that neither parameters nor gradients change.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("the state of torch.optim.LBFGS cannot be broadcast")
    # The state travels to the kind of device that it comes from, here to that of this rank's parameters.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    devices = {parameter.device.type: parameter.device for parameter in reversed(parameters)}

    def broadcast(view: Communicator, wait: bool) -> tuple[Any, None]:
        is_root = view.rank == view.rank_here(root_rank)
        tensors: list[torch.Tensor] = []
        skeleton = _take_tensors(optimizer.state_dict(), tensors) if is_root else None
        skeleton = broadcast_object(skeleton, root_rank, process_set=view)
        state = None if is_root else _make_tensors(skeleton, tensors, devices)
        _broadcast_in_place(tensors, root_rank, view)
        return state, None

    state = communicator_of(process_set).call(broadcast)
    if state is not None:
        optimizer.load_state_dict(state)
