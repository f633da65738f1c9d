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
use super::course::{Course, Turn};
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Send a signal to a rank's worker alone, not to those that it started.
    Ask {
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
    /// Say this to the user, if the launcher may say as much.
    Say {
        /// How much it must be allowed to say: 0 for why a job failed, 1 for what a user wants to know, 2 for all.
        level: u8,
        /// What.
        text: String,
    },
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
    /// This member of an elastic job ended with code 0 and without a goodbye: the others waited for it.
    NoGoodbye {
        /// Which.
        rank: usize,
    },
    /// An elastic job cannot go on, and no worker of this launcher is to blame.
    CannotGoOn,
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
            Self::NoGoodbye { .. } | Self::CannotGoOn => 1,
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

/// The state machine.
#[derive(Debug)]
pub struct Supervisor {
    ranks: Vec<Life>,
    course: Course,
    actions: VecDeque<Action>,
}

impl Supervisor {
    /// A job of `size` ranks that begins now.
    pub fn new(now: Instant, size: usize, policy: Policy) -> Self {
        let actions = (0..size).map(|rank| Action::Spawn { rank }).collect();
        Self { ranks: vec![Life::Waiting; size], course: Course::new(now, policy), actions }
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
            Event::Signal(arrived) => {
                let turn = self.course.handle_signal(now, arrived);
                self.take(turn);
            }
            Event::OutputClosed => self.end(now, Cause::OutputClosed),
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let turn = self.course.handle_timeout(now);
        self.take(turn);
    }

    /// When [`Supervisor::handle_timeout`] is to be called next.
    pub fn poll_deadline(&self) -> Option<Instant> {
        self.course.poll_deadline()
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
        self.course.cause().is_some()
    }

    /// Why the job ended, once nothing of any rank is left.
    pub fn outcome(&self) -> Option<Cause> {
        if !self.ranks.iter().all(|life| matches!(life, Life::Gone { .. })) {
            return None;
        }
        match self.course.cause() {
            None => Some(Cause::Done),
            // Ranks that took the signal as a request to finish, and did, make a job that finished.
            Some(Cause::Signal(_)) if self.ranks.iter().all(|life| *life == Life::Gone { success: true }) => {
                Some(Cause::Done)
            }
            cause => cause,
        }
    }

    /// The first failure decides; what happens after that is its consequence.
    fn on_end(&mut self, now: Instant, rank: usize, success: bool, cause: Cause) {
        let Some(life @ (Life::Waiting | Life::Starting | Life::Running)) = self.ranks.get_mut(rank) else { return };
        *life = Life::Ended { success };
        if !success {
            self.end(now, cause);
        }
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::GoOn => {}
            Turn::PassOn(signal) => self.signal_living(signal),
            Turn::Suspend => {
                // SIGSTOP, because a process group without a terminal ignores SIGTSTP.
                self.signal_living(Signal::STOP);
                self.actions.push_back(Action::Suspend);
            }
            Turn::End { cause, signal } => self.ask_all(cause, signal),
            Turn::Kill { at_once } => self.kill(at_once),
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

    fn end(&mut self, now: Instant, cause: Cause) {
        if self.course.end(now, cause) {
            self.ask_all(cause, Signal::TERM);
        }
    }

    /// Asks every rank to end, and starts no more.
    fn ask_all(&mut self, cause: Cause, signal: Signal) {
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
mod tests;
