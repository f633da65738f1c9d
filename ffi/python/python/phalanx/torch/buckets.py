"""Gradients in buckets: which travel together, in which order, and the memory they travel in.

Ranks match operations by their order, but gradients become ready in an order that may differ from rank to rank. So the
buckets have an order that does not: parameters from the last to the first, as a backward pass tends to reach them, and
a bucket is launched only after all before it. A bucket holds gradients of one type in one piece of memory. A gradient
that is ready is copied there once, and `param.grad` becomes a view of that place: the result arrives in `param.grad`
without another copy, and where the view is still there for the next backward pass (`zero_grad(set_to_none=False)`),
gradients are summed up in place and nothing is copied at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phalanx._native import Memory
from phalanx.communicator import Communicator, Waitable
from phalanx.errors import InvalidArgumentError
from phalanx.ops import ReduceOp
from phalanx.steps import ElasticCommunicator, Pending, StepOutcome
from phalanx.torch.tensors import CODES, memory_of

__all__ = ["Bucket", "Parameter", "Reduction", "pack"]


class Parameter:
    """A parameter, its name, and where its gradient stands in the current training step."""

    __slots__ = ("bucket", "delay", "name", "ready", "tensor", "view")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_cpu or tensor.dtype not in CODES:
            raise InvalidArgumentError(
                f"parameter {name} is of {tensor.dtype} on {tensor.device}; a supported type in host memory expected"
            )
        self.name = name
        self.tensor = tensor
        self.delay = 1
        self.ready = False
        self.bucket: Bucket | None = None
        self.view: torch.Tensor | None = None


class Reduction:
    """How gradients are reduced: over which ranks, by which operation, compressed how."""

    __slots__ = ("communicator", "compression", "op", "postscale", "prescale")

    def __init__(
        self, communicator: Communicator, op: ReduceOp, prescale: float, postscale: float, compression: Any
    ) -> None:
        self.communicator = communicator
        self.op = op
        self.prescale = prescale
        self.postscale = postscale
        self.compression = compression


class Bucket:
    """Gradients that travel together."""

    __slots__ = ("_context", "_flat", "_handle", "_received", "_sent", "_spare", "outcome", "parameters", "waiting")

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        self.waiting = len(self.parameters)
        self._handle: Waitable | None = None
        self._sent: torch.Tensor | None = None
        self._received: torch.Tensor | None = None
        self._spare: torch.Tensor | None = None
        self._context: Any = None
        # How the step ended that reduced the bucket, in an elastic job.
        self.outcome: StepOutcome | None = None
        first = self.parameters[0].tensor
        self._flat = torch.zeros(sum(parameter.tensor.numel() for parameter in self.parameters), dtype=first.dtype)
        for parameter in self.parameters:
            parameter.bucket = self
        self._show(self._flat)

    def _show(self, flat: torch.Tensor) -> None:
        """Has the gradients lie in a piece of memory."""
        start = 0
        for parameter in self.parameters:
            count = parameter.tensor.numel()
            parameter.view = flat[start : start + count].view(parameter.tensor.shape)
            start += count
        self._flat = flat

    def take(self, parameter: Parameter, sparse_as_dense: bool) -> None:
        """Takes a gradient in. Without one, zeros take its place, so that ranks that used the parameter can go on."""
        view, gradient = parameter.view, parameter.tensor.grad
        assert view is not None
        if gradient is None:
            view.zero_()
        elif gradient.layout is not torch.strided:
            if not sparse_as_dense:
                raise InvalidArgumentError(
                    f"the gradient of {parameter.name} is sparse; give sparse_as_dense=True, or a dense gradient"
                )
            view.copy_(gradient.detach().to_dense())
        elif gradient.data_ptr() != view.data_ptr() or not gradient.is_contiguous():
            view.copy_(gradient.detach())
        else:
            return
        parameter.tensor.grad = view

    def launch(self, reduction: Reduction) -> None:
        """Starts the reduction of all gradients of the bucket."""
        self._sent, self._context = reduction.compression.compress(self._flat)
        assert self._sent is not None
        memory = memory_of("the bucket", self._sent)
        source: Memory | None = None
        self._received = self._sent
        if isinstance(reduction.communicator, ElasticCommunicator):
            # What was sent is kept until it counts, and may be sent again: the result goes elsewhere.
            source = memory
            if self._spare is None or self._sent is not self._flat:
                self._spare = torch.empty_like(self._sent)
            self._received = self._spare
            memory = memory_of("the bucket", self._received)
        self._handle = reduction.communicator.reduce_memory(
            source, memory, reduction.op, reduction.prescale, reduction.postscale, False
        )

    def finish(self, reduction: Reduction) -> None:
        """Waits for the reduced gradients."""
        handle, received = self._handle, self._received
        assert handle is not None and received is not None
        handle.wait()
        self.outcome = handle.outcome if isinstance(handle, Pending) else None
        result = reduction.compression.decompress(received, self._context)
        if result.data_ptr() == self._flat.data_ptr():
            return
        if received is self._spare and self._sent is self._flat and result is received:
            # The two change places.
            self._spare = self._flat
            self._show(received)
            for parameter in self.parameters:
                parameter.tensor.grad = parameter.view
        else:
            self._flat.copy_(result)

    def forget(self) -> None:
        """Makes the bucket ready for the next training step. What is still in flight goes on without its result."""
        self._handle = self._sent = self._received = self._context = None
        self.waiting = len(self.parameters)
        for parameter in self.parameters:
            parameter.ready = False


def pack(parameters: Sequence[Parameter], bucket_bytes: int) -> list[list[Parameter]]:
    """Divides parameters into buckets of one type, each of at most that many bytes or of one parameter."""
    buckets: list[list[Parameter]] = []
    open_buckets: dict[torch.dtype, tuple[int, list[Parameter]]] = {}
    for parameter in reversed(parameters):
        tensor = parameter.tensor
        size = tensor.numel() * tensor.element_size()
        filled, bucket = open_buckets.get(tensor.dtype, (0, []))
        if not bucket or filled + size > bucket_bytes:
            filled, bucket = 0, []
            buckets.append(bucket)
        bucket.append(parameter)
        open_buckets[tensor.dtype] = (filled + size, bucket)
    return buckets
