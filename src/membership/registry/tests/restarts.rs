//! A registry that starts again from its state.

use super::*;

/// The registry dies, and another begins from what was on the disk; all connections are gone.
fn restart(bench: Bench) -> Bench {
    let state = bench.state.expect("a state");
    let mut config = RegistryConfig::new(3);
    config.max_np = 4;
    Bench::over(bench.now, Registry::restore(bench.now, config, state))
}

fn resume(slot: Slot, generation: u64) -> Option<Resume> {
    Some(Resume { slot, generation: Generation(generation) })
}

/// A job whose second view, without slot 1, is on the disk and has been sent.
fn second_view() -> Bench {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.kill(1);
    bench.report_all(&[0, 2], 1, "6+");
    bench.assert_members(2, &[0, 2]);
    bench
}

#[test]
fn members_come_back_and_nothing_changes() {
    let mut bench = restart(second_view());
    bench.say(20, register(0, None, resume(0, 2)));
    bench.say(22, register(2, None, resume(2, 2)));
    bench.pass(60 * SECOND);
    assert_eq!((bench.heard(20), bench.heard(22), bench.lost()), (vec![], vec![], vec![]));
    bench.assert_members(2, &[0, 2]);
}

#[test]
fn a_member_that_has_not_heard_the_last_view_hears_it() {
    let mut bench = restart(second_view());
    bench.say(22, register(2, None, resume(2, 1)));
    let view = bench.view(22);
    assert_eq!((view.generation, view.counted, view.gone[0].slot), (Generation(2), 7, 1));
    let Members::All(members) = view.members else { panic!("it gets all") };
    assert_eq!(members.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn one_that_does_not_come_back_is_lost_after_the_grace() {
    let mut bench = restart(second_view());
    bench.say(22, register(2, None, resume(2, 2)));
    bench.pass(Duration::from_millis(10_999));
    assert_eq!(bench.heard(22), []);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.lost(), [(0, Why::Missing)]);
    bench.say(22, report(2, "9"));
    bench.assert_members(3, &[2]);
}

#[test]
fn a_change_that_the_registry_has_forgotten_is_begun_by_a_member_that_has_stopped() {
    let mut bench = restart(second_view());
    bench.say(20, register(0, None, resume(0, 2)));
    bench.say(20, report(2, "9+"));
    bench.say(22, register(2, None, resume(2, 2)));
    bench.assert_prepared(&[22], 2, &[]);
    bench.say(22, report(2, "10"));
    bench.assert_members(3, &[0, 2]);
}

#[test]
fn members_that_stopped_at_a_boundary_are_let_go_on() {
    let mut bench = restart(second_view());
    for (connection, slot) in [(20, 0), (22, 2)] {
        bench.say(connection, register(slot, None, resume(slot, 2)));
        bench.say(connection, report(2, "9|"));
    }
    bench.assert_members(3, &[0, 2]);
}

#[test]
fn slots_and_generations_are_never_given_again() {
    let mut bench = restart(second_view());
    bench.say(20, register(0, None, resume(0, 2)));
    bench.say(22, register(2, None, resume(2, 2)));
    bench.say(30, register(30, Some(1), None));
    for connection in [20, 22] {
        bench.say(connection, report(2, "9|"));
    }
    bench.assert_members(3, &[0, 2, 3]);
}

#[test]
fn one_that_is_out_is_out() {
    let mut bench = restart(second_view());
    bench.say(21, register(1, None, resume(1, 1)));
    let heard = bench.heard(21);
    assert!(matches!(&heard[..], [FromRegistry::Evicted { generation: Generation(2), .. }]), "{heard:?}");
    // One that says it has a view that never was is not believed.
    bench.say(20, register(0, None, resume(0, 9)));
    assert!(matches!(&bench.heard(20)[..], [FromRegistry::Evicted { .. }]));
}

#[test]
fn goodbyes_and_the_end_that_they_announce_are_kept() {
    let mut bench = second_view();
    bench.say(0, ToRegistry::Leave { parting: Parting::Done, reason: "done".into() });
    let mut bench = restart(bench);
    bench.say(22, register(2, None, resume(2, 2)));
    bench.pass(60 * SECOND);
    assert_eq!(bench.lost(), []);
    bench.say(22, ToRegistry::Leave { parting: Parting::Done, reason: "done".into() });
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Finished));
}

#[test]
fn goodbyes_are_answered_when_the_disk_has_them() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.is_disk_slow = true;
    let leave = || ToRegistry::Leave { parting: Parting::Done, reason: "done".into() };
    for slot in 0..2 {
        bench.say(slot, leave());
    }
    let left = |bench: &Bench| bench.state.iter().flat_map(|state| &state.members).filter(|it| it.has_left).count();
    assert_eq!(left(&bench), 1, "the second waits for the first to be written");
    // It asks again over another connection.
    bench.say(10, register(0, None, resume(0, 1)));
    bench.say(10, leave());
    assert_eq!((bench.heard(0), bench.heard(1), bench.heard(10)), (vec![], vec![], vec![]));
    bench.persisted(2);
    assert_eq!(bench.heard(10), [FromRegistry::Goodbye]);
    assert_eq!((left(&bench), bench.heard(1)), (2, vec![]));
    bench.persisted(3);
    assert_eq!(bench.heard(1), [FromRegistry::Goodbye]);
    bench.say(10, leave());
    assert_eq!(bench.heard(10), [FromRegistry::Goodbye], "it is written already");
    // The last: the job's end waits for it as well.
    bench.say(2, leave());
    assert_eq!((bench.heard(2), bench.registry.outcome()), (vec![], None));
    bench.persisted(4);
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Finished));
    assert_eq!(bench.heard(2)[0], FromRegistry::Goodbye);
}

#[test]
fn one_that_leaves_before_its_first_view_is_written_has_left_it() {
    let mut bench = Bench::new(RegistryConfig::new(2));
    bench.is_disk_slow = true;
    bench.say(0, register(0, Some(0), None));
    bench.say(1, register(1, Some(1), None));
    bench.say(1, ToRegistry::Leave { parting: Parting::Asked, reason: "asked to go".into() });
    assert_eq!(bench.heard(1), []);
    bench.persisted(1);
    assert_eq!(bench.heard(1), [], "the view does not say that it left");
    bench.persisted(2);
    assert_eq!(bench.heard(1), [FromRegistry::Goodbye]);
    assert!(bench.state.as_ref().is_some_and(|state| state.members[1].has_left));
    let heard = bench.heard(0);
    assert!(matches!(&heard[..], [FromRegistry::View(_), FromRegistry::Prepare { .. }]), "{heard:?}");
    bench.say(0, report(1, "0"));
    bench.persisted(3);
    bench.assert_members(2, &[0]);
}

#[test]
fn a_job_that_begins_anew_gives_no_generation_twice() {
    let now = Instant::now();
    let mut bench = Bench::over(now, Registry::anew(now, RegistryConfig::new(2), Generation(7)));
    for number in 0..2 {
        bench.say(number as u64, register(number, Some(number), None));
    }
    let view = bench.view(0);
    assert_eq!((view.generation, view.counted, view.gone, view.newcomers), (Generation(8), 0, vec![], vec![]));
    bench.kill(1);
    bench.say(0, report(8, "0+"));
    bench.assert_members(9, &[0]);
}
