//! The connection to the registry, and what is done when it breaks.

use std::time::{Duration, Instant};

use super::{Action, Member};
use crate::types::Deadline;
use crate::wire::registry::{Register, Resume, ToRegistry, VERSION};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dialling,
    Up,
    Waits(Deadline),
}

/// The connection to the registry.
#[derive(Clone, Debug)]
pub(super) struct Link {
    state: State,
    attempts: u32,
    /// How many connections in a row ended before the registry had answered.
    unanswered: u32,
    /// Since when the registry has not answered.
    away: Option<Instant>,
    /// How the last connection or attempt ended.
    detail: String,
}

impl Link {
    pub(super) fn new(now: Instant) -> Self {
        Link {
            state: State::Waits(Deadline::after(now, Duration::ZERO)),
            attempts: 0,
            unanswered: 0,
            away: Some(now),
            detail: String::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn retry(&self) -> Option<Deadline> {
        match self.state {
            State::Waits(at) => Some(at),
            State::Dialling | State::Up => None,
        }
    }

    pub(super) fn away_since(&self) -> Option<Instant> {
        self.away
    }

    pub(super) fn away(&self, now: Instant) -> Duration {
        self.away.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }
}

impl Member {
    pub(super) fn dial(&mut self) {
        self.link.state = State::Dialling;
        self.actions.push_back(Action::Connect);
    }

    /// The connection to the registry stands, and both ends have proved the job's key.
    pub fn handle_connected(&mut self, _now: Instant) {
        if self.is_over {
            return;
        }
        self.link.state = State::Up;
        let resume = match (self.slot, self.generation()) {
            (Some(slot), Some(generation)) => Some(Resume { slot, generation }),
            _ => None,
        };
        self.send(ToRegistry::Register(Register {
            version: VERSION,
            token: self.config.token,
            patience: self.config.patience,
            wish: self.config.wish,
            process: self.config.process.clone(),
            resume,
        }));
        // What still holds is said again; the registry may be another one, or may not have heard it.
        if let Some(report) = self.frozen {
            self.send(ToRegistry::Report(report));
        }
        self.say_suspects();
        if let Some(leaving) = &self.leaving {
            let message = leaving.message();
            self.send(message);
        }
    }

    pub(super) fn say_suspects(&mut self) {
        let Some(generation) = self.generation() else { return };
        for (slot, detail) in self.suspects.clone() {
            self.send(ToRegistry::Suspect { generation, slot, detail });
        }
    }

    /// The connection to the registry ended, or dialling failed. The shell bounds how long dialling may take by the
    /// heartbeat limit.
    pub fn handle_disconnected(&mut self, now: Instant, detail: &str) {
        if self.is_over {
            return;
        }
        self.link.detail = detail.into();
        if self.link.away.is_none() {
            self.link.away = Some(now);
            self.actions.push_back(Action::Away { detail: detail.into() });
        }
        self.beat = None;
        if self.link.is_up() && self.link.attempts > 0 {
            // The registry is there again: that attempts failed before is no reason to wait for long.
            self.link.unanswered = self.link.unanswered.saturating_add(1);
            self.link.attempts = self.link.unanswered;
        }
        self.link.state = State::Waits(Deadline::after(now, self.next_wait()));
        self.link.attempts = self.link.attempts.saturating_add(1);
    }

    /// Nothing at first, then a time that doubles, less up to half of it: a thousand members of a registry that comes
    /// back are not to come all at once.
    fn next_wait(&self) -> Duration {
        let Some(doublings) = self.link.attempts.checked_sub(1) else { return Duration::ZERO };
        let wait = self.config.first_retry.saturating_mul(1 << doublings.min(16)).min(self.config.last_retry);
        let [one, other, ..] = self.config.token;
        let share = u32::from(u16::from_le_bytes([one, other]));
        wait - wait / 2 * share / u32::from(u16::MAX)
    }

    pub(super) fn is_welcome(&mut self) {
        self.link.attempts = 0;
        self.link.unanswered = 0;
        self.is_stuck_told = false;
        self.excused_until = None;
        if self.link.away.take().is_some() && self.view.is_some() {
            self.actions.push_back(Action::Back);
        }
    }

    /// What came over this connection does not fit: another one begins with all that is.
    pub(super) fn reconnect(&mut self, now: Instant, why: &str) {
        self.actions.push_back(Action::Disconnect);
        self.handle_disconnected(now, why);
    }
}
