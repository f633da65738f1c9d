"""Elastic training with PyTorch, in the manner of Horovod: `hvd.elastic`. See `phalanx.elastic`."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sized
from typing import Any

import torch

from phalanx.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    StepOutcome,
    last_step,
    members,
    run,
    slot,
)
from phalanx.elastic.image import pack, unpack
from phalanx.elastic.sampler import ElasticSampler as _ElasticSampler

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StepOutcome",
    "TorchState",
    "last_step",
    "members",
    "run",
    "slot",
]


class ElasticSampler(_ElasticSampler, torch.utils.data.Sampler[int]):
    __doc__ = _ElasticSampler.__doc__

    def __init__(self, dataset: Sized | int, shuffle: bool = True, seed: int = 0) -> None:
        _ElasticSampler.__init__(self, dataset, shuffle, seed)


class _Place:
    """Stands for a tensor in values whose tensors travel beside them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """A dense tensor's memory, as long as the tensor is held."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")


def _apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy of nested values with stand-ins for the tensors, which are added to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().cpu().contiguous())
        return _Place(tensors[-1])
    if isinstance(value, dict):
        return {key: _apart(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_apart(one, tensors) for one in value)
    return value


def _together(value: Any, data: memoryview, at: list[int]) -> Any:
    """Nested values with their tensors, whose memory stands at `at[0]` and behind."""
    if isinstance(value, _Place):
        tensor = torch.empty(value.shape, dtype=value.dtype)
        memory = _bytes_of(tensor)
        memory[:] = data[at[0] : at[0] + len(memory)]
        at[0] += len(memory)
        return tensor
    if isinstance(value, dict):
        return {key: _together(one, data, at) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_together(one, data, at) for one in value)
    return value


_HEADER = 8


def _image(value: Any) -> bytearray:
    """Nested values in bytes: how long their description is, that, and the tensors."""
    tensors: list[torch.Tensor] = []
    described = pack(_apart(value, tensors))
    image = bytearray(len(described).to_bytes(_HEADER, "little") + described)
    for tensor in tensors:
        image += _bytes_of(tensor)
    return image


def _value(image: bytes) -> Any:
    """The nested values of an image."""
    length = int.from_bytes(image[:_HEADER], "little")
    data = memoryview(image)
    return _together(unpack(data[_HEADER : _HEADER + length]), data, [_HEADER + length])


class TorchState(ObjectState):
    """A state of a model, an optimizer, and named values, all of which are its attributes.

    Values with a `state_dict`, such as samplers, schedulers and other models, are parts as the model is. A model's
    buffers, such as the running statistics of batch normalisation, may differ from rank to rank; when ranks join, all
    take over those of the first rank.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **values: Any
    ) -> None:
        parts = {"model": model, "optimizer": optimizer}
        super().__init__(**{name: part for name, part in parts.items() if part is not None}, **values)

    def _modules(self) -> dict[str, torch.nn.Module]:
        values = {name: getattr(self, name) for name in self._values}
        return {name: value for name, value in values.items() if isinstance(value, torch.nn.Module)}

    def _give(self) -> Any:
        parts = self._parts()
        for name, module in self._modules().items():
            parameters = dict(module.named_parameters(remove_duplicate=False))
            parts[name] = {key: value for key, value in parts[name].items() if key in parameters}
        return _image(parts)

    def _load(self, data: bytes) -> None:
        parts = _value(data)
        for name, module in self._modules().items():
            # The buffers come by themselves.
            parts[name] = {**module.state_dict(), **parts[name]}
        self._put(parts)

    def _give_own(self) -> Any:
        own = {}
        for name, module in self._modules().items():
            parameters = dict(module.named_parameters(remove_duplicate=False))
            own[name] = {key: value for key, value in module.state_dict().items() if key not in parameters}
        return _image(own)

    def _take_own(self, data: bytes) -> None:
        own = _value(data)
        for name, module in self._modules().items():
            if own[name]:
                module.load_state_dict({**module.state_dict(), **own[name]})

    def save(self) -> None:
        with torch.no_grad():
            self._saved = copy.deepcopy(self._parts())
