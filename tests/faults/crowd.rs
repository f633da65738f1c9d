//! How soon a death is known, and how many ranks may be there: figures, printed, of which none is a threshold.

use std::collections::BTreeMap;
use std::time::Instant;

use phalanx::TransportKind;
use rustix::process::Signal;

use crate::job::{Job, Options};
use crate::told::{Told, clock};
use crate::worker::ELEMENTS;

/// What a kill took, in milliseconds.
struct Times {
    /// Until the registry's word that it is gone was heard here.
    known: f64,
    /// Until the first and the last survivor's first step without it.
    first: f64,
    last: f64,
}

/// Kills a rank, and waits until all others have made a step without it.
fn kill_one(job: &mut Job, victim: u32) -> Times {
    let slot = job.processes[&victim].slot.expect("it is in");
    let registry = job.registry.expect("a registry");
    let said = job.processes[&registry].stderr.len();
    let rest: Vec<u32> = job.living().into_iter().filter(|pid| *pid != victim).collect();
    job.without.clear();
    job.missed = Some(slot);
    let (killed, clock_then) = (Instant::now(), clock());
    job.processes[&victim].signal(Signal::KILL);
    let word = format!("slot {slot} is gone");
    job.until("its death is known", |job| job.processes[&registry].stderr[said..].contains(&word));
    let known = killed.elapsed().as_secs_f64() * 1e3;
    job.until("all others go on", |job| rest.iter().all(|pid| job.without.contains_key(pid)));
    let after = |at: &f64| (at - clock_then) * 1e3;
    let times: Vec<f64> = job.without.values().map(after).collect();
    Times {
        known,
        first: times.iter().copied().fold(f64::INFINITY, f64::min),
        last: times.iter().copied().fold(0.0, f64::max),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The first steps without the one that was missed, by process.
pub fn note_first_without(missed: Option<usize>, without: &mut BTreeMap<u32, f64>, pid: u32, told: &Told) {
    if let (Some(slot), Told::Step(step)) = (missed, told)
        && !step.by.contains(&slot)
    {
        without.entry(pid).or_insert(step.at);
    }
}

#[test]
fn a_death_is_known_soon() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let mut job = Job::start(Options::new(4, transport), &[]);
        let (mut known, mut last) = (Vec::new(), Vec::new());
        for round in 0..10 {
            let ranks = job.living();
            job.until_together(&ranks);
            job.until_all_go_on(&ranks, 3);
            let times = kill_one(&mut job, ranks[round % ranks.len()]);
            known.push(times.known);
            last.push(times.last);
            job.add(None, None);
        }
        let ranks = job.living();
        job.until_together(&ranks);
        job.finish();
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        println!(
            "{transport}: a death is known after {:.1} ms (at most {:.1}), the last of the others has a step that \
             counts after {:.1} ms (at most {:.1}); 10 kills of 4 ranks",
            median(&mut known),
            most(&known),
            median(&mut last),
            most(&last)
        );
    }
}

#[test]
fn one_of_sixty_four_ranks_is_killed() {
    let mut options = Options::new(64, TransportKind::Shm);
    options.environment = vec![(ELEMENTS, "6000".into())];
    let began = Instant::now();
    let mut job = Job::start(options, &[]);
    let ranks = job.living();
    job.until_together(&ranks);
    println!("64 ranks train with each other {:.1} s after the first was started", began.elapsed().as_secs_f64());
    let times = kill_one(&mut job, ranks[31]);
    println!(
        "64 ranks on one host, one killed: known after {:.1} ms; the first of the others has a step that counts after \
         {:.1} ms, the last after {:.1} ms",
        times.known, times.first, times.last
    );
    let rest = job.living();
    assert_eq!(rest.len(), 63);
    job.until_together(&rest);
    job.until_all_go_on(&rest, 2);
    job.finish();
}
