//! The smallest program: every rank puts in its number, every rank gets the sum.
//!
//! `phalanx run -np 4 target/release/examples/hello_allreduce`, or under `mpirun`, or alone.

use phalanx::ReduceOp;

fn main() -> phalanx::Result<()> {
    let comm = phalanx::init()?;
    let mut data = vec![comm.rank() as f32 + 1.0; 4];
    comm.allreduce(&mut data, ReduceOp::Sum)?;
    println!("rank {} of {}: the sum is {:?}", comm.rank(), comm.size(), data);
    comm.shutdown();
    Ok(())
}
