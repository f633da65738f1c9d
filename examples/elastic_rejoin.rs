//! An elastic job whose processes come back: one that was cut off or removed joins again, as a newcomer.
//!
//!     phalanx run -np 4 --min-np 1 target/release/examples/elastic_rejoin
//!
//! Stop one of its processes and take it out meanwhile (`kill -STOP`, `phalanx evict`), then continue it: it says why it
//! is out, comes back, and goes on with the state of the others. Each step that counts is printed, with those who
//! made it.

use std::borrow::Cow;

use phalanx::elastic::{self, Elastic, State};
use phalanx::{ReduceOp, Result};

/// What a newcomer needs to go on with the others.
struct Total(f64);

impl State for Total {
    fn save(&self) -> Result<Cow<'_, [u8]>> {
        Ok(self.0.to_le_bytes().to_vec().into())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let bytes = bytes.try_into().map_err(|_| phalanx::Error::invalid("a state of 8 bytes was expected"))?;
        self.0 = f64::from_le_bytes(bytes);
        Ok(())
    }
}

fn train(job: &Elastic, total: &mut Total, steps: u64) -> Result<()> {
    job.sync(total)?;
    while job.counted() < steps {
        let mut data = vec![1.0; 100_000];
        let step = job.step(|step| step.allreduce(&mut data, ReduceOp::Sum))?;
        total.0 += data[0];
        println!("step {} of {}, made by slots {:?}", step.step, step.generation, step.contributors);
        if step.left {
            return Ok(());
        }
        if step.joined {
            job.sync(total)?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let steps = match std::env::args().nth(1) {
        None => 10_000,
        Some(text) => {
            text.parse().map_err(|_| phalanx::Error::invalid(format!("{text} steps: a number was expected")))?
        }
    };
    // The library tells what it waits for; whoever wants to see it listens.
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).with_ansi(false).init();
    let mut job = elastic::join()?;
    let mut total = Total(0.0);
    while let Err(error) = train(&job, &mut total, steps) {
        if !job.can_rejoin() {
            return Err(error);
        }
        eprintln!("slot {} is out: {error}", job.slot());
        job = job.rejoin()?;
        eprintln!("back as slot {}", job.slot());
    }
    println!("rank {} of {}: {}", job.rank(), job.size(), total.0);
    job.shutdown();
    Ok(())
}
