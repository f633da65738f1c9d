//! The member, event by event.

use std::sync::Arc;

use super::*;
use crate::wire::registry::{Members, ProcessRecord, Register, Resume, ViewMessage, Why};

const SECOND: Duration = Duration::from_secs(1);

fn actions(member: &mut Member) -> Vec<Action> {
    std::iter::from_fn(|| member.poll_action()).collect()
}

fn resume(register: &[Action]) -> Option<Resume> {
    match register.first() {
        Some(Action::Send(ToRegistry::Register(Register { resume, .. }))) => *resume,
        _ => panic!("{register:?}"),
    }
}

/// A process that has registered.
fn registered() -> (Instant, Member) {
    let now = Instant::now();
    let mut member = Member::new(now, MemberConfig::new([3; 16], ProcessRecord::default()));
    assert_eq!(actions(&mut member), [Action::Connect]);
    member.handle_connected(now);
    assert_eq!(resume(&actions(&mut member)), None);
    (now, member)
}

/// A member of view 1, in slot 2 of 0, 1, 2.
fn running() -> (Instant, Member) {
    let (now, mut member) = registered();
    member.handle_message(now, welcome(2));
    member.handle_message(now, view(1, 0, Members::All(records(&[0, 1, 2])), &[]));
    assert_eq!(installed(&mut member), (1, 2, vec![0, 1, 2], Outcome::Joined));
    (now, member)
}

fn welcome(slot: Slot) -> FromRegistry {
    FromRegistry::Welcome {
        slot,
        heartbeat_interval: SECOND,
        heartbeat_limit: 4 * SECOND,
        elastic_timeout: 60 * SECOND,
    }
}

fn view(generation: u64, counted: u64, members: Members, gone: &[Slot]) -> FromRegistry {
    let gone = gone.iter().map(|slot| Gone { slot: *slot, why: Why::Exited, detail: String::new() });
    FromRegistry::View(ViewMessage {
        generation: Generation(generation),
        counted,
        members,
        gone: gone.collect(),
        broken: vec![],
        newcomers: vec![],
    })
}

fn records(slots: &[Slot]) -> Vec<(Slot, Arc<ProcessRecord>)> {
    slots.iter().map(|slot| (*slot, Arc::default())).collect()
}

fn prepare(generation: u64) -> FromRegistry {
    FromRegistry::Prepare { generation: Generation(generation), gone: vec![] }
}

/// The view that is to be installed: generation, rank, slots, outcome.
fn installed(member: &mut Member) -> (u64, usize, Vec<Slot>, Outcome) {
    let actions = actions(member);
    let [Action::Install(installation)] = &actions[..] else { panic!("{actions:?}") };
    let slots = installation.members.iter().map(|(slot, _)| *slot).collect();
    (installation.generation.0, installation.rank, slots, installation.outcome)
}

/// Why the member stops.
fn stopped(member: &mut Member) -> Stop {
    let mut actions = actions(member);
    assert_eq!(member.deadline(), None);
    match (actions.pop(), actions.pop()) {
        (Some(Action::Stop(stop)), Some(Action::Disconnect)) => stop,
        other => panic!("{other:?} after {actions:?}"),
    }
}

#[test]
fn a_member_goes_from_view_to_view() {
    let (now, mut member) = running();
    member.handle_message(now, prepare(1));
    assert!(matches!(&actions(&mut member)[..], [Action::Suspend { generation: Generation(1), .. }]));
    member.handle_suspended(now, 4, true, false);
    let report = Report { generation: Generation(1), counted: 4, holds: true, boundary: false, closed: false };
    assert_eq!(actions(&mut member), [Action::Send(ToRegistry::Report(report))]);
    member.handle_message(now, view(2, 5, Members::Change(records(&[7])), &[1]));
    assert_eq!(installed(&mut member), (2, 1, vec![0, 2, 7], Outcome::Counted));
    // What comes twice, or late, does no harm.
    member.handle_message(now, view(2, 5, Members::Change(vec![]), &[1]));
    member.handle_message(now, view(1, 0, Members::All(records(&[0, 1, 2])), &[]));
    member.handle_message(now, prepare(1));
    member.handle_message(now, FromRegistry::Wanted { generation: Generation(1) });
    member.handle_suspended(now, 4, true, false);
    assert_eq!(actions(&mut member), []);
}

