//! The elastic loop: a job that goes on when ranks fall, and takes newcomers in.
//!
//!     phalanx run -np 4 --min-np 1 --max-np 6 target/release/examples/elastic_sum
//!
//! Kill any of its processes meanwhile: the others have the sum of those that are left, and no step is lost.

use phalanx::elastic::{self, State};
use phalanx::{ReduceOp, Result};

/// What a newcomer needs to go on with the others.
struct Total(f64);

impl State for Total {
    fn save(&self) -> Result<Vec<u8>> {
        Ok(self.0.to_le_bytes().into())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let bytes = bytes.try_into().map_err(|_| phalanx::Error::invalid("a state of 8 bytes was expected"))?;
        self.0 = f64::from_le_bytes(bytes);
        Ok(())
    }
}

fn main() -> Result<()> {
    let job = elastic::join()?;
    let mut total = Total(0.0);
    job.sync(&mut total)?;
    while job.counted() < 1000 {
        let mut data = vec![1.0; 1_000_000];
        let step = job.step(|step| step.allreduce(&mut data, ReduceOp::Sum))?;
        total.0 += data[0];
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
    println!("rank {} of {}: {}", job.rank(), job.size(), total.0);
    job.shutdown();
    Ok(())
}
