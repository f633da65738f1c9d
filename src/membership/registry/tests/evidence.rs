//! Dead, stopped, slow, cut off.

use super::*;

fn suspect(generation: u64, slot: Slot) -> ToRegistry {
    ToRegistry::Suspect { generation: Generation(generation), slot, detail: "reset".into() }
}

fn beat(progress: u64) -> ToRegistry {
    ToRegistry::Heartbeat { number: 1, progress, is_waiting: false, counted: 0 }
}

/// A sign of life of one whose operations are in flight.
fn waits(progress: u64) -> ToRegistry {
    ToRegistry::Heartbeat { number: 1, progress, is_waiting: true, counted: 0 }
}

#[test]
fn a_goodbye_that_the_launcher_overtakes_is_a_goodbye() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.registry.handle_exit(bench.now, &Who::Process { host: b"h".to_vec(), pid: 101 }, "exit code 0");
    bench.pass(Duration::from_millis(19));
    bench.say(1, ToRegistry::Leave { parting: Parting::Done, reason: "done".into() });
    bench.close(1, Broken::Closed);
    bench.pass(SECOND);
    assert_eq!(bench.lost(), []);
}

#[test]
fn an_exit_without_goodbye_is_a_loss_though_the_connection_is_held_open() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    assert_eq!(bench.registry.handle_exit(bench.now, &Who::Token([1; 16]), "exit code 1"), Some(1));
    bench.pass(Duration::from_millis(19));
    assert_eq!(bench.lost(), []);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.lost(), [(1, Why::Exited)]);
    assert_eq!(bench.registry.handle_exit(bench.now, &Who::Token([77; 16]), "exit code 1"), None);
}

#[test]
fn a_connection_that_breaks_is_no_loss_when_the_member_is_back_in_time() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.close(1, Broken::Closed);
    bench.pass(Duration::from_millis(29));
    let resume = Some(Resume { slot: 1, generation: Generation(1) });
    bench.say(11, register(1, Some(1), resume));
    bench.pass(Duration::from_millis(100));
    assert_eq!((bench.lost(), bench.heard(11)), (vec![], vec![]));
    bench.close(11, Broken::Closed);
    bench.pass(Duration::from_millis(29));
    assert_eq!(bench.lost(), []);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.lost(), [(1, Why::Closed)]);
    bench.assert_prepared(&[0, 2], 1, &[1]);
}

#[test]
fn a_connection_and_a_link_that_end_together_are_a_death() {
    let mut bench = Bench::steady(RegistryConfig::new(4));
    bench.say(0, suspect(1, 1));
    bench.close(1, Broken::Closed);
    assert_eq!(bench.lost(), [(1, Why::Closed)]);
    bench.close(2, Broken::Closed);
    assert_eq!(bench.lost().len(), 1);
    bench.say(0, suspect(1, 2));
    assert_eq!(bench.lost()[1..], [(2, Why::Closed)]);
}

#[test]
fn a_host_that_does_not_answer_is_a_loss_and_its_member_is_told_when_it_is_back() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.close(1, Broken::Unreachable);
    assert_eq!(bench.lost(), [(1, Why::Unreachable)]);
    bench.say(0, report(1, "0"));
    bench.assert_members(2, &[0]);
    bench.say(11, register(1, Some(1), Some(Resume { slot: 1, generation: Generation(1) })));
    let reason = "unreachable: the connection ended".to_string();
    assert_eq!(bench.heard(11), [FromRegistry::Evicted { generation: Generation(2), reason }]);
    assert!(bench.closed.contains(&11));
}

#[test]
fn a_stopped_member_is_asked_and_named_and_stays() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.pass(SECOND);
    for _ in 0..59 {
        bench.say(0, beat(0));
        bench.pass(SECOND);
    }
    assert!(bench.told[&1].iter().filter(|message| **message == FromRegistry::Probe).count() > 5);
    assert_eq!(bench.named(), [1]);
    for _ in 0..100 {
        bench.say(0, beat(0));
        bench.pass(SECOND);
    }
    assert_eq!((bench.named(), bench.lost()), (vec![1], vec![]), "named once, and never removed");
    let status = bench.registry.status(bench.now);
    assert_eq!(status.members.iter().map(|it| it.condition).collect::<Vec<_>>(), [Condition::Live, Condition::Silent]);
}

