"""Device memory without a device: arrays of a tiny library of its own, over the stand-in of the CUDA driver.

`run.py` builds the stand-in and names its folder in `PHALANX_LIBRARIES`, where Phalanx finds it; what is loaded here is
the same library, so that each knows what the other allocates. Its device memory is host memory, and each of its streams
a thread that does its work in order.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = [
    "ByDlpack",
    "ByInterface",
    "Memory",
    "On",
    "Stream",
    "calls",
    "driver",
    "exported",
    "faults",
    "knows",
    "live",
    "needs_stand_in",
    "order",
    "release",
    "stop",
    "until",
    "values_of",
]

CUDA = 2
LIMIT = 60.0

# A forked child has the streams' queues, but not their threads: it gives nothing back.
_PROCESS = os.getpid()


def _load() -> ctypes.CDLL | None:
    for folder in os.environ.get("PHALANX_LIBRARIES", "").split(os.pathsep):
        path = Path(folder, "libcuda.so.1")
        if folder and path.exists():
            library = ctypes.CDLL(str(path))
            if hasattr(library, "phx_stand_in_live"):
                return library
    return None


driver = _load()
needs_stand_in = pytest.mark.skipif(driver is None, reason="the stand-in of the driver was not built (run.py, c++)")

if driver is not None:
    for name in ("phx_stand_in_live", "phx_stand_in_calls", "phx_stand_in_faults"):
        getattr(driver, name).restype = ctypes.c_long


def _call(name: str, *arguments: Any) -> None:
    assert driver is not None
    code = getattr(driver, name)(*arguments)
    assert code == 0, f"{name}: {code}"


class On:
    """A device's context, the calling thread's for a while."""

    _contexts: dict[int, ctypes.c_void_p] = {}  # noqa: RUF012

    def __init__(self, device: int) -> None:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        self._context = self._contexts[device]

    def __enter__(self) -> None:
        _call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def live() -> int:
    """Allocations, streams, events and contexts that there are."""
    assert driver is not None
    return int(driver.phx_stand_in_live())


def calls(function: str) -> int:
    assert driver is not None
    return int(driver.phx_stand_in_calls(function.encode()))


def knows(address: int) -> bool:
    """Whether an address is memory of a device."""
    assert driver is not None
    kind = ctypes.c_uint()
    code = driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_void_p(address))
    return bool(code == 0 and kind.value == 2)


def faults() -> int:
    """How often memory was freed that was not there."""
    assert driver is not None
    return int(driver.phx_stand_in_faults())


def stop(stream: Stream | int) -> None:
    """Puts work on a stream that does not end before `release`."""
    assert driver is not None
    driver.phx_stand_in_stop(ctypes.c_void_p(stream if isinstance(stream, int) else stream.handle))


def release() -> None:
    assert driver is not None
    driver.phx_stand_in_release()


def until(condition: Callable[[], bool], what: str) -> None:
    """Looks until something is so that another thread brings about without telling."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def order(device: int, later: int, earlier: int) -> None:
    """What is put on one stream from now on comes after what is on another one."""
    with On(device):
        event = ctypes.c_void_p()
        _call("cuEventCreate", ctypes.byref(event), 0)
        _call("cuEventRecord", event, ctypes.c_void_p(earlier))
        _call("cuStreamWaitEvent", ctypes.c_void_p(later), event, 0)
        _call("cuEventDestroy_v2", event)


