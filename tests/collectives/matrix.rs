//! Every collective over every transport, algorithm, size and count, in and out of place, aligned and not, with all
//! types and operations, between guard zones, against exactly known answers.

use phalanx::schedule::algorithms_for;
use phalanx::types::{Algorithm, Collective, DataType, ReduceOp};
use phalanx::{Call, Communicator, TransportKind};

use crate::support::{Guarded, Seeded, TRANSPORTS, elements, encode, input_value, on_hosts, on_world, reduced};

const SIZES: [usize; 9] = [1, 2, 3, 4, 5, 7, 8, 9, 16];

const COLLECTIVES: [Collective; 9] = [
    Collective::Allreduce,
    Collective::Reduce,
    Collective::Broadcast,
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Alltoall,
    Collective::Gather,
    Collective::Scatter,
    Collective::Barrier,
];

/// One call, as every rank makes it.
#[derive(Clone, Debug)]
struct Case {
    collective: Collective,
    algorithm: Option<Algorithm>,
    dtype: DataType,
    op: ReduceOp,
    /// Elements of the whole buffer, or of each rank's block, or of uneven blocks around it.
    count: usize,
    uneven: bool,
    root: usize,
    in_place: bool,
    misaligned: bool,
    deterministic: bool,
}

impl Case {
    /// The block of each rank: equal, or growing with the rank and leaving some empty.
    fn blocks(&self, size: usize) -> Vec<usize> {
        (0..size).map(|rank| if self.uneven { self.count * (rank % 3) } else { self.count }).collect()
    }

    /// The elements that `from` sends to `to` in an uneven alltoall.
    fn exchange(&self, from: usize, to: usize) -> usize {
        if self.uneven { self.count * ((from + 2 * to) % 3) } else { self.count }
    }

    fn op(&self) -> Option<ReduceOp> {
        let reduces = matches!(self.collective, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter);
        reduces.then_some(self.op)
    }

    fn call(&self, rank: usize, size: usize) -> Call {
        let Case { dtype, op, count, root, .. } = *self;
        let blocks = self.blocks(size);
        let call = match (self.collective, self.uneven) {
            (Collective::Allreduce, _) => Call::allreduce(dtype, count, op),
            (Collective::Reduce, _) => Call::reduce(dtype, count, op, root),
            (Collective::Broadcast, _) => Call::broadcast(dtype, count, root),
            (Collective::Allgather, false) => Call::allgather(dtype, count),
            (Collective::Allgather, true) => Call::allgatherv(dtype, &blocks),
            (Collective::ReduceScatter, false) => Call::reduce_scatter(dtype, count, op),
            (Collective::ReduceScatter, true) => Call::reduce_scatterv(dtype, &blocks, op),
            (Collective::Alltoall, false) => Call::alltoall(dtype, count),
            (Collective::Alltoall, true) => {
                let send: Vec<_> = (0..size).map(|to| self.exchange(rank, to)).collect();
                let recv: Vec<_> = (0..size).map(|from| self.exchange(from, rank)).collect();
                Call::alltoallv(dtype, &send, &recv)
            }
            (Collective::Gather, false) => Call::gather(dtype, count, root),
            (Collective::Gather, true) => Call::gatherv(dtype, &blocks, root),
            (Collective::Scatter, false) => Call::scatter(dtype, count, root),
            (Collective::Scatter, true) => Call::scatterv(dtype, &blocks, root),
            (Collective::Barrier | Collective::SendRecv, _) => Call::barrier(),
        };
        call.in_place(self.in_place)
    }

    /// This rank's input, and what its output must be; `None` where the output is unspecified or absent.
    fn input_and_answer(&self, rank: usize, size: usize) -> (Vec<u8>, Option<Vec<u8>>) {
        let Case { dtype, op, count, root, .. } = *self;
        let value = |rank, index| input_value(self.op(), dtype, size, rank, index);
        let own = |rank: usize, count: usize| elements(dtype, count, |index| value(rank, index));
        let blocks = self.blocks(size);
        let total: usize = blocks.iter().sum();
        let starts: Vec<usize> = blocks
            .iter()
            .scan(0, |start, block| {
                *start += block;
                Some(*start - block)
            })
            .collect();
        let all_blocks = || -> Vec<u8> { (0..size).flat_map(|rank| own(rank, blocks[rank])).collect() };
        let reduction = |from: usize, count: usize| -> Vec<u8> {
            (from..from + count).flat_map(|index| reduced(op, dtype, size, index)).collect()
        };
        match self.collective {
            Collective::Allreduce => (own(rank, count), Some(reduction(0, count))),
            Collective::Reduce => (own(rank, count), (rank == root).then(|| reduction(0, count))),
            Collective::Broadcast => (own(rank, count), Some(own(root, count))),
            Collective::Allgather => (own(rank, blocks[rank]), Some(all_blocks())),
            Collective::ReduceScatter => (own(rank, total), Some(reduction(starts[rank], blocks[rank]))),
            Collective::Alltoall => {
                let block = |from: usize, to: usize| {
                    elements(dtype, self.exchange(from, to), |index| value(from * size + to, index))
                };
                let input = (0..size).flat_map(|to| block(rank, to)).collect();
                (input, Some((0..size).flat_map(|from| block(from, rank)).collect()))
            }
            Collective::Gather => (own(rank, blocks[rank]), (rank == root).then(all_blocks)),
            Collective::Scatter => {
                let input = if rank == root { own(root, total) } else { Vec::new() };
                let mine = starts[rank]..starts[rank] + blocks[rank];
                (input, Some(mine.flat_map(|index| encode(dtype, value(root, index))).collect()))
            }
            Collective::Barrier | Collective::SendRecv => (Vec::new(), Some(Vec::new())),
        }
    }

