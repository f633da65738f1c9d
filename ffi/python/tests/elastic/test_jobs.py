"""Jobs whose ranks fall, come and go."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PATIENCE, PRELUDE, Job, check_ends

pytest.importorskip("numpy")

# Adds up what all give, until it is told to end, and knows what each step must give.
SUMS = """
import hashlib
import numpy as np

phalanx.init(on_fault=os.environ.get("ON_FAULT", "heal"))
done = os.path.join(os.environ["JOB_FOLDER"], "done")
every = int(os.environ.get("EVERY", "1"))

class State(elastic.ObjectState):
    def restore(self):
        super().restore()
        tell("restored", self.step)

def given(slot, step):
    return (slot + 1) * 1_000_003 + step

state = State(total=np.zeros(50_000, dtype=np.int64), step=0)
state.register_reset_callbacks([lambda: tell("members", *elastic.members())])

@elastic.run
def train(state):
    tell("trains", *elastic.members())
    while True:
        data = np.full(50_000, given(elastic.slot(), state.step), dtype=np.int64)
        phalanx.allreduce_(data, phalanx.Sum)
        step = elastic.last_step()
        contributors = step.contributors if step else elastic.members()
        assert (data == sum(given(slot, state.step) for slot in contributors)).all(), (data, contributors)
        state.total = state.total + data
        state.step += 1
        if state.step % 10 == 0:
            tell("at", state.step)
        # As long as there are ranks, whoever they are.
        ends = phalanx.allgather(np.array([os.path.exists(done)], dtype=np.uint8))
        assert len(ends) == phalanx.size()
        if ends.any():
            return
        if state.step % every == 0:
            state.commit()

