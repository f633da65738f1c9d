//! Who lives, who is out, and by what evidence.
//!
//! Dead and slow are different. What ends a membership is a process that ended, a connection that ended and did not
//! come back, a host that does not answer, a goodbye, an operator, a link that breaks again and again; never slowness, and
//! silence only where the policy says so. What is judged is judged: a member that turns out to live is told that it is
//! out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::roster::{Away, Entry, Standing};
use super::timers::Timer;
use super::{Action, Broken, Event, Registry};
use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, Gone, Slot, Why};

/// The longest time between two askings for a sign of life.
const LONGEST_ASKING: Duration = Duration::from_secs(10);

/// How many of those that are out are remembered, for the words that they are told.
const MOST_REMEMBERED: usize = 1024;

/// Which links are lost, and which were before.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    /// In this view: who complained about whom.
    complaints: BTreeMap<(Slot, Slot), String>,
    /// For each pair: how often in a row a view was made for it, and when last.
    history: BTreeMap<(Slot, Slot), (u32, Instant)>,
    /// How often each was complained about, and when last.
    counts: BTreeMap<Slot, (u32, Instant)>,
}

fn pair(one: Slot, other: Slot) -> (Slot, Slot) {
    (one.min(other), one.max(other))
}

impl Links {
    fn is_suspected(&self, slot: Slot) -> bool {
        self.complaints.keys().any(|(_, other)| *other == slot)
    }

