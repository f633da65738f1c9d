//! The life of a job, as a state machine: events come in, actions come out, and nothing here does I/O or reads a clock.
//!
//! ```text
//!            every rank's tree is gone
//!   Running ───────────────────────────────────────────────▶ outcome
//!      │ a rank fails · a signal · the time limit ·             ▲
//!      │ the reader of our output is gone                       │ every rank's tree is gone
//!      ▼                                                        │
//!   Ending (asked to end, SIGTERM or the signal) ───────────────┤
//!      │ the grace period is over · Ctrl-C again                │
//!      ▼                                                        │
//!   Killing (SIGKILL to every tree) ────────────────────────────┘
//! ```
//!
//! A rank: `Waiting → Starting → Running → Ended → Gone`. *Ended* means that the worker itself has ended; *gone* that no
//! process it started is left either.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::control::Ending;
use super::signal::{Arrived, Signal};

/// How patient the supervisor is.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long ranks may take to end after they were asked to.
    pub grace: Duration,
    /// How long the job may run.
    pub timeout: Option<Duration>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The worker of this rank runs.
    Started {
        /// The rank.
        rank: usize,
        /// Its process id.
        pid: i32,
    },
    /// The worker of this rank could not be started.
    NotStarted {
        /// The rank.
        rank: usize,
        /// The system's error number.
        errno: i32,
    },
    /// The worker ended.
    Ended {
        /// The rank.
        rank: usize,
        /// How.
        ending: Ending,
    },
    /// Nothing of this rank is left: its guard is gone.
    Gone {
        /// The rank.
        rank: usize,
    },
    /// The launcher got a signal.
    Signal(Arrived),
    /// The launcher's own output has no reader any more.
    OutputClosed,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start this rank. [`Event::Gone`] must follow some time, whether it starts or not.
    Spawn {
        /// The rank.
        rank: usize,
    },
    /// Send a signal to a rank's worker.
    Signal {
        /// The rank.
        rank: usize,
        /// Which signal.
        signal: Signal,
    },
    /// End a rank's whole tree at once.
    Kill {
        /// The rank.
        rank: usize,
    },
    /// Stop the launcher itself, as Ctrl-Z asks.
    Suspend,
    /// Tell the user.
    Tell(Notice),
}

/// What the user is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The job ends, because of this; so many ranks are still to end.
    Ending {
        /// Why.
        cause: Cause,
        /// How many ranks are asked to end.
        others: usize,
    },
    /// So many ranks did not end when asked, and are killed.
    Killing {
        /// How many.
        ranks: usize,
        /// Whether the user asked for it, and not the clock.
        at_once: bool,
    },
}

/// Why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Every rank ended with code 0.
    Done,
    /// This rank was the first to fail.
    Failed {
        /// The rank.
        rank: usize,
        /// How it ended.
        ending: Ending,
    },
    /// This rank could not be started.
    NotStarted {
        /// The rank.
        rank: usize,
        /// The system's error number.
        errno: i32,
    },
    /// The guard of this rank disappeared, and with it the knowledge of how the rank ended.
    Lost {
        /// The rank.
        rank: usize,
    },
    /// The launcher got a signal.
    Signal(Arrived),
    /// The time limit passed.
    Timeout,
    /// The launcher's own output has no reader any more.
    OutputClosed,
}

impl Cause {
    /// The exit code of the launcher.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            // A guard that is killed is killed by somebody: the code of SIGKILL.
            Self::Lost { .. } => Signal::KILL.exit_code(),
            Self::Failed { ending, .. } => ending.exit_code(),
            Self::NotStarted { errno, .. } => match errno {
                libc::ENOENT | libc::ENOTDIR => 127,
                libc::EACCES | libc::ENOEXEC | libc::EPERM | libc::EISDIR => 126,
                _ => 1,
            },
            Self::Signal(arrived) => arrived.signal.exit_code(),
            Self::Timeout => 124,
            Self::OutputClosed => Signal::PIPE.exit_code(),
        }
    }
}

/// Where a rank is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Waiting,
    Starting,
    Running,
    Ended { success: bool },
    Gone { success: bool },
}

/// Where the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Ending { cause: Cause, since: Instant },
    Killing { cause: Cause },
}

/// Two interrupts closer together than this are one: some senders signal a process and then its group.
const SAME_INTERRUPT: Duration = Duration::from_millis(50);

/// The state machine.
#[derive(Debug)]
pub struct Supervisor {
    ranks: Vec<Life>,
    phase: Phase,
    policy: Policy,
    started_at: Instant,
    actions: VecDeque<Action>,
}

impl Supervisor {
    /// A job of `size` ranks that begins now.
    pub fn new(now: Instant, size: usize, policy: Policy) -> Self {
        let actions = (0..size).map(|rank| Action::Spawn { rank }).collect();
        Self { ranks: vec![Life::Waiting; size], phase: Phase::Running, policy, started_at: now, actions }
    }

