//! Collectives of blocks for which NCCL has no function: sends, receives and reductions, all at once.

use phalanx::device::Stream;
use phalanx::{Call, Communicator, DataType, DeviceCarrier, ReduceOp};

use crate::harness::{buffer, soon};
use crate::over_nccl::{Nccl, on_ranks, run_with};

#[test]
fn collectives_of_blocks_are_sends_receives_and_reductions_of_nccl() {
    run_with("nccl-blocks", &[]);
}

/// One call: what this rank gives, and what it has to get.
fn one(comm: &Communicator, stream: &Stream, call: &Call, input: &[i32], expected: &[i32]) {
    let (from, mut to) = (buffer(stream, input), buffer(stream, &vec![-1; expected.len()]));
    comm.call_device(call, &from, &mut to, stream).expect("a call");
    assert_eq!(to.to_vec(stream, soon()).expect("a copy"), expected, "{call:?} on rank {}", comm.rank());
    assert_eq!(comm.device_carrier(), Some(DeviceCarrier::Nccl), "{call:?}");
}

pub fn inside() {
    const COUNTS: [usize; 3] = [2, 0, 3];
    let nccl = Nccl::open();
    let errors = on_ranks(3, |comm, stream| {
        let (rank, dtype) = (comm.rank(), DataType::I32);
        let at_root = |all: &[i32], root: usize| if rank == root { all.to_vec() } else { Vec::new() };
        let run = |call: Call, input: &[i32], expected: &[i32]| one(&comm, &stream, &call, input, expected);
        // Element e of rank r's block is 10 r + e; one rank has none.
        let all = [0, 1, 20, 21, 22];
        let own: Vec<i32> = (0..COUNTS[rank] as i32).map(|element| 10 * rank as i32 + element).collect();
        // The first one, of which every rank has elements.
        run(Call::allgatherv(dtype, &COUNTS), &own, &all);
        run(Call::gatherv(dtype, &COUNTS, 2), &own, &at_root(&all, 2));
        run(Call::scatterv(dtype, &COUNTS, 0), &at_root(&all, 0), &own);
        run(Call::gather(dtype, 1, 1), &[rank as i32], &at_root(&[0, 1, 2], 1));
        run(Call::scatter(dtype, 1, 1), &at_root(&[0, 1, 2], 1), &[rank as i32]);
        let tripled: Vec<i32> = own.iter().map(|value| 3 * value).collect();
        run(Call::reduce_scatterv(dtype, &COUNTS, ReduceOp::Sum), &all, &tripled);
        // Rank s sends s + r elements to rank r, all of them s.
        let counts: Vec<usize> = (0..3).map(|peer| rank + peer).collect();
        let sent = vec![rank as i32; counts.iter().sum()];
        let expected: Vec<i32> = (0..3).flat_map(|peer| vec![peer; rank + peer as usize]).collect();
        run(Call::alltoallv(dtype, &counts, &counts), &sent, &expected);
        // One expects more than it is sent. NCCL would hang.
        let mut wrong = counts.clone();
        wrong[0] += usize::from(rank == 2);
        let call = Call::alltoallv(dtype, &counts, &wrong);
        let (from, mut to) = (buffer(&stream, &sent), buffer(&stream, &vec![0; wrong.iter().sum()]));
        let before = nccl.calls("ncclGroupStart");
        let error = comm.call_device(&call, &from, &mut to, &stream).expect_err("counts that differ").to_string();
        (error, nccl.calls("ncclGroupStart") - before)
    });
    for (error, calls) in errors {
        assert!(error.contains("rank 2 called alltoall(count 3, i32"), "{error}");
        assert!(error.contains("rank 0 called alltoall(count 2, i32"), "{error}");
        assert_eq!(calls, 0, "NCCL saw a call that differs");
    }
    nccl.is_clean();
}
