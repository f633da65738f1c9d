"""Collectives on tensors.

The synchronous forms that return a new tensor are differentiable. A name with `_` at its end works in place, one with
`async` returns a `Handle` for `synchronize` and `poll`. `name` is only a label here: operations of different ranks are
matched by their order, which must be the same on every rank. `process_set` is a communicator of fewer ranks, from
`phalanx.split` or `phalanx.subgroup`; ranks that are named, such as `root_rank`, are ranks of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from phalanx import communicator as arrays
from phalanx.communicator import Communicator, Waitable
from phalanx.errors import InvalidArgumentError
from phalanx.ops import Average, ReduceOp, Sum
from phalanx.rows import divide, exchange_rows, exchange_splits
from phalanx.torch.compression import Compression, Compressor
from phalanx.torch.tensors import CODES, communicator_of, detached, followed, memory_of, op_of, refuse
from phalanx.world import world

__all__ = [
    "Handle",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

Compressors = type[Compressor] | Compressor
Splits = Sequence[int] | torch.Tensor | None


class Waits(Protocol):
    """A part of what a handle waits for."""

    def wait(self) -> Any: ...
    def poll(self) -> bool: ...


class Handle:
    """Pending operations, and the result they make together. Dropping it is safe."""

    __slots__ = ("_natives", "_result")

    def __init__(self, natives: Sequence[Waits], result: Any) -> None:
        self._natives = natives
        self._result = result

    def wait(self) -> Any:
        """The result, once it is there."""
        values = [native.wait() for native in self._natives]
        return self._result(values) if callable(self._result) else self._result

    def poll(self) -> bool:
        """Whether the operations have ended, well or not. Does not wait."""
        return all(native.poll() for native in self._natives)


def synchronize(handle: Handle) -> Any:
    """Waits for an operation; its result."""
    if not isinstance(handle, Handle):
        raise InvalidArgumentError(f"a {type(handle).__qualname__} given, a handle expected")
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether an operation has ended, so that `synchronize` will not wait."""
    if not isinstance(handle, Handle):
        raise InvalidArgumentError(f"a {type(handle).__qualname__} given, a handle expected")
    return handle.poll()


def _handle(result: torch.Tensor, waitable: Waitable | None) -> Handle:
    return Handle([waitable] if waitable else [], result)


def _handle_of(handle: arrays.Handle[Any]) -> Handle:
    return Handle([handle], lambda values: values[0])


def _first(handle: arrays.Handle[Any]) -> Handle:
    """The first part of the result."""
    return Handle([handle], lambda values: values[0][0])


def is_differentiable(*tensors: torch.Tensor) -> bool:
    """Whether a gradient will be wanted of what is made from one of the tensors."""
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


# Allreduce


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> Handle:
    """Starts to replace the tensor's elements by their reduction over all ranks."""
    memory = memory_of("allreduce", tensor)
    communicator = communicator_of(process_set)
    handle = communicator.reduce_memory(None, memory, op_of(average, op), prescale_factor, postscale_factor, False)
    return _handle(tensor, followed(handle, tensor))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> Handle:
    """Starts a reduction over all ranks into a new tensor."""
    memory = memory_of("allreduce", tensor)
    output = torch.empty_like(tensor, requires_grad=False)
    communicator = communicator_of(process_set)
    reduction = op_of(average, op)
    target = memory_of("allreduce", output)
    handle = communicator.reduce_memory(memory, target, reduction, prescale_factor, postscale_factor, False)
    return _handle(output, followed(handle, output))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> torch.Tensor:
    """Replaces the tensor's elements by their reduction over all ranks. Returns the tensor."""
    if prescale_factor != 1.0 or postscale_factor != 1.0 or (isinstance(tensor, torch.Tensor) and tensor.is_cuda):
        handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
        handle.wait()
        return tensor
    # The way of small tensors: nothing here but what must be known, and one call.
    code = CODES.get(tensor.dtype) if isinstance(tensor, torch.Tensor) else None
    if code is None or not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise refuse("allreduce", tensor)
    if op is None or average is not None:
        op = op_of(average, op)
    communicator = world() if process_set is None else process_set
    communicator.reduce_at(tensor.data_ptr(), tensor.numel(), code, op)
    return tensor


