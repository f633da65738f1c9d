//! The fleet, event by event.

mod ends;
mod surplus;

use proptest::prelude::*;

use super::*;
use crate::launch::control::Ending;
use crate::launch::signal::Arrived;
use crate::membership::registry::{Event as News, Outcome};
use crate::types::Generation;
use crate::wire::registry::{Gone, Parting, ProcessRecord, Why};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(5);
const LEAVE_GRACE: Duration = Duration::from_secs(30);
const ELASTIC_TIMEOUT: Duration = Duration::from_secs(600);

/// A fleet, the time, and what the registry would have to know.
struct Bench {
    now: Instant,
    fleet: Fleet,
    generation: u64,
    /// What was said, so that it can be asked for.
    said: Vec<String>,
    exits: Vec<Exit>,
}

fn limits(min_np: usize, np: usize, max_np: usize) -> Limits {
    Limits {
        sizes: Sizes { np, min_np, max_np },
        policy: Policy { grace: GRACE, timeout: None },
        respawn: true,
        leave_grace: LEAVE_GRACE,
        cooldown: None,
        respawn_limit: 1000,
        elastic_timeout: ELASTIC_TIMEOUT,
        owns_registry: true,
    }
}

fn hosts(list: &[(&str, usize)]) -> Vec<Host> {
    list.iter().map(|(name, slots)| Host::new(*name, *slots)).collect()
}

impl Bench {
    /// A job on these hosts, of which nothing has been started.
    fn new(limits: Limits, list: &[(&str, usize)]) -> Self {
        let now = Instant::now();
        let mut fleet = Fleet::new(now, limits);
        fleet.set_hosts(now, &hosts(list), false);
        Bench { now, fleet, generation: 0, said: Vec::new(), exits: Vec::new() }
    }

    /// A job whose first view stands, of the workers 0, 1, ...
    fn steady(limits: Limits, list: &[(&str, usize)]) -> Self {
        let mut bench = Self::new(limits, list);
        let started = bench.start();
        assert_eq!(started, (0..limits.sizes.np).collect::<Vec<_>>());
        for worker in started {
            bench.register(worker, worker);
        }
        bench.view(&(0..limits.sizes.np).collect::<Vec<_>>(), &[], &[]);
        bench
    }

    /// What is to be done; what is only said is kept apart.
    fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(action) = self.fleet.poll_action() {
            match action {
                Action::Say { text, .. } => self.said.push(text),
                action => actions.push(action),
            }
        }
        self.exits.extend(std::iter::from_fn(|| self.fleet.poll_exit()));
        actions
    }

    /// Starts what is to be started, and nothing else is to be done. Returns which.
    fn start(&mut self) -> Vec<usize> {
        let mut started = Vec::new();
        for action in self.actions() {
            let Action::Spawn { rank } = action else { panic!("{action:?}") };
            self.fleet.handle_event(self.now, Event::Started { rank, pid: 100 + rank as i32 });
            started.push(rank);
        }
        started
    }

    fn nothing(&mut self) {
        assert_eq!(self.actions(), []);
    }

    fn register(&mut self, worker: usize, slot: Slot) {
        let process = ProcessRecord { pid: 100 + worker as u32, ..ProcessRecord::default() };
        self.fleet.handle_registered(worker, slot);
        self.fleet.handle_news(self.now, &News::Registered { slot, process: process.into() });
    }

    fn news(&mut self, news: News) {
        self.fleet.handle_news(self.now, &news);
    }

    fn view(&mut self, members: &[Slot], gone: &[Slot], joined: &[Slot]) {
        self.generation += 1;
        let out = |slot: &Slot| Gone { slot: *slot, why: Why::Closed, detail: "its connection ended".into() };
        let gone: Vec<Gone> = gone.iter().map(out).collect();
        gone.iter().for_each(|gone| self.news(News::Lost(gone.clone())));
        self.news(News::View {
            generation: Generation(self.generation),
            members: members.to_vec(),
            counted: 0,
            verdict: String::new(),
            gone,
            joined: joined.to_vec(),
            broken: vec![],
            held_up: Duration::from_millis(3),
        });
    }

    fn end(&mut self, worker: usize, code: u8) {
        self.fleet.handle_event(self.now, Event::Ended { rank: worker, ending: Ending::Code(code) });
    }

    fn gone(&mut self, worker: usize) {
        self.fleet.handle_event(self.now, Event::Gone { rank: worker });
    }

    fn kill(&mut self, worker: usize) {
        let ending = Ending::Signal(Signal::KILL);
        self.fleet.handle_event(self.now, Event::Ended { rank: worker, ending });
        self.gone(worker);
    }

    fn leave(&mut self, slot: Slot, parting: Parting) {
        self.news(News::Left { slot, parting, reason: "it said so".into() });
    }

    /// A worker says goodbye and ends with code 0.
    fn part(&mut self, worker: usize, parting: Parting) {
        self.leave(worker, parting);
        self.end(worker, 0);
        self.gone(worker);
    }

    fn pass(&mut self, length: Duration) {
        self.now += length;
        self.fleet.handle_timeout(self.now);
    }

    fn was_said(&mut self, part: &str) -> bool {
        let _ = self.actions();
        self.said.iter().any(|text| text.contains(part))
    }
}

