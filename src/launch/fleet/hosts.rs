//! The hosts of an elastic job: which there are, who occupies their slots, and where the next worker goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::health::Health;
use crate::launch::hosts::Host;

/// A host that is, or was, in the list.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) host: Host,
    /// Whether it is in the list now.
    pub(super) is_listed: bool,
    /// The slots in use, by their number on this host, each with its worker.
    occupied: Vec<(usize, usize)>,
    /// How many slots are not used again: their workers are done, or are not to be replaced.
    used_up: usize,
    /// How many are given up, for others elsewhere: their workers left, or none came to work.
    given_up: usize,
    /// Of slots on which workers failed to come to work: how many in a row.
    failed: BTreeMap<usize, u32>,
    pub(super) health: Health,
}

impl Entry {
    /// How many slots it offers.
    pub(super) fn slots(&self) -> usize {
        if self.is_listed { self.host.slots } else { 0 }
    }

    /// The number of a slot that is free.
    fn free(&self) -> Option<usize> {
        if self.occupied.len() + self.used_up + self.given_up >= self.slots() {
            return None;
        }
        let taken: BTreeSet<usize> = self.occupied.iter().map(|(place, _)| *place).collect();
        (0..).find(|place| !taken.contains(place))
    }
}

/// What becomes of a slot when nothing is left of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is for another.
    Free,
    /// It is not used again: its worker is done, or is not to be replaced.
    UsedUp,
    /// It is not used again, but the job has room for another worker elsewhere.
    GivenUp,
}

/// What a new list changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A host is new, or back.
    Came(String, usize),
    /// A host is no longer there.
    Went(String),
    /// A host has more or fewer slots.
    Slots(String, usize),
}

/// All hosts, those first that came first: the longer a host is there, the sooner it is used again.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    entries: Vec<Entry>,
}

impl Hosts {
    /// These are the hosts from now on.
    pub(super) fn update(&mut self, now: Instant, listed: &[Host]) -> Vec<Change> {
        let mut changes = Vec::new();
        for entry in &mut self.entries {
            let is_listed = listed.iter().any(|host| host.name == entry.host.name);
            if entry.is_listed && !is_listed {
                changes.push(Change::Went(entry.host.name.clone()));
                // Should it come back, it is for new work.
                (entry.used_up, entry.given_up) = (0, 0);
                entry.failed.clear();
            }
            entry.is_listed &= is_listed;
        }
        for host in listed {
            match self.entries.iter_mut().find(|entry| entry.host.name == host.name) {
                None => {
                    self.entries.push(Entry {
                        host: host.clone(),
                        is_listed: true,
                        occupied: Vec::new(),
                        used_up: 0,
                        given_up: 0,
                        failed: BTreeMap::new(),
                        health: Health::default(),
                    });
                    changes.push(Change::Came(host.name.clone(), host.slots));
                }
                Some(entry) => {
                    if !entry.is_listed {
                        changes.push(Change::Came(host.name.clone(), host.slots));
                    } else if entry.host.slots != host.slots {
                        changes.push(Change::Slots(host.name.clone(), host.slots));
                    }
                    (entry.is_listed, entry.host) = (true, host.clone());
                }
            }
        }
        // A host of which nothing is left and nothing is to be remembered is forgotten: in a long job there are many.
        self.entries.retain(|entry| entry.is_listed || !entry.occupied.is_empty() || !entry.health.is_good(now));
        changes
    }

    /// The host and the number of the slot for another worker.
    pub(super) fn free(&self, now: Instant) -> Option<(&Host, usize)> {
        self.entries
            .iter()
            .filter(|entry| entry.health.rests_until(now).is_none())
            .find_map(|entry| Some((&entry.host, entry.free()?)))
    }

    /// When a free slot whose host rests can be used.
    pub(super) fn next_free(&self, now: Instant) -> Option<Instant> {
        let resting = self.entries.iter().filter(|entry| entry.free().is_some());
        resting.filter_map(|entry| entry.health.rests_until(now)).min()
    }

    /// A worker takes a slot.
    pub(super) fn occupy(&mut self, name: &str, place: usize, worker: usize) {
        if let Some(entry) = self.get_mut(name) {
            entry.occupied.push((place, worker));
        }
    }

    /// Nothing is left of a worker. `after` says what becomes of its slot.
    pub(super) fn release(&mut self, name: &str, worker: usize, after: After) {
        if let Some(entry) = self.get_mut(name) {
            if after != After::Free
                && let Some((place, _)) = entry.occupied.iter().find(|(_, other)| *other == worker)
            {
                entry.failed.remove(place);
            }
            entry.occupied.retain(|(_, other)| *other != worker);
            entry.used_up += usize::from(after == After::UsedUp && entry.is_listed);
            entry.given_up += usize::from(after == After::GivenUp && entry.is_listed);
        }
    }

    /// A worker has come to work: what failed before on its slot and its host is forgotten.
    pub(super) fn prove(&mut self, name: &str, worker: usize) {
        let Some(entry) = self.get_mut(name) else { return };
        entry.health.handle_success();
        if let Some((place, _)) = entry.occupied.iter().find(|(_, other)| *other == worker) {
            entry.failed.remove(place);
        }
    }

