"""Communicators: collectives on NumPy arrays, and on anything with the buffer protocol or DLPack.

Elements are never copied on the way: the other ranks read and write the arrays' own memory. Arrays must be
C-contiguous. While a call waits, other Python threads run, and Ctrl-C interrupts it.

Arrays may be on a CUDA device: PyTorch's tensors, and what has `__cuda_array_interface__` or DLPack. A call comes then
after what is on the array's stream, and that stream waits for its results. Results are PyTorch's for PyTorch's, and a
`DeviceArray` otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from phalanx import _native
from phalanx._native import Memory
from phalanx.arrays import copy_of, new_like
from phalanx.buffers import Buffer, DType, allocate
from phalanx.errors import InvalidArgumentError
from phalanx.ops import Average, ReduceOp
from phalanx.rows import divide, exchange_rows, exchange_splits

__all__ = ["Call", "Communicator", "Handle", "Waitable"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Waitable(Protocol):
    """What a handle waits for."""

    def wait(self, timeout: float | None = None) -> Any: ...
    def poll(self) -> bool: ...


class Handle(Generic[T_co]):
    """A pending operation. Dropping it is safe: the operation goes on, and its arrays are kept until it ends."""

    __slots__ = ("_native", "_result")

    def __init__(self, native: Waitable, result: T_co | None) -> None:
        self._native = native
        self._result = result

    def wait(self, timeout: float | None = None) -> T_co:
        """The result, once it is there. Raises `TimeoutError` after `timeout` seconds; the operation goes on then."""
        value = self._native.wait(timeout)
        result: Any = value if self._result is None else self._result
        return result  # type: ignore[no-any-return]

    def poll(self) -> bool:
        """Whether the operation has ended, well or not. Does not wait."""
        return self._native.poll()


# A call in a communicator: its result, and what is to be waited for unless it is told to wait itself.
Call = Callable[["Communicator", bool], tuple[T, "Waitable | None"]]


def _elements(row_counts: Sequence[int], shape: Sequence[int]) -> list[int]:
    row = math.prod(shape[1:])
    return [rows * row for rows in row_counts]


class Communicator:
    """A group of ranks that make collective calls together, in the same order on every rank.

    A method with `_` at its end works in place, one with `async` returns a `Handle` at once. Until the handle says
    that the operation has ended, its arrays must not be changed, and a result must not be read.
    """

    __slots__ = ("native",)

    def __init__(self, native: _native.Communicator) -> None:
        self.native = native

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, size={self.size})"

    # Who is here

    @property
    def rank(self) -> int:
        """This process's number, 0 to size - 1."""
        return self.native.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.native.size

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host."""
        return self.native.local_rank

    @property
    def local_size(self) -> int:
        """The number of ranks on this host."""
        return self.native.local_size

    @property
    def cross_rank(self) -> int:
        """This rank's number among the ranks with the same local rank, one a host."""
        return self.native.cross_rank

    @property
    def cross_size(self) -> int:
        """The number of hosts that have a rank with this local rank."""
        return self.native.cross_size

    # How calls are made

    def call(self, call: Call[T]) -> T:
        """The result of a call, or of several that belong together. In an elastic job it is made anew, in each view
        that it is tried in, until it counts: it must leave its arguments as they are."""
        return call(self, True)[0]

    def start(self, call: Call[T]) -> Handle[T]:
        """Starts a call."""
        return _handle(*call(self, False))

    def reduce_memory(
        self, input: Memory | None, output: Memory, op: int, prescale: float, postscale: float, wait: bool
    ) -> Waitable | None:
        """An allreduce from memory to memory, or in place."""
        return self.native.allreduce(input, output, op, prescale, postscale, wait=wait)

    def reduce_at(self, pointer: int, count: int, dtype: int, op: int) -> None:
        """Replaces `count` elements at an address by their reduction. The caller answers for the address."""
        self.native.allreduce_pointer(pointer, count, dtype, op)

    def rank_here(self, rank: int) -> int:
        """Which rank of this communicator the caller means by a rank of the one that it made a call on."""
        return rank

    def check_members(self, what: str) -> None:
        """Raises unless all ranks of the communicator that the caller made a call on are in this one."""

    # Memory

    def alloc(self, count: int, dtype: DType = "f32") -> Buffer:
        """`count` elements of zero, in memory that the other ranks of this host read where it is.

        Collectives of more than 16 KiB whose arrays are all of this kind, on all ranks, are made without copies in
        between. Otherwise it is memory as any other, good for any call of any communicator; and it is ordinary memory
        where there are no other ranks, or limits leave no room. It costs a multiple of 4 KiB, so take few large ones.
        A forked child shares it instead of getting a copy, and must not write to it.

        `dtype` is a name as `"f32"` or `"bfloat16"`, or something with such a name, as NumPy's `dtype`.
        """
        return allocate(self.native, count, dtype)

    # Other communicators

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The ranks that give the same colour, in the order of their keys; `None` for a rank without colour.

        Every rank must call it.
        """

        def split(view: Communicator, wait: bool) -> tuple[Communicator | None, None]:
            group = view.native.split(color, key)
            return None if group is None else Communicator(group), None

        return self.call(split)

    def subgroup(self, ranks: Sequence[int]) -> Communicator | None:
        """The given ranks, in the given order; `None` for a rank that is not among them. Costs no message."""
        group = self.native.subgroup([int(rank) for rank in ranks])
        return None if group is None else Communicator(group)

    def with_timeout(self, seconds: float) -> Communicator:
        """The same communicator with another limit on the time that an operation may take."""
        return Communicator(self.native.with_timeout(seconds))

    def with_algorithm(self, algorithm: str | None) -> Communicator:
        """The same communicator with a forced algorithm, or with the choice left to it. The same on every rank."""
        return Communicator(self.native.with_algorithm(algorithm))

    def with_deterministic(self, deterministic: bool = True) -> Communicator:
        """The same communicator, reducing in rank order whatever the algorithm. The same on every rank."""
        return Communicator(self.native.with_deterministic(deterministic))

    # Reductions over all ranks

    def _allreduce(
        self, array: T, out: Any, op: int, prescale: float, postscale: float, wait: bool
    ) -> tuple[T, Waitable | None]:
        memory = Memory.of(array)
        result: T = new_like(array, memory, memory.shape) if out is None else out
        return result, self.reduce_memory(memory, Memory.of(result), op, prescale, postscale, wait)

    def allreduce(
        self,
        array: T,
        op: ReduceOp = Average,
        *,
        out: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """The reduction of all ranks' arrays, in a new array or in `out`.

        The result is `postscale_factor * op(prescale_factor * x0, prescale_factor * x1, ...)`.
        """
        return self._allreduce(array, out, op, prescale_factor, postscale_factor, True)[0]

    def allreduce_async(
        self,
        array: T,
        op: ReduceOp = Average,
        *,
        out: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[T]:
        """Starts an `allreduce`."""
        return _handle(*self._allreduce(array, out, op, prescale_factor, postscale_factor, False))

    def allreduce_(
        self, array: T, op: ReduceOp = Average, *, prescale_factor: float = 1.0, postscale_factor: float = 1.0
    ) -> T:
        """Replaces the array's elements by the reduction of all ranks' arrays. Returns the array."""
        self.reduce_memory(None, Memory.of(array), op, prescale_factor, postscale_factor, True)
        return array

    def allreduce_async_(
        self, array: T, op: ReduceOp = Average, *, prescale_factor: float = 1.0, postscale_factor: float = 1.0
    ) -> Handle[T]:
        """Starts an `allreduce_`."""
        return _handle(array, self.reduce_memory(None, Memory.of(array), op, prescale_factor, postscale_factor, False))

    def _reduce(
        self, array: T, root_rank: int, op: int, out: Any, prescale: float, postscale: float, wait: bool
    ) -> tuple[T | None, _native.Handle | None]:
        memory, root = Memory.of(array), self.rank_here(root_rank)
        result: T | None = None
        if self.rank == root:
            result = new_like(array, memory, memory.shape) if out is None else out
        output = None if result is None else Memory.of(result)
        return result, self.native.reduce(memory, output, op, root, prescale, postscale, wait=wait)

    def reduce(
        self,
        array: T,
        root_rank: int,
        op: ReduceOp = Average,
        *,
        out: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T | None:
        """The reduction of all ranks' arrays at the root; `None` elsewhere."""
        return self.call(
            lambda view, wait: view._reduce(array, root_rank, op, out, prescale_factor, postscale_factor, wait)
        )

    def reduce_async(
        self,
        array: T,
        root_rank: int,
        op: ReduceOp = Average,
        *,
        out: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[T | None]:
        """Starts a `reduce`."""
        return self.start(
            lambda view, wait: view._reduce(array, root_rank, op, out, prescale_factor, postscale_factor, wait)
        )

    def _reducescatter(
        self, array: T, out: Any, op: int, prescale: float, postscale: float, wait: bool
    ) -> tuple[T, Waitable | None]:
        memory = Memory.of(array)
        shape = memory.shape
        if not shape:
            raise InvalidArgumentError("reducescatter: a scalar given, at least one dimension expected")
        rows = divide(shape[0], self.size)
        result: T = new_like(array, memory, [rows[self.rank], *shape[1:]]) if out is None else out
        counts = _elements(rows, shape)
        handle = self.native.reduce_scatter(memory, Memory.of(result), op, counts, prescale, postscale, wait=wait)
        return result, handle

    def reducescatter(
        self,
        array: T,
        op: ReduceOp = Average,
        *,
        out: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """This rank's rows of the reduction of all ranks' arrays.

        The rows are divided evenly; the first ranks get one more where that does not come out.
        """
        return self.call(
            lambda view, wait: view._reducescatter(array, out, op, prescale_factor, postscale_factor, wait)
        )

    def reducescatter_async(
        self,
        array: T,
        op: ReduceOp = Average,
        *,
        out: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Handle[T]:
        """Starts a `reducescatter`."""
        return self.start(
            lambda view, wait: view._reducescatter(array, out, op, prescale_factor, postscale_factor, wait)
        )

    # From one to all

    def _broadcast(self, array: T, memory: Memory, root_rank: int, wait: bool) -> tuple[T, Waitable | None]:
        return array, self.native.broadcast(memory, self.rank_here(root_rank), wait=wait)

    def broadcast(self, array: T, root_rank: int) -> T:
        """A copy of the root's array, in a new array. On every rank `array` gives its kind, shape and type."""
        return self.call(lambda view, wait: view._broadcast(*copy_of(array, Memory.of(array)), root_rank, wait))

    def broadcast_async(self, array: T, root_rank: int) -> Handle[T]:
        """Starts a `broadcast`."""
        result, memory = copy_of(array, Memory.of(array))
        return self.start(lambda view, wait: view._broadcast(result, memory, root_rank, wait))

    def broadcast_(self, array: T, root_rank: int) -> T:
        """Replaces the array's elements by the root's. Returns the array."""
        memory = Memory.of(array)
        return self.call(lambda view, wait: view._broadcast(array, memory, root_rank, wait))

    def broadcast_async_(self, array: T, root_rank: int) -> Handle[T]:
        """Starts a `broadcast_`."""
        memory = Memory.of(array)
        return self.start(lambda view, wait: view._broadcast(array, memory, root_rank, wait))

    def scatter(self, array: Any, out: T, root_rank: int) -> T:
        """Fills `out` with this rank's part of the root's array, which holds one part of that length for each rank.

        `array` is read at the root only. Returns `out`.
        """
        return self.call(lambda view, wait: view._scatter(array, out, root_rank, wait))

    def scatter_async(self, array: Any, out: T, root_rank: int) -> Handle[T]:
        """Starts a `scatter`."""
        return self.start(lambda view, wait: view._scatter(array, out, root_rank, wait))

    def _scatter(self, array: Any, out: T, root_rank: int, wait: bool) -> tuple[T, _native.Handle | None]:
        self.check_members("scatter")
        memory = Memory.of(array) if self.rank == root_rank else None
        return out, self.native.scatter(memory, Memory.of(out), root_rank, wait=wait)

    # From all to one and to all

    def _allgather(self, array: T, out: Any, wait: bool) -> tuple[T, Waitable | None]:
        memory = self.native.memory_of(array)
        shape = memory.shape
        rows = exchange_rows("allgather", self.native, memory.dtype, shape)
        result: T = new_like(array, memory, [sum(rows), *shape[1:]]) if out is None else out
        handle = self.native.allgather(memory, Memory.of(result), _elements(rows, shape), wait=wait)
        return result, handle

    def allgather(self, array: T, *, out: Any = None) -> T:
        """All ranks' arrays, one after the other along the first dimension, whose length may differ."""
        return self.call(lambda view, wait: view._allgather(array, out, wait))

    def allgather_async(self, array: T, *, out: Any = None) -> Handle[T]:
        """Starts an `allgather`. Returns once all ranks have told how many rows they have."""
        return self.start(lambda view, wait: view._allgather(array, out, wait))

    def _gather(self, array: T, root_rank: int, wait: bool) -> tuple[T | None, _native.Handle | None]:
        memory = self.native.memory_of(array)
        shape, root = memory.shape, self.rank_here(root_rank)
        rows = exchange_rows("gather", self.native, memory.dtype, shape)
        result: T | None = None
        if self.rank == root:
            result = new_like(array, memory, [sum(rows), *shape[1:]])
        output = None if result is None else Memory.of(result)
        return result, self.native.gather(memory, output, root, _elements(rows, shape), wait=wait)

    def gather(self, array: T, root_rank: int) -> T | None:
        """All ranks' arrays at the root, one after the other along the first dimension; `None` elsewhere."""
        return self.call(lambda view, wait: view._gather(array, root_rank, wait))

    def gather_async(self, array: T, root_rank: int) -> Handle[T | None]:
        """Starts a `gather`. Returns once all ranks have told how many rows they have."""
        return self.start(lambda view, wait: view._gather(array, root_rank, wait))

    def _alltoall(
        self, array: T, splits: Sequence[int] | None, wait: bool
    ) -> tuple[tuple[T, list[int]], Waitable | None]:
        self.check_members("alltoall")
        memory = self.native.memory_of(array)
        shape = memory.shape
        sent, received = exchange_splits("alltoall", self.native, memory.dtype, shape, splits)
        result: T = new_like(array, memory, [sum(received), *shape[1:]])
        handle = self.native.alltoall(
            memory.rows(0, sum(sent)),
            Memory.of(result),
            _elements(sent, shape),
            _elements(received, shape),
            wait=wait,
        )
        return (result, received), handle

    @overload
    def alltoall(self, array: T, splits: None = None) -> T: ...
    @overload
    def alltoall(self, array: T, splits: Sequence[int]) -> tuple[T, list[int]]: ...
    def alltoall(self, array: T, splits: Sequence[int] | None = None) -> T | tuple[T, list[int]]:
        """Sends rows to every rank, and gets rows from every rank, in rank order.

        Without `splits` the rows are divided evenly. With `splits`, the rows for each rank, the numbers of rows that
        came from each are returned too.
        """
        result, received = self.call(lambda view, wait: view._alltoall(array, splits, wait))
        return result if splits is None else (result, received)

    def alltoall_async(self, array: T, splits: Sequence[int] | None = None) -> Handle[tuple[T, list[int]]]:
        """Starts an `alltoall`. Returns once all ranks have told how many rows they send; its result is the pair."""
        return self.start(lambda view, wait: view._alltoall(array, splits, wait))

    # Other

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.call(lambda view, wait: (None, view.native.barrier(wait=wait)))

    def barrier_async(self) -> Handle[None]:
        """Starts a `barrier`."""
        return self.start(lambda view, wait: (None, view.native.barrier(wait=wait)))

    def send(self, array: Any, to: int, tag: int = 0) -> None:
        """Sends to a rank, which must receive as many elements of the same type under the same tag."""
        self.native.send(Memory.of(array), to, tag)

    def send_async(self, array: Any, to: int, tag: int = 0) -> Handle[None]:
        """Starts a `send`."""
        return Handle(self.native.send(Memory.of(array), to, tag, wait=False), None)

    def recv(self, array: T, source: int, tag: int = 0) -> T:
        """Receives from a rank, into the array. Returns the array."""
        self.native.recv(Memory.of(array), source, tag)
        return array

    def recv_async(self, array: T, source: int, tag: int = 0) -> Handle[T]:
        """Starts a `recv`."""
        return Handle(self.native.recv(Memory.of(array), source, tag, wait=False), array)

    def statistics(self) -> dict[str, float]:
        """What this process did so far: `operations`, `bytes`, and seconds of `time_in_communication`."""
        return self.native.statistics()

    def transport_summary(self) -> str:
        """The carriers in use, in words."""
        return self.native.transport_summary()

    def shutdown(self) -> None:
        """Waits for what is in flight, says goodbye, and closes every communicator of this process."""
        self.native.shutdown()


def _handle(result: T, native: Waitable | None) -> Handle[T]:
    assert native is not None, "a call that does not wait returns a handle"
    return Handle(native, result)
