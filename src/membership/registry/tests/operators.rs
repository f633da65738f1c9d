//! What operators ask for.

use super::*;

#[test]
fn operators_see_how_things_are() {
    let mut bench = Bench::new(RegistryConfig { max_np: 4, ..RegistryConfig::new(2) });
    bench.say(0, register(0, Some(1), None));
    bench.say(99, ToRegistry::StatusRequest);
    let heard = bench.heard(99);
    let [FromRegistry::Status(status)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((status.phase, status.waits_for.as_str()), (Phase::Gathering, "1 of 2 ranks to come"));
    bench.say(1, register(1, Some(0), None));
    bench.say(2, register(2, None, None));
    let status = bench.registry.status(bench.now);
    let members: Vec<_> = status.members.iter().map(|member| (member.slot, member.rank, member.process.pid)).collect();
    assert_eq!(members, [(0, Some(0), 101), (1, Some(1), 100), (2, None, 102)]);
    assert_eq!((status.generation, status.min_np, status.max_np), (Generation(1), 1, 4));
}

#[test]
fn operators_see_steps_counted_since_the_view_began() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    let beat = |counted| ToRegistry::Heartbeat { number: 1, progress: 0, is_waiting: false, counted };
    assert_eq!(bench.registry.status(bench.now).counted, 0);
    bench.say(0, beat(41));
    bench.say(1, beat(40));
    assert_eq!(bench.registry.status(bench.now).counted, 41);
    // What decides is what is reported.
    bench.kill(0);
    bench.say(1, report(1, "40"));
    assert_eq!(bench.registry.status(bench.now).counted, 40);
}

#[test]
fn operators_evict_by_rank_or_slot_and_members_do_not() {
    let mut bench = Bench::steady(RegistryConfig::new(4));
    let evict = |whom| ToRegistry::Evict { whom, reason: "it is too hot".into() };
    bench.say(99, evict(Whom::Rank(1)));
    assert_eq!(bench.heard(99), [FromRegistry::Done { what: "slot 1 is out".into() }]);
    let reason = "evicted: it is too hot".to_string();
    // The first view without it.
    assert_eq!(bench.heard(1), [FromRegistry::Evicted { generation: Generation(2), reason }]);
    bench.report_all(&[0, 2, 3], 1, "0");
    // Rank 1 is another one now.
    bench.say(99, evict(Whom::Rank(1)));
    assert_eq!(bench.lost(), [(1, Why::Evicted), (2, Why::Evicted)]);
    bench.say(99, evict(Whom::Slot(1)));
    bench.say(99, evict(Whom::Rank(7)));
    assert!(bench.heard(99)[1..].iter().all(|message| matches!(message, FromRegistry::Refused { .. })));
    bench.say(0, evict(Whom::Slot(3)));
    assert_eq!((bench.lost().len(), bench.registry.ignored()), (2, 1));
}

#[test]
fn the_launcher_ends_a_job() {
    let mut bench = Bench::steady(RegistryConfig::new(2));
    bench.registry.end(bench.now, "interrupted");
    bench.drain();
    assert_eq!(bench.heard(1), [FromRegistry::End { reason: "interrupted".into() }]);
    assert_eq!(bench.registry.outcome(), Some(&Outcome::Failed("interrupted".into())));
}