class Stream:
    """A stream of a device."""

    def __init__(self, device: int) -> None:
        self.device = device
        handle = ctypes.c_void_p()
        with On(device):
            _call("cuStreamCreate", ctypes.byref(handle), 1)
        assert handle.value is not None
        self.handle: int = handle.value

    def __del__(self) -> None:
        if driver is not None and os.getpid() == _PROCESS:
            driver.cuStreamDestroy_v2(ctypes.c_void_p(self.handle))

    def write(self, address: int, values: np.ndarray[Any, Any]) -> None:
        """Puts a copy on the stream; the values are taken at once."""
        if values.nbytes:
            source = np.ascontiguousarray(values)
            with On(self.device):
                _call(
                    "cuMemcpyHtoDAsync_v2",
                    ctypes.c_void_p(address),
                    ctypes.c_void_p(source.ctypes.data),
                    ctypes.c_size_t(source.nbytes),
                    ctypes.c_void_p(self.handle),
                )

    def read(self, address: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        """What is there after everything that is on the stream."""
        made = np.empty(count, dtype)
        if made.nbytes:
            pinned = ctypes.c_void_p()
            stream = ctypes.c_void_p(self.handle)
            with On(self.device):
                _call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(made.nbytes), 0)
                _call("cuMemcpyDtoHAsync_v2", pinned, ctypes.c_void_p(address), ctypes.c_size_t(made.nbytes), stream)
            self.synchronize()
            ctypes.memmove(made.ctypes.data, pinned, made.nbytes)
            with On(self.device):
                _call("cuMemFreeHost", pinned)
        return made

    def synchronize(self) -> None:
        with On(self.device):
            event = ctypes.c_void_p()
            _call("cuEventCreate", ctypes.byref(event), 0)
            _call("cuEventRecord", event, ctypes.c_void_p(self.handle))
            assert driver is not None
            query = driver.cuEventQuery
            until(lambda: query(event) == 0, "a stream did not come to its end")
            _call("cuEventDestroy_v2", event)


class Memory:
    """Bytes on a device, freed once."""

    def __init__(self, device: int, nbytes: int) -> None:
        address = ctypes.c_void_p()
        if nbytes:
            with On(device):
                _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self.device = device
        self.address = address.value or 0

    def __del__(self) -> None:
        if self.address and driver is not None and os.getpid() == _PROCESS:
            with On(self.device):
                _call("cuMemFree_v2", ctypes.c_void_p(self.address))


class _Array:
    """What both kinds of arrays have: values that were written on a stream."""

    def __init__(self, values: Any, device: int = 0, on: Stream | None = None) -> None:
        values = np.asarray(values)
        self.stream = on or Stream(device)
        self.shape, self.dtype, self.device = values.shape, values.dtype, device
        self.memory = Memory(device, values.nbytes)
        self.stream.write(self.memory.address, values)
        if on is None:
            self.stream.synchronize()

    def values(self, stream: Stream | None = None) -> np.ndarray[Any, Any]:
        """The elements as they are after what is on a stream: the array's own unless told otherwise."""
        read = (stream or self.stream).read(self.memory.address, int(np.prod(self.shape)), self.dtype)
        return read.reshape(self.shape)


class ByInterface(_Array):
    """An array that offers the interface of CUDA arrays."""

    def __init__(self, values: Any, device: int = 0, on: Stream | None = None, **fields: Any) -> None:
        super().__init__(values, device, on)
        self.fields = fields

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.memory.address, False),
            "stream": self.stream.handle,
        }
        return interface | self.fields


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        # What follows is no part of the tensor: the older managed form.
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
# What capsules hold, by their number, until they are gone.
_exported: dict[int, Any] = {}
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


@_Destructor
def _gone(capsule: int) -> None:
    _exported.pop(capsule)


def exported() -> int:
    """How many capsules there are."""
    return len(_exported)


class ByDlpack(_Array):
    """An array that offers DLPack in its older form."""

    strides: tuple[int, ...] | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.device)

    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream is not None and stream > 2, "the consumer's own stream expected"
        order(self.device, stream, self.stream.handle)
        lengths = (ctypes.c_int64 * len(self.shape))(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * len(self.strides))(*self.strides)
        tensor = _Tensor(
            self.memory.address,
            CUDA,
            self.device,
            len(self.shape),
            _CODES[self.dtype.kind],
            self.dtype.itemsize * 8,
            1,
            lengths,
            strides,
        )
        capsule = _new_capsule(ctypes.addressof(tensor), b"dltensor", _gone)
        _exported[id(capsule)] = (tensor, lengths, strides, self.memory)
        return capsule


def values_of(array: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """The elements of a `phalanx.DeviceArray`, read as a library would that takes it over: on a stream of its own that
    waits for the one that the array names."""
    interface = array.__cuda_array_interface__
    stream = Stream(array.device)
    order(array.device, stream.handle, interface["stream"])
    count = int(np.prod(interface["shape"]))
    kind = np.dtype(dtype or interface["typestr"])
    return stream.read(interface["data"][0], count, kind).reshape(interface["shape"])
