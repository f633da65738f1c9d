"""The elastic loop with PyTorch: phalanx run -np 4 --min-np 2 --max-np 6 python elastic_loop_torch.py"""

import torch

import phalanx.torch as hvd

torch.manual_seed(1)
inputs = torch.randn(4096, 8)
targets = inputs @ torch.arange(1.0, 9.0)

hvd.init()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(inputs)
loader = torch.utils.data.DataLoader(range(len(inputs)), batch_size=16, sampler=sampler)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while state.epoch < 5:
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = (model(inputs[batch]).squeeze() - targets[batch]).square().mean()
            loss.backward()
            optimizer.step()
            sampler.record_batch(number, len(batch))
            state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0))
weights = [round(weight, 2) for weight in model.weight.flatten().tolist()]
print(f"rank {hvd.rank()} of {hvd.size()}: weights {weights}")
hvd.shutdown()
