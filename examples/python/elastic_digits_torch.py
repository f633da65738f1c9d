"""Handwritten digits, trained by ranks that come and go:

phalanx run -np 4 --min-np 2 --max-np 6 python elastic_digits_torch.py

Kill any rank with `kill -9`: the others go on. Send SIGTERM: it leaves. It runs as well where no ranks come and go.
"""

import argparse
import hashlib
import os

import torch
import torch.nn.functional as F

import phalanx.torch as hvd
from train_digits_torch import DATA, load

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch", type=int, default=16, help="images a training step, on each rank")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(1)
images, digits, test_images, test_digits = load(DATA)
# What takes long comes first: from here to `train` the others wait for a rank that joins.
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(images, seed=1)
loader = torch.utils.data.DataLoader(range(len(images)), batch_size=options.batch, sampler=sampler)


def say(*words: object) -> None:
    print(f"slot {hvd.elastic.slot()}, rank {hvd.rank()} of {hvd.size()}:", *words, flush=True)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    say("trains, process", os.getpid())
    while state.epoch < options.epochs:
        loss = torch.zeros(())
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), digits[batch])
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(number, len(batch))
            state.steps += 1
            state.commit()
        loss = hvd.allreduce(loss.detach())
        if hvd.rank() == 0:
            say(f"epoch {state.epoch + 1}, {state.steps} steps: loss {loss.item():.4f}")
        state.epoch += 1
        sampler.set_epoch(state.epoch)


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, steps=0)
state.register_reset_callbacks([lambda: say("the members are now", hvd.elastic.members())])
train(state)

with torch.no_grad():
    right = (model(test_images).argmax(dim=1) == test_digits).float().mean().item()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
digest = hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()[:16]
say(f"test accuracy {right:.4f}, weights {digest}")
hvd.shutdown()
