//! Processes come, come back, and go before they were members.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::roster::{Entry, Standing};
use super::timers::Timer;
use super::{Action, Connection, Event, Registry};
use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, MAX_MEMBERS, Register, Slot, VERSION};

/// How far ahead of the next slot a wish may be, and how many slots that nobody has had are remembered.
const MAX_SKIPPED: usize = 1024;

const SAME_VERSION: &str = "use the same version of Phalanx for all members and the registry";

impl Registry {
    pub(super) fn register(&mut self, now: Instant, connection: Connection, register: Register) {
        if let Some(outcome) = &self.outcome {
            let reason = match outcome {
                super::Outcome::Finished => "the job has finished".to_string(),
                super::Outcome::Failed(reason) => reason.clone(),
            };
            return self.dismiss(connection, FromRegistry::End { reason });
        }
        if register.version != VERSION {
            let what = format!(
                "{} speaks version {} of the registry's messages, the registry version {VERSION}",
                register.process, register.version
            );
            return self.dismiss(connection, FromRegistry::Refused { what, hint: SAME_VERSION.into() });
        }
        if self.slots.of_connection(connection).is_some() {
            self.ignored += 1;
            return;
        }
        match self.slots.of_token(&register.token) {
            Some(slot) => self.come_back(now, connection, slot, &register),
            None => match register.resume {
                Some(resume) => {
                    let (generation, reason) = self.out.get(&resume.slot).cloned().unwrap_or_else(|| {
                        let reason =
                            "this registry knows of no such member: the job went on without it, or is another one";
                        (self.generation.unwrap_or(resume.generation), reason.into())
                    });
                    self.dismiss(connection, FromRegistry::Evicted { generation, reason });
                }
                None => self.admit(now, connection, register),
            },
        }
    }

    /// A last word, and the end of the connection.
    pub(super) fn dismiss(&mut self, connection: Connection, message: FromRegistry) {
        self.tell(connection, message);
        self.actions.push_back(Action::Close { connection });
    }

