//! The course of a job, whatever its workers: it runs, it is ending, it is being killed.
//!
//! ```text
//!   Running ── a failure · a signal · the time limit ──▶ Ending ── the grace is over · Ctrl-C again ──▶ Killing
//! ```

use std::time::{Duration, Instant};

use super::signal::{Arrived, Signal};
use super::supervise::{Cause, Policy};

/// What is to be done with all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing.
    GoOn,
    /// Send them a signal.
    PassOn(Signal),
    /// Stop them, and the launcher.
    Suspend,
    /// Ask them to end by this signal, and start no more.
    End {
        /// Why.
        cause: Cause,
        /// How.
        signal: Signal,
    },
    /// Kill them.
    Kill {
        /// Whether the user asked for it, and not the clock.
        at_once: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Ending { cause: Cause, since: Instant },
    Killing { cause: Cause },
}

/// Two interrupts closer together than this are one: some senders signal a process and then its group.
pub(super) const SAME_INTERRUPT: Duration = Duration::from_millis(50);

/// Where a job is.
#[derive(Debug)]
pub(super) struct Course {
    phase: Phase,
    policy: Policy,
    started_at: Instant,
}

impl Course {
    /// A job that begins now.
    pub(super) fn new(now: Instant, policy: Policy) -> Self {
        Self { phase: Phase::Running, policy, started_at: now }
    }

    /// What is due at `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Turn {
        match self.phase {
            Phase::Running if self.limit().is_some_and(|limit| now >= limit) => {
                self.ended_by(now, Cause::Timeout, Signal::TERM)
            }
            Phase::Ending { since, .. } if now.saturating_duration_since(since) >= self.policy.grace => {
                self.kill(false)
            }
            _ => Turn::GoOn,
        }
    }

    fn limit(&self) -> Option<Instant> {
        self.policy.timeout.and_then(|limit| self.started_at.checked_add(limit))
    }

    /// When [`Course::handle_timeout`] is to be called next.
    pub(super) fn poll_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.limit(),
            Phase::Ending { since, .. } => since.checked_add(self.policy.grace),
            Phase::Killing { .. } => None,
        }
    }

    /// The launcher got a signal.
    pub(super) fn handle_signal(&mut self, now: Instant, arrived: Arrived) -> Turn {
        match (arrived.signal, self.phase) {
            (Signal::TSTP, _) => Turn::Suspend,
            (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT, Phase::Running) => {
                self.ended_by(now, Cause::Signal(arrived), arrived.signal)
            }
            (Signal::INT, Phase::Ending { cause, since }) => {
                let interrupted = matches!(cause, Cause::Signal(first) if first.signal == Signal::INT);
                let is_echo = interrupted && now.saturating_duration_since(since) < SAME_INTERRUPT;
                if is_echo { Turn::GoOn } else { self.kill(true) }
            }
            (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT, _) => Turn::GoOn,
            // SIGCONT, SIGUSR1, SIGUSR2: the workers know what they mean.
            (signal, _) => Turn::PassOn(signal),
        }
    }

    /// The job is to end. Returns false if it is ending already: the first cause stays.
    pub(super) fn end(&mut self, now: Instant, cause: Cause) -> bool {
        let is_first = self.phase == Phase::Running;
        if is_first {
            self.phase = Phase::Ending { cause, since: now };
        }
        is_first
    }

    fn ended_by(&mut self, now: Instant, cause: Cause, signal: Signal) -> Turn {
        if self.end(now, cause) { Turn::End { cause, signal } } else { Turn::GoOn }
    }

    fn kill(&mut self, at_once: bool) -> Turn {
        let Phase::Ending { cause, .. } = self.phase else { return Turn::GoOn };
        self.phase = Phase::Killing { cause };
        Turn::Kill { at_once }
    }

    /// Why the job is ending, if it is.
    pub(super) fn cause(&self) -> Option<Cause> {
        match self.phase {
            Phase::Running => None,
            Phase::Ending { cause, .. } | Phase::Killing { cause } => Some(cause),
        }
    }
}