    /// The pairs with a lost link.
    pub(super) fn pairs(&self) -> Vec<(Slot, Slot)> {
        let mut pairs: Vec<_> = self.complaints.keys().map(|(one, other)| pair(*one, *other)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    /// The next view begins: its links are made anew.
    pub(super) fn settle(&mut self, now: Instant, window: Duration, broken: &[(Slot, Slot)]) {
        self.complaints.clear();
        self.history.retain(|_, (_, last)| now.saturating_duration_since(*last) <= window);
        self.counts.retain(|_, (_, last)| now.saturating_duration_since(*last) <= window);
        for pair in broken {
            let (count, last) = self.history.entry(*pair).or_insert((0, now));
            *count += 1;
            *last = now;
        }
    }

    /// For how many views in a row a pair's link has been lost, this one included.
    fn count(&self, now: Instant, window: Duration, pair: (Slot, Slot)) -> u32 {
        1 + self
            .history
            .get(&pair)
            .filter(|(_, last)| now.saturating_duration_since(*last) <= window)
            .map_or(0, |(count, _)| *count)
    }

    fn complained(&self, slot: Slot) -> u32 {
        self.counts.get(&slot).map_or(0, |(count, _)| *count)
    }
}

impl Registry {
    /// A process gave a sign of life.
    pub(super) fn hear(&mut self, now: Instant, slot: Slot) {
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.heard = now;
            entry.asked = None;
        }
    }

    pub(super) fn hear_progress(&mut self, now: Instant, slot: Slot, progress: u64) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
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
            return self.lose(now, slot, Why::Silent, &detail);
        }
        // Its host's answer, or the lack of one, tells a stopped process from a host that is gone.
        let asking = (quiet / 2).clamp(interval, LONGEST_ASKING.max(interval));
        entry.asked = Some(now);
        let mut next = asking;
        for time in [Some(name_after), limit].into_iter().flatten() {
            if quiet < time {
                next = next.min(time - quiet);
            }
        }
        let is_to_name = quiet >= name_after && !entry.is_named;
        entry.is_named |= is_to_name;
        self.timers.set(Timer::Silence(slot), Deadline::after(now, next));
        self.tell_slot(slot, FromRegistry::Probe);
        if is_to_name {
            let detail =
                format!("no sign of life for {:.0} s though its host answers: it may be stopped", quiet.as_secs_f64());
            self.note(Event::Named { slot, detail });
        }
    }

    /// A member lost its link to another.
    pub(super) fn hear_suspicion(&mut self, now: Instant, generation: Generation, by: Slot, of: Slot, detail: &str) {
        let is_member = |slot| self.slots.get(slot).is_some_and(Entry::is_member);
        if Some(generation) != self.generation || self.publication.is_some() || !is_member(by) || by == of {
            self.ignored += 1;
            return;
        }
        let Some(other) = self.slots.get(of) else {
            self.ignored += 1;
            return;
        };
        match other.standing {
            Standing::Newcomer | Standing::Gone => self.ignored += 1,
            // Somebody needs it: the next view is without it.
            Standing::Left => self.begin_change(now),
            Standing::Member => {
                if self.links.complaints.insert((by, of), detail.into()).is_some() {
                    return;
                }
                let window = self.config.link_window;
                let (count, last) = self.links.counts.entry(of).or_insert((0, now));
                *count = if now.saturating_duration_since(*last) <= window { *count + 1 } else { 1 };
                *last = now;
                let both = match (&other.exited, &other.away) {
                    (Some(how), _) => Some((Why::Exited, how.clone())),
                    (None, Some(away)) if away.why == Why::Closed => Some((Why::Closed, away.detail.clone())),
                    _ => None,
                };
                if let Some((why, seen)) = both {
                    let detail = format!("{seen}, and slot {by} lost its link to it: {detail}");
                    return self.lose(now, of, why, &detail);
                }
                let (one, other) = pair(by, of);
                let at = Deadline::after(now, self.config.heartbeat_limit);
                self.timers.set_if_earlier(Timer::Link(one, other), at);
            }
        }
    }

    /// Nothing else explains why two members lost their link: both live. The next view has it made again.
    pub(super) fn link_is_broken(&mut self, now: Instant, _one: Slot, _other: Slot) {
        if self.generation.is_some() && self.publication.is_none() {
            self.begin_change(now);
        }
    }

    /// Of two members that lost their link once too often, the one to go, and why.
    pub(super) fn worst_link(&self, now: Instant) -> Option<(Slot, String)> {
        let is_member = |slot: Slot| self.slots.get(slot).is_some_and(Entry::is_member);
        let (window, limit) = (self.config.link_window, self.config.link_limit);
        self.links
            .pairs()
            .into_iter()
            .filter(|(one, other)| is_member(*one) && is_member(*other))
            .find(|pair| self.links.count(now, window, *pair) >= limit)
            .map(|(one, other)| {
                let is_one = self.links.complained(one) > self.links.complained(other);
                let (goes, stays) = if is_one { (one, other) } else { (other, one) };
                (goes, format!("it and slot {stays} lost their link {limit} times in a row, and it was complained about {} times", self.links.complained(goes)))
            })
    }

    /// A member said goodbye.
    pub(super) fn hear_leave(&mut self, now: Instant, slot: Slot, reason: String) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        match entry.standing {
            Standing::Newcomer => {
                self.tell_slot(slot, FromRegistry::Goodbye);
                if self.publication.as_ref().is_some_and(|publication| publication.order.contains(&slot)) {
                    self.lose(now, slot, Why::Left, &reason);
                } else {
                    self.forget(slot, &reason);
                }
            }
            Standing::Member => {
                entry.report = None;
                self.slots.set_standing(slot, Standing::Left);
                self.timers.clear(Timer::Silence(slot));
                self.awaits_no_more(slot);
                self.tell_slot(slot, FromRegistry::Goodbye);
                self.note(Event::Left { slot, reason });
                self.persist();
            }
            Standing::Left => self.tell_slot(slot, FromRegistry::Goodbye),
            Standing::Gone => self.ignored += 1,
        }
    }

    /// A process's connection ended.
    pub(super) fn hear_broken(&mut self, now: Instant, slot: Slot, how: Broken, detail: &str) {
        let is_suspected = self.links.is_suspected(slot);
        let Some(entry) = self.slots.get_mut(slot) else { return };
        match entry.standing {
            Standing::Left | Standing::Gone => {}
            Standing::Newcomer => {
                if self.publication.as_ref().is_some_and(|publication| publication.order.contains(&slot)) {
                    self.lose(now, slot, Why::Closed, detail);
                } else {
                    self.forget(slot, detail);
                }
            }
            Standing::Member => {
                if let Some(how) = entry.exited.clone() {
                    return self.lose(now, slot, Why::Exited, &how);
                }
                match how {
                    Broken::Unreachable => self.lose(now, slot, Why::Unreachable, detail),
                    Broken::Closed if is_suspected || self.config.close_grace.is_zero() => {
                        self.lose(now, slot, Why::Closed, detail);
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

    pub(super) fn away_is_over(&mut self, now: Instant, slot: Slot) {
        let Some(away) = self.slots.get(slot).and_then(|entry| entry.away.clone()) else { return };
        self.lose(now, slot, away.why, &away.detail);
    }

    /// The launcher saw a process end.
    pub(super) fn hear_exit(&mut self, now: Instant, slot: Slot, how: &str) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        match entry.standing {
            Standing::Left | Standing::Gone => {}
            Standing::Newcomer | Standing::Member if entry.connection.is_none() => {
                self.lose(now, slot, Why::Exited, how);
            }
            // Its goodbye may still be on its way: the end of its connection comes behind it.
            Standing::Newcomer | Standing::Member => {
                entry.exited = Some(how.into());
                self.timers.set(Timer::Exit(slot), Deadline::after(now, self.config.exit_grace));
            }
        }
    }

    pub(super) fn exit_is_over(&mut self, now: Instant, slot: Slot) {
        let Some(how) = self.slots.get(slot).and_then(|entry| entry.exited.clone()) else { return };
        self.lose(now, slot, Why::Exited, &how);
    }

    /// A process is out. A member goes with the next view; one that waited is forgotten.
    pub(super) fn lose(&mut self, now: Instant, slot: Slot, why: Why, detail: &str) {
        let is_published = self.publication.as_ref().is_some_and(|publication| publication.order.contains(&slot));
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if entry.standing == Standing::Gone {
            return;
        }
        for timer in [Timer::Silence(slot), Timer::Away(slot), Timer::Exit(slot)] {
            self.timers.clear(timer);
        }
        let is_in = entry.standing != Standing::Newcomer;
        entry.away = None;
        let reason = format!("{}: {detail}", why.name());
        if let Some(connection) = self.slots.unbind(slot) {
            let generation = self.generation.unwrap_or(Generation(0));
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
        self.out.insert(slot, reason);
        while self.out.len() > MOST_REMEMBERED {
            self.out.pop_first();
        }
        self.awaits_no_more(slot);
        let gone = Gone { slot, why, detail: detail.into() };
        self.note(Event::Lost(gone.clone()));
        self.gone.push(gone);
    }

    /// Looks for members whose work does not advance while that of others is ahead.
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

    /// Members that have done less than others, and nothing for long.
    pub(super) fn slow(&self, now: Instant) -> Vec<Slot> {
        let most = self.slots.members().map(|(_, entry)| entry.progress).max().unwrap_or(0);
        self.slots
            .members()
            .filter(|(_, entry)| entry.progress < most)
            .filter(|(_, entry)| now.saturating_duration_since(entry.advanced) >= self.config.name_after)
            .map(|(slot, _)| slot)
            .collect()
    }
}