def _allreduce(
    tensor: torch.Tensor, op: ReduceOp, prescale: float, postscale: float, process_set: Communicator | None
) -> torch.Tensor:
    memory = memory_of("allreduce", tensor)
    output = torch.empty_like(tensor, requires_grad=False)
    target = memory_of("allreduce", output)
    communicator_of(process_set).reduce_memory(memory, target, op, prescale, postscale, True)
    return output


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: Communicator | None,
    ) -> torch.Tensor:
        ctx.arguments = (op, prescale, postscale, process_set)
        return _allreduce(tensor, op, prescale, postscale, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        op, prescale, postscale, process_set = ctx.arguments
        reduced = _differentiable_allreduce(gradient.contiguous(), op, prescale, postscale, process_set)
        return reduced, None, None, None, None


def _differentiable_allreduce(
    tensor: torch.Tensor, op: ReduceOp, prescale: float, postscale: float, process_set: Communicator | None
) -> torch.Tensor:
    if not is_differentiable(tensor):
        return _allreduce(tensor, op, prescale, postscale, process_set)
    result: torch.Tensor = _Allreduce.apply(tensor, op, prescale, postscale, process_set)
    return result


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Communicator | None = None,
) -> torch.Tensor:
    """The reduction of all ranks' tensors, `postscale_factor * op(prescale_factor * x0, prescale_factor * x1, ...)`.

    Differentiable: the gradient is reduced the same way.
    """
    compressed, context = compression.compress(tensor)
    reduction = op_of(average, op)
    reduced = _differentiable_allreduce(compressed, reduction, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


# Allgather


def _start_allgather(
    view: Communicator, tensor: torch.Tensor, wait: bool
) -> tuple[tuple[torch.Tensor, int, int], Waitable | None]:
    """All ranks' rows, and where this rank's begin and how many they are."""
    memory = memory_of("allgather", tensor)
    native = view.native
    shape = list(tensor.shape)
    rows = exchange_rows("allgather", native, memory.dtype, shape)
    output = tensor.new_empty([sum(rows), *shape[1:]])
    row = math.prod(shape[1:])
    counts = [count * row for count in rows]
    handle = native.allgather(memory, memory_of("allgather", output), counts, wait=wait)
    return (output, sum(rows[: view.rank]), rows[view.rank]), followed(handle, output)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Communicator | None = None) -> Handle:
    """Starts an `allgather`. Returns once all ranks have told how many rows they have."""
    source = detached("allgather", tensor)
    return _first(communicator_of(process_set).start(lambda view, wait: _start_allgather(view, source, wait)))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, process_set: Communicator | None) -> torch.Tensor:
        ctx.process_set = process_set
        output, *ctx.rows = communicator_of(process_set).call(lambda view, wait: _start_allgather(view, tensor, wait))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        reduced = _differentiable_allreduce(gradient.contiguous(), Average, 1.0, 1.0, ctx.process_set)
        return reduced.narrow(0, *ctx.rows), None


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Communicator | None = None) -> torch.Tensor:
    """All ranks' tensors, one after the other along the first dimension, whose length may differ.

    Differentiable: the gradient is averaged over the ranks, and each rank gets that of its rows.
    """
    if not is_differentiable(tensor):
        return communicator_of(process_set).call(lambda view, wait: _start_allgather(view, tensor, wait))[0]
    result: torch.Tensor = _Allgather.apply(tensor, process_set)
    return result


# Broadcast


def _start_broadcast(
    view: Communicator, tensor: torch.Tensor, root_rank: int, wait: bool
) -> tuple[torch.Tensor, Waitable | None]:
    memory = memory_of("broadcast", tensor)
    return tensor, followed(view.native.broadcast(memory, view.rank_here(root_rank), wait=wait), tensor)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Communicator | None = None
) -> Handle:
    """Starts to replace the tensor's elements by the root's."""
    memory_of("broadcast", tensor)
    communicator = communicator_of(process_set)
    return _handle_of(communicator.start(lambda view, wait: _start_broadcast(view, tensor, root_rank, wait)))


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Communicator | None = None
) -> Handle:
    """Starts a `broadcast`."""
    memory_of("broadcast", tensor)
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Communicator | None = None
) -> torch.Tensor:
    """Replaces the tensor's elements by the root's. Returns the tensor."""
    return communicator_of(process_set).call(lambda view, wait: _start_broadcast(view, tensor, root_rank, wait))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, process_set: Communicator | None) -> torch.Tensor:
        ctx.arguments = (root_rank, process_set)
        memory_of("broadcast", tensor)
        return broadcast_(tensor.detach().clone(), root_rank, None, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        root_rank, process_set = ctx.arguments
        reduced = _differentiable_allreduce(gradient.contiguous(), Average, 1.0, 1.0, process_set)
        if communicator_of(process_set).rank != root_rank:
            reduced = reduced * 0
        return reduced, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Communicator | None = None
) -> torch.Tensor:
    """The root's tensor, in a new tensor. On every rank `tensor` gives the shape and the type.

    Differentiable: the gradient is averaged over the ranks and goes to the root; it is zero elsewhere.
    """
    if not is_differentiable(tensor):
        memory_of("broadcast", tensor)
        return broadcast_(tensor.detach().clone(), root_rank, name, process_set)
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, process_set)
    return result


# Alltoall


def _splits_of(splits: Splits) -> list[int] | None:
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32 or splits.dim() != 1:
            raise InvalidArgumentError(
                f"alltoall: splits of {splits.dtype} and {splits.dim()} dimensions given, "
                "a list or a one-dimensional tensor of torch.int32 expected"
            )
        return [int(rows) for rows in splits.tolist()]
    return None if splits is None else [int(rows) for rows in splits]


