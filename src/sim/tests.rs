//! Many seeds, the mistakes that the checks are to find, and one large cluster.

use std::time::Instant;

use super::bugs::Bug;
use super::large::Large;
use super::plan::{Fault, MILLI, Plan, SECOND};
use super::world::{Figures, World};

/// How many seeds a run of the tests covers.
const SEEDS: u64 = 20_000;

fn run(seed: u64, bug: Bug, is_told: bool) -> Result<Figures, String> {
    World::new(Instant::now(), seed, Plan::of(seed), bug, is_told).run()
}

#[test]
fn whatever_happens_there_is_one_view_and_one_verdict() {
    if let Ok(seed) = std::env::var("PHALANX_TEST_SEED") {
        let seed = seed.parse().expect("PHALANX_TEST_SEED is a number");
        println!("{:#?}", Plan::of(seed));
        let figures = run(seed, Bug::None, true).expect("a sound run");
        return println!("{figures:?}");
    }
    let seeds = std::env::var("PHALANX_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut sum = Figures::default();
    let mut failures = Vec::new();
    for seed in 0..seeds {
        match run(seed, Bug::None, false) {
            Ok(figures) => {
                sum.events += figures.events;
                sum.views += figures.views;
                sum.steps += figures.steps;
                sum.time += figures.time;
                sum.settled_after = sum.settled_after.max(figures.settled_after);
            }
            Err(failure) => failures.push(format!("PHALANX_TEST_SEED={seed}: {failure}")),
        }
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures[..failures.len().min(20)].join("\n"));
}

/// A link breaks once between two that live: it is made again as fast as messages and the disk are, which is much less
/// than the heartbeat limit, and nobody is lost.
#[test]
fn a_link_that_breaks_between_two_that_live_is_made_again_at_once() {
    let mut longest = 0;
    for seed in 0..2_000 {
        let plan = Plan::of(seed);
        if plan.np < 2 || plan.config.reset_limit.is_some() {
            continue;
        }
        let plan = Plan {
            faults: vec![(3 * SECOND, Fault::BreakLink)],
            traps: vec![],
            last_step: None,
            slow_messages: 0,
            stopping: MILLI,
            quiet: 4 * SECOND,
            ..plan
        };
        let figures = World::new(Instant::now(), seed, plan.clone(), Bug::None, false).run();
        let figures = figures.unwrap_or_else(|failure| panic!("seed {seed}: {failure}\n{plan:#?}"));
        let mended_after = figures.mended_after.unwrap_or_else(|| panic!("seed {seed}: it is not made again"));
        assert_eq!(figures.views, 2, "seed {seed}");
        // The notice, the suspicion, the question, its answer, the word to stop, the report; the stop, which is now and then
        // twenty times as long; the disk.
        let bound = 6 * plan.delay.1 + 20 * plan.stopping + plan.disk + MILLI;
        assert!(mended_after <= bound, "seed {seed}: {mended_after} us, at most {bound} us\n{plan:#?}");
        longest = longest.max(mended_after);
    }
    println!("within {longest} us");
}

#[test]
fn known_mistakes_are_caught() {
    for bug in Bug::ALL {
        let caught = (0..SEEDS).find_map(|seed| run(seed, bug, false).err().map(|failure| (seed, failure)));
        let Some((seed, failure)) = caught else { panic!("{bug:?} is not caught") };
        println!("{bug:?}: seed {seed}: {failure}");
        assert!(run(seed, Bug::None, false).is_ok(), "seed {seed} fails without {bug:?}, too");
    }
}

/// A failure costs the registry a few messages for each member, and each member a few messages, of a length that does
/// not grow with the cluster.
#[test]
fn ten_thousand_members_close_up() {
    let mut before = None;
    for np in [100, 1_000, 10_000] {
        let (mut large, first) = Large::new(Instant::now(), np);
        println!("{np} members: first view: {first:?}");
        assert!(large.is_settled());
        let lost = large.kill(&[np / 2]);
        println!("{np} members: one dies: {lost:?}");
        assert!(large.is_settled());
        let joined = large.join();
        println!("{np} members: one joins: {joined:?}");
        assert!(large.is_settled());
        let size = np as u64;
        // Prepare and the view; the suspicion and the report.
        assert!(lost.registry_sent.messages <= 2 * size && lost.registry_received.messages <= 2 * size);
        assert!(lost.member_sent.messages <= 2 && lost.member_received.messages <= 2);
        // Wanted and the view, and the newcomer's welcome; the report, and the newcomer's register.
        assert!(joined.registry_sent.messages <= 2 * size + 2 && joined.registry_received.messages <= size + 1);
        if let Some((lost_before, joined_before)) = before.replace((lost.member_received, joined.member_received)) {
            assert_eq!((lost.member_received, joined.member_received), (lost_before, joined_before));
        }
    }
}
