//! A job's life, event by event.

use proptest::prelude::*;

use super::super::course::SAME_INTERRUPT;
use super::*;

const GRACE: Duration = Duration::from_secs(5);
const POLICY: Policy = Policy { grace: GRACE, timeout: None };

fn key(signal: Signal) -> Event {
    Event::Signal(Arrived { signal, from_kernel: true })
}

fn actions(supervisor: &mut Supervisor) -> Vec<Action> {
    std::iter::from_fn(|| supervisor.poll_action()).collect()
}

/// A job whose ranks all run.
fn running(now: Instant, size: usize, policy: Policy) -> Supervisor {
    let mut supervisor = Supervisor::new(now, size, policy);
    assert_eq!(actions(&mut supervisor), (0..size).map(|rank| Action::Spawn { rank }).collect::<Vec<_>>());
    for rank in 0..size {
        supervisor.handle_event(now, Event::Started { rank, pid: 100 });
    }
    supervisor
}

fn end(supervisor: &mut Supervisor, now: Instant, rank: usize, code: u8) {
    supervisor.handle_event(now, Event::Ended { rank, ending: Ending::Code(code) });
}

fn gone(supervisor: &mut Supervisor, now: Instant, ranks: impl IntoIterator<Item = usize>) {
    ranks.into_iter().for_each(|rank| supervisor.handle_event(now, Event::Gone { rank }));
}

#[test]
fn all_well_is_done() {
    let now = Instant::now();
    let mut job = running(now, 2, POLICY);
    end(&mut job, now, 1, 0);
    gone(&mut job, now, [1]);
    assert_eq!(job.outcome(), None);
    end(&mut job, now, 0, 0);
    assert_eq!(job.outcome(), None, "its tree is still there");
    gone(&mut job, now, [0]);
    assert_eq!(job.outcome(), Some(Cause::Done));
    assert_eq!(actions(&mut job), []);
}

#[test]
fn the_first_failure_decides_and_the_others_are_asked_to_end() {
    let now = Instant::now();
    let mut job = running(now, 3, POLICY);
    end(&mut job, now, 1, 3);
    let cause = Cause::Failed { rank: 1, ending: Ending::Code(3) };
    assert_eq!(
        actions(&mut job),
        [
            Action::Tell(Notice::Ending { cause, others: 2 }),
            Action::Signal { rank: 0, signal: Signal::TERM },
            Action::Signal { rank: 2, signal: Signal::TERM },
        ]
    );
    end(&mut job, now, 0, 7);
    gone(&mut job, now, [0, 1]);
    let deadline = job.poll_deadline().expect("a grace period");
    assert_eq!(deadline, now + GRACE);
    job.handle_timeout(deadline - Duration::from_nanos(1));
    assert_eq!(actions(&mut job), []);
    job.handle_timeout(deadline);
    assert_eq!(
        actions(&mut job),
        [Action::Tell(Notice::Killing { ranks: 1, at_once: false }), Action::Kill { rank: 2 }]
    );
    gone(&mut job, now, [2]);
    assert_eq!(job.outcome(), Some(cause));
    assert_eq!(cause.exit_code(), 3);
}

#[test]
fn ranks_not_yet_started_are_not_started_any_more() {
    let now = Instant::now();
    let mut job = Supervisor::new(now, 3, POLICY);
    assert_eq!(job.poll_action(), Some(Action::Spawn { rank: 0 }));
    job.handle_event(now, Event::NotStarted { rank: 0, errno: libc::ENOENT });
    let cause = Cause::NotStarted { rank: 0, errno: libc::ENOENT };
    assert_eq!(actions(&mut job), [Action::Tell(Notice::Ending { cause, others: 0 })]);
    gone(&mut job, now, [0]);
    assert_eq!(job.outcome(), Some(cause));
    assert_eq!(cause.exit_code(), 127);
}

#[test]
fn a_signal_is_passed_on_and_a_second_interrupt_kills() {
    let now = Instant::now();
    let mut job = running(now, 2, POLICY);
    job.handle_event(now, key(Signal::INT));
    assert_eq!(actions(&mut job).len(), 3);
    job.handle_event(now + SAME_INTERRUPT / 2, key(Signal::INT));
    job.handle_event(now + SAME_INTERRUPT, key(Signal::TERM));
    assert_eq!(actions(&mut job), [], "the echo of the first, and a gentler one");
    job.handle_event(now + SAME_INTERRUPT, key(Signal::INT));
    assert_eq!(
        actions(&mut job),
        [Action::Tell(Notice::Killing { ranks: 2, at_once: true }), Action::Kill { rank: 0 }, Action::Kill { rank: 1 }]
    );
    gone(&mut job, now, [0, 1]);
    assert_eq!(job.outcome().map(Cause::exit_code), Some(130));
}

#[test]
fn what_a_rank_left_behind_is_killed_with_the_others() {
    let now = Instant::now();
    let mut job = running(now, 3, POLICY);
    end(&mut job, now, 0, 0);
    end(&mut job, now, 1, 0);
    gone(&mut job, now, [1]);
    job.handle_event(now, key(Signal::INT));
    assert_eq!(actions(&mut job).len(), 2, "a word to the user and a signal to the one that lives");
    job.handle_event(now + SAME_INTERRUPT, key(Signal::INT));
    let told = Action::Tell(Notice::Killing { ranks: 1, at_once: true });
    assert_eq!(actions(&mut job), [told, Action::Kill { rank: 0 }, Action::Kill { rank: 2 }]);
}

