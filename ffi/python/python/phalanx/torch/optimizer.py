"""An optimizer whose gradients are averaged over all ranks while the backward pass is still running."""

from __future__ import annotations

import hashlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.communicator import Communicator
from phalanx.errors import InvalidArgumentError, MismatchError
from phalanx.ops import Average, ReduceOp, Sum
from phalanx.steps import ElasticCommunicator
from phalanx.torch.buckets import Bucket, Parameter, Reduction, pack
from phalanx.torch.collectives import Compressors
from phalanx.torch.compression import Compression, FP16Compressor, NoneCompressor
from phalanx.torch.tensors import communicator_of

__all__ = ["BUCKET_BYTES", "DistributedOptimizer"]

# Large enough for bandwidth to matter more than the cost of an operation, small enough for several buckets to travel
# while the backward pass of a model of some ten million parameters goes on.
BUCKET_BYTES = 8 << 20

# Large enough for an operation of its own to cost less than a copy.
ALONE_BYTES = 1 << 20

Named = Iterable[tuple[str, torch.Tensor]]
Groups = int | Sequence[Sequence[torch.Tensor]] | None


def _named_parameters(optimizer: torch.optim.Optimizer, named: Named | None) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters in their order, with their names."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named is None:
        return [(f"parameter {number}", parameter) for number, parameter in enumerate(parameters)]
    pairs = list(named)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidArgumentError(
            "named_parameters must be pairs of a name and a parameter, as model.named_parameters()"
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(f"named_parameters has names more than once: {', '.join(twice)}")
    known = {id(parameter): name for name, parameter in pairs}
    unnamed = [number for number, parameter in enumerate(parameters) if id(parameter) not in known]
    if unnamed:
        raise InvalidArgumentError(
            f"named_parameters lacks {len(unnamed)} of the optimizer's {len(parameters)} parameters"
        )
    return [(known[id(parameter)], parameter) for parameter in parameters]


def _grouped(parameters: Sequence[Parameter], groups: Groups, bucket_bytes: int) -> list[list[Parameter]]:
    """The buckets that the user asked for, divided by type; the other parameters are packed as usual."""
    if isinstance(groups, int):
        if groups <= 0:
            raise InvalidArgumentError(f"groups={groups} given, at least one expected")
        share = -(-len(parameters) // groups)
        chunks = [list(parameters[start : start + share]) for start in range(0, len(parameters), max(share, 1))]
        rest: list[Parameter] = []
    else:
        by_id = {id(parameter.tensor): parameter for parameter in parameters}
        chunks, taken = [], set()
        for group in groups or []:
            if not isinstance(group, Sequence):
                raise InvalidArgumentError("groups must be a number or a list of lists of parameters")
            for tensor in group:
                if id(tensor) in taken:
                    raise InvalidArgumentError("groups has a parameter more than once")
                taken.add(id(tensor))
            # Parameters without gradient take no part.
            chunks.append([by_id[id(tensor)] for tensor in group if id(tensor) in by_id])
        rest = [parameter for parameter in parameters if id(parameter.tensor) not in taken]
    buckets = pack(rest, bucket_bytes, ALONE_BYTES)
    for chunk in reversed(chunks):
        buckets += pack(chunk, 1 << 62, 1 << 62)
    return buckets


class _Reducer:
    """Reduces the gradients of an optimizer's parameters, bucket by bucket."""

    def __init__(
        self,
        parameters: list[Parameter],
        buckets: list[list[Parameter]],
        reduction: Reduction,
        passes: int,
        sparse_as_dense: bool,
    ) -> None:
        self.parameters = parameters
        self.buckets = [Bucket(bucket, reduction.communicator) for bucket in buckets]
        self.reduction = reduction
        self.passes = passes
        self.sparse_as_dense = sparse_as_dense
        self.launched = 0
        self.synchronized = False
        self.should_synchronize = True
        self._hooks: list[Any] = []
        # Where gradients lie that travel from there in this training step.
        self._places: set[int] = set()
        self.forget()
        for parameter in parameters:
            hook = parameter.tensor.register_post_accumulate_grad_hook(self._hook_of(parameter))
            self._hooks.append(hook)
        _reducers.add(self)

    def _hook_of(self, parameter: Parameter) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if parameter.delay <= 0:
                raise AssertionError(
                    f"the gradient of {parameter.name} was computed more than {self.passes} times before step(); "
                    "raise backward_passes_per_step to accumulate gradients over several backward passes"
                )
            parameter.delay -= 1
            if parameter.delay == 0:
                self._take(parameter)
                self._launch_ready()

        return hook

    def _take(self, parameter: Parameter) -> None:
        bucket = parameter.bucket
        assert bucket is not None
        gradient = parameter.tensor.grad
        place = None if gradient is None or gradient.layout is not torch.strided else gradient.data_ptr()
        with torch.no_grad():
            # Two parameters with the same tensor for a gradient: it must be reduced once for each.
            bucket.take(parameter, self.sparse_as_dense, may_stay=place not in self._places)
        if place is not None:
            self._places.add(place)
        parameter.ready = True
        parameter.delay = 0
        bucket.waiting -= 1

    def _launch_ready(self) -> None:
        while self.launched < len(self.buckets) and self.buckets[self.launched].waiting == 0:
            with torch.no_grad():
                self.buckets[self.launched].launch(self.reduction)
            self.launched += 1

    @property
    def is_outstanding(self) -> bool:
        """Whether gradients are on their way, or were taken in to go."""
        return self.launched > 0 or any(parameter.ready for parameter in self.parameters)

    def synchronize(self) -> None:
        """Sends what has not gone yet, and waits until all reduced gradients are there."""
        for parameter in self.parameters:
            if not parameter.ready:
                self._take(parameter)
        self._launch_ready()
        try:
            with torch.no_grad():
                for bucket in self.buckets:
                    bucket.finish(self.reduction)
            communicator = self.reduction.communicator
            if isinstance(communicator, ElasticCommunicator) and self.buckets:
                communicator.training_step = self.buckets[-1].outcome
        finally:
            self.forget()
        self.synchronized = True

    def keep_places(self) -> None:
        """Has the gradients that are there lie where the next ones can be summed up and travel from."""
        for parameter in self.parameters:
            bucket, gradient = parameter.bucket, parameter.tensor.grad
            if bucket is not None and gradient is not None:
                parameter.tensor.grad = bucket.view_of(parameter)

    def leave_to_parent(self) -> None:
        """In a forked child: the buckets' memory is the parent's own, and what the child computes is for itself."""
        for hook in self._hooks:
            hook.remove()
        for bucket in self.buckets:
            bucket.forget()
            bucket.leave()

    def forget(self) -> None:
        """Starts a training step anew."""
        if isinstance(self.reduction.communicator, ElasticCommunicator) and self.launched > 0:
            # Nothing is left of it once it counts.
            self.reduction.communicator.abandon()
        for bucket in self.buckets:
            bucket.forget()
        self._places.clear()
        for parameter in self.parameters:
            parameter.delay = self.passes
        self.launched = 0


_reducers: weakref.WeakSet[_Reducer] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for reducer in _reducers:
        reducer.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


class _DistributedOptimizer(torch.optim.Optimizer):
    """What a distributed optimizer does in addition to the optimizer it was made from."""

    _phalanx: _Reducer | None

    def synchronize(self) -> None:
        """Waits until the reduced gradients are in `param.grad`. `step()` does it by itself."""
        if self._phalanx is not None:
            self._phalanx.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step()` does not wait for gradients, because `synchronize()` was called before.

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        reducer = self._phalanx
        if reducer is None:
            yield
            return
        reducer.should_synchronize = False
        try:
            yield
        finally:
            reducer.should_synchronize = True

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks whose gradients the last step was made of. In an elastic job these are slots: a rank's number for
        life, while ranks change; before the first step, those that are there."""
        if self._phalanx is None:
            return (0,)
        communicator = self._phalanx.reduction.communicator
        if not isinstance(communicator, ElasticCommunicator):
            return tuple(range(communicator.size))
        step = communicator.training_step
        return communicator.members if step is None else step.contributors

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes are summed up on this rank before gradients are reduced."""
        if passes <= 0:
            raise InvalidArgumentError(f"backward_passes_per_step={passes} given, at least 1 expected")
        if self._phalanx is not None:
            self._phalanx.passes = passes
            for parameter in self._phalanx.parameters:
                parameter.delay = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the reduced gradients, then makes the step."""
        reducer = self._phalanx
        if reducer is None or not reducer.should_synchronize:
            result = super().step(closure)
            if reducer is not None:
                reducer.synchronized = False
            return result
        if closure is not None:
            evaluate = closure

            def reduced() -> Any:
                loss = evaluate()
                reducer.synchronize()
                return loss

            result = super().step(reduced)
            reducer.synchronized = False
            return result
        if reducer.synchronized:
            warnings.warn(
                "step() after synchronize() reduces the gradients a second time; "
                "call step() within optimizer.skip_synchronize()",
                stacklevel=3,
            )
        reducer.synchronize()
        reducer.synchronized = False
        return super().step()

    # The base class is called within, and runs the hooks and the profiler there.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients. With `set_to_none=False` the next ones are summed up where they travel from."""
        if self._phalanx is not None and self._phalanx.is_outstanding:
            raise AssertionError(
                "zero_grad() between backward() and step() or synchronize(), while gradients are on their way"
            )
        if self._phalanx is not None and not set_to_none:
            self._phalanx.keep_places()
        super().zero_grad(set_to_none=set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads a state, and forgets gradients that have not been reduced yet."""
        if self._phalanx is not None:
            self._phalanx.forget()
            self._phalanx.synchronized = False
        super().load_state_dict(state_dict)


def _check_alike(communicator: Communicator, parameters: Sequence[Parameter]) -> None:
    """Raises on every rank unless all have the same parameters in the same order."""
    digest = hashlib.sha256()
    for parameter in parameters:
        tensor = parameter.tensor
        digest.update(f"{parameter.name}:{tuple(tensor.shape)}:{tensor.dtype}:{tensor.device.type};".encode())
    elements = sum(parameter.tensor.numel() for parameter in parameters)
    mine = [int.from_bytes(digest.digest()[:7], "little"), len(parameters), elements]
    numbers = communicator.native.exchange(mine)
    for rank in range(communicator.size):
        theirs = numbers[3 * rank : 3 * rank + 3]
        if theirs != mine:
            raise MismatchError(
                f"DistributedOptimizer: rank {communicator.rank} has {mine[1]} parameters of {mine[2]} elements, "
                f"rank {rank} has {theirs[1]} of {theirs[2]}, or other names, shapes, types or kinds of device; "
                "every rank needs the same model"
            )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: Compressors = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: Communicator | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """An optimizer like the given one, whose gradients are reduced over all ranks before each step.

    Gradients travel in buckets of `bucket_bytes` as soon as the backward pass has made them, while it goes on; those of
    1 MiB and more travel alone, and the result takes their place. Use what is returned in place of the optimizer, which
    must not be used any more. Every rank must call it. A forked child of the process has the parameters, but not all of
    the gradients, and computes alone.

    Args:
        optimizer: Any optimizer of PyTorch. The result is an instance of its class.
        named_parameters: Names for messages, as `model.named_parameters()`.
        compression: What is done to gradients before they travel: `Compression.fp16` halves their bytes.
        backward_passes_per_step: How many backward passes are summed up before gradients are reduced.
        op: `Average` or `Sum`.
        gradient_predivide_factor: For `Average`: gradients are divided by it before they are summed, and the rest of
            the division comes after, which can keep small types from overflowing.
        num_groups: An older name for a number of `groups`.
        groups: Which parameters travel together: a number of buckets, or lists of parameters.
        sparse_as_dense: Makes sparse gradients dense; without it they are an error.
        process_set: The ranks to reduce over, if not all.
        bucket_bytes: The size of a bucket; larger gradients travel alone.
    """
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op={op!r} given, Average or Sum expected")
    if backward_passes_per_step <= 0:
        raise InvalidArgumentError(f"backward_passes_per_step={backward_passes_per_step} given, at least 1 expected")
    if gradient_predivide_factor <= 0 or (gradient_predivide_factor != 1.0 and op != Average):
        raise InvalidArgumentError("gradient_predivide_factor must be positive, and goes with op=Average only")
    if bucket_bytes <= 0:
        raise InvalidArgumentError(f"bucket_bytes={bucket_bytes} given, at least 1 expected")
    if num_groups:
        warnings.warn("num_groups is an older name; give groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    communicator = communicator_of(process_set)
    named = _named_parameters(optimizer, named_parameters)

    base = type(optimizer)
    made: Any = type(base.__name__, (_DistributedOptimizer, base), {})
    distributed = made.__new__(made)
    # The learning-rate schedulers that know the optimizer have put their own `step` there.
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    distributed._phalanx = None

    parameters = [Parameter(name, tensor) for name, tensor in named if tensor.requires_grad]
    if groups is not None:
        buckets = _grouped(parameters, groups, bucket_bytes)
    elif compression in (NoneCompressor, FP16Compressor):
        buckets = pack(parameters, bucket_bytes, ALONE_BYTES)
    else:
        # Only these two are known to treat each element alone.
        buckets = [[parameter] for parameter in reversed(parameters)]
    if not isinstance(communicator, ElasticCommunicator):
        if communicator.size == 1:
            return distributed
        # Ranks that join later make no calls before they have the state.
        _check_alike(communicator, parameters)
    reduction = Reduction(communicator, op, 1.0 / gradient_predivide_factor, gradient_predivide_factor, compression)
    distributed._phalanx = _Reducer(
        parameters, [bucket for bucket in buckets if bucket], reduction, backward_passes_per_step, sparse_as_dense
    )
    return distributed
