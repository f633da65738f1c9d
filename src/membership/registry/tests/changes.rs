//! From view to view.

use super::*;

#[test]
fn a_loss_is_closed_up_with_the_verdict_of_those_that_are_left() {
    let mut bench = Bench::steady(RegistryConfig::new(4));
    assert_eq!(bench.registry.handle_exit(bench.now, &Who::Slot(1), "signal 9"), Some(1));
    bench.close(1, Broken::Closed);
    bench.assert_prepared(&[0, 2, 3], 1, &[1]);
    bench.say(0, report(1, "7+"));
    bench.say(2, report(1, "7+"));
    assert_eq!(bench.heard(0), []);
    bench.say(3, report(1, "8"));
    let gone = Gone { slot: 1, why: Why::Exited, detail: "signal 9".into() };
    let expected = ViewMessage {
        generation: Generation(2),
        counted: 8,
        members: Members::Change(vec![]),
        gone: vec![gone],
        broken: vec![],
        newcomers: vec![],
    };
    for connection in [0, 2, 3] {
        assert_eq!(bench.view(connection), expected);
    }
    assert_eq!(bench.registry.members(), [0, 2, 3]);
}

#[test]
fn one_that_is_lost_meanwhile_is_waited_for_no_longer() {
    let mut bench = Bench::steady(RegistryConfig::new(4));
    bench.kill(1);
    bench.report_all(&[0, 2], 1, "3+");
    bench.kill(3);
    // All that are left hold step 4.
    let view = bench.view_after_prepare(0);
    assert_eq!((view.generation, view.counted), (Generation(2), 4));
    assert_eq!(view.gone.iter().map(|gone| gone.slot).collect::<Vec<_>>(), [1, 3]);
    bench.assert_members(2, &[0, 2]);
}

#[test]
fn nothing_is_said_before_it_is_durable_and_what_happens_meanwhile_comes_next() {
    let mut bench = Bench::steady(RegistryConfig::new(4));
    bench.is_disk_slow = true;
    bench.kill(1);
    bench.report_all(&[0, 2, 3], 1, "0");
    bench.assert_prepared(&[0, 2, 3], 1, &[1]);
    bench.kill(2);
    assert_eq!(bench.heard(0), [], "the view is not on the disk");
    bench.registry.handle_persisted(bench.now, 1);
    assert_eq!(bench.heard(0), [], "nor is it with an older state");
    bench.registry.handle_persisted(bench.now, 2);
    bench.drain();
    let heard = bench.heard(0);
    let [FromRegistry::View(view), FromRegistry::Prepare { generation: Generation(2), gone }] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!((view.generation, gone[0].slot), (Generation(2), 2));
    bench.assert_members(2, &[0, 2, 3]);
}

#[test]
fn newcomers_join_when_all_have_stopped_at_a_boundary() {
    let mut bench = Bench::steady(RegistryConfig { max_np: 4, ..RegistryConfig::new(3) });
    for number in [10, 11] {
        bench.say(number, register(number as usize, Some(0), None));
        assert_eq!(bench.heard(number), []);
    }
    for member in 0..3 {
        assert_eq!(bench.heard(member), [FromRegistry::Wanted { generation: Generation(1) }], "once");
    }
    bench.report_all(&[0, 1], 1, "5|");
    assert_eq!(bench.heard(0), []);
    bench.say(2, report(1, "5|"));
    let view = bench.view(0);
    assert_eq!((view.generation, view.counted, &view.newcomers[..]), (Generation(2), 5, &[3][..]));
    let Members::Change(added) = view.members else { panic!("a member gets what changed") };
    assert_eq!(added.len(), 1);
    let Members::All(all) = bench.view(10).members else { panic!("a newcomer gets all") };
    assert_eq!(all.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [0, 1, 2, 3]);
    // There is room for one only; the other waits, and nobody is stopped for it.
    assert_eq!((bench.heard(11), bench.heard(1).len()), (vec![], 1));
    assert_eq!(bench.registry.waiting(), 1);
}