#[test]
fn what_becomes_of_the_step_under_way() {
    use Outcome::{Again, Boundary, Counted, GivenUp};
    // Commits passed, whether it holds the next step, whether it is at a boundary; steps that count, whether somebody
    // joins; what that means.
    let table = [
        ((4, false, false), (4, false), Some(Again)),
        ((4, true, false), (4, false), Some(Again)),
        ((4, true, false), (5, false), Some(Counted)),
        ((4, true, false), (5, true), Some(Counted)),
        ((4, false, true), (4, true), Some(Boundary)),
        ((4, false, true), (4, false), Some(Boundary)),
        ((4, false, false), (4, true), Some(GivenUp)),
        ((4, true, false), (4, true), Some(GivenUp)),
        // No sound registry says so.
        ((4, false, false), (5, false), None),
        ((4, true, false), (6, false), None),
        ((4, true, false), (3, false), None),
    ];
    for ((passed, holds, boundary), (counted, joins), expected) in table {
        let (now, mut member) = running();
        if boundary {
            member.handle_boundary(now, passed);
        } else {
            member.handle_message(now, prepare(1));
            member.handle_suspended(now, passed, holds, false);
        }
        actions(&mut member);
        let added = records(if joins { &[3] } else { &[] });
        member.handle_message(now, view(2, counted, Members::Change(added), &[]));
        match expected {
            Some(outcome) => assert_eq!(installed(&mut member).3, outcome),
            None => assert!(matches!(stopped(&mut member), Stop::Defect { .. })),
        }
    }
}

#[test]
fn one_that_stands_at_a_boundary_need_not_be_stopped() {
    let (now, mut member) = running();
    member.handle_message(now, FromRegistry::Wanted { generation: Generation(1) });
    assert_eq!(actions(&mut member), [Action::Wanted]);
    // The engine stops at the boundary before it hears that it is to stop.
    member.handle_message(now, prepare(1));
    assert_eq!(actions(&mut member).len(), 1);
    member.handle_boundary(now, 3);
    let report = Report { generation: Generation(1), counted: 3, holds: false, boundary: true, closed: false };
    assert_eq!(actions(&mut member), [Action::Send(ToRegistry::Report(report))]);
    member.handle_suspended(now, 3, false, false);
    member.handle_message(now, prepare(1));
    assert_eq!(actions(&mut member), []);
}

#[test]
fn after_a_break_it_says_again_what_holds() {
    let (now, mut member) = running();
    member.handle_link_lost(now, 1, "reset");
    member.handle_link_lost(now, 1, "reset");
    member.handle_message(now, prepare(1));
    member.handle_suspended(now, 4, false, false);
    member.leave(now, Parting::Asked, "SIGTERM");
    assert_eq!(actions(&mut member).len(), 4, "suspect, suspend, report, leave");
    member.handle_disconnected(now, "reset");
    assert_eq!(actions(&mut member), [Action::Away { detail: "reset".into() }]);
    member.handle_timeout(now);
    assert_eq!(actions(&mut member), [Action::Connect], "at once");
    member.handle_connected(now);
    let said = actions(&mut member);
    assert_eq!(resume(&said), Some(Resume { slot: 2, generation: Generation(1) }));
    let [Action::Send(report), Action::Send(suspect), Action::Send(leave)] = &said[1..] else { panic!("{said:?}") };
    assert!(matches!(report, ToRegistry::Report(Report { counted: 4, .. })));
    assert!(matches!(suspect, ToRegistry::Suspect { slot: 1, .. }));
    assert!(matches!(leave, ToRegistry::Leave { parting: Parting::Asked, .. }));
    member.handle_message(now, welcome(9));
    assert_eq!((actions(&mut member), member.slot()), (vec![Action::Back], Some(2)), "a member's slot stays");
}

#[test]
fn a_change_of_another_view_is_answered_by_asking_for_all() {
    let (now, mut member) = running();
    member.handle_message(now, view(3, 0, Members::Change(vec![]), &[1]));
    let said = actions(&mut member);
    assert!(matches!(&said[..], [Action::Disconnect, Action::Away { .. }]), "{said:?}");
    member.handle_timeout(now);
    member.handle_connected(now);
    assert_eq!(actions(&mut member)[0], Action::Connect);
    assert_eq!(member.generation(), Some(Generation(1)));
}