fn spawn(rank: usize) -> Action {
    Action::Spawn { rank }
}

fn ask(rank: usize) -> Action {
    Action::Ask { rank, signal: Signal::TERM }
}

fn term(rank: usize) -> Action {
    Action::Signal { rank, signal: Signal::TERM }
}

fn killed(rank: usize) -> Cause {
    Cause::Failed { rank, ending: Ending::Signal(Signal::KILL) }
}

#[test]
fn the_first_members_come_first_and_then_as_many_as_there_is_room_for() {
    let mut bench = Bench::new(limits(2, 3, 5), &[("a", 2), ("b", 9)]);
    assert_eq!(bench.start(), [0, 1, 2]);
    let places: Vec<_> = (0..3).map(|worker| bench.fleet.placement(worker).expect("it runs").clone()).collect();
    let place = |name: &str, slots, local_rank, wish| Placement { host: Host::new(name, slots), local_rank, wish };
    assert_eq!(places, [place("a", 2, 0, Some(0)), place("a", 2, 1, Some(1)), place("b", 9, 0, Some(2))]);
    (0..3).for_each(|worker| bench.register(worker, worker));
    bench.nothing();
    bench.view(&[0, 1, 2], &[], &[]);
    assert_eq!(bench.start(), [3, 4], "and no more than five");
    assert_eq!(bench.fleet.placement(4).and_then(|placement| placement.wish), Some(4));
    // A replacement has a number that nobody had.
    bench.kill(3);
    assert_eq!(bench.exits, []);
    bench.pass(SECOND);
    assert_eq!(bench.start(), [5]);
    assert_eq!(bench.exits, [Exit { worker: 3, slot: None, how: "it was ended by signal 9 (SIGKILL)".into() }]);
    assert_eq!((bench.fleet.label(5), bench.fleet.name(5)), (5, "slot 5".into()));
}

#[test]
fn a_member_that_falls_is_told_and_replaced_at_once() {
    let mut bench = Bench::steady(limits(2, 3, 3), &[("a", 3)]);
    let ending = Ending::Signal(Signal::KILL);
    bench.fleet.handle_event(bench.now, Event::Ended { rank: 1, ending });
    bench.nothing();
    assert_eq!(bench.exits, [Exit { worker: 1, slot: Some(1), how: "it was ended by signal 9 (SIGKILL)".into() }]);
    bench.gone(1);
    assert_eq!(bench.start(), [3], "once nothing of it is left");
    assert!(bench.was_said("slot 1 (host a, pid 101) was ended by signal 9 (SIGKILL); another is started"));
    bench.view(&[0, 2], &[1], &[]);
    assert!(bench.was_said(
        "view 2: 2 ranks, slots 0, 2: slot 1 is gone: it was ended by signal 9 (SIGKILL); held up for 3.0 ms"
    ));
    bench.register(3, 3);
    bench.view(&[0, 2, 3], &[], &[3]);
    assert!(bench.was_said("view 3: 3 ranks, slots 0, 2, 3: slot 3 joined; held up for 3.0 ms"));
    bench.nothing();
}

#[test]
fn without_respawn_the_place_stays_empty() {
    let mut bench = Bench::steady(Limits { respawn: false, ..limits(2, 3, 4) }, &[("a", 3)]);
    bench.kill(1);
    bench.nothing();
    assert!(bench.was_said("it is not replaced"));
    // What is new is used.
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 3), ("b", 1)]), true);
    assert_eq!(bench.start(), [3]);
}

#[test]
fn a_finished_job_is_done() {
    let mut bench = Bench::steady(limits(2, 2, 3), &[("a", 3)]);
    assert_eq!(bench.start(), [2]);
    bench.part(0, Parting::Done);
    bench.leave(1, Parting::Done);
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), None);
    bench.news(News::Ended(Outcome::Finished));
    assert_eq!(bench.actions(), [term(2)], "it came too late; the other ends by itself");
    bench.kill(2);
    bench.end(1, 0);
    assert_eq!(bench.fleet.outcome(), None, "its tree is there");
    bench.gone(1);
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
    bench.nothing();
}