    /// Where the one buffer of an in-place call has this rank's input, and where its answer, in bytes; and its length.
    fn layout(&self, rank: usize, size: usize) -> (usize, usize, usize) {
        let blocks = self.blocks(size);
        let element = self.dtype.size();
        let start = blocks[..rank].iter().sum::<usize>() * element;
        let total = blocks.iter().sum::<usize>() * element;
        match self.collective {
            Collective::Allgather | Collective::Gather => (start, 0, total),
            Collective::ReduceScatter | Collective::Scatter => (0, start, total),
            Collective::Alltoall => (0, 0, total),
            _ => (0, 0, self.count * element),
        }
    }

    fn run(&self, comm: &Communicator) {
        let (rank, size) = (comm.rank(), comm.size());
        let what = format!("rank {rank} of {size}: {self:?}");
        let comm = comm.with_algorithm(self.algorithm).with_deterministic(self.deterministic);
        let call = self.call(rank, size);
        let (input, answer) = self.input_and_answer(rank, size);
        let rooted = matches!(self.collective, Collective::Gather | Collective::Scatter);
        let one_buffer = self.collective == Collective::Broadcast || (self.in_place && (!rooted || rank == self.root));
        if one_buffer {
            let (from, to, length) = self.layout(rank, size);
            let mut content = vec![0x5c; length];
            content[from..from + input.len()].copy_from_slice(&input);
            let mut buffer = Guarded::new(&content, self.misaligned);
            // SAFETY: the buffer has the length that the call needs in place, and outlives it.
            let outcome = unsafe { comm.run(&call, std::ptr::null(), buffer.pointer()) };
            outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            let content = buffer.content(&what);
            if let Some(answer) = answer {
                assert!(content[to..to + answer.len()] == answer, "{what}: wrong answer");
            }
        } else {
            let mut source = Guarded::new(&input, self.misaligned);
            let mut target = Guarded::new(&vec![0x5c; answer.as_ref().map_or(0, Vec::len)], self.misaligned);
            // SAFETY: both have the lengths that the call needs out of place, and outlive it.
            let outcome = unsafe { comm.run(&call, source.pointer(), target.pointer()) };
            outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(source.content(&what) == input, "{what}: changed its input");
            let content = target.content(&what);
            if let Some(answer) = answer {
                assert!(content == answer, "{what}: wrong answer");
            }
        }
    }
}

/// Counts around the borders: of chunks, of ranks, of segments, and of the limit for early messages.
fn counts(size: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 2, size - 1, size, size + 1, 13, 127, 1009];
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Every algorithm at every count; types, operations, roots, placement and alignment take turns, seeded, so that all
/// meet over the sweep.
fn sweep(seed: u64, size: usize) -> Vec<Case> {
    let mut seeded = Seeded::new(seed);
    let mut cases = Vec::new();
    for collective in COLLECTIVES {
        let forced = algorithms_for(collective).iter().map(|&algorithm| Some(algorithm));
        for algorithm in forced.chain([None]) {
            for count in counts(size) {
                for in_place in [false, true] {
                    let dtype = DataType::ALL[seeded.below(DataType::ALL.len())];
                    let ops: Vec<_> = ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).collect();
                    let uneven = seeded.below(2) == 1 && !(in_place && collective == Collective::Alltoall);
                    cases.push(Case {
                        collective,
                        algorithm,
                        dtype,
                        op: ops[seeded.below(ops.len())],
                        count,
                        uneven: uneven && algorithm != Some(Algorithm::Bruck),
                        root: seeded.below(size),
                        in_place,
                        misaligned: seeded.below(2) == 1,
                        deterministic: seeded.below(3) == 0,
                    });
                }
            }
        }
    }
    cases
}

