"""Who is here, groups, objects, errors, and what happens while a call waits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

import phalanx
from phalanx import Sum


def test_who_is_here() -> None:
    assert phalanx.is_initialized()
    assert phalanx.init() is phalanx.world()
    ranks = phalanx.allgather_object((phalanx.rank(), phalanx.local_rank(), phalanx.cross_rank()))
    assert ranks == [(rank, rank, 0) for rank in range(phalanx.size())]
    assert phalanx.local_size() == phalanx.size() and phalanx.cross_size() == 1
    assert repr(phalanx.world()) == f"Communicator(rank={phalanx.rank()}, size={phalanx.size()})"


def test_groups_work_side_by_side() -> None:
    rank, size = phalanx.rank(), phalanx.size()
    halves = phalanx.split(rank % 2, key=-rank)
    assert halves is not None
    members = [other for other in range(size) if other % 2 == rank % 2][::-1]
    assert halves.size == len(members) and members[halves.rank] == rank
    first = phalanx.subgroup([0])
    assert (first is not None) == (rank == 0)
    nobody = phalanx.split(None if rank == 0 else 1)
    assert (nobody is None) == (rank == 0)
    handle = halves.allreduce_async_(bytearray([1]), Sum)
    assert phalanx.allreduce_(bytearray([1]), Sum)[0] == size
    assert handle.wait()[0] == len(members)
    if first is not None:
        assert first.allreduce_(bytearray([7]), Sum)[0] == 7


def test_settings_make_another_communicator() -> None:
    ordered = phalanx.world().with_deterministic().with_algorithm("ring").with_timeout(30)
    assert ordered.allreduce_(bytearray([3]), Sum)[0] == 3 * phalanx.size()
    with pytest.raises(ValueError, match="algorithm"):
        phalanx.world().with_algorithm("spiral")
    with pytest.raises(ValueError, match="at least zero"):
        phalanx.world().with_timeout(-1)
    before = phalanx.world().statistics()["operations"]
    phalanx.barrier()
    phalanx.barrier_async().wait()
    assert phalanx.world().statistics()["operations"] == before + 2
    if phalanx.size() > 1:
        assert phalanx.world().transport_summary() != "none"


def test_objects() -> None:
    rank, size = phalanx.rank(), phalanx.size()
    for root in range(size):
        assert phalanx.broadcast_object({"from": root} if rank == root else None, root) == {"from": root}
    assert phalanx.allgather_object("x" * rank) == ["x" * other for other in range(size)]


def test_different_calls_are_an_error_on_every_rank(several: None) -> None:
    odd = phalanx.rank() == 1
    with pytest.raises(phalanx.MismatchError) as caught:
        phalanx.allreduce_(bytearray(3 if odd else 4), Sum)
    error = caught.value
    assert error.fault == "caller" and not error.retryable and error.hint
    assert error.ours is not None and error.theirs is not None and error.ours[1] != error.theirs[1]
    # The communicator is as good as before.
    assert phalanx.allreduce_(bytearray([1]), Sum)[0] == phalanx.size()
    with pytest.raises(phalanx.MismatchError):
        phalanx.allreduce_(bytearray(4), phalanx.Max if odd else Sum)
    phalanx.barrier()


def test_a_message_that_never_comes_times_out(several: None) -> None:
    if phalanx.rank() == 0:
        with pytest.raises(phalanx.PhalanxTimeoutError) as caught:
            phalanx.world().with_timeout(0.2).recv(bytearray(1), 1, tag=77)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.waited >= 0.2 and caught.value.retryable and caught.value.waiting_for


def test_waiting_a_short_time_leaves_the_operation_pending(several: None) -> None:
    rank = phalanx.rank()
    if rank == 0:
        handle = phalanx.recv_async(bytearray(1), 1, tag=5)
        with pytest.raises(TimeoutError, match="still pending"):
            handle.wait(timeout=0.05)
        assert not handle.poll()
        phalanx.send(b"g", 1, tag=6)
        assert handle.wait() == b"d"
    elif rank == 1:
        phalanx.recv(bytearray(1), 0, tag=6)
        phalanx.send(b"d", 0, tag=5)


def test_an_interrupt_ends_a_split(several: None) -> None:
    # Rank 0 splits, and the others come only when it has given up: they are told why.
    rank = phalanx.rank()
    everyone = phalanx.subgroup(range(phalanx.size()))
    assert everyone is not None
    if rank == 0:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                everyone.split(0)
            timer.join()
        finally:
            signal.signal(signal.SIGINT, previous)
    phalanx.barrier()
    if rank != 0:
        with pytest.raises(phalanx.PhalanxError):
            everyone.split(0)
    phalanx.barrier()


@pytest.mark.parametrize("blocked_in", ["recv", "allreduce"])
def test_other_threads_run_while_a_call_waits(several: None, blocked_in: str) -> None:
    # Threads are not switched by themselves: the helper can run only when the waiting call lets go of the interpreter.
    rank = phalanx.rank()
    interval = sys.getswitchinterval()
    if rank == 0:
        about_to_wait = threading.Event()

        def help_out() -> None:
            about_to_wait.wait()
            phalanx.send(b"x", 1, tag=11)

        helper = threading.Thread(target=help_out)
        helper.start()
        sys.setswitchinterval(1000)
        try:
            about_to_wait.set()
            if blocked_in == "recv":
                phalanx.recv(bytearray(1), 1, tag=12)
            else:
                phalanx.allreduce_(bytearray(1), Sum)
        finally:
            sys.setswitchinterval(interval)
        helper.join()
    else:
        if rank == 1:
            phalanx.recv(bytearray(1), 0, tag=11)
            if blocked_in == "recv":
                phalanx.send(b"y", 0, tag=12)
        if blocked_in == "allreduce":
            phalanx.allreduce_(bytearray(1), Sum)


def test_an_interrupt_ends_a_wait_that_burns_no_time(several: None) -> None:
    if phalanx.rank() != 0:
        return
    before = time.process_time()
    timer = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            phalanx.recv(bytearray(1), 1, tag=99)
        started = time.monotonic()
        timer.join()
        assert time.monotonic() - started < 5
    finally:
        signal.signal(signal.SIGINT, previous)
    assert time.process_time() - before < 0.3


def test_an_interrupted_wait_leaves_a_handle_pending(several: None) -> None:
    if phalanx.rank() == 0:
        handle = phalanx.recv_async(bytearray(1), 1, tag=21)
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                handle.wait()
            timer.join()
        finally:
            signal.signal(signal.SIGINT, previous)
        phalanx.send(b"g", 1, tag=22)
        assert handle.wait() == b"d"
    elif phalanx.rank() == 1:
        phalanx.recv(bytearray(1), 0, tag=22)
        phalanx.send(b"d", 0, tag=21)


def test_an_interrupt_goes_before_the_failure_that_it_caused_elsewhere(several: None) -> None:
    # Ctrl-C reaches all ranks. Rank 0 waits and does not see it yet, when another rank makes its operation fail.
    rank = phalanx.rank()
    odd = rank == 1
    if rank == 0:
        before = phalanx.world().statistics()["operations"]

        def interrupt() -> None:
            while phalanx.world().statistics()["operations"] == before:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            phalanx.send(b"x", 1, tag=31)

        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        helper = threading.Thread(target=interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                helper.start()
                phalanx.allreduce_(bytearray(4), Sum)
            helper.join()
        finally:
            signal.signal(signal.SIGINT, previous)
    else:
        if odd:
            phalanx.recv(bytearray(1), 0, tag=31)
        with pytest.raises(phalanx.PhalanxError):
            phalanx.allreduce_(bytearray(3 if odd else 4), Sum)
    phalanx.barrier()


def in_child(function: Any) -> str:
    """What a forked child's function returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, str(function()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_a_forked_child_is_refused() -> None:
    def use(function: Any) -> Any:
        try:
            return function()
        except RuntimeError as error:
            return error

    for function in (
        phalanx.barrier,
        phalanx.init,
        lambda: phalanx.allreduce_(bytearray(1)),
        lambda: phalanx.split(0),
    ):
        said = in_child(lambda function=function: use(function))
        assert f"initialised in process {os.getpid()}" in said and "forked" in said
    # To ask who one is does no harm, and leaving is silent.
    assert in_child(phalanx.rank) == str(phalanx.rank())
    assert in_child(phalanx.shutdown) == "None"
    phalanx.barrier()
