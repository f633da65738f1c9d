//! Meets the other ranks and says who is who. Start it with any launcher, for example
//! `mpirun -np 4 target/release/examples/whoami`.

use std::time::{Duration, Instant};

use phalanx::bootstrap::{Introduction, join};
use phalanx::sys::HostIdentity;
use phalanx::types::Deadline;
use phalanx::{Config, Error};

fn main() -> Result<(), Error> {
    let began = Instant::now();
    let config = Config::from_env()?;
    let identity = HostIdentity::current().map_err(|error| Error::environment(error, "see that /proc is mounted"))?;
    let introduction = Introduction { addresses: Vec::new(), host: format!("{identity:?}").into_bytes() };
    let deadline = Deadline::after(Instant::now(), config.settings.start_timeout.min(Duration::from_secs(60)));
    let roster = join(&config, introduction, deadline)?;
    let (local_rank, local_size) = roster.view.local(roster.rank);
    println!(
        "rank {} of {}, local rank {local_rank} of {local_size}, {} host(s), started by {}, met in {:.0} ms",
        roster.rank,
        roster.size,
        roster.view.hosts.iter().max().map_or(0, |last| last + 1),
        config.launch.launcher,
        began.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
