"""Elastic jobs whose arrays are on a device: that of the stand-in of the driver."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from jobs import Job, check_ends

pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ranks"))
import stand_in

pytestmark = stand_in.needs_stand_in

SUMS = f"""
import numpy as np
sys.path.insert(0, {str(Path(stand_in.__file__).parent)!r})
from stand_in import ByInterface, values_of

phalanx.init()
done = os.path.join(os.environ["JOB_FOLDER"], "done")
state = elastic.ObjectState(step=0)

def given(slot, step):
    return (slot + 1) * 1_000_003 + step

@elastic.run
def train(state):
    tell("trains", *elastic.members())
    while True:
        mine = np.full(50_000, given(elastic.slot(), state.step), dtype=np.int64)
        array = ByInterface(mine, elastic.slot() % 2)
        # In place, while it is computed, and the input of both is what was given.
        out = ByInterface(np.zeros(50_000, np.int64), elastic.slot() % 2)
        first = phalanx.allreduce_async(array, phalanx.Sum, out=out)
        second = phalanx.allreduce_async_(array, phalanx.Sum)
        first.wait(), second.wait()
        contributors = elastic.last_step().contributors
        expected = sum(given(slot, state.step) for slot in contributors)
        assert (out.values() == expected).all(), (out.values(), expected, contributors)
        assert (array.values() == expected).all(), (array.values(), expected, contributors)
        state.step += 1
        if state.step % 5 == 0:
            tell("at", state.step)
        rows = phalanx.allgather(ByInterface(np.array([os.path.exists(done)], np.uint8), elastic.slot() % 2))
        ends = values_of(rows)
        assert len(ends) == phalanx.size()
        if ends.any():
            return
        state.commit()

train(state)
tell("end", state.step, *elastic.members())
phalanx.shutdown()
"""


@pytest.mark.parametrize("slot", [0, 2])
def test_the_others_go_on_when_one_is_killed(tmp_path: Path, slot: int) -> None:
    with Job(tmp_path, SUMS, "-np", "3", "--min-np", "2", "--no-respawn") as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", random.Random(slot).randrange(4, 20))
        job.signal(slot)
        job.wait_for("at:", 8)
        job.write("done")
        job.end()
        check_ends(job, [other for other in range(3) if other != slot])


def test_one_that_comes_joins_the_calls(tmp_path: Path) -> None:
    with Job(tmp_path, SUMS, "-np", "3", "--min-np", "2") as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", 6)
        job.signal(1)
        job.wait_for(r"trains: .* 0 2 3$", 3)
        job.wait_for("at:", 3)
        job.write("done")
        job.end()
        check_ends(job, [0, 2, 3])