train(state)
tell("end", state.step, hashlib.sha256(state.total.tobytes()).hexdigest()[:16], *elastic.members())
phalanx.shutdown()
"""


@pytest.mark.parametrize("slot", [0, 1, 3])
def test_the_others_go_on_when_one_is_killed(tmp_path: Path, slot: int) -> None:
    moment = random.Random(slot)
    with Job(tmp_path, SUMS, "-np", "4", "--min-np", "2", "--no-respawn") as job:
        job.wait_for("trains:", 4)
        job.wait_for("at:", moment.randrange(4, 40))
        job.signal(slot)
        left = [other for other in range(4) if other != slot]
        job.wait_for(rf"members: .* {' '.join(map(str, left))}$", 3)
        another = left.pop(moment.randrange(3))
        job.wait_for("at:", moment.randrange(2, 20))
        job.signal(another)
        job.wait_for(rf"members: .* {' '.join(map(str, left))}$", 2)
        job.wait_for("at:", 2)
        job.write("done")
        job.end()
        check_ends(job, left)
        # Nothing was raised, and the callbacks were called once a change.
        assert job.told("restored") == []
        assert len(job.told("trains")) == 4
        assert len(job.told("members")) == 5, job.text


def test_one_that_comes_gets_the_state(tmp_path: Path) -> None:
    with Job(tmp_path, SUMS, "-np", "3", "--min-np", "2") as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", 10)
        job.signal(1)
        # The function begins anew on all, with the one that came.
        job.wait_for(r"trains: .* 0 2 3$", 3)
        job.wait_for("at:", 5)
        job.signal(0)
        job.wait_for(r"trains: .* 2 3 4$", 3)
        job.wait_for("at:", 5)
        job.write("done")
        job.end()
        check_ends(job, [2, 3, 4])
        assert job.told("restored") == []


def test_too_few_wait_for_more_and_go_back_to_the_last_commit(tmp_path: Path) -> None:
    with Job(tmp_path, SUMS, "-np", "3", "--min-np", "3", EVERY="7") as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", 10)
        job.signal(2)
        job.wait_for(r"trains: .* 0 1 3$", 3)
        restored = job.told("restored")
        assert sorted(slot for slot, _ in restored) in ([], [0, 1]), job.text
        assert len({words for _, words in restored}) <= 1, restored
        job.wait_for("at:", 5)
        job.write("done")
        job.end()
        check_ends(job, [0, 1, 3])


def test_a_fault_can_be_raised_instead(tmp_path: Path) -> None:
    with Job(tmp_path, SUMS, "-np", "4", "--min-np", "2", "--no-respawn", ON_FAULT="raise", EVERY="10") as job:
        job.wait_for("trains:", 4)
        job.wait_for("at:", 22)
        job.signal(1)
        # Lines of different ranks come in any order.
        job.wait_for(r"(restored: .*|trains: .* 0 2 3)$", 6)
        restored = [int(words) for _, words in job.told("restored")]
        assert len(set(restored)) == 1 and restored[0] % 10 == 0, restored
        job.wait_for("at:", 5)
        job.write("done")
        job.end()
        check_ends(job, [0, 2, 3])
        restored = [int(words) for _, words in job.told("restored")]
        assert len(set(restored)) == 1 and restored[0] % 10 == 0, restored
        assert len(restored) == len(job.told("members")) == 3


def ends_early(how: str) -> str:
    """Slot 1 ends before the others."""
    early = f"        if elastic.slot() == 1 and state.step >= 20:\n            {how}\n"
    return SUMS.replace("    while True:\n", f"    while True:\n{early}", 1)


@pytest.mark.parametrize(
    ("how", "around", "code"),
    [
        ("raise AssertionError('a bug')", "", 1),
        ("sys.exit(7)", "", 7),
        # On the way out of a failure this is no word that the work is done.
        ("sys.exit(1)", "try:\n    train(state)\nexcept SystemExit:\n    phalanx.shutdown()\n    raise\n", 1),
    ],
)
def test_one_that_fails_is_replaced(tmp_path: Path, how: str, around: str, code: int) -> None:
    fails = ends_early(how).replace("\ntrain(state)\n", f"\n{around}" if around else "\ntrain(state)\n")
    with Job(tmp_path, fails, "-np", "3", "--min-np", "2") as job:
        job.wait_for(r"trains: .* 0 2 3$", 3)
        job.wait_for("at:", 3)
        job.write("done")
        job.end()
        ends = job.told("end")
        assert sorted(slot for slot, _ in ends) == [0, 2, 3], job.text
        assert len({words for _, words in ends}) == 1, ends
        assert f" exited with code {code}; another is started" in job.text, job.text


@pytest.mark.parametrize("how", ["return", "sys.exit(0)", "sys.exit()", "phalanx.shutdown(); sys.exit(0)"])
def test_the_others_go_on_without_one_that_is_done(tmp_path: Path, how: str) -> None:
    # Though they are fewer than the job begins with.
    early = ends_early(how).replace('tell("end"', 'if elastic.slot() != 1: tell("end"')
    with Job(tmp_path, early, "-np", "3", "--min-np", "3") as job:
        job.wait_for(r"members: .* 0 2$", 2)
        job.wait_for("at:", 3)
        job.write("done")
        job.end()
        check_ends(job, [0, 2])
        assert "another is started" not in job.text, job.text


def test_one_that_fails_after_its_work_was_done_gives_the_job_its_code(tmp_path: Path) -> None:
    script = SUMS.replace('tell("end"', 'if elastic.slot() == 1: sys.exit(3)\ntell("end"')
    with Job(tmp_path, script, "-np", "2", "--min-np", "1") as job:
        job.wait_for("at:", 3)
        job.write("done")
        job.end(3)
        check_ends(job, [0])
        assert "exited with code 3 after it had said that its work is done" in job.text, job.text


def test_sigterm_lets_a_rank_leave(tmp_path: Path) -> None:
    with Job(tmp_path, SUMS, "-np", "3", "--min-np", "1", "--no-respawn") as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", 5)
        job.signal(1, signal.SIGTERM)
        job.wait_for(r"members: .* 0 2$", 2)
        job.wait_for("at:", 2)
        job.write("done")
        text = job.end()
        check_ends(job, [0, 2])
        assert "slot 1 left" in text and "slot 1 (host" not in text, text


def test_ranks_that_are_all_asked_to_leave_have_not_done_their_work(tmp_path: Path) -> None:
    with Job(tmp_path, SUMS, "-np", "2", "--min-np", "1") as job:
        job.wait_for("trains:", 2)
        for slot, left in ((1, "0"), (0, "")):
            job.wait_for("at:", 3)
            job.signal(slot, signal.SIGTERM)
            if left:
                job.wait_for(rf"members: .* {left}$")
        text = job.end(1)
        assert "the job ended before its work was done: all members left as they were asked to" in text, text


def test_the_same_program_runs_where_ranks_do_not_change(tmp_path: Path) -> None:
    (tmp_path / "done").write_text("")
    with Job(tmp_path, SUMS, "-np", "2") as job:
        job.end()
        check_ends(job, [0, 1])
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "rank.py")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"JOB_FOLDER": str(tmp_path), "PATH": ""},
        check=False,
    )
    assert alone.returncode == 0 and "end: 0" in alone.stdout, alone.stderr


def test_one_that_was_stopped_learns_that_the_others_went_on(tmp_path: Path) -> None:
    script = SUMS.replace(
        "\ntrain(state)\n",
        "\ntry:\n    train(state)\nexcept phalanx.EvictedError as error:\n    tell('evicted', error)\n    raise\n",
    )
    options = ["-np", "3", "--min-np", "1", "--no-respawn", "--heartbeat", "1", "--evict-silent", "1"]
    with Job(tmp_path, script, *options) as job:
        job.wait_for("trains:", 3)
        job.wait_for("at:", 5)
        job.signal(1, signal.SIGSTOP)
        job.wait_for(r"members: .* 0 2$", 2)
        job.wait_for("at:", 2)
        job.signal(1, signal.SIGCONT)
        said = job.wait_for(r"evicted: 1 \d+ (.*)")[0][1]
        assert "the others went on without this rank" in said, said
        job.write("done")
        job.end(None)
        ends = job.told("end")
        assert sorted(slot for slot, _ in ends) == [0, 2] and len({words for _, words in ends}) == 1, job.text


ROOTS = """
phalanx.init()