#[test]
fn newcomers_wait_while_a_step_is_run_again_and_join_a_loss_between_steps() {
    let mut bench = Bench::steady(RegistryConfig { max_np: 4, ..RegistryConfig::new(3) });
    bench.say(10, register(10, None, None));
    bench.kill(0);
    bench.report_all(&[1], 1, "5");
    bench.report_all(&[2], 1, "5+");
    bench.assert_members(2, &[1, 2]);
    bench.kill(1);
    bench.say(2, report(2, "5+"));
    bench.assert_members(3, &[2, 3]);
    assert_eq!(bench.view(10).counted, 6);
}

#[test]
fn a_newcomer_that_dies_holds_nobody_up() {
    let mut bench = Bench::steady(RegistryConfig { max_np: 3, ..RegistryConfig::new(2) });
    bench.say(10, register(10, None, None));
    bench.close(10, Broken::Closed);
    // The members have agreed to stop: they are let go on.
    bench.report_all(&[0, 1], 1, "2|");
    bench.assert_members(2, &[0, 1]);
    assert_eq!(bench.lost(), []);
}

#[test]
fn with_too_few_members_all_wait_until_newcomers_make_them_enough() {
    let mut bench = Bench::steady(RegistryConfig { min_np: 3, ..RegistryConfig::new(3) });
    bench.kill(0);
    bench.report_all(&[1, 2], 1, "5");
    let second = bench.heard(2);
    let [FromRegistry::Prepare { .. }, FromRegistry::Waiting { have: 2, need: 3, remaining }] = &second[..] else {
        panic!("{second:?}");
    };
    assert_eq!(*remaining, 600 * SECOND);
    bench.pass(100 * SECOND);
    bench.say(10, register(10, None, None));
    bench.assert_members(2, &[1, 2, 3]);
    assert_eq!(bench.view(10).counted, 5);
}

#[test]
fn too_few_members_for_too_long_end_the_job_for_all() {
    let mut bench = Bench::steady(RegistryConfig { min_np: 3, ..RegistryConfig::new(3) });
    bench.kill(0);
    bench.report_all(&[1, 2], 1, "5");
    bench.pass(599 * SECOND);
    assert_eq!(bench.registry.outcome(), None);
    bench.pass(SECOND);
    let reason = "2 members are left, the job needs 3, and no more came within 600 s";
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed(reason.into())));
    for member in [1, 2] {
        let heard = bench.heard(member);
        assert_eq!(heard.last(), Some(&FromRegistry::End { reason: reason.into() }));
    }
    // Who comes later hears the same.
    bench.say(10, register(10, None, None));
    assert_eq!(bench.heard(10), [FromRegistry::End { reason: reason.into() }]);
    assert_eq!(bench.registry.deadline(), None);
}

#[test]
fn the_view_changes_no_more_often_than_the_limit() {
    let mut bench = Bench::steady(RegistryConfig { reset_limit: Some(1), ..RegistryConfig::new(3) });
    bench.kill(0);
    bench.report_all(&[1, 2], 1, "0");
    bench.assert_members(2, &[1, 2]);
    bench.kill(1);
    bench.say(2, report(2, "0"));
    let reason = "the view would change more often than 1 time";
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed(reason.into())));
}

#[test]
fn a_goodbye_changes_nothing_until_somebody_needs_the_one_that_left() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.say(1, ToRegistry::Leave { parting: Parting::Asked, reason: "SIGTERM".into() });
    assert_eq!(bench.heard(1), [FromRegistry::Goodbye]);
    bench.kill(1);
    assert_eq!((bench.heard(0), bench.lost()), (vec![], vec![]));
    bench.say(2, ToRegistry::Suspect { generation: Generation(1), slot: 1, detail: "it said goodbye".into() });
    bench.report_all(&[0, 2], 1, "4");
    bench.assert_members(2, &[0, 2]);
    let view = bench.view_after_prepare(0);
    assert_eq!((view.gone[0].slot, view.gone[0].why), (1, Why::Left));
}

