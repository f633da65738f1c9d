//! The first view, and who is let in.

use super::*;

/// The slots that connections were welcomed to at last.
fn slots(bench: &Bench, connections: &[Connection]) -> Vec<Slot> {
    let slot = |connection| {
        let mut welcomes = bench.told.get(connection).into_iter().flatten().filter_map(|message| match message {
            FromRegistry::Welcome { slot, .. } => Some(*slot),
            _ => None,
        });
        welcomes.next_back().expect("a welcome")
    };
    connections.iter().map(slot).collect()
}

#[test]
fn members_have_the_ranks_they_wish_for_and_others_fill_the_gaps() {
    let mut bench = Bench::new(RegistryConfig::new(4));
    bench.say(10, register(10, None, None));
    bench.say(11, register(11, Some(3), None));
    bench.say(12, register(12, Some(0), None));
    bench.say(13, register(13, Some(9), None));
    assert_eq!(slots(&bench, &[10, 11, 12, 13]), [1, 3, 0, 2]);
    bench.assert_members(1, &[0, 1, 2, 3]);
}

#[test]
fn two_that_wish_for_the_same_rank_are_told_apart() {
    let mut bench = Bench::new(RegistryConfig::new(2));
    bench.say(10, register(10, Some(1), None));
    bench.say(11, register(11, Some(1), None));
    let heard = bench.heard(11);
    let [FromRegistry::Refused { what, .. }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(what, "two processes say that they are rank 1: process 110 on node and process 111 on node");
    // When the first is gone there is room.
    bench.close(10, Broken::Closed);
    bench.say(12, register(12, Some(1), None));
    assert_eq!(slots(&bench, &[12]), [1]);
}

#[test]
fn another_version_is_refused() {
    let mut bench = Bench::new(RegistryConfig::new(2));
    let ToRegistry::Register(message) = register(1, None, None) else { panic!("not a register") };
    bench.say(1, ToRegistry::Register(Register { version: 99, ..message }));
    let heard = bench.heard(1);
    let [FromRegistry::Refused { what, .. }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(what, "process 101 on node speaks version 99 of the registry's messages, the registry version 1");
}

#[test]
fn at_the_deadline_the_job_begins_with_those_that_are_there_if_they_are_enough() {
    let config = RegistryConfig { min_np: 2, start_timeout: 30 * SECOND, ..RegistryConfig::new(4) };
    let mut bench = Bench::new(config.clone());
    bench.say(0, register(0, Some(3), None));
    bench.say(1, register(1, Some(1), None));
    bench.pass(30 * SECOND);
    bench.assert_members(1, &[1, 3]);
    let mut bench = Bench::new(config);
    bench.say(0, register(0, Some(2), None));
    bench.pass(30 * SECOND);
    let reason = "1 of 4 ranks came within 30.0 s, and the job needs 2; not there: 0-1, 3";
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed(reason.into())));
}

#[test]
fn the_first_that_would_give_up_decides_when_the_job_begins() {
    let mut bench = Bench::new(RegistryConfig { min_np: 1, ..RegistryConfig::new(2) });
    bench.say(0, register(0, Some(0), None));
    bench.pass(Duration::from_millis(57_999));
    assert_eq!(bench.registry.generation(), None);
    bench.pass(Duration::from_millis(1));
    bench.assert_members(1, &[0]);
}

#[test]
fn one_that_comes_back_before_there_is_a_view_has_one_place() {
    let mut bench = Bench::new(RegistryConfig::new(2));
    bench.say(0, register(0, Some(0), None));
    bench.say(1, register(0, Some(0), None));
    assert_eq!(bench.closed, [0]);
    bench.close(0, Broken::Closed);
    bench.say(2, register(1, Some(1), None));
    assert_eq!(bench.view(1).generation, Generation(1));
}