#[test]
fn what_is_heard_of_a_fall_after_all_is_done_is_told_all_the_same() {
    let mut bench = Bench::steady(limits(1, 2, 2), &[("a", 2)]);
    bench.view(&[1], &[0], &[]);
    bench.leave(1, Parting::Done);
    bench.news(News::Ended(Outcome::Finished));
    assert_eq!(bench.actions(), [term(0)]);
    bench.kill(0);
    bench.end(1, 0);
    bench.gone(1);
    bench.nothing();
    assert!(bench.was_said("slot 0 (host a, pid 100) was ended by signal 9 (SIGKILL)"));
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
}

#[test]
fn a_job_that_cannot_go_on_has_the_code_of_the_first_that_failed_after_the_last_view() {
    let mut bench = Bench::steady(Limits { respawn: false, ..limits(2, 3, 3) }, &[("a", 3)]);
    // The registry may hear of it first.
    bench.view(&[0, 1], &[2], &[]);
    bench.end(2, 9);
    bench.gone(2);
    bench.end(0, 7);
    bench.gone(0);
    bench.news(News::Waiting { have: 1, need: 2 });
    bench.news(News::Ended(Outcome::Failed("1 member is left, the job needs 2".into())));
    bench.nothing();
    assert!(bench.was_said("1 rank is there, the job needs 2: waiting for more"));
    assert!(bench.was_said("the job cannot go on: 1 member is left, the job needs 2"));
    bench.pass(LAST_WORDS);
    assert_eq!(bench.actions(), [term(1)], "after it could say what it heard");
    bench.end(1, 1);
    bench.gone(1);
    assert_eq!(bench.fleet.outcome(), Some(Cause::Failed { rank: 0, ending: Ending::Code(7) }));
}

#[test]
fn a_program_that_cannot_start_ends_the_job() {
    // All at once.
    let mut bench = Bench::new(limits(1, 3, 3), &[("a", 3)]);
    bench.start();
    for worker in [1, 0, 2] {
        bench.end(worker, worker as u8 + 3);
    }
    assert!(bench.was_said("slot 2 (host a, pid 102) exited with code 5, and the job had not begun"));
    (0..3).for_each(|worker| bench.gone(worker));
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(Cause::Failed { rank: 1, ending: Ending::Code(4) }));
    // One of them, again and again.
    let mut bench = Bench::new(limits(1, 3, 3), &[("a", 3)]);
    let mut next = bench.start()[2];
    for pause in [1, 2] {
        bench.kill(next);
        bench.nothing();
        assert_eq!(bench.fleet.poll_deadline(bench.now), Some(bench.now + pause * SECOND));
        bench.pass(pause * SECOND);
        next = bench.start()[0];
        assert_eq!(bench.fleet.placement(next).and_then(|placement| placement.wish), Some(2), "it is to be rank 2");
    }
    bench.kill(next);
    assert_eq!(bench.actions(), [term(0), term(1)]);
    assert!(bench.was_said("and the job had not begun; ending 2 workers"));
}

#[test]
fn later_starts_that_fail_are_made_again_and_again_but_not_in_a_hot_loop() {
    let mut bench = Bench::steady(limits(1, 2, 3), &[("a", 3)]);
    let mut worker = bench.start()[0];
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        bench.kill(worker);
        bench.nothing();
        bench.pass(pause * SECOND - Duration::from_millis(1));
        bench.nothing();
        bench.pass(Duration::from_millis(1));
        worker = bench.start()[0];
    }
    // One that comes to work makes that forgotten.
    bench.register(worker, worker);
    bench.view(&[0, 1, worker], &[], &[worker]);
    bench.pass(AT_WORK);
    bench.kill(worker);
    assert_eq!(bench.start(), [worker + 1]);
}

#[test]
fn a_host_that_fails_repeatedly_is_left_alone() {
    let cooldown = Some(Cooldown { least: 10 * SECOND, most: 60 * SECOND });
    let mut bench = Bench::steady(Limits { cooldown, ..limits(1, 3, 3) }, &[("a", 2), ("b", 1)]);
    bench.kill(0);
    assert_eq!(bench.start(), [3], "once is no habit");
    bench.kill(1);
    bench.nothing();
    assert!(bench.was_said("host a is not used for 10 s"));
    bench.kill(2);
    assert_eq!(bench.start(), [4]);
    assert_eq!(bench.fleet.host_name(4), "b", "that one has failed once");
    bench.pass(10 * SECOND);
    assert_eq!(bench.start(), [5]);
    assert_eq!(bench.fleet.host_name(5), "a");
    // With room elsewhere nobody waits.
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 2), ("b", 1), ("c", 1)]), true);
    let ending = Ending::Signal(Signal::KILL);
    bench.fleet.handle_event(bench.now, Event::Ended { rank: 4, ending });
    assert_eq!(bench.start(), [6]);
    assert_eq!(bench.fleet.host_name(6), "c");
}