fn check(kind: TransportKind, size: usize) {
    let cases = sweep(size as u64, size);
    on_world(kind, size, |comm| cases.iter().for_each(|case| case.run(&comm)));
}

#[test]
fn threads_of_one_process() {
    SIZES.into_iter().for_each(|size| check(TransportKind::Inproc, size));
}

#[test]
fn shared_memory() {
    SIZES.into_iter().for_each(|size| check(TransportKind::Shm, size));
}

#[test]
fn tcp() {
    SIZES.into_iter().for_each(|size| check(TransportKind::Tcp, size));
}

/// A twentieth of the cases, each of another kind: the device is emulated, and slow.
#[test]
#[cfg(feature = "rdma")]
#[ignore = "needs an RDMA device"]
fn rdma() {
    for size in [2, 3, 4, 5] {
        let cases: Vec<_> = sweep(size as u64, size).into_iter().skip(size).step_by(23).collect();
        on_world(TransportKind::Rdma, size, |comm| cases.iter().for_each(|case| case.run(&comm)));
    }
}

/// Every type with every operation, in every reducing collective.
#[test]
fn all_types_and_operations() {
    for kind in TRANSPORTS {
        for size in [3, 4] {
            on_world(kind, size, |comm| types_and_operations(&comm));
        }
    }
}

fn types_and_operations(comm: &Communicator) {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            for collective in [Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter] {
                let case = Case {
                    collective,
                    algorithm: None,
                    dtype,
                    op,
                    count: 37,
                    uneven: false,
                    root: 1,
                    in_place: (op as usize).is_multiple_of(2),
                    misaligned: (op as usize).is_multiple_of(3),
                    deterministic: false,
                };
                case.run(comm);
            }
        }
    }
}

/// Messages larger than every buffer on the way, with lengths just off the borders of segments.
#[test]
fn large_buffers() {
    for kind in TRANSPORTS {
        for size in [2, 4] {
            on_world(kind, size, |comm| large(&comm));
        }
    }
}

fn large(comm: &Communicator) {
    let size = comm.size();
    for collective in COLLECTIVES {
        let forced = algorithms_for(collective).iter().map(|&algorithm| Some(algorithm));
        for (turn, algorithm) in forced.enumerate() {
            let case = Case {
                collective,
                algorithm,
                dtype: [DataType::F32, DataType::BF16, DataType::I64][turn % 3],
                op: ReduceOp::Sum,
                count: [(1 << 20) + 1, (1 << 18) - 1, 300_007][turn % 3] / size,
                uneven: false,
                root: size - 1,
                in_place: turn % 2 == 0,
                misaligned: turn % 2 == 1,
                deterministic: false,
            };
            case.run(comm);
        }
    }
}

/// As above, over RDMA: each collective once.
#[test]
#[cfg(feature = "rdma")]
#[ignore = "needs an RDMA device"]
fn large_buffers_over_rdma() {
    on_world(TransportKind::Rdma, 3, |comm| {
        for (turn, collective) in COLLECTIVES.into_iter().enumerate() {
            let case = Case {
                collective,
                algorithm: None,
                dtype: [DataType::F32, DataType::BF16, DataType::I64][turn % 3],
                op: ReduceOp::Sum,
                count: 300_007 / 3,
                uneven: false,
                root: turn % 3,
                in_place: turn % 2 == 0,
                misaligned: turn % 2 == 1,
                deterministic: false,
            };
            case.run(&comm);
        }
    });
}

/// The whole matrix on one rank of a world that was made elsewhere. Every rank calls it. Returns how many calls that was.
#[allow(dead_code, reason = "for `tests/mpi`")]
pub fn everything(comm: &Communicator) -> usize {
    let cases = sweep(comm.size() as u64, comm.size());
    cases.iter().for_each(|case| case.run(comm));
    if comm.size() > 2 {
        types_and_operations(comm);
    }
    if comm.size() > 1 {
        large(comm);
    }
    cases.len()
}

/// Ranks on several hosts, evenly and unevenly, neighbours and not: the hierarchical algorithms.
#[test]
fn several_hosts() {
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 1], &[0, 0, 0, 1, 1, 2], &[0, 1, 2], &[0, 1, 1, 0, 1, 1, 0]] {
        let cases: Vec<_> = sweep(7, hosts.len())
            .into_iter()
            .filter(|case| matches!(case.algorithm, None | Some(Algorithm::Hierarchical)))
            .collect();
        on_hosts(TransportKind::Inproc, hosts, |comm| cases.iter().for_each(|case| case.run(&comm)));
    }
}