class State(elastic.ObjectState):
    def restore(self):
        super().restore()
        tell("restored", self.step)

@elastic.run
def train(state):
    while state.step < 60:
        if state.step == 30 and elastic.slot() == 0:
            os.kill(os.getpid(), 9)
        root = phalanx.size() - 1 if state.step < 30 else 0
        try:
            assert phalanx.broadcast_object((elastic.slot(), state.step), root) == (elastic.members()[root], state.step)
        except phalanx.RankGoneError as error:
            tell("gone", error.rank, error)
            raise
        state.step += 1
        state.commit()

state = State(step=0)
train(state)
tell("end", state.step)
"""


def test_a_root_that_is_gone_is_an_error_on_all(tmp_path: Path) -> None:
    with Job(tmp_path, ROOTS, "-np", "3", "--min-np", "1", "--no-respawn") as job:
        job.end()
        check_ends(job, [1, 2])
        for told in ("gone", "restored"):
            assert sorted(slot for slot, _ in job.told(told)) == [1, 2], job.text
        assert {words for _, words in job.told("restored")} == {"30"}
        assert all(words.startswith("0 rank 0 (slot 0)") for _, words in job.told("gone")), job.text


GROUPS = """
import array
phalanx.init()
done = os.path.join(os.environ["JOB_FOLDER"], "done")

def make():
    global group, made
    group = phalanx.subgroup([0, 1])
    made += 1

group, made = None, 0

@elastic.run
def train(state):
    global first
    if state.step == 0:
        make()
        first = group
    while True:
        if group is not None:
            try:
                assert group.allreduce(array.array("q", [1]), phalanx.Sum)[0] == 2
            except phalanx.ViewChangedError as error:
                # It fell since the last commit.
                tell("stale", error)
        state.step += 1
        if state.step % 10 == 0:
            tell("at", state.step)
        if any(phalanx.allgather_object(os.path.exists(done))):
            return
        state.commit()

state = elastic.ObjectState(step=0)
state.register_reset_callbacks([make, lambda: tell("members", *elastic.members())])
train(state)
try:
    if first is not None:
        first.barrier()
        tell("first", "works")
except phalanx.ViewChangedError as error:
    tell("first", error)
tell("end", state.step, made)
"""


def test_groups_last_as_long_as_the_members(tmp_path: Path) -> None:
    with Job(tmp_path, GROUPS, "-np", "3", "--min-np", "1", "--no-respawn") as job:
        job.wait_for("at:", 6)
        job.signal(0)
        job.wait_for(r"members: .* 1 2$", 2)
        job.wait_for("at:", 6)
        job.write("done")
        job.end()
        check_ends(job, [1, 2])
        first = [words for slot, words in job.told("first") if slot == 1]
        assert len(first) == 1 and "the view ended" in first[0] and "groups" in first[0], job.text
        assert all(words.endswith(" 2") for _, words in job.told("end")), job.text


SAMPLES = """
from itertools import islice
import numpy as np

