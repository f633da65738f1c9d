//! The member, event by event.

use super::*;
use crate::wire::registry::{Members, ProcessRecord, ViewMessage};

fn member() -> (Instant, Member) {
    let now = Instant::now();
    let mut member = Member::new(now, MemberConfig::new([3; 16], ProcessRecord::default()));
    assert_eq!(actions(&mut member), [Action::Connect]);
    member.handle_connected(now);
    assert!(matches!(&actions(&mut member)[..], [Action::Send(ToRegistry::Register(_))]));
    (now, member)
}

fn actions(member: &mut Member) -> Vec<Action> {
    std::iter::from_fn(|| member.poll_action()).collect()
}

fn welcome(slot: Slot) -> FromRegistry {
    let second = Duration::from_secs(1);
    FromRegistry::Welcome {
        slot,
        heartbeat_interval: second,
        heartbeat_limit: 4 * second,
        elastic_timeout: 60 * second,
    }
}

fn view(generation: u64, counted: u64, members: Members, gone: &[Slot]) -> FromRegistry {
    let gone =
        gone.iter().map(|slot| Gone { slot: *slot, why: crate::wire::registry::Why::Exited, detail: String::new() });
    FromRegistry::View(ViewMessage {
        generation: Generation(generation),
        counted,
        members,
        gone: gone.collect(),
        broken: vec![],
        newcomers: vec![],
    })
}

fn records(slots: &[Slot]) -> Vec<(Slot, std::sync::Arc<ProcessRecord>)> {
    slots.iter().map(|slot| (*slot, std::sync::Arc::default())).collect()
}

/// The view that is to be installed: generation, rank, slots, outcome.
fn installed(member: &mut Member) -> (u64, usize, Vec<Slot>, Outcome) {
    let actions = actions(member);
    let [Action::Install(installation)] = &actions[..] else { panic!("{actions:?}") };
    let slots = installation.members.iter().map(|(slot, _)| *slot).collect();
    (installation.generation.0, installation.rank, slots, installation.outcome)
}

#[test]
fn a_member_goes_from_view_to_view() {
    let (now, mut member) = member();
    member.handle_message(now, welcome(2));
    member.handle_message(now, view(1, 0, Members::All(records(&[0, 1, 2])), &[]));
    assert_eq!(installed(&mut member), (1, 2, vec![0, 1, 2], Outcome::Joined));
    member.handle_message(now, FromRegistry::Prepare { generation: Generation(1), gone: vec![] });
    assert!(matches!(&actions(&mut member)[..], [Action::Suspend { generation: Generation(1), .. }]));
    member.handle_suspended(now, 4, true);
    let report = Report { generation: Generation(1), counted: 4, holds: true, boundary: false };
    assert_eq!(actions(&mut member), [Action::Send(ToRegistry::Report(report))]);
    member.handle_message(now, view(2, 5, Members::Change(vec![]), &[1]));
    assert_eq!(installed(&mut member), (2, 1, vec![0, 2], Outcome::Counted));
    // What comes twice does no harm.
    member.handle_message(now, view(2, 5, Members::Change(vec![]), &[1]));
    member.handle_message(now, FromRegistry::Prepare { generation: Generation(1), gone: vec![] });
    assert_eq!(actions(&mut member), []);
}
