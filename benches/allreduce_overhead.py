"""What Python adds to one small allreduce: `phalanx run -np 2 python benches/allreduce_overhead.py`.

Prints, as JSON, the median time in us of `phalanx.torch.allreduce_` (with PyTorch), of `phalanx.allreduce_` on a
bytearray, and of the bare call into the extension. What the library itself takes is what
`phalanx bench allreduce --bytes 8 -np 2` says in the same minute.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import phalanx

ROUNDS = 200
CALLS = 50


def median_us(call: Callable[[], object]) -> float:
    """The median over rounds of a call's time, of the slowest rank."""
    times = []
    for _ in range(ROUNDS):
        phalanx.barrier()
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter_ns() - started) / CALLS / 1e3)
    return max(phalanx.allgather_object(statistics.median(times)))


def main() -> None:
    world = phalanx.init()
    data = bytearray(8)
    memory = phalanx._native.Memory.of(data)
    pointer, native = memory.pointer, world.native
    figures = {
        "native_us_p50": median_us(lambda: native.allreduce_pointer(pointer, 2, 2, 0)),
        "bytearray_us_p50": median_us(lambda: phalanx.allreduce_(data, phalanx.Sum)),
    }
    try:
        import torch

        import phalanx.torch as hvd
    except ImportError as error:
        print(f"without PyTorch: {error}")
    else:
        tensor = torch.zeros(2)
        figures["torch_us_p50"] = median_us(lambda: hvd.allreduce_(tensor, op=hvd.Sum))
    if phalanx.rank() == 0:
        print(json.dumps({"bytes": 8, "ranks": phalanx.size(), **{name: round(us, 2) for name, us in figures.items()}}))


if __name__ == "__main__":
    main()
