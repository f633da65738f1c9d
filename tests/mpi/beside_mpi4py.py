"""Phalanx over MPI in one process with mpi4py: the program's own MPI calls before, between, during and after.

Run by tests/parts/mpi.sh under mpirun with PHALANX_TRANSPORT=mpi. The argument says who starts MPI.
"""

import sys
from array import array

import phalanx


def program_talks(comm) -> None:
    """A ring of messages and a sum, over a communicator of the program's."""
    rank, size = comm.Get_rank(), comm.Get_size()
    got = comm.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
    assert got == (rank - 1) % size, got
    assert comm.allreduce(rank) == size * (size - 1) // 2


def phalanx_sums(size: int) -> None:
    """A sum over Phalanx."""
    values = array("d", [1.0] * 100_000)
    phalanx.allreduce_(values, op=phalanx.Sum)
    assert values == array("d", [float(size)] * 100_000), values[:4]


if sys.argv[1] == "mpi4py":
    from mpi4py import MPI

    program_talks(MPI.COMM_WORLD)
    phalanx.init()
else:
    phalanx.init()
    from mpi4py import MPI

assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
assert (phalanx.rank(), phalanx.size()) == (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
own = MPI.COMM_WORLD.Dup()
for _ in range(20):
    program_talks(MPI.COMM_WORLD)
    phalanx_sums(phalanx.size())
    program_talks(own)
size = phalanx.size()
phalanx.shutdown()
program_talks(own)
phalanx.init()
phalanx_sums(size)
program_talks(MPI.COMM_WORLD)
print(f"rank {phalanx.rank()} of {phalanx.size()} beside mpi4py, MPI started by {sys.argv[1]}")