#[test]
fn a_job_whose_members_are_done_finishes_and_waits_for_nobody() {
    let done = || ToRegistry::Leave { parting: Parting::Done, reason: "done".into() };
    let mut bench = Bench::steady(RegistryConfig { min_np: 3, max_np: 4, ..RegistryConfig::new(3) });
    bench.say(0, done());
    // Nobody joins a job that ends.
    bench.say(10, register(10, None, None));
    assert_eq!(bench.heard(1), []);
    // The last commit is in doubt at two; they get their verdict though they are fewer than the job needs.
    bench.say(1, ToRegistry::Suspect { generation: Generation(1), slot: 0, detail: "it said goodbye".into() });
    bench.report_all(&[1, 2], 1, "8+");
    assert_eq!(bench.view_after_prepare(2).counted, 9);
    bench.say(1, done());
    bench.say(2, done());
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Finished));
    assert_eq!(bench.heard(10), [FromRegistry::End { reason: "the job has finished".into() }]);
}

#[test]
fn a_member_that_was_done_without_a_word_is_not_missed() {
    let mut bench = Bench::steady(RegistryConfig { min_np: 2, ..RegistryConfig::new(2) });
    bench.say(0, ToRegistry::Leave { parting: Parting::Unsaid, reason: "it ended".into() });
    bench.say(1, ToRegistry::Suspect { generation: Generation(1), slot: 0, detail: "it said goodbye".into() });
    bench.say(1, report(1, "8+"));
    assert_eq!(bench.registry.members(), [0, 1], "too few, as far as is known");
    bench.registry.handle_done(bench.now);
    bench.drain();
    bench.assert_members(2, &[1]);
}

#[test]
fn the_last_member_that_is_lost_fails_the_job() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.say(0, ToRegistry::Leave { parting: Parting::Done, reason: "done".into() });
    bench.kill(1);
    let Some(Outcome::Failed(reason)) = bench.registry.outcome() else { panic!("it goes on") };
    assert_eq!(reason, "no member is left; the last to be lost: slot 1 is gone: signal 9");
}

#[test]
fn newcomers_alone_do_not_have_the_state() {
    let mut bench = Bench::steady(RegistryConfig { max_np: 2, ..RegistryConfig::new(1) });
    bench.say(10, register(10, None, None));
    bench.say(0, report(1, "7|"));
    bench.assert_members(2, &[0, 1]);
    bench.kill(0);
    bench.say(10, report(2, "7"));
    let reason = "all members that had the state of the training are gone";
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed(reason.into())));
}

#[test]
fn a_newcomer_with_which_a_step_has_counted_has_the_state() {
    let mut bench = Bench::steady(RegistryConfig { max_np: 2, ..RegistryConfig::new(1) });
    bench.say(10, register(10, None, None));
    bench.say(0, report(1, "7|"));
    bench.kill(0);
    bench.say(10, report(2, "7+"));
    bench.assert_members(3, &[1]);
}

#[test]
fn what_is_of_another_view_or_from_nobody_is_ignored_and_counted() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.say(0, report(7, "3"));
    bench.say(0, ToRegistry::Suspect { generation: Generation(0), slot: 1, detail: String::new() });
    bench.say(0, ToRegistry::Suspect { generation: Generation(1), slot: 9, detail: String::new() });
    bench.say(99, report(1, "3"));
    bench.say(99, ToRegistry::Leave { parting: Parting::Asked, reason: String::new() });
    assert_eq!(bench.registry.ignored(), 5);
    assert_eq!((bench.heard(1), bench.registry.status(bench.now).phase), (vec![], Phase::Steady));
}

#[test]
fn a_report_that_cannot_be_ends_its_member() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.kill(0);
    bench.say(1, report(1, "8"));
    bench.say(2, report(1, "7"));
    assert_eq!(bench.lost(), [(0, Why::Exited), (2, Why::Defect)]);
    bench.assert_members(2, &[1]);
    bench.say(1, report(2, "3"));
    assert_eq!(bench.lost()[2], (1, Why::Defect));
}
