//! The elastic loop: a job that goes on when ranks fall, and takes newcomers in.
//!
//!     phalanx run -np 4 --min-np 1 --max-np 6 target/release/examples/elastic_sum
//!
//! Kill any of its processes meanwhile: the others have the sum of those that are left, and no step is lost.

use phalanx::{ReduceOp, Result, elastic};

fn main() -> Result<()> {
    let job = elastic::join()?;
    // What a newcomer needs to go on with the others. For anything but a row of numbers: `elastic::State`.
    let mut total = vec![0.0f64];
    job.sync(&mut total)?;
    while job.counted() < 1000 {
        let mut data = vec![1.0; 1_000_000];
        let step = job.step(|step| step.allreduce(&mut data, ReduceOp::Sum))?;
        total[0] += data[0];
        if step.view_changed {
            println!("rank {} of {}: slots {:?} made step {}", job.rank(), job.size(), step.contributors, step.step);
        }
        if step.left {
            return Ok(());
        }
        if step.joined {
            job.sync(&mut total)?;
        }
    }
    println!("rank {} of {}: {}", job.rank(), job.size(), total[0]);
    job.shutdown();
    Ok(())
}
