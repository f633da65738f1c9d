//! Every collective once, with the answer that each must give.
//!
//! `phalanx run -np 4 target/release/examples/collectives`

use phalanx::{Communicator, ReduceOp, Reduction};

fn main() -> phalanx::Result<()> {
    let comm = phalanx::init()?;
    let (rank, size) = (comm.rank(), comm.size());
    let root = size - 1;
    // 0 + 1 + ... over the ranks, and the ranks themselves.
    let sum = (size * (size - 1) / 2) as i64;
    let ranks: Vec<i64> = (0..size as i64).collect();
    let me = rank as i64;

    // Every rank gets the sum; several ops; scaled before and after.
    let mut data = [me, 10 * me];
    comm.allreduce(&mut data, ReduceOp::Sum)?;
    assert_eq!(data, [sum, 10 * sum]);
    let mut largest = [0.0f64];
    comm.allreduce_into(&[me as f64], &mut largest, Reduction::new(ReduceOp::Max).prescale(2.0).postscale(0.5))?;
    assert_eq!(largest, [root as f64]);

    // The root gets the sum.
    let mut output = vec![0; if rank == root { 1 } else { 0 }];
    comm.reduce_into(&[me], &mut output, ReduceOp::Sum, root)?;
    assert!(rank != root || output == [sum]);

    // Every rank gets the root's.
    let mut data = [me; 3];
    comm.broadcast(&mut data, root)?;
    assert_eq!(data, [root as i64; 3]);

    // Every rank gets every rank's block, of one length or of its own.
    let mut all = vec![0; size];
    comm.allgather(&[me], &mut all)?;
    assert_eq!(all, ranks);
    let counts: Vec<usize> = (0..size).collect();
    let mut all = vec![0; counts.iter().sum()];
    comm.allgatherv(&vec![me; rank], &mut all, &counts)?;
    let expected: Vec<i64> = (0..size).flat_map(|source| vec![source as i64; source]).collect();
    assert_eq!(all, expected);

    // Every rank gets its block of the sum.
    let mut block = [0];
    comm.reduce_scatter(&ranks, &mut block, ReduceOp::Sum)?;
    assert_eq!(block, [me * size as i64]);

    // Block i of rank j becomes block j of rank i.
    let mut output = vec![0; size];
    let input: Vec<i64> = ranks.iter().map(|to| 100 * me + to).collect();
    comm.alltoall(&input, &mut output)?;
    let expected: Vec<i64> = ranks.iter().map(|from| 100 * from + me).collect();
    assert_eq!(output, expected);

    // The root gets every rank's block, and gives each its own back.
    let mut all = vec![0; if rank == root { size } else { 0 }];
    comm.gather(&[me], &mut all, root)?;
    assert!(rank != root || all == ranks);
    let mut block = [0];
    comm.scatter(&all, &mut block, root)?;
    assert_eq!(block, [me]);

    pass_along(&comm)?;
    comm.barrier()?;
    println!("rank {rank} of {size}: every collective gave the right answer");
    comm.shutdown();
    Ok(())
}

/// A message goes from rank 0 through all ranks; each adds its number.
fn pass_along(comm: &Communicator) -> phalanx::Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let mut message = [0u64];
    if rank > 0 {
        comm.recv(&mut message, rank - 1, 7)?;
    }
    message[0] += rank as u64;
    assert_eq!(message[0], (rank * (rank + 1) / 2) as u64);
    if rank + 1 < size {
        comm.send(&message, rank + 1, 7)?;
    }
    Ok(())
}
