//! A call as NCCL takes it.
//!
//! What NCCL has no function for is sends and receives, or reductions to one rank each, all at once.

use super::waiting::signature;
use super::worker::Job;
use crate::comm::call::{Call, Extent};
use crate::device::nccl::{CollectiveCall, Parts, Span};
use crate::types::{Algorithm, Collective, Signature};

/// The job's call; `None` for one that moves nothing. The error says why NCCL does not carry it. Both depend on nothing
/// but what all ranks compare with the call.
pub(super) fn take(job: &Job, insists: bool) -> Result<Option<CollectiveCall>, &'static str> {
    let (call, settings) = (&job.call, job.communicator.settings());
    let (rank, size) = (job.communicator.rank(), job.communicator.size());
    let (count, parts) = parts(call, rank, size)?;
    if count == 0 && !call.is_unequal() {
        return Ok(None);
    }
    if settings.deterministic && call.is_inexact() {
        return Err("it is to be reduced in the order of the ranks");
    }
    if settings.algorithm.is_some() && !insists {
        return Err("an algorithm is forced");
    }
    Ok(Some(CollectiveCall {
        name: Signature { algorithm: Algorithm::Nccl, ..signature(job) }.to_string(),
        collective: call.collective,
        numbers: CollectiveCall::numbers(call.dtype, call.reduction.as_ref(), size, insists)?,
        root: call.root,
        parts,
        count,
        width: call.dtype.size(),
        rank,
        size,
    }))
}

/// Elements of the whole buffer or of a block, of all blocks where they differ, and how the call is done.
fn parts(call: &Call, rank: usize, size: usize) -> Result<(usize, Parts), &'static str> {
    use Collective::{Allgather, Allreduce, Alltoall, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    let blocks = |counts: &[usize]| -> Vec<Span> {
        let mut at = 0;
        let mut next = |count| {
            let span = Span { at, count };
            at += count;
            span
        };
        counts.iter().map(|&count| next(count)).collect()
    };
    let none = || vec![Span::default(); size];
    let in_place = call.is_in_place(rank);
    let exchange = |send, recv| Parts::Exchange { send, recv };
    Ok(match (call.collective, &call.extent) {
        (Allreduce | Reduce | Broadcast, Extent::Whole(count)) => (*count, Parts::Whole),
        (Allgather | ReduceScatter, Extent::Equal(count)) => (*count, Parts::Whole),
        (Alltoall, Extent::Equal(count)) => {
            let all = blocks(&vec![*count; size]);
            (*count, exchange(all.clone(), all))
        }
        (Alltoall, Extent::Exchange { send, recv }) => (0, exchange(blocks(send), blocks(recv))),
        (ReduceScatter, Extent::Blocks(counts)) => (counts.iter().sum(), Parts::Reduces(blocks(counts))),
        (Allgather | Gather | Scatter, Extent::Equal(_) | Extent::Blocks(_)) => {
            let counts = call.blocks(size);
            let all = blocks(&counts);
            // This rank's block on its own, which in place is among the others.
            let own = Span { at: if in_place { all[rank].at } else { 0 }, count: all[rank].count };
            let (mut send, mut recv) = (none(), none());
            match call.collective {
                Allgather => (send, recv) = (vec![own; size], all),
                Gather => {
                    send[call.root] = own;
                    if rank == call.root {
                        recv = all;
                    }
                }
                _ => {
                    recv[call.root] = own;
                    if rank == call.root {
                        send = all;
                    }
                }
            }
            (counts.iter().sum(), exchange(send, recv))
        }
        _ => return Err("NCCL has no such collective"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, ReduceOp};

    fn spans(all: &[(usize, usize)]) -> Vec<Span> {
        all.iter().map(|&(at, count)| Span { at, count }).collect()
    }

    fn exchange(send: &[(usize, usize)], recv: &[(usize, usize)]) -> Parts {
        Parts::Exchange { send: spans(send), recv: spans(recv) }
    }

    #[test]
    fn blocks_go_where_the_collective_has_them() {
        const NONE: (usize, usize) = (0, 0);
        let dtype = DataType::F32;
        let all = [(0, 2), (2, 0), (2, 5)];
        let gather = Call::gatherv(dtype, &[2, 0, 5], 2);
        assert_eq!(parts(&gather, 0, 3), Ok((7, exchange(&[NONE, NONE, (0, 2)], &[NONE; 3]))));
        assert_eq!(parts(&gather, 2, 3), Ok((7, exchange(&[NONE, NONE, (0, 5)], &all))));
        let gather = gather.in_place(true);
        assert_eq!(parts(&gather, 2, 3), Ok((7, exchange(&[NONE, NONE, (2, 5)], &all))), "its own is there already");
        let scatter = Call::scatterv(dtype, &[2, 0, 5], 0);
        assert_eq!(parts(&scatter, 0, 3), Ok((7, exchange(&all, &[(0, 2), NONE, NONE]))));
        assert_eq!(parts(&scatter, 2, 3), Ok((7, exchange(&[NONE; 3], &[(0, 5), NONE, NONE]))));
        let allgather = Call::allgatherv(dtype, &[2, 0, 5]);
        assert_eq!(parts(&allgather, 2, 3), Ok((7, exchange(&[(0, 5); 3], &all))));
        assert_eq!(parts(&allgather.in_place(true), 2, 3), Ok((7, exchange(&[(2, 5); 3], &all))));
        let reduce = Call::reduce_scatterv(dtype, &[2, 0, 5], ReduceOp::Sum);
        assert_eq!(parts(&reduce, 1, 3), Ok((7, Parts::Reduces(spans(&all)))));
        let alltoall = Call::alltoallv(dtype, &[1, 2], &[1, 4]);
        assert_eq!(parts(&alltoall, 0, 2), Ok((0, exchange(&[(0, 1), (1, 2)], &[(0, 1), (1, 4)]))));
        assert_eq!(parts(&Call::allgather(dtype, 4), 1, 3), Ok((4, Parts::Whole)));
        assert!(parts(&Call::barrier(), 1, 3).is_err());
    }
}
