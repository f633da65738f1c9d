//! Groups: the world split by colour, groups from lists of ranks, and several at work at once.
//!
//! `phalanx run -np 4 target/release/examples/groups`

use phalanx::ReduceOp;

fn main() -> phalanx::Result<()> {
    let world = phalanx::init()?;
    let (rank, size) = (world.rank(), world.size());

    // Even and odd ranks, in reverse order.
    let colour = rank as u64 % 2;
    let parity = world.split(Some(colour), -(rank as i64))?.expect("every rank gave a colour");
    let same: Vec<u64> = (0..size as u64).filter(|other| other % 2 == colour).collect();
    let mut members = vec![0u64; parity.size()];
    parity.allgather(&[rank as u64], &mut members)?;
    assert!(members.iter().rev().eq(&same));

    // A rank without colour gets no group.
    let others = world.split((rank != 0).then_some(0), 0)?;
    assert_eq!(others.map(|group| group.size()), (rank != 0).then_some(size - 1));

    // The lower half, from a list; the others are not asked.
    let half: Vec<usize> = (0..size.div_ceil(2)).collect();
    let lower = world.subgroup(&half)?;
    assert_eq!(lower.is_some(), rank < half.len());

    // Calls on different groups do not wait for each other's order: here they end in another order than they began.
    let in_world = world.start_allreduce(vec![1u32; 1000], ReduceOp::Sum)?;
    let in_parity = parity.start_allreduce(vec![rank as u64; 10], ReduceOp::Sum)?;
    if let Some(lower) = &lower {
        let mut data = [rank as i32];
        lower.allreduce(&mut data, ReduceOp::Max)?;
        assert_eq!(data, [half.len() as i32 - 1]);
    }
    assert_eq!(in_parity.wait()?, vec![same.iter().sum::<u64>(); 10]);
    assert_eq!(in_world.wait()?, vec![size as u32; 1000]);

    println!("rank {rank} of {size}: rank {} of the {} with colour {colour}", parity.rank(), parity.size());
    world.shutdown();
    Ok(())
}
