"""Communicators: collectives on NumPy arrays, and on anything with the buffer protocol or DLPack.

Elements are never copied on the way: the other ranks read and write the arrays' own memory. Arrays must be
C-contiguous. While a call waits, other Python threads run, and Ctrl-C interrupts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

from phalanx import _native
from phalanx._native import Memory
from phalanx.arrays import copy_of, new_like
from phalanx.errors import InvalidArgumentError
from phalanx.ops import Average, ReduceOp
from phalanx.rows import divide, exchange_rows, exchange_splits

__all__ = ["Communicator", "Handle"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Generic[T_co]):
    """A pending operation. Dropping it is safe: the operation goes on, and its arrays are kept until it ends."""

    __slots__ = ("_native", "_result")

    def __init__(self, native: _native.Handle, result: T_co) -> None:
        self._native = native
        self._result = result

    def wait(self, timeout: float | None = None) -> T_co:
        """The result, once it is there. Raises `TimeoutError` after `timeout` seconds; the operation goes on then."""
        self._native.wait(timeout)
        return self._result

    def poll(self) -> bool:
        """Whether the operation has ended, well or not. Does not wait."""
        return self._native.poll()


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

    # Other communicators

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The ranks that give the same colour, in the order of their keys; `None` for a rank without colour.

        Every rank must call it.
        """
        group = self.native.split(color, key)
        return None if group is None else Communicator(group)

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
    ) -> tuple[T, _native.Handle | None]:
        memory = Memory.of(array)
        result: T = new_like(array, memory, memory.shape) if out is None else out
        handle = self.native.allreduce(memory, Memory.of(result), op, prescale, postscale, wait=wait)
        return result, handle

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
        self.native.allreduce(None, Memory.of(array), op, prescale_factor, postscale_factor)
        return array

    def allreduce_async_(
        self, array: T, op: ReduceOp = Average, *, prescale_factor: float = 1.0, postscale_factor: float = 1.0
    ) -> Handle[T]:
        """Starts an `allreduce_`."""
        native = self.native.allreduce(None, Memory.of(array), op, prescale_factor, postscale_factor, wait=False)
        return Handle(native, array)

    def _reduce(
        self, array: T, root_rank: int, op: int, out: Any, prescale: float, postscale: float, wait: bool
    ) -> tuple[T | None, _native.Handle | None]:
        memory = Memory.of(array)
        result: T | None = None
        if self.rank == root_rank:
            result = new_like(array, memory, memory.shape) if out is None else out
        output = None if result is None else Memory.of(result)
        return result, self.native.reduce(memory, output, op, root_rank, prescale, postscale, wait=wait)

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
        return self._reduce(array, root_rank, op, out, prescale_factor, postscale_factor, True)[0]

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
        return _handle(*self._reduce(array, root_rank, op, out, prescale_factor, postscale_factor, False))

    def _reducescatter(
        self, array: T, out: Any, op: int, prescale: float, postscale: float, wait: bool
    ) -> tuple[T, _native.Handle | None]:
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
        return self._reducescatter(array, out, op, prescale_factor, postscale_factor, True)[0]

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
        return _handle(*self._reducescatter(array, out, op, prescale_factor, postscale_factor, False))

    # From one to all

    def broadcast(self, array: T, root_rank: int) -> T:
        """A copy of the root's array, in a new array. On every rank `array` gives its kind, shape and type."""
        result, memory = copy_of(array, Memory.of(array))
        self.native.broadcast(memory, root_rank)
        return result

    def broadcast_async(self, array: T, root_rank: int) -> Handle[T]:
        """Starts a `broadcast`."""
        result, memory = copy_of(array, Memory.of(array))
        return Handle(self.native.broadcast(memory, root_rank, wait=False), result)

    def broadcast_(self, array: T, root_rank: int) -> T:
        """Replaces the array's elements by the root's. Returns the array."""
        self.native.broadcast(Memory.of(array), root_rank)
        return array

    def broadcast_async_(self, array: T, root_rank: int) -> Handle[T]:
        """Starts a `broadcast_`."""
        return Handle(self.native.broadcast(Memory.of(array), root_rank, wait=False), array)

    def scatter(self, array: Any, out: T, root_rank: int) -> T:
        """Fills `out` with this rank's part of the root's array, which holds one part of that length for each rank.

        `array` is read at the root only. Returns `out`.
        """
        self._scatter(array, out, root_rank, True)
        return out

    def scatter_async(self, array: Any, out: T, root_rank: int) -> Handle[T]:
        """Starts a `scatter`."""
        return _handle(out, self._scatter(array, out, root_rank, False))

    def _scatter(self, array: Any, out: Any, root_rank: int, wait: bool) -> _native.Handle | None:
        memory = Memory.of(array) if self.rank == root_rank else None
        return self.native.scatter(memory, Memory.of(out), root_rank, wait=wait)

    # From all to one and to all

    def _allgather(self, array: T, out: Any, wait: bool) -> tuple[T, _native.Handle | None]:
        memory = Memory.of(array)
        shape = memory.shape
        rows = exchange_rows("allgather", self.native, memory.dtype, shape)
        result: T = new_like(array, memory, [sum(rows), *shape[1:]]) if out is None else out
        handle = self.native.allgather(memory, Memory.of(result), _elements(rows, shape), wait=wait)
        return result, handle

    def allgather(self, array: T, *, out: Any = None) -> T:
        """All ranks' arrays, one after the other along the first dimension, whose length may differ."""
        return self._allgather(array, out, True)[0]

    def allgather_async(self, array: T, *, out: Any = None) -> Handle[T]:
        """Starts an `allgather`. Returns once all ranks have told how many rows they have."""
        return _handle(*self._allgather(array, out, False))

    def _gather(self, array: T, root_rank: int, wait: bool) -> tuple[T | None, _native.Handle | None]:
        memory = Memory.of(array)
        shape = memory.shape
        rows = exchange_rows("gather", self.native, memory.dtype, shape)
        result: T | None = None
        if self.rank == root_rank:
            result = new_like(array, memory, [sum(rows), *shape[1:]])
        output = None if result is None else Memory.of(result)
        return result, self.native.gather(memory, output, root_rank, _elements(rows, shape), wait=wait)

    def gather(self, array: T, root_rank: int) -> T | None:
        """All ranks' arrays at the root, one after the other along the first dimension; `None` elsewhere."""
        return self._gather(array, root_rank, True)[0]

    def gather_async(self, array: T, root_rank: int) -> Handle[T | None]:
        """Starts a `gather`. Returns once all ranks have told how many rows they have."""
        return _handle(*self._gather(array, root_rank, False))

    def _alltoall(
        self, array: T, splits: Sequence[int] | None, wait: bool
    ) -> tuple[T, list[int], _native.Handle | None]:
        memory = Memory.of(array)
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
        return result, received, handle

    @overload
    def alltoall(self, array: T, splits: None = None) -> T: ...
    @overload
    def alltoall(self, array: T, splits: Sequence[int]) -> tuple[T, list[int]]: ...
    def alltoall(self, array: T, splits: Sequence[int] | None = None) -> T | tuple[T, list[int]]:
        """Sends rows to every rank, and gets rows from every rank, in rank order.

        Without `splits` the rows are divided evenly. With `splits`, the rows for each rank, the numbers of rows that
        came from each are returned too.
        """
        result, received, _ = self._alltoall(array, splits, True)
        return result if splits is None else (result, received)

    def alltoall_async(self, array: T, splits: Sequence[int] | None = None) -> Handle[tuple[T, list[int]]]:
        """Starts an `alltoall`. Returns once all ranks have told how many rows they send; its result is the pair."""
        result, received, native = self._alltoall(array, splits, False)
        return _handle((result, received), native)

    # Other

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.native.barrier()

    def barrier_async(self) -> Handle[None]:
        """Starts a `barrier`."""
        return Handle(self.native.barrier(wait=False), None)

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


def _handle(result: T, native: _native.Handle | None) -> Handle[T]:
    assert native is not None, "a call that does not wait returns a handle"
    return Handle(native, result)
