//! Links between members that are lost, though nothing else says that a member is.
//!
//! A member that loses its link to another says so. Mostly the other is dead, and better evidence follows at once; a link
//! and a connection to the registry that end together are enough. So the other is asked for a sign of life. When it gives
//! one both live, and the next view, of the same members, has the link made again, at once. A pair whose link was made
//! again twice a moment ago waits for the heartbeat limit first, as does a member that does not answer though nothing says
//! that it is gone. Two members for which that was done again and again are too many: the one that more was complained
//! about goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::roster::{Entry, Standing};
use super::timers::Timer;
use super::{Event, Registry};
use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, MAX_MEMBERS, Slot, Why};

/// How often in a row a link is made again at once.
const QUICK: u32 = 2;

/// The most complaints that are kept: of each member about a few, or of a few about each.
const MOST_COMPLAINTS: usize = 4 * MAX_MEMBERS;

/// Which links are lost, and which were before.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    /// In this view: who complained about whom, and when.
    complaints: BTreeMap<(Slot, Slot), Instant>,
    /// Members that were asked for a sign of life, because somebody lost the link to them.
    asked: BTreeSet<Slot>,
    /// For each pair: how often in a row a view was made for it, and when last.
    history: BTreeMap<(Slot, Slot), (u32, Instant)>,
    /// How often each was complained about, and when last.
    counts: BTreeMap<Slot, (u32, Instant)>,
}

fn pair(one: Slot, other: Slot) -> (Slot, Slot) {
    (one.min(other), one.max(other))
}

impl Links {
    /// Whether somebody has complained about a member within the last `moment`.
    pub(super) fn is_suspected(&self, now: Instant, slot: Slot, moment: Duration) -> bool {
        self.complaints
            .iter()
            .any(|((_, other), when)| *other == slot && now.saturating_duration_since(*when) <= moment)
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
        self.asked.clear();
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
    /// A member lost its link to another.
    pub(super) fn hear_suspicion(&mut self, now: Instant, generation: Generation, by: Slot, of: Slot, detail: &str) {
        let is_member = |slot| self.slots.get(slot).is_some_and(Entry::is_member);
        if Some(generation) != self.generation || self.publication.is_some() || !is_member(by) || by == of {
            self.ignored += 1;
            return;
        }
        let Some(other) = self.slots.get(of).cloned() else {
            self.ignored += 1;
            return;
        };
        match other.standing {
            Standing::Newcomer | Standing::Gone => self.ignored += 1,
            // Somebody needs it: the next view is without it.
            Standing::Left => self.begin_change(now),
            Standing::Member => {
                if self.links.complaints.len() >= MOST_COMPLAINTS || self.links.complaints.contains_key(&(by, of)) {
                    return;
                }
                self.note(Event::LinkLost { by, of, detail: detail.into() });
                self.links.complaints.insert((by, of), now);
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
                    return self.lose(of, why, &detail);
                }
                let (one, other) = pair(by, of);
                let at = Deadline::after(now, self.config.heartbeat_limit);
                self.timers.set_if_earlier(Timer::Link(one, other), at);
                if self.links.count(now, window, (one, other)) <= QUICK && self.links.asked.insert(of) {
                    self.tell_slot(of, FromRegistry::Probe);
                }
            }
        }
    }

    /// A member has given a sign of life. If it was asked for one because somebody lost the link to it, both live, and the
    /// next view is to have the link made again.
    pub(super) fn answers_suspicion(&mut self, now: Instant, slot: Slot) {
        if self.links.asked.remove(&slot) {
            self.begin_change(now);
        }
    }

    /// Nothing has explained until now why two members lost their link. The next view has it made again.
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
}
