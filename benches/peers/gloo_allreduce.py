"""Times all_reduce of torch.distributed's Gloo backend, float32 with sum.

Prints, for each size given, the bytes and the median time of the slower rank in microseconds. One process a rank, with
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for size in map(int, sys.argv[1:]):
        data = torch.ones(size // 4)
        # It is slow for small messages: a tenth of the bench's iterations give as good a median in a tenth of the time.
        timed = 200 if size <= 65536 else 50 if size <= 4 << 20 else 10
        times = torch.zeros(timed, dtype=torch.float64)
        for iteration in range(-(timed // 10), timed):
            data.fill_(1)
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(data)
            if iteration >= 0:
                times[iteration] = time.perf_counter() - began
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(size, round(statistics.median(times.tolist()) * 1e6, 3), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
