"""Handwritten digits, trained by several ranks: `phalanx run -np 4 python train_digits_torch.py`.

Each rank computes gradients on its own part of every batch, and their average moves the weights of all. It looks like
a Horovod script, and but for the import it is one.
"""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F

import phalanx.torch as hvd

DATA = Path(__file__).resolve().parents[1] / "data" / "digits.csv"


def load(path: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The images and digits to train with, then those to test with: each fifth line, as `data/README.md` says."""
    rows = [[int(number) for number in line.split(",")] for line in path.read_text().splitlines()]
    table = torch.tensor(rows)
    images, digits = table[:, :64].float() / 16, table[:, 64]
    is_test = torch.arange(len(table)) % 5 == 4
    return images[~is_test], digits[~is_test], images[is_test], digits[is_test]


def digest(model: torch.nn.Module) -> str:
    """A short name for the exact weights: equal on two ranks if and only if every bit is."""
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64, help="images a training step, over all ranks")
    parser.add_argument("--rate", type=float, default=0.1, help="the learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fp16", action="store_true", help="send gradients in half precision")
    options = parser.parse_args()

    hvd.init()
    # The ranks share the cores: one thread each computes these small layers fastest.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed + hvd.rank())
    images, digits, test_images, test_digits = load(DATA)

    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=0.9)

    # Start all ranks from rank 0's weights.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16 else hvd.Compression.none,
    )

    share = max(options.batch // hvd.size(), 1)
    steps = len(images) // (share * hvd.size())
    for epoch in range(options.epochs):
        # Every rank draws the same order, and takes its part of each batch.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.seed + epoch))
        total = torch.zeros(())
        for step in range(steps):
            start = (step * hvd.size() + hvd.rank()) * share
            chosen = order[start : start + share]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[chosen]), digits[chosen])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        loss = hvd.allreduce(total / steps)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2}: loss {loss.item():.4f}", flush=True)

    # Each rank tests its part.
    part = torch.arange(hvd.rank(), len(test_images), hvd.size())
    with torch.no_grad():
        right = (model(test_images[part]).argmax(dim=1) == test_digits[part]).sum()
    accuracy = hvd.allreduce(right, op=hvd.Sum).item() / len(test_images)
    digests = hvd.allgather_object(digest(model))
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
        for rank, name in enumerate(digests):
            print(f"rank {rank}: weights {name}")
        if len(set(digests)) != 1:
            raise SystemExit("the ranks' weights differ")
    hvd.shutdown()


if __name__ == "__main__":
    main()