#[test]
fn one_that_is_judged_to_be_out_ends_or_comes_again() {
    let mut bench = Bench::steady(limits(1, 3, 3), &[("a", 3)]);
    let out = |slot, why| News::Lost(Gone { slot, why, detail: "no sign of life for 9.0 s".into() });
    bench.news(out(1, Why::Silent));
    bench.news(out(2, Why::Silent));
    assert!(bench.was_said("slot 1 is silent: no sign of life for 9.0 s"));
    // It was let go on, and comes as somebody new.
    bench.register(2, 3);
    bench.pass(GRACE);
    assert_eq!(bench.actions(), [Action::Kill { rank: 1 }]);
    assert_eq!((bench.fleet.label(2), bench.fleet.label(1)), (3, 1));
    bench.kill(1);
    assert_eq!(bench.start(), [3]);
    assert_eq!(bench.fleet.label(3), 4);
    // What an operator takes out is replaced, and nobody is to blame.
    bench.news(out(0, Why::Evicted));
    for _ in 0..2 {
        bench.end(0, 1);
        bench.gone(0);
    }
    assert_eq!(bench.start(), [4]);
}

#[test]
fn a_signal_that_ends_all_well_is_a_job_that_finished() {
    let mut bench = Bench::steady(limits(2, 2, 2), &[("a", 2)]);
    let arrived = Arrived { signal: Signal::TERM, from_kernel: false };
    bench.fleet.handle_event(bench.now, Event::Signal(arrived));
    let notice = Notice::Ending { cause: Cause::Signal(arrived), others: 2 };
    assert_eq!(bench.actions(), [Action::Tell(notice), term(0), term(1)]);
    for worker in 0..2 {
        bench.end(worker, 0);
        bench.gone(worker);
    }
    bench.nothing();
    assert_eq!(bench.exits.len(), 2, "the others hear of each");
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
    // Those that finished a step and left have not finished their work.
    let mut bench = Bench::steady(limits(2, 2, 2), &[("a", 2)]);
    bench.fleet.handle_event(bench.now, Event::Signal(arrived));
    (0..2).for_each(|worker| bench.part(worker, Parting::Asked));
    bench.news(News::Ended(Outcome::Finished));
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(143));
    assert!(bench.was_said("the job ended before its work was done"));
    let mut bench = Bench::steady(limits(2, 2, 2), &[("a", 2)]);
    bench.fleet.handle_event(bench.now, Event::Signal(arrived));
    bench.end(0, 0);
    bench.gone(0);
    bench.kill(1);
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(143));
}

#[test]
fn hosts_are_waited_for() {
    let mut bench = Bench::new(limits(1, 2, 4), &[]);
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), None);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 1)]), false);
    assert_eq!(bench.start(), [0]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 1), ("b", 2)]), true);
    assert_eq!(bench.start(), [1]);
    assert!(bench.was_said("host b is there, with 2 slots"));
}

#[test]
fn a_program_that_does_not_take_part_ends_the_job_with_its_code() {
    let mut bench = Bench::new(limits(1, 2, 4), &[("a", 4)]);
    bench.start();
    for worker in 0..2 {
        bench.end(worker, 0);
        bench.gone(worker);
    }
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
}

#[test]
fn without_an_own_registry_exit_codes_decide() {
    let limits = Limits { owns_registry: false, ..limits(1, 2, 2) };
    let mut bench = Bench::new(limits, &[("a", 2)]);
    bench.fleet.handle_reached(bench.now);
    assert_eq!(bench.start(), [0, 1]);
    assert_eq!(bench.fleet.placement(0).and_then(|placement| placement.wish), None);
    assert_eq!(bench.fleet.name(1), "worker 1");
    // At work, then killed.
    bench.pass(20 * SECOND);
    bench.kill(1);
    assert_eq!(bench.start(), [2]);
    bench.end(0, 0);
    bench.gone(0);
    bench.kill(2);
    bench.pass(20 * SECOND);
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done), "what is done is done");
    // Never at work.
    let mut bench = Bench::new(limits, &[("a", 1)]);
    bench.fleet.handle_reached(bench.now);
    for start in 0..3 {
        assert_eq!(bench.start(), [start]);
        assert_eq!(bench.fleet.outcome(), None);
        bench.kill(start);
        bench.pass(60 * SECOND);
    }
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(killed(0)));
}

