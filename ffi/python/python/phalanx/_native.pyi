"""The compiled part of Phalanx."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final, overload

from typing_extensions import Self

__version__: str

_Outcome = tuple[int, int, list[int], bool, bool, bool, float]

@final
class Memory:
    """A run of elements, and what keeps it alive."""

    def __new__(
        cls,
        pointer: int,
        count: int,
        dtype: int | str,
        owner: object,
        writable: bool = True,
        device: int | None = None,
        stream: int | None = None,
    ) -> Memory: ...
    @staticmethod
    def of(object: Any) -> Memory: ...
    def rows(self, start: int, stop: int) -> Memory: ...
    def copy_from(self, source: Memory) -> None: ...
    def copied(self) -> Memory: ...
    @property
    def pointer(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def dtype_name(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def writable(self) -> bool: ...
    @property
    def device(self) -> int | None: ...

@final
class DeviceArray:
    """An array in the memory of a CUDA device, which array libraries take over as it is."""

    def __new__(cls, device: int, shape: Sequence[int], dtype: int | str) -> DeviceArray: ...
    def __len__(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

class Buffer:
    """Elements, zero at first, in memory that the other ranks of this host read where it is."""

    def __new__(cls, communicator: Communicator, count: int, dtype: int | str) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def pointer(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_shared(self) -> bool: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

@final
class Handle:
    """A pending operation."""

    def wait(self, timeout: float | None = None) -> None: ...
    def poll(self) -> bool: ...

@final
class Communicator:
    """A group of ranks that make collective calls together."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def hosts(self) -> list[int]: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    def check_process(self) -> None: ...
    def memory_of(self, object: Any) -> Memory: ...
    def with_timeout(self, timeout: float) -> Communicator: ...
    def with_algorithm(self, algorithm: int | str | None) -> Communicator: ...
    def with_deterministic(self, deterministic: bool) -> Communicator: ...
    def split(self, color: int | None, key: int) -> Communicator | None: ...
    def subgroup(self, ranks: list[int]) -> Communicator | None: ...
    def allreduce_pointer(self, pointer: int, count: int, dtype: int, op: int) -> None: ...
    def exchange(self, numbers: list[int]) -> list[int]: ...
    def exchange_parts(self, numbers: list[int]) -> list[int]: ...
    def statistics(self) -> dict[str, float]: ...
    def transport_summary(self) -> str: ...
    def shutdown(self) -> None: ...
    @overload
    def allreduce(
        self,
        input: Memory | None,
        output: Memory,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def allreduce(
        self,
        input: Memory | None,
        output: Memory,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        wait: Literal[False],
    ) -> Handle: ...
    @overload
    def allreduce(
        self,
        input: Memory | None,
        output: Memory,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        wait: bool,
    ) -> Handle | None: ...
    @overload
    def reduce(
        self,
        input: Memory | None,
        output: Memory | None,
        op: int,
        root: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def reduce(
        self,
        input: Memory | None,
        output: Memory | None,
        op: int,
        root: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        wait: Literal[False],
    ) -> Handle: ...
    @overload
    def reduce(
        self,
        input: Memory | None,
        output: Memory | None,
        op: int,
        root: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        wait: bool,
    ) -> Handle | None: ...
    @overload
    def broadcast(self, memory: Memory, root: int, wait: Literal[True] = True) -> None: ...
    @overload
    def broadcast(self, memory: Memory, root: int, *, wait: Literal[False]) -> Handle: ...
    @overload
    def broadcast(self, memory: Memory, root: int, *, wait: bool) -> Handle | None: ...
    @overload
    def allgather(
        self, input: Memory, output: Memory, counts: list[int] | None = None, wait: Literal[True] = True
    ) -> None: ...
    @overload
    def allgather(
        self, input: Memory, output: Memory, counts: list[int] | None = None, *, wait: Literal[False]
    ) -> Handle: ...
    @overload
    def allgather(
        self, input: Memory, output: Memory, counts: list[int] | None = None, *, wait: bool
    ) -> Handle | None: ...
    @overload
    def reduce_scatter(
        self,
        input: Memory,
        output: Memory,
        op: int,
        counts: list[int] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        input: Memory,
        output: Memory,
        op: int,
        counts: list[int] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        wait: Literal[False],
    ) -> Handle: ...
    @overload
    def reduce_scatter(
        self,
        input: Memory,
        output: Memory,
        op: int,
        counts: list[int] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        *,
        wait: bool,
    ) -> Handle | None: ...
    @overload
    def alltoall(
        self,
        input: Memory,
        output: Memory,
        send_counts: list[int] | None = None,
        recv_counts: list[int] | None = None,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def alltoall(
        self,
        input: Memory,
        output: Memory,
        send_counts: list[int] | None = None,
        recv_counts: list[int] | None = None,
        *,
        wait: Literal[False],
    ) -> Handle: ...
    @overload
    def alltoall(
        self,
        input: Memory,
        output: Memory,
        send_counts: list[int] | None = None,
        recv_counts: list[int] | None = None,
        *,
        wait: bool,
    ) -> Handle | None: ...
    @overload
    def gather(
        self,
        input: Memory,
        output: Memory | None,
        root: int,
        counts: list[int] | None = None,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def gather(
        self, input: Memory, output: Memory | None, root: int, counts: list[int] | None = None, *, wait: Literal[False]
    ) -> Handle: ...
    @overload
    def gather(
        self, input: Memory, output: Memory | None, root: int, counts: list[int] | None = None, *, wait: bool
    ) -> Handle | None: ...
    @overload
    def scatter(
        self,
        input: Memory | None,
        output: Memory,
        root: int,
        counts: list[int] | None = None,
        wait: Literal[True] = True,
    ) -> None: ...
    @overload
    def scatter(
        self, input: Memory | None, output: Memory, root: int, counts: list[int] | None = None, *, wait: Literal[False]
    ) -> Handle: ...
    @overload
    def scatter(
        self, input: Memory | None, output: Memory, root: int, counts: list[int] | None = None, *, wait: bool
    ) -> Handle | None: ...
    @overload
    def barrier(self, wait: Literal[True] = True) -> None: ...
    @overload
    def barrier(self, *, wait: Literal[False]) -> Handle: ...
    @overload
    def barrier(self, *, wait: bool) -> Handle | None: ...
    @overload
    def send(self, memory: Memory, to: int, tag: int = 0, wait: Literal[True] = True) -> None: ...
    @overload
    def send(self, memory: Memory, to: int, tag: int = 0, *, wait: Literal[False]) -> Handle: ...
    @overload
    def send(self, memory: Memory, to: int, tag: int = 0, *, wait: bool) -> Handle | None: ...
    @overload
    def recv(self, memory: Memory, source: int, tag: int = 0, wait: Literal[True] = True) -> None: ...
    @overload
    def recv(self, memory: Memory, source: int, tag: int = 0, *, wait: Literal[False]) -> Handle: ...
    @overload
    def recv(self, memory: Memory, source: int, tag: int = 0, *, wait: bool) -> Handle | None: ...

@final
class Elastic:
    """A member of an elastic job."""

    @property
    def slot(self) -> int: ...
    @property
    def slots(self) -> list[int]: ...
    @property
    def generation(self) -> int: ...
    @property
    def counted(self) -> int: ...
    @property
    def is_leaving(self) -> bool: ...
    def communicator(self) -> Communicator: ...
    def begin(self) -> Step: ...
    def allreduce_pointer(self, pointer: int, count: int, dtype: int, op: int) -> _Outcome: ...
    def boundary(self) -> _Outcome: ...
    def settle(self) -> None: ...
    def sync(
        self,
        save: Callable[[], Any],
        load: Callable[[bytes], None],
        save_own: Callable[[], Any],
        load_own: Callable[[bytes], None],
    ) -> _Outcome: ...
    def request_leave(self) -> None: ...
    def check_process(self) -> None: ...
    def close(self) -> None: ...
    def shutdown(self) -> None: ...

@final
class Step:
    """A step under construction."""

    def allreduce(
        self, input: Memory | None, output: Memory, op: int, prescale: float = 1.0, postscale: float = 1.0
    ) -> None: ...
    def poll(self) -> bool: ...
    def finish(self, body: Callable[[Communicator, list[int]], None] | None = None) -> _Outcome: ...
    def abandon(self) -> None: ...

def features() -> list[str]: ...
def cuda_devices() -> int: ...
def nccl_version() -> int: ...
def has_rdma() -> bool: ...
def is_over_mpi() -> bool: ...
def connect() -> Communicator: ...
def is_elastic() -> bool: ...
def join(keeps_inputs: bool) -> Elastic: ...
def epoch_order(length: int, seed: int | None, epoch: int) -> bytes: ...
