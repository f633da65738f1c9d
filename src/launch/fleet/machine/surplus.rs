//! Workers for which there is no slot any more: their host has fewer slots, or is gone from the list.
//!
//! They are asked to leave, those first that have done least; never so many at once that the job would be left with fewer
//! members than it needs, or with none that has the state. Those that are kept for that reason leave one by one as others
//! take their places. When the list has no room for the members that the job needs, they are kept for the elastic timeout;
//! then the job ends.

use std::time::Instant;

use super::{Fleet, Life, Standing, Worker};
use crate::launch::fleet::words;
use crate::launch::signal::Signal;
use crate::launch::supervise::{Action, Cause};
use crate::launch::words::{NORMAL, plural};

impl Fleet {
    /// Asks those to leave that are not needed, and says who is kept.
    pub(super) fn ask_surplus(&mut self, now: Instant) {
        let (mut asked, mut kept) = self.choose(self.surplus());
        asked.sort_unstable();
        for &id in &asked {
            self.ask(now, id);
        }
        if !asked.is_empty() {
            self.say(NORMAL, format!("{} asked to leave", self.slots_in_words(&asked)));
        }
        for (id, worker) in &mut self.workers {
            worker.is_kept = kept.contains(id);
        }
        kept.sort_unstable();
        self.keep(now, kept);
    }

    /// The workers without a slot, those first that have done least.
    fn surplus(&self) -> Vec<usize> {
        let mut surplus = Vec::new();
        for entry in self.hosts.iter() {
            let mut here: Vec<(bool, usize)> = self
                .workers
                .iter()
                .filter(|(_, worker)| worker.placement.host.name == entry.host.name)
                .filter(|(_, worker)| worker.is_alive() && !worker.is_asked)
                .map(|(id, worker)| (!worker.has_joined, *id))
                .collect();
            here.sort_unstable();
            surplus.extend(here.into_iter().skip(entry.slots()));
        }
        surplus.sort_unstable();
        surplus.into_iter().rev().map(|(_, id)| id).collect()
    }

    /// Which of them can go, and which the job needs. One that waits to join makes up for one that leaves: both happen
    /// between the same two steps. But it has no state: one member that has it stays.
    fn choose(&self, surplus: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        if !self.limits.owns_registry || !self.has_view {
            return (surplus, Vec::new());
        }
        let stays = |worker: &&Worker| worker.is_alive() && !worker.is_asked;
        let count = |standing| self.workers.values().filter(stays).filter(|worker| worker.standing == standing).count();
        let mut members = count(Standing::Member);
        let mut have = members + count(Standing::Registered);
        surplus.into_iter().partition(|id| {
            let standing = self.workers.get(id).map(|worker| worker.standing);
            let (is_member, counts) = match standing {
                Some(Standing::Member) => (true, true),
                Some(Standing::Registered) => (false, true),
                _ => (false, false),
            };
            let can_go = !counts || (have > self.limits.sizes.min_np && !(is_member && members == 1));
            if can_go {
                have -= usize::from(counts);
                members -= usize::from(is_member);
            }
            can_go
        })
    }

    fn keep(&mut self, now: Instant, kept: Vec<usize>) {
        let (room, need) = (self.hosts.room(), self.limits.sizes.min_np);
        let is_short = !kept.is_empty() && room < need && self.is_hiring();
        let has_room = format!("the list of hosts has room for {}", plural(room, "rank"));
        let length = words::length(self.limits.elastic_timeout);
        let who = self.slots_in_words(&kept);
        let text = match (is_short, self.short_until) {
            (true, None) => {
                self.short_until = now.checked_add(self.limits.elastic_timeout);
                format!("{has_room}, the job needs {need}: keeping {who}; without more room the job ends in {length}")
            }
            (false, Some(_)) => {
                self.short_until = None;
                match kept.is_empty() {
                    // They fell, or left: what becomes of the job is the registry's to say.
                    true if room < need => String::new(),
                    true => format!("{has_room} again"),
                    false => format!("{has_room} again: keeping {who} until others have taken their places"),
                }
            }
            (true, Some(_)) if kept != self.kept => format!("{has_room}, the job needs {need}: keeping {who}"),
            (false, None) if !kept.is_empty() && self.kept.is_empty() => {
                format!("keeping {who} until others have taken their places")
            }
            _ => String::new(),
        };
        self.kept = kept;
        if !text.is_empty() && self.is_hiring() {
            self.say(NORMAL, text);
        }
    }

    /// The job ends when there has been no room for the members that it needs for too long.
    pub(super) fn end_if_short(&mut self, now: Instant) {
        if self.short_until.is_none_or(|until| now < until) {
            return;
        }
        self.short_until = None;
        let why = format!(
            "the job cannot go on: for {} the list of hosts has had room for {}, the job needs {}",
            words::length(self.limits.elastic_timeout),
            plural(self.hosts.room(), "rank"),
            self.limits.sizes.min_np
        );
        self.end(now, Cause::CannotGoOn, Some(why));
    }

    fn slots_in_words(&self, ids: &[usize]) -> String {
        let mut labels: Vec<usize> = ids.iter().map(|&id| self.label(id)).collect();
        labels.sort_unstable();
        words::slots(&labels)
    }

    /// Asks a worker to leave.
    fn ask(&mut self, now: Instant, id: usize) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.life == Life::Waiting {
            self.forget(id);
            return;
        }
        worker.is_asked = true;
        worker.kill_at = now.checked_add(self.limits.leave_grace);
        self.actions.push_back(Action::Ask { rank: id, signal: Signal::TERM });
    }
}
