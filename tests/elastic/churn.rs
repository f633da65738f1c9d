//! Members that fall and come at random moments, with an oracle that knows every step.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use phalanx::TransportKind;
use phalanx::elastic::Elastic;
use phalanx::membership::registry::RegistryConfig;
use phalanx::testing;
use phalanx::types::{Error, Generation, ReduceOp};

use crate::support::{Counter, Job};

/// What a step gave, as every member of it must have seen it.
#[derive(Debug, PartialEq)]
struct Record {
    generation: Generation,
    contributors: Arc<[usize]>,
    result: u64,
}

#[derive(Default)]
struct Oracle {
    steps: Mutex<BTreeMap<u64, Record>>,
    /// Set when the job has done enough.
    enough: AtomicBool,
    joined: AtomicUsize,
}

const ELEMENTS: [usize; 3] = [1, 3_000, 200_000];

/// What a member puts into each element in a step.
fn input(slot: usize, step: u64) -> u64 {
    (slot as u64 + 1) * 1_000_003 + step
}

impl Oracle {
    fn note(&self, step: u64, record: Record) {
        let expected: u64 = record.contributors.iter().map(|&slot| input(slot, step)).sum();
        assert_eq!(record.result, expected, "step {step} of {:?}", record.contributors);
        let mut steps = self.steps.lock().expect("no panic");
        if let Some(known) = steps.get(&step) {
            assert_eq!(*known, record, "two members saw step {step} differently");
        } else {
            steps.insert(step, record);
        }
    }
}

/// A member's life. It ends when the job has done enough, or when `falls` says so. Returns its last state.
fn live(elastic: &Elastic, oracle: &Oracle, falls: &AtomicBool) -> Option<(u64, f64)> {
    let mut state = Counter::default();
    elastic.sync(&mut state).expect("a sync");
    loop {
        if falls.load(Ordering::Relaxed) {
            testing::vanish_elastic(elastic);
            return None;
        }
        let count = ELEMENTS[elastic.counted() as usize % ELEMENTS.len()];
        // All see the same number of the next step: that of the last one that counted, and one more.
        let number = elastic.counted() + 1;
        let enough = u64::from(oracle.enough.load(Ordering::Relaxed));
        let mut data = vec![input(elastic.slot(), number); count];
        let mut done = [enough];
        let outcome = elastic.step(|step| {
            step.allreduce(&mut data, ReduceOp::Sum)?;
            step.allreduce(&mut done, ReduceOp::Min)
        });
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(Error::Closed { .. }) if falls.load(Ordering::Relaxed) => return None,
            Err(error) => panic!("slot {}: {error}", elastic.slot()),
        };
        assert_eq!(outcome.step, number);
        assert!(data.iter().all(|&element| element == data[0]), "torn");
        let record =
            Record { generation: outcome.generation, contributors: outcome.contributors.clone(), result: data[0] };
        oracle.note(number, record);
        state.value += data[0] as f64;
        if outcome.joined {
            elastic.sync(&mut state).expect("a sync with newcomers");
        }
        if done[0] == 1 {
            let counted = elastic.counted();
            elastic.shutdown();
            return Some((counted, state.value));
        }
    }
}

fn churn(kind: TransportKind, seed: u64, rounds: usize) {
    let mut noise = seed;
    let mut below = move |limit: usize| {
        noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (noise >> 33) as usize % limit
    };
    let config = RegistryConfig { max_np: 6, ..RegistryConfig::new(4) };
    let job = Job::new(config);
    let oracle = Oracle::default();
    let ends = thread::scope(|scope| {
        let mut members = Vec::new();
        let start = |wish: Option<usize>| {
            let falls = Arc::new(AtomicBool::new(false));
            let (job, oracle, order) = (&job, &oracle, falls.clone());
            let body = move || {
                let mut settings = job.settings(wish);
                settings.transport = Some(kind);
                let elastic = Elastic::join(&settings).expect("a view with this member in");
                oracle.joined.fetch_add(1, Ordering::Relaxed);
                live(&elastic, oracle, &order)
            };
            (falls, scope.spawn(body))
        };
        members.extend((0..4).map(|rank| start(Some(rank))));
        let mut generation = 1;
        job.wait_for_view(Generation(generation));
        for _ in 0..rounds {
            // Every round changes something, and waits until the registry has said so.
            let alive = members.iter().filter(|(falls, _)| !falls.load(Ordering::Relaxed)).count();
            let falls = alive > 2 && (alive >= 6 || below(2) == 0);
            if falls {
                let at = loop {
                    let at = below(members.len());
                    if !members[at].0.load(Ordering::Relaxed) {
                        break at;
                    }
                };
                thread::sleep(Duration::from_millis(below(8) as u64));
                members[at].0.store(true, Ordering::Relaxed);
            } else {
                members.push(start(None));
            }
            generation += 1;
            job.wait_for_view(Generation(generation));
        }
        oracle.enough.store(true, Ordering::Relaxed);
        let ends: Vec<_> = members.into_iter().map(|(_, member)| member.join().expect("no panic")).collect();
        ends.into_iter().flatten().collect::<Vec<_>>()
    });
    assert!(!ends.is_empty() && ends.iter().all(|end| *end == ends[0]), "seed {seed}: {ends:?}");
    // Syncs count too, and give no record; nothing counts twice and nothing is missing between them.
    let steps = oracle.steps.into_inner().expect("no panic");
    let sum: u64 = steps.values().map(|record| record.result).sum();
    assert_eq!(sum as f64, ends[0].1, "seed {seed}");
}

#[test]
fn members_fall_and_come_and_every_step_counts_once() {
    for (seed, kind) in [(1, TransportKind::Tcp), (2, TransportKind::Shm), (3, TransportKind::Shm)] {
        churn(kind, seed, 12);
    }
}
