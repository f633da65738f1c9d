"""How much of a training step's communication is hidden: `phalanx run -np 2 python benches/ddp_step.py`.

A model of 25 million parameters is trained on the processor, each rank with one thread: a step with
`phalanx.torch.DistributedOptimizer`, whose gradients travel while the backward pass goes on, in alternation with the
same step without communication. Prints a JSON object for each batch size: medians over the rounds of the slower rank's
times, of an allreduce of as many bytes alone, of the ratio within a round, and of the least that it can be with a core
for each rank, where an allreduce takes its time from the computation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import phalanx.torch as hvd

WIDTH, LAYERS = 2040, 6


def slower(seconds: float) -> float:
    """Of all ranks."""
    return max(hvd.allgather_object(seconds))


def timed(step: Callable[[], object]) -> float:
    hvd.barrier()
    began = time.perf_counter()
    step()
    return slower(time.perf_counter() - began)


def model() -> torch.nn.Module:
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))


class Trainee:
    """A model with its optimizer and what it learns."""

    def __init__(self, batch: int, distributed: bool) -> None:
        torch.manual_seed(1)
        self.model = model()
        self.inputs, self.wanted = torch.randn(batch, WIDTH), torch.randint(10, (batch,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        if distributed:
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=self.model.named_parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(self.inputs), self.wanted).backward()
        self.optimizer.step()


def measure(batch: int, rounds: int) -> None:
    alone, together = Trainee(batch, distributed=False), Trainee(batch, distributed=True)
    flat = torch.zeros(sum(parameter.numel() for parameter in alone.model.parameters()))
    for _ in range(2):
        alone.step()
        together.step()
        hvd.allreduce_(flat)
    computes, steps, allreduces = [], [], []
    for _ in range(rounds):
        computes.append(timed(alone.step))
        steps.append(timed(together.step))
        allreduces.append(timed(lambda: hvd.allreduce_(flat)))
    # Both saw the same data on every rank: averages of equal gradients are those gradients.
    for own, averaged in zip(alone.model.parameters(), together.model.parameters(), strict=True):
        if not torch.equal(own, averaged):
            raise SystemExit("the model that was trained with communication differs from the one without")
    if hvd.rank() == 0:
        figures = {
            "batch": batch,
            "parameters": flat.numel(),
            "compute_ms": round(statistics.median(computes) * 1e3, 2),
            "step_ms": round(statistics.median(steps) * 1e3, 2),
            "allreduce_ms": round(statistics.median(allreduces) * 1e3, 2),
            "ratio": round(statistics.median(s / c for s, c in zip(steps, computes, strict=True)), 4),
            "least": round(statistics.median(1 + a / c for a, c in zip(allreduces, computes, strict=True)), 4),
        }
        print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--batch", type=int, nargs="*", default=[64, 256, 1024], help="of a step [default: 64 256 1024]"
    )
    parser.add_argument("--rounds", type=int, default=10, help="steps of each kind [default: 10]")
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    for batch in options.batch:
        measure(batch, options.rounds)


if __name__ == "__main__":
    main()