#[test]
fn a_stopped_member_is_removed_where_the_policy_says_so() {
    let mut bench = Bench::steady(RegistryConfig { silent_limit: Some(8 * SECOND), ..RegistryConfig::new(2) });
    for _ in 0..8 {
        assert_eq!(bench.lost(), []);
        bench.say(0, beat(0));
        bench.pass(SECOND);
    }
    assert_eq!(bench.lost(), [(1, Why::Silent)]);
    assert!(matches!(&bench.heard(1)[..], [FromRegistry::Evicted { .. }]));
}

#[test]
fn a_registry_that_was_stopped_itself_blames_nobody() {
    let mut bench = Bench::steady(RegistryConfig { silent_limit: Some(8 * SECOND), ..RegistryConfig::new(2) });
    bench.close(1, Broken::Closed);
    bench.now += 100 * SECOND;
    bench.registry.handle_timeout(bench.now);
    bench.drain();
    assert_eq!(bench.lost(), [], "what they said meanwhile has not been read");
    bench.say(11, register(1, None, Some(Resume { slot: 1, generation: Generation(1) })));
    bench.say(0, beat(0));
    bench.pass(7 * SECOND);
    assert_eq!(bench.lost(), []);
}

#[test]
fn silence_is_counted_only_while_the_registry_listens() {
    let mut bench = Bench::steady(RegistryConfig { silent_limit: Some(8 * SECOND), ..RegistryConfig::new(2) });
    let second = |bench: &mut Bench| {
        bench.say(0, beat(0));
        bench.pass(SECOND);
    };
    (0..6).for_each(|_| second(&mut bench));
    // Nobody has heard anything of slot 1 for 6 s; then nobody listens for 100 s.
    bench.stop(100 * SECOND);
    assert_eq!(bench.lost(), []);
    second(&mut bench);
    assert_eq!(bench.lost(), []);
    second(&mut bench);
    assert_eq!(bench.lost(), [(1, Why::Silent)], "6 s and 2 s");
}

#[test]
fn a_registry_that_is_a_little_late_gives_those_who_come_back_their_moment() {
    // Much less than a sign of life's interval, much more than the grace of a closed connection.
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.close(1, Broken::Closed);
    bench.stop(Duration::from_millis(100));
    bench.pass(Duration::from_millis(29));
    assert_eq!(bench.lost(), []);
    bench.say(11, register(1, None, Some(Resume { slot: 1, generation: Generation(1) })));
    bench.pass(SECOND);
    assert_eq!(bench.lost(), []);
    bench.close(11, Broken::Closed);
    bench.stop(Duration::from_millis(100));
    bench.pass(Duration::from_millis(30));
    assert_eq!(bench.lost(), [(1, Why::Closed)], "it does not come");
}

#[test]
fn a_host_that_owes_an_answer_is_out_at_the_limit_and_a_stopped_process_is_not() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.say(1, beat(0));
    // Slot 1's host vanishes; slot 2's process is stopped, and its host answers the first question.
    bench.unanswered.insert(1, bench.now);
    for second in 0..5 {
        assert_eq!(bench.lost(), [], "after {second} s");
        bench.say(0, beat(0));
        bench.pass(SECOND);
    }
    assert_eq!(bench.lost(), [(1, Why::Unreachable)]);
    bench.say(0, report(1, "0"));
    // And then that host vanishes, too.
    bench.pass(SECOND);
    bench.unanswered.insert(2, bench.now);
    let limit = bench.now + 5 * SECOND;
    while bench.lost().len() == 1 {
        assert!(bench.now <= limit);
        bench.say(0, beat(0));
        bench.pass(Duration::from_millis(100));
    }
    assert!(bench.now >= limit, "not before the limit");
    assert_eq!(bench.lost()[1..], [(2, Why::Unreachable)]);
}