#[test]
fn a_whole_view_tells_who_is_gone_though_nobody_says_why() {
    let (now, mut member) = running();
    member.handle_boundary(now, 3);
    actions(&mut member);
    member.handle_message(now, view(2, 3, Members::All(records(&[0, 2, 5])), &[]));
    let said = actions(&mut member);
    let [Action::Install(installation)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((installation.gone[0].slot, installation.gone[0].why), (1, Why::Missing));
    assert_eq!(installation.joined, [5]);
}

#[test]
fn links_that_a_view_does_not_make_again_are_said_again() {
    let (now, mut member) = running();
    member.handle_link_lost(now, 0, "reset");
    member.handle_link_lost(now, 1, "reset");
    member.handle_boundary(now, 3);
    actions(&mut member);
    let FromRegistry::View(mut second) = view(2, 3, Members::Change(vec![]), &[]) else { panic!("not a view") };
    second.broken = vec![(0, 2)];
    member.handle_message(now, FromRegistry::View(second));
    let said = actions(&mut member);
    let [Action::Install(_), Action::Send(ToRegistry::Suspect { generation: Generation(2), slot: 1, .. })] = &said[..]
    else {
        panic!("{said:?}");
    };
}

#[test]
fn attempts_to_reach_the_registry_become_rarer() {
    let (mut now, mut member) = running();
    let mut waits = Vec::new();
    for _ in 0..10 {
        member.handle_disconnected(now, "refused");
        let wait = member.deadline().expect("it tries again").remaining(now);
        waits.push(wait.as_millis());
        now += wait;
        member.handle_timeout(now);
        assert!(actions(&mut member).contains(&Action::Connect));
    }
    assert_eq!(waits, [0, 9, 19, 39, 79, 159, 318, 636, 994, 994]);
    // It answers, and is gone again before it has said a word: there is no reason to wait for long.
    member.handle_connected(now);
    member.handle_disconnected(now, "reset");
    assert!(member.deadline().expect("it tries again").remaining(now) < Duration::from_millis(10));
}

#[test]
fn without_a_registry_the_work_goes_on_until_its_word_is_needed() {
    let (now, mut member) = running();
    member.handle_disconnected(now, "refused");
    member.handle_timeout(now);
    let later = now + 1000 * SECOND;
    member.handle_disconnected(later, "refused");
    actions(&mut member);
    member.handle_link_lost(later, 1, "reset by peer");
    assert_eq!(actions(&mut member), [], "there is nobody to tell");
    for second in 0..60 {
        member.handle_timeout(later + second * SECOND);
        member.handle_disconnected(later + second * SECOND, "refused");
        assert!(!member.is_over());
    }
    member.handle_timeout(later + 60 * SECOND);
    let stop = stopped(&mut member);
    let words = "cut off from the registry for 1060.0 s: the link to slot 1 is lost (reset by peer)";
    assert_eq!(stop.to_string(), words);
}

#[test]
fn operations_that_do_not_advance_need_the_registry_s_word() {
    let (now, mut member) = running();
    let at = |second: u32| now + second * SECOND;
    member.handle_progress(at(0), 7, true);
    member.handle_disconnected(at(0), "no route");
    actions(&mut member);
    // The work goes on for a while; then an operation waits, and nobody knows for whom.
    for second in 1..=70 {
        member.handle_progress(at(second), 7 + u64::from(second.min(10)), true);
        member.handle_timeout(at(second));
        member.handle_disconnected(at(second), "no route");
        let stuck = actions(&mut member).into_iter().find(|action| matches!(action, Action::Stuck { .. }));
        let detail = "its operations do not advance, as of ranks that are cut off".to_string();
        let expected = Action::Stuck { away: 14 * SECOND, detail, remaining: 56 * SECOND };
        assert_eq!(stuck, (second == 14).then_some(expected), "after {second} s");
        assert_eq!(member.is_over(), second == 70);
    }
    // One that computes by itself needs nobody.
    let (now, mut member) = running();
    member.handle_disconnected(now, "no route");
    for second in 1..=200 {
        let at = now + second * SECOND;
        member.handle_progress(at, 7, false);
        member.handle_timeout(at);
        member.handle_disconnected(at, "no route");
    }
    assert!(!member.is_over());
}

#[test]
fn one_that_was_stopped_itself_tries_to_reach_the_registry_before_it_gives_up() {
    let (now, mut member) = running();
    member.handle_disconnected(now, "reset");
    member.handle_link_lost(now, 1, "reset");
    let later = now + 1000 * SECOND;
    member.handle_timeout(later);
    assert!(!member.is_over() && actions(&mut member).contains(&Action::Connect));
    member.handle_connected(later);
    member.handle_message(later, welcome(2));
    member.handle_timeout(later + 100 * SECOND);
    assert!(!member.is_over());
    // And not for ever.
    let (now, mut member) = running();
    member.handle_disconnected(now, "reset");
    member.handle_link_lost(now, 1, "reset");
    for second in 100..105 {
        member.handle_timeout(now + second * SECOND);
        assert!(!member.is_over());
    }
    member.handle_timeout(now + 107 * SECOND);
    assert!(matches!(stopped(&mut member), Stop::CutOff { .. }));
}

#[test]
fn one_that_is_not_let_in_in_time_says_what_it_knows() {
    let now = Instant::now();
    let config = MemberConfig { patience: 5 * SECOND, ..MemberConfig::new([3; 16], ProcessRecord::default()) };
    let mut member = Member::new(now, config.clone());
    member.handle_disconnected(now, "connection refused");
    member.handle_timeout(now + 5 * SECOND);
    let words = "no answer from the registry within 5.0 s: connection refused";
    assert_eq!(stopped(&mut member).to_string(), words);
    let mut member = Member::new(now, config);
    member.handle_connected(now);
    member.handle_message(now, welcome(2));
    member.handle_timeout(now + 5 * SECOND);
    let words = "the registry answered, but there was no view with this process within 5.0 s";
    assert_eq!(stopped(&mut member).to_string(), words);
}

#[test]
fn it_gives_signs_of_life_when_they_are_due_and_when_it_is_asked() {
    let (now, mut member) = running();
    member.handle_progress(now, 17, false);
    member.handle_counted(5);
    assert_eq!(member.deadline().map(|at| at.remaining(now)), Some(SECOND));
    member.handle_timeout(now + SECOND);
    member.handle_message(now + SECOND, FromRegistry::Probe);
    let beat = |number| Action::Send(ToRegistry::Heartbeat { number, progress: 17, is_waiting: false, counted: 5 });
    assert_eq!(actions(&mut member), [beat(1), beat(2)]);
}

#[test]
fn a_goodbye_waits_to_be_heard_and_not_for_ever() {
    let (now, mut member) = running();
    member.leave(now, Parting::Done, "done");
    member.leave(now, Parting::Done, "done");
    assert_eq!(actions(&mut member).len(), 1);
    let mut other = member.clone();
    member.handle_message(now, FromRegistry::Goodbye);
    assert_eq!(stopped(&mut member), Stop::Left { was_heard: true });
    other.handle_timeout(now + 2 * SECOND);
    assert_eq!(stopped(&mut other), Stop::Left { was_heard: false });
}

#[test]
fn it_ends_when_the_registry_says_so() {
    let (now, member) = running();
    let evicted = FromRegistry::Evicted { generation: Generation(4), reason: "silent".into() };
    let end = |reason: &str| FromRegistry::End { reason: reason.into() };
    let refused = FromRegistry::Refused { what: "two of them".into(), hint: "start one".into() };
    let cases = [
        (evicted, "the others went on without this process (generation 4): silent"),
        (end("too few"), "the job is over: too few"),
        (refused, "the registry did not let this process in: two of them; start one"),
        (
            view(2, 0, Members::All(records(&[0, 1])), &[]),
            "the others went on without this process (generation 2): it is not in the view that it was sent",
        ),
    ];
    for (message, words) in cases {
        let mut member = member.clone();
        member.handle_message(now, message);
        assert_eq!(stopped(&mut member).to_string(), words);
        // Nothing is said or done any more.
        member.handle_message(now, prepare(1));
        member.handle_link_lost(now, 1, "reset");
        member.handle_disconnected(now, "closed");
        member.leave(now, Parting::Unsaid, "it ended");
        assert_eq!(actions(&mut member), []);
    }
}

/// The registry can be reached and says nothing: it is stopped. No wait is for ever.
#[test]
fn a_wait_for_a_view_ends_though_the_registry_says_nothing() {
    let (now, mut member) = running();
    assert!(!member.has_lost_links());
    member.handle_link_lost(now, 1, "reset");
    assert!(member.has_lost_links());
    let at = now + 10 * SECOND;
    member.handle_message(at, prepare(1));
    member.handle_suspended(at, 3, false, false);
    // There are too few members, says the registry, which knows how long it is going to wait.
    member.handle_message(at, FromRegistry::Waiting { have: 2, need: 3, remaining: 90 * SECOND });
    actions(&mut member);
    let end = at + 90 * SECOND + 16 * SECOND;
    member.handle_timeout(end - SECOND);
    assert!(!member.is_over());
    member.handle_timeout(end);
    let words =
        "the registry said no view within 116.0 s: the link to slot 1 is lost (reset), the next view is to come";
    assert_eq!(stopped(&mut member).to_string(), words);
}

#[test]
fn one_that_was_stopped_itself_hears_the_registry_before_it_gives_up() {
    let (now, mut member) = running();
    member.handle_message(now, prepare(1));
    member.handle_suspended(now, 3, false, false);
    let late = now + 3600 * SECOND;
    member.handle_timeout(late);
    assert!(!member.is_over());
    member.handle_message(late, view(2, 3, Members::Change(vec![]), &[0]));
    member.handle_timeout(late + 3600 * SECOND);
    assert!(!member.is_over(), "nothing is needed any more");
}