    /// A process that is known has a new connection.
    fn come_back(&mut self, now: Instant, connection: Connection, slot: Slot, register: &Register) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let current = self.generation.unwrap_or(Generation(0));
        let is_possible = register.resume.is_none_or(|resume| {
            resume.slot == slot && resume.generation <= current && entry.standing != Standing::Newcomer
        });
        if entry.standing == Standing::Gone || !is_possible {
            let (generation, reason) = self.out.get(&slot).cloned().unwrap_or_else(|| {
                (current, "what it says of its place cannot be: the registry's state is older than the job".into())
            });
            return self.dismiss(connection, FromRegistry::Evicted { generation, reason });
        }
        entry.away = None;
        entry.heard = now;
        entry.process = Arc::new(register.process.clone());
        self.timers.clear(Timer::Away(slot));
        if let Some(before) = self.slots.bind(slot, connection) {
            self.actions.push_back(Action::Close { connection: before });
        }
        self.watch(now, slot);
        self.welcome(slot);
        self.catch_up(now, slot, register.resume.map_or(Generation(0), |resume| resume.generation));
        self.answers_suspicion(now, slot);
    }

    /// Says again what a process that comes back may have missed.
    fn catch_up(&mut self, now: Instant, slot: Slot, has: Generation) {
        let Some(current) = self.generation else { return };
        if self.slots.get(slot).is_some_and(Entry::is_member) {
            if has < current {
                let view = self.whole_view(current);
                self.tell_slot(slot, FromRegistry::View(view));
            }
            if self.change.as_ref().is_some_and(|change| change.is_told) {
                let gone = self.gone.clone();
                self.tell_slot(slot, FromRegistry::Prepare { generation: current, gone });
            } else if self.is_wanted_told {
                self.tell_slot(slot, FromRegistry::Wanted { generation: current });
            }
        }
        self.tell_waiting(now, Some(slot));
    }

    /// A process that is new.
    fn admit(&mut self, now: Instant, connection: Connection, register: Register) {
        if self.slots.len() >= 2 * MAX_MEMBERS {
            let what = format!("{} processes are there or wait", self.slots.len());
            let hint = "start fewer".into();
            return self.dismiss(connection, FromRegistry::Refused { what, hint });
        }
        let mut entry = Entry::new(now, register.token, register.process, Some(connection));
        let is_gathering = self.generation.is_none() && self.publication.is_none();
        let slot = match register.wish.filter(|wish| is_gathering && *wish < self.config.np) {
            Some(wish) => {
                match self.slots.get(wish) {
                    Some(other) if other.is_wished => {
                        let what = format!(
                            "two processes say that they are rank {wish}: {} and {}",
                            other.process, entry.process
                        );
                        let hint = "give each process a rank of its own; one of an earlier run may still be there";
                        return self.dismiss(connection, FromRegistry::Refused { what, hint: hint.into() });
                    }
                    // Who has no wish can as well have another place.
                    Some(_) => self.move_elsewhere(wish),
                    None => {}
                }
                entry.is_wished = true;
                wish
            }
            None if is_gathering => self.slots.lowest_free(0),
            None => self.new_slot(register.wish),
        };
        let process = entry.process.clone();
        self.slots.insert(slot, entry);
        if is_gathering {
            // The first view, or the word that there is none, is to be there before anybody gives up.
            let patience = register.patience.saturating_sub(margin(register.patience));
            self.timers.set_if_earlier(Timer::Start, Deadline::after(now, patience));
        }
        self.watch(now, slot);
        self.welcome(slot);
        self.note(Event::Registered { slot, process });
    }

    /// A slot that nobody has had: the one that the launcher wished for, if it is one of those and not far ahead.
    fn new_slot(&mut self, wish: Option<Slot>) -> Slot {
        let next = self.next_slot.max(self.slots.lowest_free(self.next_slot));
        match wish {
            Some(wish) if self.skipped.remove(&wish) => return wish,
            Some(wish) if (next..next + MAX_SKIPPED).contains(&wish) && self.slots.get(wish).is_none() => {
                let nobodys = (next..wish).filter(|slot| self.slots.get(*slot).is_none());
                self.skipped.extend(nobodys);
                while self.skipped.len() > MAX_SKIPPED {
                    self.skipped.pop_first();
                }
                self.next_slot = wish + 1;
                return wish;
            }
            _ => {}
        }
        self.next_slot = next + 1;
        next
    }

    fn move_elsewhere(&mut self, slot: Slot) {
        let free = self.slots.lowest_free(slot);
        let Some(entry) = self.slots.remove(slot) else { return };
        self.timers.clear(Timer::Silence(slot));
        let heard = entry.heard;
        self.slots.insert(free, entry);
        self.watch(heard, free);
        self.welcome(free);
    }

    fn welcome(&mut self, slot: Slot) {
        let welcome = FromRegistry::Welcome {
            slot,
            heartbeat_interval: self.config.heartbeat_interval(),
            heartbeat_limit: self.config.heartbeat_limit,
            elastic_timeout: self.config.elastic_timeout,
        };
        self.tell_slot(slot, welcome);
    }

    /// A process that waited for a view does so no more.
    pub(super) fn forget(&mut self, slot: Slot, detail: &str) {
        for timer in [Timer::Silence(slot), Timer::Away(slot), Timer::Exit(slot)] {
            self.timers.clear(timer);
        }
        let connection = self.slots.remove(slot).and_then(|entry| entry.connection);
        self.actions.extend(connection.map(|connection| Action::Close { connection }));
        self.note(Event::Forgotten { slot, detail: detail.into() });
    }
}

/// How long before a process gives up it should have its answer.
fn margin(patience: Duration) -> Duration {
    (patience / 4).min(Duration::from_secs(2))
}