#[test]
fn an_answer_that_is_late_is_waited_for_until_the_limit() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    // Slot 1's process is stopped. Two seconds later its host stops answering, for less than the limit.
    bench.pass(2 * SECOND);
    bench.unanswered.insert(1, bench.now);
    for _ in 0..4 {
        bench.say(0, beat(0));
        bench.pass(SECOND);
    }
    bench.unanswered.clear();
    for _ in 0..20 {
        bench.say(0, beat(0));
        bench.pass(SECOND);
    }
    assert_eq!(bench.lost(), []);
}

#[test]
fn a_slow_member_is_named_and_stays() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    for _ in 0..90 {
        // Slot 0 has done more: it brought the state to others. That does not make the others slow.
        bench.say(0, waits(100));
        bench.say(1, beat(7));
        bench.say(2, waits(8));
        bench.pass(SECOND);
    }
    assert_eq!((bench.named(), bench.lost()), (vec![1], vec![]));
    let conditions: Vec<_> = bench.registry.status(bench.now).members.iter().map(|it| it.condition).collect();
    assert_eq!(conditions, [Condition::Live, Condition::Slow, Condition::Live]);
}

#[test]
fn what_went_before_a_view_is_not_held_against_its_members() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    // All wait for slot 2, which is stopped, for longer than it takes to be named.
    for _ in 0..90 {
        (0..2).for_each(|member| bench.say(member, waits(7)));
        bench.pass(SECOND);
    }
    bench.registry.evict(bench.now, Whom::Slot(2), "it is stopped");
    bench.report_all(&[0, 1], 1, "0");
    assert_eq!(bench.registry.members(), [0, 1]);
    let named = bench.named();
    // One computes now while the other waits already.
    for _ in 0..59 {
        bench.say(0, beat(7));
        bench.say(1, waits(8));
        bench.pass(SECOND);
    }
    assert_eq!(bench.named(), named);
}

#[test]
fn where_all_compute_or_all_wait_nobody_is_slow() {
    for word in [beat(7), waits(7)] {
        let mut bench = Bench::steady(RegistryConfig::new(3));
        for _ in 0..90 {
            (0..3).for_each(|member| bench.say(member, word.clone()));
            bench.pass(SECOND);
        }
        assert!(bench.named().is_empty());
    }
}

#[test]
fn a_member_that_does_not_stop_is_waited_for_and_named() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.kill(0);
    bench.say(1, report(1, "0"));
    for _ in 0..100 {
        bench.say(1, beat(0));
        bench.say(2, beat(0));
        bench.pass(SECOND);
    }
    assert_eq!((bench.named(), bench.lost()), (vec![2], vec![(0, Why::Exited)]));
    let status = bench.registry.status(bench.now);
    assert_eq!((status.phase, status.waits_for.as_str()), (Phase::Changing, "slots to stop and report: 2"));
    bench.say(2, report(1, "0"));
    bench.assert_members(2, &[1, 2]);
}

/// It may be in a debugger: it is not judged. But no wait is for ever.
#[test]
fn members_that_do_not_stop_end_the_job_after_the_elastic_timeout() {
    let settings = || RegistryConfig { elastic_timeout: 60 * SECOND, ..RegistryConfig::new(3) };
    let mut bench = Bench::steady(settings());
    bench.kill(0);
    bench.say(1, report(1, "0"));
    bench.pass(Duration::from_millis(59_999));
    assert_eq!((bench.named(), bench.registry.outcome()), (vec![2], None));
    bench.pass(Duration::from_millis(1));
    let words = "members that the others wait for did not stop within 60 s, as they were to, though their hosts answer: \
                 slots 2";
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed(words.into())));
    assert_eq!(bench.heard(1).last(), Some(&FromRegistry::End { reason: words.into() }));
    // Also where the others have stopped behind a commit by themselves.
    let mut bench = Bench::steady(RegistryConfig { max_np: 4, ..settings() });
    bench.say(3, register(3, None, None));
    bench.report_all(&[0, 1], 1, "5|");
    bench.pass(60 * SECOND);
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed(words.into())));
}