    /// Takes an event. Events about ranks that do not exist, or that come twice, change nothing.
    pub fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Started { rank, .. } => {
                if let Some(life @ (Life::Waiting | Life::Starting)) = self.ranks.get_mut(rank) {
                    *life = Life::Running;
                }
            }
            Event::NotStarted { rank, errno } => self.on_end(now, rank, false, Cause::NotStarted { rank, errno }),
            Event::Ended { rank, ending } => {
                self.on_end(now, rank, ending.is_success(), Cause::Failed { rank, ending });
            }
            Event::Gone { rank } => {
                self.on_end(now, rank, false, Cause::Lost { rank });
                if let Some(life) = self.ranks.get_mut(rank)
                    && let Life::Ended { success } = *life
                {
                    *life = Life::Gone { success };
                }
            }
            Event::Signal(arrived) => self.on_signal(now, arrived),
            Event::OutputClosed => self.end(now, Cause::OutputClosed, Signal::TERM),
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Running => {
                if self.policy.timeout.is_some_and(|limit| now.saturating_duration_since(self.started_at) >= limit) {
                    self.end(now, Cause::Timeout, Signal::TERM);
                }
            }
            Phase::Ending { since, .. } => {
                if now.saturating_duration_since(since) >= self.policy.grace {
                    self.kill(false);
                }
            }
            Phase::Killing { .. } => {}
        }
    }

    /// When [`Supervisor::handle_timeout`] is to be called next.
    pub fn poll_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.policy.timeout.and_then(|limit| self.started_at.checked_add(limit)),
            Phase::Ending { since, .. } => since.checked_add(self.policy.grace),
            Phase::Killing { .. } => None,
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            let action = self.actions.pop_front()?;
            let Action::Spawn { rank } = action else { return Some(action) };
            if let Some(life @ Life::Waiting) = self.ranks.get_mut(rank) {
                *life = Life::Starting;
                return Some(action);
            }
        }
    }

    /// Whether the next action starts a rank: the shell looks around between two of them.
    pub fn is_spawning(&self) -> bool {
        matches!(self.actions.front(), Some(Action::Spawn { .. }))
    }

    /// Whether the ranks have been asked to end, or killed.
    pub fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Why the job ended, once nothing of any rank is left.
    pub fn outcome(&self) -> Option<Cause> {
        if !self.ranks.iter().all(|life| matches!(life, Life::Gone { .. })) {
            return None;
        }
        match self.phase {
            Phase::Running => Some(Cause::Done),
            // Ranks that took the signal as a request to finish, and did, make a job that finished.
            Phase::Ending { cause: Cause::Signal(_), .. } | Phase::Killing { cause: Cause::Signal(_) }
                if self.ranks.iter().all(|life| *life == Life::Gone { success: true }) =>
            {
                Some(Cause::Done)
            }
            Phase::Ending { cause, .. } | Phase::Killing { cause } => Some(cause),
        }
    }

    /// The first failure decides; what happens after that is its consequence.
    fn on_end(&mut self, now: Instant, rank: usize, success: bool, cause: Cause) {
        let Some(life @ (Life::Waiting | Life::Starting | Life::Running)) = self.ranks.get_mut(rank) else { return };
        *life = Life::Ended { success };
        if !success {
            self.end(now, cause, Signal::TERM);
        }
    }

    fn on_signal(&mut self, now: Instant, arrived: Arrived) {
        match arrived.signal {
            Signal::TSTP => {
                // SIGSTOP, because a process group without a terminal ignores SIGTSTP.
                self.signal_living(Signal::STOP);
                self.actions.push_back(Action::Suspend);
            }
            Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT => match self.phase {
                Phase::Running => self.end(now, Cause::Signal(arrived), arrived.signal),
                Phase::Ending { cause, since } if arrived.signal == Signal::INT => {
                    let interrupted = matches!(cause, Cause::Signal(first) if first.signal == Signal::INT);
                    if !interrupted || now.saturating_duration_since(since) >= SAME_INTERRUPT {
                        self.kill(true);
                    }
                }
                Phase::Ending { .. } | Phase::Killing { .. } => {}
            },
            // SIGCONT, SIGUSR1, SIGUSR2: the ranks know what they mean.
            signal => self.signal_living(signal),
        }
    }

    fn living(&self) -> Vec<usize> {
        let lives = |life: &Life| matches!(life, Life::Starting | Life::Running);
        self.ranks.iter().enumerate().filter(|(_, life)| lives(life)).map(|(rank, _)| rank).collect()
    }

    fn signal_living(&mut self, signal: Signal) {
        for rank in self.living() {
            self.actions.push_back(Action::Signal { rank, signal });
        }
    }

    /// Asks every rank to end, and starts no more.
    fn end(&mut self, now: Instant, cause: Cause, signal: Signal) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Ending { cause, since: now };
        self.actions.retain(|action| !matches!(action, Action::Spawn { .. }));
        for life in &mut self.ranks {
            if *life == Life::Waiting {
                *life = Life::Gone { success: false };
            }
        }
        self.actions.push_back(Action::Tell(Notice::Ending { cause, others: self.living().len() }));
        self.signal_living(signal);
    }

    fn kill(&mut self, at_once: bool) {
        let Phase::Ending { cause, .. } = self.phase else { return };
        self.phase = Phase::Killing { cause };
        let ranks = self.living().len();
        if ranks > 0 {
            self.actions.push_back(Action::Tell(Notice::Killing { ranks, at_once }));
        }
        for (rank, life) in self.ranks.iter().enumerate() {
            if !matches!(life, Life::Gone { .. } | Life::Waiting) {
                self.actions.push_back(Action::Kill { rank });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            [
                Action::Tell(Notice::Killing { ranks: 2, at_once: true }),
                Action::Kill { rank: 0 },
                Action::Kill { rank: 1 }
            ]
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
}
