"""Times all_reduce of torch.distributed's Gloo backend, float32 with sum: `gloo_allreduce.py MILLISECONDS BYTES...`.

Prints, for each size given, the bytes and the median and 99th percentile of the slowest rank's time in microseconds.
One process a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. One size takes about as long as the first
argument says.
"""

import math
import sys
import time

import torch
import torch.distributed as dist

FEWEST, MOST = 5, 2000


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    budget = float(sys.argv[1]) / 1e3
    for size in map(int, sys.argv[2:]):
        data = torch.ones(size // 4)

        def iterate(data: torch.Tensor = data) -> float:
            data.fill_(1)
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(data)
            taken = time.perf_counter() - began
            if data[-1] != dist.get_world_size():
                sys.exit("a wrong result")
            return taken

        for _ in range(FEWEST):
            began = time.perf_counter()
            iterate()
            last = torch.tensor(time.perf_counter() - began)
        # The barrier before is slow too: it is part of the budget. All ranks come to the same number.
        dist.all_reduce(last, op=dist.ReduceOp.MAX)
        timed = max(FEWEST, min(MOST, int(budget / last.item())))
        times = torch.tensor([iterate() for _ in range(timed)], dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            ordered = sorted(times.tolist())
            p50, p99 = (ordered[math.ceil(timed * share) - 1] * 1e6 for share in (0.5, 0.99))
            print(size, round(p50, 3), round(p99, 3), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