SIZE = 1001
phalanx.init()
sampler = elastic.ElasticSampler(SIZE, seed=5)
state = elastic.ObjectState(sampler=sampler, seen=[], epoch=0)
done = os.path.join(os.environ["JOB_FOLDER"], "done")

@elastic.run
def train(state):
    tell("trains", *elastic.members())
    while True:
        while len(sampler):
            taken = iter(sampler)
            while batch := list(islice(taken, 3)):
                # What counts is what the contributors brought.
                given = phalanx.allgather(np.array(batch, dtype=np.int64)).tolist()
                sampler.record_batch(0, len(batch))
                state.seen = state.seen + given
                if len(state.seen) % 5 == 0:
                    tell("at", len(state.seen))
                state.commit()
        left = sampler.remaining_indices
        assert len(left) < phalanx.size(), left
        assert sorted(state.seen) == sorted(sampler.processed_indices)
        assert sorted(state.seen + left) == list(range(SIZE)), (len(state.seen), left)
        state.seen = []
        state.epoch += 1
        tell("epoch", state.epoch, *left)
        sampler.set_epoch(state.epoch)
        if phalanx.allreduce(np.array([os.path.exists(done)], dtype=np.uint8), phalanx.Max)[0]:
            return

train(state)
tell("end", state.epoch)
"""


def test_each_sample_counts_once_an_epoch_whoever_comes_and_goes(tmp_path: Path) -> None:
    moment = random.Random(7)
    with Job(tmp_path, SAMPLES, "-np", "4", "--min-np", "2") as job:
        job.wait_for("trains:", 4)
        alive, newest = [0, 1, 2, 3], 3
        for _ in range(4):
            job.wait_for("at:", moment.randrange(10, 60))
            job.signal(alive.pop(moment.randrange(4)))
            newest += 1
            alive.append(newest)
            job.wait_for(rf"trains: .* {' '.join(map(str, alive))}$", 4)
        job.wait_for("epoch:", 4)
        job.write("done")
        job.end()
        check_ends(job, sorted(alive))


def test_a_call_before_the_state_is_there_says_what_to_do(tmp_path: Path) -> None:
    script = "phalanx.init()\ntry: phalanx.barrier()\nexcept ValueError as error: tell('said', error)\n"
    with Job(tmp_path, script, "-np", "2", "--min-np", "2", prelude=PRELUDE) as job:
        job.end()
        assert len(job.told("said")) == 2 and all("sync" in words for _, words in job.told("said")), job.text


def test_a_call_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
import array
phalanx.init()
@elastic.run
def train(state):
    ones = array.array("f", [1.0])
    for call in (phalanx.allreduce, phalanx.allreduce_async):
        kept = phalanx.allreduce_async(ones, phalanx.Sum)
        try:
            call(ones, phalanx.BitAnd)
        except phalanx.InvalidArgumentError as error:
            tell("refused", error)
        assert phalanx.allreduce(ones, phalanx.Sum)[0] == phalanx.size()
        assert kept.wait()[0] == phalanx.size() and kept.poll()
    rows = phalanx.allgather_async(ones)
    last = phalanx.broadcast_async(array.array("q", [elastic.slot()]), phalanx.size() - 1)
    assert last.wait()[0] == elastic.members()[-1] and len(rows.wait()) == phalanx.size()
    try:
        phalanx.broadcast(ones, phalanx.size())
    except phalanx.InvalidArgumentError as error:
        tell("refused", error)
    state.commit()
train(elastic.ObjectState())
tell("end")
"""
    with Job(tmp_path, script, "-np", "2", "--min-np", "1", "--no-respawn") as job:
        job.end()
        check_ends(job, [0, 1])
        assert len(job.told("refused")) == 6


def test_the_wait_for_others_ends_with_ctrl_c(tmp_path: Path) -> None:
    script = """
import array, signal, threading
phalanx.init()
@elastic.run
def train(state):
    tell("trains")
    if elastic.slot() == 0:
        signal.pause()
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        phalanx.allreduce_(array.array("d", [1.0]))
    except KeyboardInterrupt:
        tell("interrupted")
    phalanx.shutdown()
train(elastic.ObjectState(step=0))
"""
    with Job(tmp_path, script, "-np", "2", "--min-np", "1", "--no-respawn") as job:
        job.wait_for("trains:", 2)
        job.wait_for("interrupted: 1")
        job.signal(0)
        job.end(None)