#[test]
fn ranks_that_finish_well_on_a_signal_make_a_job_that_finished() {
    let now = Instant::now();
    let mut job = running(now, 2, POLICY);
    job.handle_event(now, key(Signal::TERM));
    for rank in 0..2 {
        end(&mut job, now, rank, 0);
    }
    gone(&mut job, now, [0, 1]);
    assert_eq!(job.outcome(), Some(Cause::Done));
}

#[test]
fn other_signals_are_only_passed_on() {
    let now = Instant::now();
    let mut job = running(now, 2, POLICY);
    end(&mut job, now, 0, 0);
    job.handle_event(now, key(Signal(libc::SIGUSR1)));
    job.handle_event(now, key(Signal::TSTP));
    assert_eq!(
        actions(&mut job),
        [
            Action::Signal { rank: 1, signal: Signal(libc::SIGUSR1) },
            Action::Signal { rank: 1, signal: Signal::STOP },
            Action::Suspend
        ]
    );
    assert!(!job.is_ending());
}

#[test]
fn the_time_limit_ends_the_job() {
    let now = Instant::now();
    let mut job = running(now, 1, Policy { timeout: Some(Duration::from_secs(9)), ..POLICY });
    let limit = job.poll_deadline().expect("a limit");
    job.handle_timeout(limit);
    assert_eq!(actions(&mut job).len(), 2);
    end(&mut job, limit, 0, 0);
    gone(&mut job, limit, [0]);
    assert_eq!(job.outcome(), Some(Cause::Timeout));
    assert_eq!(Cause::Timeout.exit_code(), 124);
}

#[test]
fn a_lost_guard_is_a_failure() {
    let now = Instant::now();
    let mut job = running(now, 2, POLICY);
    gone(&mut job, now, [0]);
    assert_eq!(actions(&mut job).len(), 2);
    end(&mut job, now, 1, 0);
    gone(&mut job, now, [1]);
    assert_eq!(job.outcome(), Some(Cause::Lost { rank: 0 }));
}

#[test]
fn exit_codes_follow_the_shell() {
    let not_started = |errno| Cause::NotStarted { rank: 0, errno }.exit_code();
    assert_eq!(not_started(libc::EACCES), 126);
    assert_eq!(not_started(libc::EAGAIN), 1);
    assert_eq!(Cause::Failed { rank: 0, ending: Ending::Signal(Signal::KILL) }.exit_code(), 137);
    assert_eq!(Cause::OutputClosed.exit_code(), 141);
}

fn any_event(size: usize) -> impl Strategy<Value = Event> {
    let rank = 0..size + 1;
    prop_oneof![
        rank.clone().prop_map(|rank| Event::Started { rank, pid: 1 }),
        rank.clone().prop_map(|rank| Event::NotStarted { rank, errno: libc::EACCES }),
        (rank.clone(), 0_u8..3).prop_map(|(rank, code)| Event::Ended { rank, ending: Ending::Code(code) }),
        rank.prop_map(|rank| Event::Gone { rank }),
        prop_oneof![Just(Signal::INT), Just(Signal::TERM), Just(Signal::TSTP), Just(Signal(libc::SIGUSR1))]
            .prop_map(key),
        Just(Event::OutputClosed),
    ]
}

proptest! {
    /// Whatever happens in whatever order: a rank is started at most once and never once the job is ending, no
    /// rank that is gone is touched, the cause does not change, and when all are gone there is an outcome.
    #[test]
    fn every_job_ends(events in prop::collection::vec((any_event(4), 0_u64..3000), 0..60)) {
        let size = 4;
        let mut now = Instant::now();
        let mut job = Supervisor::new(now, size, Policy { timeout: Some(Duration::from_secs(30)), ..POLICY });
        let mut spawned = vec![0; size];
        let mut ended = vec![false; size];
        let mut told = None;
        let drop_all = (0..size).map(|rank| (Event::Gone { rank }, 0)).collect::<Vec<_>>();
        for (event, pause) in events.into_iter().chain(drop_all) {
            now += Duration::from_millis(pause);
            job.handle_timeout(now);
            job.handle_event(now, event);
            if let Event::Gone { rank } | Event::Ended { rank, .. } | Event::NotStarted { rank, .. } = event
                && let Some(ended) = ended.get_mut(rank)
            {
                *ended = true;
            }
            let was_ending = job.is_ending();
            while let Some(action) = job.poll_action() {
                match action {
                    Action::Spawn { rank } => {
                        prop_assert!(!was_ending);
                        spawned[rank] += 1;
                    }
                    Action::Signal { rank, .. } => prop_assert!(!ended[rank]),
                    Action::Tell(Notice::Ending { cause, .. }) => {
                        prop_assert_eq!(told, None);
                        told = Some(cause);
                    }
                    _ => {}
                }
            }
        }
        prop_assert!(spawned.iter().all(|&times| times <= 1));
        let outcome = job.outcome();
        prop_assert!(outcome == told || outcome == Some(Cause::Done));
    }
}
