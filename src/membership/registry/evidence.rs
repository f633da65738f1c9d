//! Who lives, who is out, and by what evidence.
//!
//! Dead and slow are different. What ends a membership is a process that ended, a connection that ended and did not
//! come back, a host that does not answer, a goodbye, an operator, a link that breaks again and again; never slowness, and
//! silence only where the policy says so. What is judged is judged: a member that turns out to live is told that it is
//! out.

use std::time::{Duration, Instant};

use super::roster::{Away, Standing};
use super::timers::Timer;
use super::{Action, Broken, Event, Registry};
use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, Gone, Parting, Slot, Why};

/// The longest time between two askings for a sign of life.
const LONGEST_ASKING: Duration = Duration::from_secs(10);

/// How many of those that are out are remembered, for the words that they are told.
const MOST_REMEMBERED: usize = 1024;

impl Registry {
    /// A process gave a sign of life.
    pub(super) fn hear(&mut self, now: Instant, slot: Slot) {
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.heard = now;
        }
    }

    /// What a member says of the steps that count is for operators alone: verdicts go by reports.
    pub(super) fn hear_counted(&mut self, slot: Slot, counted: u64) {
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.counted = counted;
        }
    }

    pub(super) fn hear_progress(&mut self, now: Instant, slot: Slot, progress: u64, is_waiting: bool) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        entry.is_waiting = is_waiting;
        if progress != entry.progress {
            entry.progress = progress;
            entry.advanced = now;
            entry.is_named = false;
        }
    }

    /// Begins to watch for silence.
    pub(super) fn watch(&mut self, now: Instant, slot: Slot) {
        self.timers.set(Timer::Silence(slot), Deadline::after(now, self.config.heartbeat_interval() * 2));
    }

    /// A process may have been silent for too long.
    pub(super) fn look_at_silence(&mut self, now: Instant, slot: Slot) {
        let interval = self.config.heartbeat_interval();
        let (name_after, limit) = (self.config.name_after, self.config.silent_limit);
        let Some(entry) = self.slots.get_mut(slot) else { return };
        // One that is away or has left is judged otherwise.
        if entry.connection.is_none() || !matches!(entry.standing, Standing::Newcomer | Standing::Member) {
            return;
        }
        let quiet = now.saturating_duration_since(entry.heard);
        if quiet < interval * 2 {
            let at = Deadline::after(entry.heard, interval * 2);
            return self.timers.set(Timer::Silence(slot), at);
        }
        if limit.is_some_and(|limit| quiet >= limit) {
            let detail = format!("no sign of life for {:.1} s though its host answers", quiet.as_secs_f64());
            return self.lose(slot, Why::Silent, &detail);
        }
        let connection = entry.connection;
        let asking = (quiet / 2).clamp(interval, LONGEST_ASKING.max(interval));
        let mut next = asking;
        for time in [Some(name_after), limit, Some(self.config.heartbeat_limit)].into_iter().flatten() {
            if quiet < time {
                next = next.min(time - quiet);
            }
        }
        let is_to_name = quiet >= name_after && !entry.is_named;
        entry.is_named |= is_to_name;
        self.timers.set(Timer::Silence(slot), Deadline::after(now, next));
        // Its host's answer, or the lack of one, tells a stopped process from a host that is gone. What it has not
        // answered by now is an earlier question.
        if quiet >= self.config.heartbeat_limit {
            self.actions.extend(connection.map(|connection| Action::LookAtHost { connection }));
        }
        self.tell_slot(slot, FromRegistry::Probe);
        if is_to_name {
            let detail =
                format!("no sign of life for {:.0} s though its host answers: it may be stopped", quiet.as_secs_f64());
            self.note(Event::Named { slot, detail });
        }
    }

    /// The host at the other end of a connection has not answered for so long.
    pub(super) fn hear_host(&mut self, now: Instant, slot: Slot, unanswered: Duration) {
        let limit = self.config.heartbeat_limit;
        let Some(entry) = self.slots.get(slot) else { return };
        if now.saturating_duration_since(entry.heard) < limit {
            return;
        }
        if unanswered >= limit {
            let detail = format!("no answer from it for {:.1} s", unanswered.as_secs_f64());
            return self.lose(slot, Why::Unreachable, &detail);
        }
        self.timers.set_if_earlier(Timer::Silence(slot), Deadline::after(now, limit - unanswered));
    }

    /// A member said goodbye. It is answered once the disk knows of it: whoever has the answer may rely on that no later
    /// registry waits for it.
    pub(super) fn hear_leave(&mut self, slot: Slot, parting: Parting, reason: String) {
        let is_published = self.is_published(slot);
        let Some(entry) = self.slots.get_mut(slot) else { return };
        match entry.standing {
            Standing::Newcomer if !is_published => {
                self.tell_slot(slot, FromRegistry::Goodbye);
                self.forget(slot, &reason);
            }
            Standing::Newcomer | Standing::Member => {
                entry.report = None;
                self.is_ending |= parting == Parting::Done;
                self.slots.set_standing(slot, Standing::Left);
                for timer in [Timer::Silence(slot), Timer::Exit(slot)] {
                    self.timers.clear(timer);
                }
                self.awaits_no_more(slot);
                self.note(Event::Left { slot, parting, reason });
                self.persist_soon();
                // What is on its way to the disk now does not have it.
                let number = self.persists + u64::from(self.is_unsaved);
                self.goodbyes.push((number, slot));
            }
            Standing::Left if self.goodbyes.iter().any(|(_, waiting)| *waiting == slot) => {}
            Standing::Left => self.tell_slot(slot, FromRegistry::Goodbye),
            Standing::Gone => self.ignored += 1,
        }
    }

    /// Answers the goodbyes that the disk knows of.
    pub(super) fn answer_goodbyes(&mut self) {
        let persisted = self.persisted;
        let (known, waiting) = std::mem::take(&mut self.goodbyes).into_iter().partition(|(at, _)| *at <= persisted);
        self.goodbyes = waiting;
        let known: Vec<(u64, Slot)> = known;
        known.into_iter().for_each(|(_, slot)| self.tell_slot(slot, FromRegistry::Goodbye));
    }

    /// A process's connection ended.
    pub(super) fn hear_broken(&mut self, now: Instant, slot: Slot, how: Broken, detail: &str) {
        let is_suspected = self.links.is_suspected(now, slot, self.config.heartbeat_interval());
        let is_published = self.is_published(slot);
        let Some(entry) = self.slots.get_mut(slot) else { return };
        match entry.standing {
            Standing::Left | Standing::Gone => {}
            // If it comes back it waits anew; nobody has heard of it.
            Standing::Newcomer if !is_published => self.forget(slot, detail),
            Standing::Newcomer | Standing::Member => {
                if let Some(how) = entry.exited.clone() {
                    return self.lose(slot, Why::Exited, &how);
                }
                match how {
                    Broken::Unreachable => self.lose(slot, Why::Unreachable, detail),
                    Broken::Closed if is_suspected || self.config.close_grace.is_zero() => {
                        self.lose(slot, Why::Closed, detail);
                    }
                    Broken::Closed => {
                        entry.away = Some(Away { detail: detail.into(), why: Why::Closed });
                        self.timers.set(Timer::Away(slot), Deadline::after(now, self.config.close_grace));
                        self.note(Event::Away { slot, detail: detail.into() });
                    }
                }
            }
        }
    }

    /// Whether a process is in the view that is on its way to the disk.
    fn is_published(&self, slot: Slot) -> bool {
        self.publication.as_ref().is_some_and(|publication| publication.order.contains(&slot))
    }

    pub(super) fn away_is_over(&mut self, slot: Slot) {
        let Some(away) = self.slots.get(slot).and_then(|entry| entry.away.clone()) else { return };
        self.lose(slot, away.why, &away.detail);
    }

    /// The launcher saw a process end.
    pub(super) fn hear_exit(&mut self, now: Instant, slot: Slot, how: &str) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        match entry.standing {
            Standing::Left | Standing::Gone => {}
            Standing::Newcomer | Standing::Member if entry.connection.is_none() => {
                self.lose(slot, Why::Exited, how);
            }
            // Its goodbye may still be on its way: the end of its connection comes behind it.
            Standing::Newcomer | Standing::Member => {
                entry.exited = Some(how.into());
                self.timers.set(Timer::Exit(slot), Deadline::after(now, self.config.exit_grace));
            }
        }
    }

    pub(super) fn exit_is_over(&mut self, slot: Slot) {
        let Some(how) = self.slots.get(slot).and_then(|entry| entry.exited.clone()) else { return };
        self.lose(slot, Why::Exited, &how);
    }

    /// The first view without a member that is judged to be out now.
    pub(super) fn next_without(&self) -> Generation {
        let newest = self.publication.as_ref().map(|publication| publication.generation).or(self.generation);
        Generation(newest.map_or(0, |generation| generation.0) + 1)
    }

    /// A process is out. A member goes with the next view; one that waited is forgotten.
    pub(super) fn lose(&mut self, slot: Slot, why: Why, detail: &str) {
        let is_published = self.is_published(slot);
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if matches!(entry.standing, Standing::Gone | Standing::Left) {
            return;
        }
        for timer in [Timer::Silence(slot), Timer::Away(slot), Timer::Exit(slot)] {
            self.timers.clear(timer);
        }
        let is_in = entry.standing != Standing::Newcomer;
        entry.away = None;
        let reason = format!("{}: {detail}", why.name());
        if let Some(connection) = self.slots.unbind(slot) {
            let generation = self.next_without();
            if why != Why::Left {
                self.tell(connection, FromRegistry::Evicted { generation, reason: reason.clone() });
            }
            self.actions.push_back(Action::Close { connection });
        }
        if !is_in && !is_published {
            return self.forget(slot, &reason);
        }
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.report = None;
        }
        self.slots.set_standing(slot, Standing::Gone);
        self.out.insert(slot, (self.next_without(), reason));
        while self.out.len() > MOST_REMEMBERED {
            self.out.pop_first();
        }
        self.awaits_no_more(slot);
        let gone = Gone { slot, why, detail: detail.into() };
        self.note(Event::Lost(gone.clone()));
        self.gone.push(gone);
    }

    /// Looks for members whose work does not advance while others wait for them.
    pub(super) fn look_for_slow(&mut self, now: Instant) {
        let name_after = self.config.name_after;
        self.timers.set(Timer::Look, Deadline::after(now, name_after / 4));
        for slot in self.slow(now) {
            let Some(entry) = self.slots.get_mut(slot).filter(|entry| !entry.is_named) else { continue };
            entry.is_named = true;
            let idle = now.saturating_duration_since(entry.advanced).as_secs_f64();
            let detail = format!("its work has not advanced for {idle:.0} s, and others wait for it");
            self.note(Event::Named { slot, detail });
        }
    }

    /// Members that have begun nothing for long and wait for nobody, while others wait. How much each has done says
    /// nothing: who brings the state to others, or has come later, has begun more or fewer operations.
    pub(super) fn slow(&self, now: Instant) -> Vec<Slot> {
        let is_waited_for = self.slots.members().any(|(_, entry)| entry.is_waiting);
        self.slots
            .members()
            .filter(|(_, entry)| is_waited_for && !entry.is_waiting)
            .filter(|(_, entry)| now.saturating_duration_since(entry.advanced) >= self.config.name_after)
            .map(|(slot, _)| slot)
            .collect()
    }
}
