"""Training with PyTorch whose ranks fall, come and go."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PATIENCE, PRELUDE, Job, check_ends

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "python"

# A model with running statistics, an optimizer with a state, a schedule, and batches from a loader.
TRAINING = (
    PRELUDE
    + """
import hashlib
import torch
import phalanx.torch as hvd

hvd.init(on_fault=os.environ.get("ON_FAULT", "heal"))
torch.manual_seed(3)
torch.set_num_threads(1)
done = os.path.join(os.environ["JOB_FOLDER"], "done")
options = {"fp16": dict(compression=hvd.Compression.fp16), "kept": {}}.get(os.environ.get("KIND"), {})
size = 403
inputs, targets = torch.randn(size, 20), torch.randn(size, 1)

class Running(torch.nn.Module):
    # As batch normalisation has them: each rank sees samples of its own.
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, given):
        self.mean.lerp_(given.detach().mean(dim=0), 0.1)
        return given

model = torch.nn.Sequential(torch.nn.Linear(20, 64), Running(), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=2000, **options)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)
sampler = hvd.elastic.ElasticSampler(inputs)
assert isinstance(sampler, torch.utils.data.Sampler)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.arange(size), inputs, targets), batch_size=8, sampler=sampler
)

def digest(tensors):
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]

class State(hvd.elastic.TorchState):
    def restore(self):
        super().restore()
        tell("restored", self.step)

@hvd.elastic.run
def train(state):
    tell("trains", *hvd.elastic.members())
    while True:
        # One that comes behind the last step of an epoch finds nothing left of it.
        loss = torch.zeros(())
        while len(sampler):
            for number, (samples, given, wanted) in enumerate(loader):
                optimizer.zero_grad(set_to_none=os.environ.get("KIND") != "kept")
                loss = torch.nn.functional.mse_loss(model(given), wanted)
                loss.backward()
                optimizer.step()
                schedule.step()
                sampler.record_batch(number, len(samples))
                state.step += 1
                assert set(optimizer.contributors) <= {*hvd.elastic.members()}, optimizer.contributors
                if state.step % 5 == 0:
                    tell("at", state.step)
                state.commit()
        # What is not part of the state may differ; this may not.
        same = hvd.allgather_object((digest(model.parameters()), schedule.last_epoch, optimizer.param_groups[0]["lr"]))
        assert len(set(same)) == 1, same
        average = hvd.allreduce(loss.detach())
        assert average.isfinite()
        state.epoch += 1
        tell("epoch", state.epoch)
        sampler.set_epoch(state.epoch)
        if any(hvd.allgather_object(os.path.exists(done))):
            return

state = State(model=model, optimizer=optimizer, schedule=schedule, sampler=sampler, epoch=0, step=0)
state.register_reset_callbacks([lambda: tell("members", *hvd.elastic.members())])
train(state)
moments = [value for entry in optimizer.state.values() for value in entry.values()]
tell("end", state.step, state.epoch, digest(model.parameters()), digest(moments))
hvd.shutdown()
"""
)


@pytest.mark.parametrize("kind", ["plain", "fp16", "kept"])
def test_ranks_are_killed_and_come(tmp_path: Path, kind: str) -> None:
    moment = random.Random(kind)
    with Job(tmp_path, TRAINING, "-np", "4", "--min-np", "2", prelude="", KIND=kind) as job:
        job.wait_for("trains:", 4)
        alive, newest = [0, 1, 2, 3], 3
        for _ in range(2):
            job.wait_for("at:", moment.randrange(5, 40))
            job.signal(alive.pop(moment.randrange(4)))
            job.wait_for(rf"members: .* {' '.join(map(str, alive))}$", 3)
            newest += 1
            alive.append(newest)
            job.wait_for(rf"trains: .* {' '.join(map(str, alive))}$", 4)
        job.wait_for("epoch:", 4)
        job.write("done")
        job.end()
        check_ends(job, sorted(alive))
        assert job.told("restored") == []


def test_a_fault_can_be_raised_instead(tmp_path: Path) -> None:
    options = ["-np", "3", "--min-np", "2", "--no-respawn"]
    with Job(tmp_path, TRAINING, *options, prelude="", ON_FAULT="raise") as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", 11)
        job.signal(0)
        assert len({match[1] for match in job.wait_for(r"restored: \d+ \d+ (\d+)$", 2)}) == 1
        job.wait_for("epoch:", 2)
        job.write("done")
        job.end()
        check_ends(job, [1, 2])


def test_the_example_goes_on_and_ends_alike(tmp_path: Path) -> None:
    command = [str(EXAMPLES / "elastic_digits_torch.py"), "--epochs", "60"]
    script = f"import runpy, sys\nsys.argv = {command!r}\nsys.path.insert(0, {str(EXAMPLES)!r})\n"
    script += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    with Job(tmp_path, script, "-np", "3", "--min-np", "2", "--no-respawn", prelude="") as job:
        started = job.wait_for(r"slot (\d), .*: trains, process (\d+)", 3)
        job.wait_for(r"epoch 2,")
        job.pids.update({int(match[1]): int(match[2]) for match in started})
        job.signal(1)
        job.wait_for("the members are now", 2)
        job.end()
        weights = job.wait_for("weights (\\w+)", 0) or [line for line in job.lines if "weights" in line]
        assert len({line.split("weights ")[1] for line in weights}) == 1 and len(weights) == 2, job.text


def test_the_example_runs_alone() -> None:
    command = [sys.executable, str(EXAMPLES / "elastic_digits_torch.py"), "--epochs", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 0 and "epoch 2" in result.stdout, result.stderr
