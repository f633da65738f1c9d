"""What is compared with what, and how fast Phalanx has to be: the rows of the sweep and their bars."""

from __future__ import annotations

from dataclasses import dataclass

from contenders import Work

KIB, MIB = 1 << 10, 1 << 20
STEPS = tuple(8**power for power in range(1, 10))
SOCKETS = "limit of sockets"
OTHERS = ("allgather", "reduce_scatter", "alltoall", "broadcast", "reduce")


@dataclass(frozen=True)
class Group:
    """Contenders that run the same work in turn. The first is Phalanx in the usual way."""

    title: str
    work: Work
    contenders: tuple[str, ...]


@dataclass(frozen=True)
class Bar:
    """Phalanx's time over a peer's in one group, at the sizes from `least` to `most` bytes: at most `bar`."""

    group: str
    own: str
    peer: str
    least: int
    most: int
    bar: float
    beyond: float | None = None


def up_to(most: int) -> tuple[int, ...]:
    return tuple(size for size in STEPS if size <= most)


def groups() -> list[Group]:
    """Everything, in the order in which it is run."""
    shm, tcp = "Phalanx shm", "Phalanx tcp"
    mpis = ("Open MPI shm", "MPICH shm")
    found = [
        Group(
            "allreduce, 2 ranks, shm",
            Work("allreduce", 2, STEPS),
            (shm, "Phalanx registered", *mpis, "limit", "limit of private buffers"),
        ),
        Group("allreduce, 4 ranks, shm", Work("allreduce", 4, STEPS), (shm, "Phalanx registered", *mpis)),
        Group("allreduce, 8 ranks, shm", Work("allreduce", 8, up_to(2 * MIB)), (shm, *mpis)),
        Group("allreduce, 4 ranks, tcp", Work("allreduce", 4, STEPS), (tcp, "Open MPI tcp", "Gloo")),
        Group("allreduce, 2 ranks, tcp", Work("allreduce", 2, STEPS), (tcp, "Open MPI tcp", "Gloo", SOCKETS)),
    ]
    for collective in (*OTHERS, "barrier"):
        sizes = (0,) if collective == "barrier" else up_to(16 * MIB)
        for carrier in ("shm", "tcp"):
            contenders = [f"Phalanx {carrier}", f"Open MPI {carrier}"]
            if carrier == "tcp":
                contenders.append(SOCKETS)
            found.append(Group(f"{collective}, 2 ranks, {carrier}", Work(collective, 2, sizes), tuple(contenders)))
    return found


def bars() -> list[Bar]:
    shm, mpi = "Phalanx shm", "Open MPI shm"
    two, tcp = "allreduce, 2 ranks, shm", "allreduce, 2 ranks, tcp"
    found = [
        Bar(two, shm, mpi, 8, 512, 0.7, 0.4),
        Bar(two, shm, mpi, 4 * KIB, 4 * KIB, 0.8, 0.5),
        Bar(two, shm, mpi, 32 * KIB, 256 * KIB, 0.35, 0.2),
        Bar(two, shm, mpi, 2 * MIB, 2 * MIB, 0.6, 0.3),
        Bar(two, shm, mpi, 16 * MIB, 128 * MIB, 0.45, 0.3),
        # A share of the limit of 60 % is 1/0.6 of its time.
        Bar(two, "Phalanx registered", "limit", 256 * KIB, 128 * MIB, 1 / 0.6, 1 / 0.8),
        Bar("allreduce, 4 ranks, shm", shm, mpi, 8, 2 * MIB, 0.7, 0.4),
        Bar("allreduce, 8 ranks, shm", shm, mpi, 8, 2 * MIB, 0.7, 0.4),
        Bar(tcp, "Phalanx tcp", "Open MPI tcp", 8, 128 * MIB, 1.0, 0.7),
        Bar(tcp, "Phalanx tcp", "Gloo", 8, 4 * KIB, 0.1),
        Bar(tcp, "Phalanx tcp", "Gloo", MIB, 128 * MIB, 0.6),
    ]
    for collective in (*OTHERS, "barrier"):
        for carrier in ("shm", "tcp"):
            own, peer = f"Phalanx {carrier}", f"Open MPI {carrier}"
            found.append(Bar(f"{collective}, 2 ranks, {carrier}", own, peer, 0, 16 * MIB, 0.8))
    return found