def _start_alltoall(
    view: Communicator, tensor: torch.Tensor, splits: list[int] | None, wait: bool
) -> tuple[tuple[torch.Tensor, torch.Tensor], Waitable | None]:
    view.check_members("alltoall")
    memory = memory_of("alltoall", tensor)
    native = view.native
    shape = list(tensor.shape)
    sent, received = exchange_splits("alltoall", native, memory.dtype, shape, splits)
    output = tensor.new_empty([sum(received), *shape[1:]])
    source = memory_of("alltoall", tensor.detach()[: sum(sent)])
    row = math.prod(shape[1:])
    handle = native.alltoall(
        source,
        memory_of("alltoall", output),
        [rows * row for rows in sent],
        [rows * row for rows in received],
        wait=wait,
    )
    return (output, torch.tensor(received, dtype=torch.int32)), followed(handle, output)


def _alltoall(
    tensor: torch.Tensor, splits: list[int] | None, process_set: Communicator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return communicator_of(process_set).call(lambda view, wait: _start_alltoall(view, tensor, splits, wait))


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: Communicator | None = None,
) -> Handle:
    """Starts an `alltoall`. Returns once all ranks have told how many rows they send; its result is always the pair."""
    source, numbers = detached("alltoall", tensor), _splits_of(splits)
    communicator = communicator_of(process_set)
    return _handle_of(communicator.start(lambda view, wait: _start_alltoall(view, source, numbers, wait)))


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: list[int] | None, process_set: Communicator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = _alltoall(tensor, splits, process_set)
        ctx.arguments = (received.tolist(), process_set, tensor.shape[0])
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        received, process_set, rows = ctx.arguments
        returned, _ = _alltoall(gradients[0].contiguous(), received, process_set)
        if returned.shape[0] < rows:
            # Rows that were sent to nobody have no part in the result.
            returned = torch.cat([returned, returned.new_zeros([rows - returned.shape[0], *returned.shape[1:]])])
        return returned, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: Communicator | None = None,
) -> Any:
    """Sends rows to every rank, and gets rows from every rank, in rank order.

    Without `splits` the rows are divided evenly, and the result is a tensor. With `splits`, the rows for each rank, it
    is a pair: the tensor, and a tensor of the numbers of rows that came from each. Differentiable: the gradient goes
    back to where its rows came from.
    """
    numbers = _splits_of(splits)
    if is_differentiable(tensor):
        output, received = _Alltoall.apply(tensor, numbers, process_set)
    else:
        output, received = _alltoall(tensor, numbers, process_set)
    return output if splits is None else (output, received)


# Reducescatter


def _start_reducescatter(
    view: Communicator, tensor: torch.Tensor, op: ReduceOp, prescale: float, postscale: float, wait: bool
) -> tuple[tuple[torch.Tensor, int], Waitable | None]:
    """This rank's rows, and the number of ranks."""
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"reducescatter: {op!r} given, Average or Sum expected")
    memory = memory_of("reducescatter", tensor)
    if tensor.dim() == 0:
        raise InvalidArgumentError("reducescatter: a scalar given, at least one dimension expected")
    rows = divide(tensor.shape[0], view.size)
    output = tensor.new_empty([rows[view.rank], *tensor.shape[1:]])
    row = math.prod(tensor.shape[1:])
    counts = [count * row for count in rows]
    target = memory_of("reducescatter", output)
    handle = view.native.reduce_scatter(memory, target, op, counts, prescale, postscale, wait=wait)
    return (output, view.size), followed(handle, output)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: Communicator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts a `reducescatter`."""
    scales = (prescale_factor, postscale_factor)
    source = detached("reducescatter", tensor)
    communicator = communicator_of(process_set)
    return _first(communicator.start(lambda view, wait: _start_reducescatter(view, source, op, *scales, wait)))


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: Communicator | None,
    ) -> torch.Tensor:
        ctx.process_set = process_set
        output, size = communicator_of(process_set).call(
            lambda view, wait: _start_reducescatter(view, tensor, op, prescale, postscale, wait)
        )
        ctx.factor = prescale * postscale * (size if op == Sum else 1)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        gathered = allgather(gradient.contiguous(), process_set=ctx.process_set)
        return gathered * ctx.factor if ctx.factor != 1 else gathered, None, None, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: ReduceOp = Average,
    process_set: Communicator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the average or the sum of all ranks' tensors.

    The rows are divided evenly; the first ranks get one more where that does not come out. Differentiable: the
    gradients of all ranks' rows are gathered, and multiplied by the number of ranks for a sum.
    """
    compressed, context = compression.compress(tensor)
    scales = (prescale_factor, postscale_factor)
    if is_differentiable(compressed):
        output = _Reducescatter.apply(compressed, op, *scales, process_set)
    else:
        communicator = communicator_of(process_set)
        output, _ = communicator.call(lambda view, wait: _start_reducescatter(view, compressed, op, *scales, wait))
    return compression.decompress(output, context)


def barrier(process_set: Communicator | None = None) -> None:
    """Returns when every rank has called it."""
    communicator_of(process_set).barrier()
