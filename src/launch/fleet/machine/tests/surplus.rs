//! Workers for which there is no slot any more.

use super::*;

#[test]
fn a_list_without_room_for_the_members_that_the_job_needs_does_not_end_it() {
    let mut bench = Bench::steady(limits(2, 3, 3), &[("a", 2), ("b", 1)]);
    bench.fleet.set_hosts(bench.now, &[], true);
    assert_eq!(bench.actions(), [ask(2)], "as many go as can be spared");
    let text = "the list of hosts has room for 0 ranks, the job needs 2: keeping slots 0, 1; without more room the job \
                ends in 600 s";
    assert!(bench.was_said("host a is no longer in the list") && bench.was_said(text), "{:?}", bench.said);
    assert_eq!(bench.fleet.poll_deadline(bench.now), Some(bench.now + LEAVE_GRACE));
    bench.part(2, Parting::Asked);
    bench.pass(ELASTIC_TIMEOUT - SECOND);
    bench.nothing();
    // The same answer again says no more; one with room in time, and all is as it was.
    let said = bench.said.len();
    bench.fleet.set_hosts(bench.now, &[], true);
    bench.nothing();
    assert_eq!(bench.said.len(), said, "{:?}", bench.said);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 2)]), true);
    bench.nothing();
    assert!(bench.was_said("the list of hosts has room for 2 ranks again"));
    bench.pass(ELASTIC_TIMEOUT);
    bench.nothing();
    // Those who are kept can fall all the same.
    let mut other = Bench::steady(limits(2, 2, 2), &[("a", 2)]);
    other.fleet.set_hosts(other.now, &[], true);
    (0..2).for_each(|worker| other.kill(worker));
    other.nothing();
    assert!(!other.was_said("again"), "{:?}", other.said);
    // And too late.
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 1)]), true);
    bench.nothing();
    assert!(bench.was_said("room for 1 rank, the job needs 2: keeping slot 1;"), "{:?}", bench.said);
    bench.pass(ELASTIC_TIMEOUT);
    assert_eq!(bench.actions(), [term(0), term(1)]);
    let text =
        "the job cannot go on: for 600 s the list of hosts has had room for 1 rank, the job needs 2; ending 2 workers";
    assert!(bench.was_said(text), "{:?}", bench.said);
    (0..2).for_each(|worker| bench.part(worker, Parting::Asked));
    bench.news(News::Ended(Outcome::Finished));
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(1));
}

#[test]
fn members_that_are_kept_leave_one_by_one_as_others_take_their_places() {
    // No more members than there are: those that come wait for a place.
    let mut bench = Bench::steady(limits(2, 2, 2), &[("a", 2)]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("b", 2)]), true);
    assert!(bench.was_said("keeping slots 0, 1 until others have taken their places"), "{:?}", bench.said);
    bench.now += ELASTIC_TIMEOUT;
    assert_eq!(bench.fleet.placement(2).map(|placement| placement.host.name.as_str()), Some("b"));
    for worker in [2, 3] {
        bench.fleet.handle_event(bench.now, Event::Started { rank: worker, pid: 100 + worker as i32 });
    }
    bench.register(2, 2);
    assert_eq!(bench.actions(), [ask(1)], "the one that has done least");
    bench.register(3, 3);
    bench.nothing();
    bench.part(1, Parting::Asked);
    bench.view(&[0, 2], &[], &[2]);
    assert_eq!(bench.actions(), [ask(0)], "another has the state now");
    bench.part(0, Parting::Asked);
    bench.view(&[2, 3], &[], &[3]);
    bench.nothing();
    // Both who come at once: one with the state stays.
    let mut bench = Bench::steady(limits(2, 2, 4), &[("a", 2)]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("b", 2)]), true);
    let _ = bench.start();
    bench.register(2, 2);
    bench.register(3, 3);
    assert_eq!(bench.actions(), [ask(1)]);
}

#[test]
fn workers_of_a_host_that_vanishes_are_asked_to_leave_and_killed_in_the_end() {
    let mut bench = Bench::steady(limits(1, 3, 4), &[("a", 1), ("b", 3)]);
    assert_eq!(bench.start(), [3]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 1), ("c", 1)]), true);
    assert_eq!(bench.actions(), [ask(1), ask(2), ask(3), spawn(4)]);
    assert!(bench.was_said("host b is no longer in the list") && bench.was_said("slots 1-3 asked to leave"));
    bench.part(1, Parting::Asked);
    // However it ends, it is no failure, and its host gets no mark.
    bench.end(3, 143);
    bench.gone(3);
    bench.nothing();
    bench.pass(LEAVE_GRACE);
    assert_eq!(bench.actions(), [Action::Kill { rank: 2 }]);
    assert!(bench.was_said("slot 2 did not end when asked; killing it"));
    bench.kill(2);
    bench.nothing();
}

#[test]
fn fewer_slots_take_the_least_experienced_first() {
    let mut bench = Bench::steady(limits(1, 3, 4), &[("a", 4)]);
    assert_eq!(bench.start(), [3]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 2)]), true);
    assert_eq!(bench.actions(), [ask(2), ask(3)]);
    let mut bench = Bench::new(limits(1, 2, 2), &[("a", 2)]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 1)]), true);
    assert_eq!(bench.start(), [0], "what was not started is not");
}