#[test]
fn a_lost_link_between_two_that_live_is_made_again_at_once_in_a_view_of_the_same_members() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.say(2, suspect(1, 1));
    // The other may be dead: it is asked, and nobody is stopped for that.
    assert_eq!(bench.told.remove(&1).unwrap_or_default(), [FromRegistry::Probe]);
    bench.say(2, beat(1));
    assert_eq!((bench.heard(0), bench.heard(1)), (vec![], vec![]));
    bench.say(1, beat(1));
    bench.report_all(&[0, 1, 2], 1, "3");
    bench.assert_members(2, &[0, 1, 2]);
    let view = bench.view_after_prepare(0);
    assert_eq!((view.broken, view.gone), (vec![(1, 2)], vec![]));
    assert_eq!(bench.lost(), []);
}

#[test]
fn two_that_both_lose_their_link_are_alive() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.say(0, suspect(1, 1));
    bench.say(1, suspect(1, 0));
    bench.report_all(&[0, 1], 1, "3+");
    bench.assert_members(2, &[0, 1]);
    assert_eq!(bench.view_after_prepare(0).broken, [(0, 1)]);
}

#[test]
fn one_that_is_suspected_and_away_is_heard_when_it_comes_back() {
    let mut bench = Bench::steady(RegistryConfig { close_grace: SECOND, ..RegistryConfig::new(3) });
    bench.say(1, suspect(1, 2));
    assert_eq!(bench.told.remove(&2).unwrap_or_default(), [FromRegistry::Probe]);
    bench.say(12, register(2, None, Some(Resume { slot: 2, generation: Generation(1) })));
    bench.assert_prepared(&[0, 1, 12], 1, &[]);
}

#[test]
fn a_suspected_member_that_does_not_answer_is_waited_for_until_the_limit() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    bench.say(2, suspect(1, 1));
    bench.pass(Duration::from_millis(4_999));
    assert_eq!(bench.heard(0), []);
    bench.pass(Duration::from_millis(1));
    bench.assert_prepared(&[0], 1, &[]);
}

#[test]
fn a_link_that_breaks_again_and_again_is_made_again_after_the_limit() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    for generation in 1..=2 {
        bench.say(2, suspect(generation, 1));
        bench.say(1, beat(1));
        bench.report_all(&[0, 1, 2], generation, "3");
        bench.assert_members(generation + 1, &[0, 1, 2]);
        bench.view_after_prepare(0);
    }
    bench.say(2, suspect(3, 1));
    bench.pass(Duration::from_millis(4_999));
    bench.say(1, beat(2));
    assert_eq!(bench.heard(0), []);
    bench.pass(Duration::from_millis(1));
    bench.assert_prepared(&[0], 3, &[]);
}

#[test]
fn of_two_that_lose_their_link_again_and_again_the_one_with_more_complaints_goes() {
    let mut bench = Bench::steady(RegistryConfig::new(4));
    for generation in 1..=4 {
        bench.say(1, suspect(generation, 2));
        bench.say(2, suspect(generation, 1));
        bench.say(3, suspect(generation, 1));
        bench.pass(5 * SECOND);
        bench.report_all(&[0, 1, 2, 3], generation, "3");
    }
    assert_eq!(bench.lost(), [(1, Why::Link)]);
    bench.assert_members(5, &[0, 2, 3]);
}

#[test]
fn links_that_break_now_and_then_are_nobody_s_fault() {
    let mut bench = Bench::steady(RegistryConfig::new(3));
    for generation in 1..=6 {
        bench.say(1, suspect(generation, 2));
        bench.pass(5 * SECOND);
        bench.report_all(&[0, 1, 2], generation, "3");
        bench.pass(30 * SECOND);
    }
    bench.assert_members(7, &[0, 1, 2]);
}