#[test]
fn a_registry_elsewhere_tells_the_slots_and_has_to_be_there() {
    let limits = Limits { owns_registry: false, ..limits(1, 2, 2) };
    let mut bench = Bench::new(limits, &[("a", 2)]);
    assert_eq!(bench.start(), [0, 1]);
    assert_eq!((bench.fleet.name(1), bench.fleet.label(1), bench.fleet.slot(1)), ("worker 1".into(), 1, None));
    bench.fleet.handle_reached(bench.now);
    bench.fleet.handle_registered(1, 5);
    assert_eq!((bench.fleet.name(1), bench.fleet.label(1), bench.fleet.slot(1)), ("slot 5".into(), 5, Some(5)));
    bench.kill(1);
    assert!(bench.was_said("slot 5 (host a, pid 101) was ended by signal 9 (SIGKILL)"));
    // It may be away later.
    bench.fleet.handle_unreached(bench.now, "the registry at x:1 cannot be reached".into());
    bench.end(0, 0);
    bench.gone(0);
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
    // But who never had one to take part with has done nothing.
    let mut bench = Bench::new(limits, &[("a", 2)]);
    bench.start();
    for worker in 0..2 {
        bench.end(worker, 0);
        bench.gone(worker);
    }
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), None, "that is not known yet");
    bench.fleet.handle_unreached(bench.now, "the registry at x:1 cannot be reached".into());
    assert!(bench.was_said("the registry at x:1 cannot be reached; the workers wait for it"));
    assert!(bench.was_said("no worker took part in a job: the registry at x:1 cannot be reached"));
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(1));
}

fn any_event() -> impl Strategy<Value = (usize, usize, u8)> {
    (0_usize..11, 0_usize..6, 0_u8..3)
}

proptest! {
    /// Whatever happens in whatever order: no host has more workers than it ever had slots, no worker is started twice,
    /// nothing is started once the job is ending, and when all are gone there is an outcome.
    #[test]
    fn every_fleet_ends(events in prop::collection::vec(any_event(), 0..80), owns_registry: bool, respawn: bool) {
        let limits = Limits { owns_registry, respawn, ..limits(1, 2, 4) };
        let mut bench = Bench::new(limits, &[("a", 2), ("b", 2)]);
        if !owns_registry {
            bench.fleet.handle_reached(bench.now);
        }
        let mut started = BTreeSet::new();
        for (kind, number, detail) in events {
            bench.fleet.handle_timeout(bench.now);
            let rank = started.iter().copied().nth_back(number).unwrap_or(number);
            match kind {
                0 => bench.pass(SECOND * u32::from(detail) * 10),
                1 => bench.end(rank, detail),
                2 => bench.kill(rank),
                3 => bench.gone(rank),
                4 => bench.fleet.handle_event(bench.now, Event::NotStarted { rank, errno: libc::EAGAIN }),
                5 => bench.fleet.set_hosts(bench.now, &hosts(&[("a", usize::from(detail)), ("c", number)][..=number % 2]), true),
                6 => bench.register(rank, rank),
                7 => bench.leave(rank, Parting::ALL[usize::from(detail)]),
                8 => bench.view(&started.iter().copied().collect::<Vec<_>>(), &[rank], &[]),
                9 if detail == 2 => bench.news(News::Ended(Outcome::Finished)),
                9 => bench.news(News::Waiting { have: 1, need: 2 }),
                _ if detail == 0 && number == 0 => bench.news(News::Ended(Outcome::Failed("no".into()))),
                _ => {}
            }
            let is_hiring = bench.fleet.is_hiring();
            for action in bench.actions() {
                if let Action::Spawn { rank } = action {
                    prop_assert!(is_hiring);
                    prop_assert!(started.insert(rank));
                    prop_assert!(bench.fleet.workers.len() <= 12);
                }
            }
        }
        let arrived = Arrived { signal: Signal::INT, from_kernel: true };
        bench.fleet.handle_event(bench.now, Event::Signal(arrived));
        bench.pass(GRACE);
        bench.actions();
        started.iter().for_each(|worker| bench.gone(*worker));
        bench.actions();
        prop_assert!(bench.fleet.outcome().is_some(), "{:?}", bench.fleet);
    }
}
