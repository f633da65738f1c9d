//! Communication behind computation: start a call, compute, wait for what is left.
//!
//! `phalanx run -np 4 target/release/examples/overlap`

use std::time::Instant;

use phalanx::{Pending, ReduceOp};

/// Buckets of a gradient, and elements of each.
const BUCKETS: usize = 8;
const ELEMENTS: usize = 1 << 18;

/// Stands for a layer's backward pass: fills its bucket of the gradient.
fn compute(rank: usize, bucket: usize) -> Vec<f32> {
    (0..ELEMENTS).map(|index| ((index * (bucket + 1)) % 16 + rank) as f32).collect()
}

fn main() -> phalanx::Result<()> {
    let comm = phalanx::init()?;
    let (rank, size) = (comm.rank(), comm.size());
    let right = |data: &[f32], bucket: usize| {
        let of_all = |index: usize| (size * ((index * (bucket + 1)) % 16) + size * (size - 1) / 2) as f32;
        data.iter().enumerate().all(|(index, &value)| value == of_all(index))
    };

    // One after the other.
    comm.barrier()?;
    let began = Instant::now();
    for bucket in 0..BUCKETS {
        let mut data = compute(rank, bucket);
        comm.allreduce(&mut data, ReduceOp::Sum)?;
        assert!(right(&data, bucket));
    }
    let in_turn = began.elapsed();

    // Handles own their buffers: each bucket travels while the next is computed.
    comm.barrier()?;
    let began = Instant::now();
    let mut travelling: Vec<Pending<Vec<f32>>> = Vec::new();
    for bucket in 0..BUCKETS {
        travelling.push(comm.start_allreduce(compute(rank, bucket), ReduceOp::Sum)?);
    }
    for (bucket, pending) in travelling.into_iter().enumerate() {
        assert!(right(&pending.wait()?, bucket));
    }
    let overlapped = began.elapsed();

    // A scope borrows buffers, and ends when all its calls have.
    let mut first = compute(rank, 0);
    let mut second = compute(rank, 1);
    let elsewhere = comm.scope(|scope| {
        let handle = scope.allreduce(&mut first, ReduceOp::Sum)?;
        scope.allreduce(&mut second, ReduceOp::Sum)?;
        let elsewhere: f32 = compute(rank, 2).iter().sum();
        handle.wait()?;
        Ok(elsewhere)
    })?;
    assert!(right(&first, 0) && right(&second, 1) && elsewhere > 0.0);

    println!("rank {rank} of {size}: {in_turn:.1?} in turn, {overlapped:.1?} overlapped");
    comm.shutdown();
    Ok(())
}
