//! Ranks of a launched job that are killed, stopped, continued, added and asked to leave, about one a second, at
//! moments and in an order that a seed decides, with the oracle on every line that any of them says.
//!
//! `PHALANX_TEST_CHURN_SECONDS` says for how long, `PHALANX_TEST_CHURN_SEED` which; the seed is printed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::launched::Launched;
use crate::leftovers::Place;

/// How long it takes without being told.
const SECONDS: u64 = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

#[derive(Debug, Default)]
struct Counts {
    kills: usize,
    stops: usize,
    added: usize,
    removed: usize,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

fn set_hosts(place: &Place, slots: usize) {
    // As a whole, so that no half of it is read.
    let new = place.folder().join("new");
    std::fs::write(&new, format!("localhost:{slots}\n")).expect("room");
    std::fs::rename(new, place.folder().join("hosts")).expect("a folder");
}

fn churn(transport: &str, seed: u64, seconds: u64) {
    println!("churn over {transport}: seed {seed}, {seconds} s");
    let name = format!("churn over {transport}, seed {seed}");
    let options = [
        ["--min-np", "1", "--max-np", "6"],
        ["--host-discovery-script", "cat hosts", "--heartbeat", "0.4"],
        ["--evict-silent", "1", "--grace", "30"],
    ]
    .concat();
    // Those that are killed as soon as they have joined are replaced all the same.
    let options = [&["-np", "4", "--transport", transport, "--respawn-limit", "1000"], &options[..]].concat();
    let mut job = Launched::start(&name, &options, |place| set_hosts(place, 4));
    job.until("four ranks train", |job| job.training().len() == 4);
    let began = Instant::now();
    let mut random = Random(seed);
    let mut slots = 4;
    let mut counts = Counts::default();
    let mut to_continue: Vec<(Instant, usize)> = Vec::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        job.listen_for(Duration::from_millis(400 + random.below(1200) as u64));
        for at in (0..to_continue.len()).rev() {
            if to_continue[at].0 <= Instant::now() {
                let (_, slot) = to_continue.swap_remove(at);
                let rank = job.ranks.get_mut(&slot).expect("a rank");
                rank.signal(Signal::CONT);
                // It trains again if it is in time.
                (rank.is_stopped, rank.trains) = (false, false);
            }
        }
        let training = job.training();
        // Somebody has to have the state.
        let can_lose = training.len().saturating_sub(2);
        match random.below(10) {
            0..4 if can_lose > 0 => {
                // Now and then two at once.
                let count = if can_lose > 1 && random.below(4) == 0 { 2 } else { 1 };
                let first = random.below(training.len());
                for next in 0..count {
                    let slot = training[(first + next) % training.len()];
                    job.ranks[&slot].signal(Signal::KILL);
                    counts.kills += 1;
                }
            }
            4..6 if can_lose > 0 => {
                let slot = training[random.below(training.len())];
                let rank = job.ranks.get_mut(&slot).expect("a rank");
                rank.signal(Signal::STOP);
                rank.is_stopped = true;
                counts.stops += 1;
                // Sometimes before it is out.
                let until = Instant::now() + Duration::from_millis(300 + random.below(2500) as u64);
                to_continue.push((until, slot));
            }
            6..8 if slots < 6 => {
                slots += 1;
                counts.added += 1;
                set_hosts(&job.place, slots);
            }
            8..10 if slots > 3 => {
                slots -= 1;
                counts.removed += 1;
                set_hosts(&job.place, slots);
            }
            _ => {}
        }
    }
    for (_, slot) in to_continue {
        let rank = job.ranks.get_mut(&slot).expect("a rank");
        rank.signal(Signal::CONT);
        (rank.is_stopped, rank.trains) = (false, false);
    }
    job.until("two ranks train at the end", |job| job.training().len() >= 2);
    let (steps, was) = (job.oracle.highest(), Instant::now());
    job.until("and go on", |job| job.oracle.highest() >= steps + 5);
    println!("  5 steps more after {:.1} ms", was.elapsed().as_secs_f64() * 1e3);
    let status = job.finish();
    println!("  {} steps, {} ranks were started, {counts:?}", job.oracle.highest(), job.ranks.len());
    if let Err(what) = job.oracle.check_end() {
        job.fail(&what);
    }
    if status.code() != Some(0) || job.stderr.contains("panicked") {
        job.fail(&format!("the launcher ended with {status}"));
    }
}

#[test]
fn ranks_are_killed_and_stopped_and_come_and_go() {
    let seconds = number("PHALANX_TEST_CHURN_SECONDS", SECONDS);
    let seed = number("PHALANX_TEST_CHURN_SEED", 1);
    churn("shm", seed, seconds.div_ceil(2));
    churn("tcp", seed + 1, seconds / 2);
}