    /// A worker failed to come to work. Returns how many did so in a row on its slot.
    pub(super) fn count_failure(&mut self, name: &str, worker: usize) -> u32 {
        let Some(entry) = self.get_mut(name) else { return 0 };
        let Some((place, _)) = entry.occupied.iter().find(|(_, other)| *other == worker) else { return 0 };
        let count = entry.failed.entry(*place).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    /// How many slots there are for workers, in use or not.
    pub(super) fn room(&self) -> usize {
        self.entries.iter().map(|entry| entry.slots().saturating_sub(entry.used_up + entry.given_up)).sum()
    }

    /// How many slots are not used again.
    pub(super) fn used_up(&self) -> usize {
        self.entries.iter().map(|entry| entry.used_up).sum()
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.host.name == name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::health::Rest;
    use super::*;

    fn list(hosts: &[(&str, usize)]) -> Vec<Host> {
        hosts.iter().map(|(name, slots)| Host::new(*name, *slots)).collect()
    }

    /// Takes the next free slot.
    fn take(hosts: &mut Hosts, now: Instant, worker: usize) -> Option<(String, usize)> {
        let (name, place) = hosts.free(now).map(|(host, place)| (host.name.clone(), place))?;
        hosts.occupy(&name, place, worker);
        Some((name, place))
    }

    #[test]
    fn hosts_are_filled_in_the_order_in_which_they_came() {
        let now = Instant::now();
        let mut hosts = Hosts::default();
        let came = |name: &str, slots| Change::Came(name.into(), slots);
        assert_eq!(hosts.update(now, &list(&[("b", 2), ("a", 1)])), [came("b", 2), came("a", 1)]);
        assert_eq!(hosts.update(now, &list(&[("a", 1), ("new", 1), ("b", 2)])), [came("new", 1)]);
        let mut take = |worker| take(&mut hosts, now, worker);
        assert_eq!(take(0), Some(("b".into(), 0)));
        assert_eq!(take(1), Some(("b".into(), 1)));
        assert_eq!(take(2), Some(("a".into(), 0)));
        assert_eq!(take(3), Some(("new".into(), 0)));
        assert_eq!(take(4), None);
        hosts.release("b", 0, After::Free);
        assert_eq!(hosts.free(now).map(|(host, place)| (host.name.as_str(), place)), Some(("b", 0)));
        hosts.release("a", 2, After::UsedUp);
        hosts.occupy("b", 0, 4);
        assert!(hosts.free(now).is_none(), "the slot on a is used up");
    }

    #[test]
    fn a_host_that_comes_back_is_for_new_work() {
        let now = Instant::now();
        let mut hosts = Hosts::default();
        hosts.update(now, &list(&[("a", 1), ("b", 1)]));
        hosts.occupy("b", 0, 7);
        hosts.release("b", 7, After::UsedUp);
        assert_eq!(hosts.update(now, &list(&[("a", 2)])), [Change::Went("b".into()), Change::Slots("a".into(), 2)]);
        assert_eq!(hosts.iter().count(), 1, "nothing is left of b");
        hosts.update(now, &list(&[("b", 1)]));
        assert_eq!(hosts.free(now).map(|(host, _)| host.name.as_str()), Some("b"));
    }

    #[test]
    fn a_host_that_rests_is_passed_over_and_remembered() {
        let now = Instant::now();
        let mut hosts = Hosts::default();
        hosts.update(now, &list(&[("a", 1), ("b", 1)]));
        let rest = hosts.get_mut("a").expect("a").health.handle_failure(now, false, None);
        assert_eq!(rest, Rest::Pause(Duration::from_secs(1)));
        assert_eq!(hosts.free(now).map(|(host, _)| host.name.as_str()), Some("b"));
        assert_eq!(hosts.next_free(now), Some(now + Duration::from_secs(1)));
        hosts.update(now, &[]);
        hosts.update(now, &list(&[("a", 1)]));
        assert!(hosts.free(now).is_none(), "going away does not make it better");
    }

    proptest! {
        /// Whatever comes and goes: no slot has two workers, and no host more than its slots.
        #[test]
        fn slots_are_never_shared(turns in prop::collection::vec((0_usize..3, 0_usize..4, any::<bool>()), 0..60)) {
            let now = Instant::now();
            let mut hosts = Hosts::default();
            let mut slots = [0; 3];
            let mut workers: Vec<(String, usize, usize)> = Vec::new();
            for (number, (host, count, comes)) in turns.into_iter().enumerate() {
                if comes {
                    slots[host] = count;
                    let names = ["a", "b", "c"];
                    hosts.update(now, &names.into_iter().zip(slots).map(|(name, slots)| Host::new(name, slots)).collect::<Vec<_>>());
                } else if !workers.is_empty() {
                    let (name, _, worker) = workers.swap_remove(count % workers.len());
                    hosts.release(&name, worker, After::Free);
                }
                if let Some((name, place)) = take(&mut hosts, now, number) {
                    let here = workers.iter().filter(|(other, ..)| *other == name).count();
                    prop_assert!(here < hosts.get_mut(&name).expect("known").slots());
                    prop_assert!(!workers.iter().any(|(other, taken, _)| *other == name && *taken == place));
                    workers.push((name, place, number));
                }
            }
        }
    }
}
