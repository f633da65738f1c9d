"""Gradients in buckets: which travel together, in which order, and the memory they travel in.

Ranks match operations by their order, but gradients become ready in an order that may differ from rank to rank. So the
buckets have an order that does not: parameters from the last to the first, as a backward pass tends to reach them, and
a bucket is launched only after all before it. A bucket holds gradients of one type and one device.

A large gradient is a bucket of its own and travels from where it lies, which is where the backward pass has just made
it; the result takes its place. Small ones lie in one piece of memory: one that is ready is copied there, and
`param.grad` becomes a view of that place, so that the result arrives in `param.grad` without another copy. Where such
a view is still there for the next backward pass (`zero_grad(set_to_none=False)`, for large gradients too), gradients
are summed up in place and nothing is copied at all.

That memory can be read by the other ranks of the host (`alloc`). What the backward pass makes cannot, so that parts of
it are copied on the way, through the cache; copying all of it to such memory first takes longer. On a CUDA device the
memory is the device's.
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
from phalanx.torch.compression import FP16Compressor
from phalanx.torch.tensors import CODES, alloc, follow, memory_of, stream_of

__all__ = ["Bucket", "Parameter", "Reduction", "pack"]


class Parameter:
    """A parameter, its name, and where its gradient stands in the current training step."""

    __slots__ = ("bucket", "delay", "name", "ready", "tensor", "view")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if not (tensor.is_cpu or tensor.is_cuda) or tensor.dtype not in CODES:
            raise InvalidArgumentError(
                f"parameter {name} is of {tensor.dtype} on {tensor.device}; "
                "a supported type in host memory or on a CUDA device expected"
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

    __slots__ = (
        "_communicator",
        "_context",
        "_flat",
        "_half",
        "_handle",
        "_held",
        "_received",
        "_sent",
        "_spare",
        "_stream",
        "_streams",
        "outcome",
        "parameters",
        "waiting",
    )

    def __init__(self, parameters: Sequence[Parameter], communicator: Communicator) -> None:
        self.parameters = list(parameters)
        self.waiting = len(self.parameters)
        self._communicator = communicator
        self._handle: Waitable | None = None
        self._sent: torch.Tensor | None = None
        self._received: torch.Tensor | None = None
        # Memory of the bucket's own, and another piece of it, once they are needed.
        self._flat: torch.Tensor | None = None
        self._spare: torch.Tensor | None = None
        self._half: torch.Tensor | None = None
        # Where the gradients of this training step lie, if that is not the bucket's own memory.
        self._held: torch.Tensor | None = None
        self._context: Any = None
        # On a device: the streams on which gradients were taken in, and the one on which they were launched.
        self._streams: list[torch.cuda.Stream] = []
        self._stream: torch.cuda.Stream | None = None
        # How the step ended that reduced the bucket, in an elastic job.
        self.outcome: StepOutcome | None = None
        for parameter in self.parameters:
            parameter.bucket = self

    def _own(self) -> torch.Tensor:
        """The bucket's own memory."""
        if self._flat is None:
            count = sum(parameter.tensor.numel() for parameter in self.parameters)
            self._show(self._room([count], self.parameters[0].tensor.dtype))
        assert self._flat is not None
        return self._flat

    def _room(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory to travel from, where the parameters are."""
        parameter = self.parameters[0].tensor
        if parameter.is_cuda:
            return parameter.detach().new_zeros(list(shape), dtype=dtype)
        return alloc(shape, dtype=dtype, process_set=self._communicator)

    def _show(self, flat: torch.Tensor) -> None:
        """Has the gradients lie in a piece of memory."""
        start = 0
        for parameter in self.parameters:
            count = parameter.tensor.numel()
            parameter.view = flat[start : start + count].view(parameter.tensor.shape)
            start += count
        self._flat = flat

    def view_of(self, parameter: Parameter) -> torch.Tensor:
        """The place of a gradient in the bucket's own memory."""
        self._own()
        assert parameter.view is not None
        return parameter.view

    def take(self, parameter: Parameter, sparse_as_dense: bool, may_stay: bool) -> None:
        """Takes a gradient in. Without one, zeros take its place, so that ranks that used the parameter can go on. One
        that is alone may stay where it is."""
        gradient = parameter.tensor.grad
        stream = stream_of(parameter.tensor)
        if stream is not None and stream not in self._streams:
            self._streams.append(stream)
        if may_stay and gradient is not None and self._can_travel(parameter, gradient):
            self._held = gradient.view(-1)
            return
        view = self.view_of(parameter)
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

    def _can_travel(self, parameter: Parameter, gradient: torch.Tensor) -> bool:
        """Whether a gradient can travel from where it lies."""
        return (
            len(self.parameters) == 1
            and gradient.layout is torch.strided
            and gradient.is_contiguous()
            and gradient.dtype == parameter.tensor.dtype
            # With a history of its own it is not ours to change.
            and not gradient.requires_grad
        )

    def launch(self, reduction: Reduction) -> None:
        """Starts the reduction of all gradients of the bucket."""
        if self._held is None:
            self._held = self._own()
        for stream in self._streams:
            follow(stream)
        self._stream = stream_of(self._held)
        self._sent, self._context = self._compressed(self._held, reduction)
        memory = memory_of("the bucket", self._sent)
        source: Memory | None = None
        self._received = self._sent
        if isinstance(reduction.communicator, ElasticCommunicator):
            # What was sent is kept until it counts, and may be sent again: the result goes elsewhere.
            source = memory
            self._received = self._place_beside(self._sent)
            memory = memory_of("the bucket", self._received)
        self._handle = reduction.communicator.reduce_memory(
            source, memory, reduction.op, reduction.prescale, reduction.postscale, False
        )

    def _compressed(self, held: torch.Tensor, reduction: Reduction) -> tuple[torch.Tensor, Any]:
        """What travels of gradients, and what undoes it."""
        if not (reduction.compression is FP16Compressor and held.dtype.is_floating_point):
            compressed: tuple[torch.Tensor, Any] = reduction.compression.compress(held)
            return compressed
        if held.dtype == torch.float16:
            return held, held.dtype
        # As the compressor does it, to memory that other ranks read.
        if self._half is None:
            self._half = self._room([held.numel()], torch.float16)
        return self._half.copy_(held), held.dtype

    def _place_beside(self, sent: torch.Tensor) -> torch.Tensor:
        """Memory for the result of what was sent."""
        if sent is self._held and sent.data_ptr() != self._own().data_ptr():
            return self._own()
        spare = self._spare
        if spare is None or spare.dtype != sent.dtype or spare.shape != sent.shape:
            spare = self._room(sent.shape, sent.dtype)
            self._spare = spare
        return spare

    def finish(self, reduction: Reduction) -> None:
        """Waits for the reduced gradients."""
        handle, held, received = self._handle, self._held, self._received
        assert handle is not None and held is not None and received is not None
        handle.wait()
        follow(self._stream)
        self.outcome = handle.outcome if isinstance(handle, Pending) else None
        halves = received.dtype == torch.float16 and reduction.compression is FP16Compressor
        result = received if halves else reduction.compression.decompress(received, self._context)
        if result.data_ptr() == held.data_ptr():
            return
        if result is received and self._sent is held:
            # The result stays where it is. With kept inputs, that is one of the bucket's two pieces.
            if received is self._spare:
                self._spare = self._flat
            self._show(received)
            for parameter in self.parameters:
                parameter.tensor.grad = parameter.view
        else:
            held.copy_(result)

    def leave(self) -> None:
        """Lets go of the bucket's own memory, and of the gradients that lie there."""
        for parameter in self.parameters:
            gradient, view = parameter.tensor.grad, parameter.view
            if gradient is not None and view is not None and gradient.data_ptr() == view.data_ptr():
                parameter.tensor.grad = None
            parameter.view = None
        self._flat = self._spare = self._half = None

    def forget(self) -> None:
        """Makes the bucket ready for the next training step. What is still in flight goes on without its result."""
        self._handle = self._sent = self._received = self._held = self._context = self._stream = None
        self._streams.clear()
        self.waiting = len(self.parameters)
        for parameter in self.parameters:
            parameter.ready = False


def pack(parameters: Sequence[Parameter], bucket_bytes: int, alone_bytes: int) -> list[list[Parameter]]:
    """Divides parameters into buckets of one type and one device, each of at most `bucket_bytes` or of one parameter.
    One of `alone_bytes` is alone. The buckets are in the order in which a backward pass fills them."""
    closed: list[tuple[int, list[Parameter]]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[int, int, list[Parameter]]] = {}
    for number, parameter in enumerate(reversed(parameters)):
        tensor = parameter.tensor
        size = tensor.numel() * tensor.element_size()
        if size >= min(alone_bytes, bucket_bytes):
            closed.append((number, [parameter]))
            continue
        kind = (tensor.dtype, tensor.device)
        filled, last, bucket = filling.get(kind, (0, 0, []))
        if bucket and filled + size > bucket_bytes:
            closed.append((last, bucket))
            filled, bucket = 0, []
        filling[kind] = (filled + size, number, [*bucket, parameter])
    closed += [(last, bucket) for _, last, bucket in filling.values()]
    return [bucket for _, bucket in sorted(closed, key=lambda pair: pair[0])]
