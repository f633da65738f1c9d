//! From one view to the next.
//!
//! Two ways lead there. When a member is lost or a link is broken, the others are told to stop (`Prepare`); each
//! answers with how far it came, and is frozen from then on. When somebody waits to join, members are told so
//! (`Wanted`), agree in their next commit to stop behind it, and report that. Both ends alike: once all that go on have
//! reported, they stand still for good, the verdict can be given, and the next view is made durable, then sent.
//!
//! One that is lost meanwhile is waited for no longer; that is all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::roster::Standing;
use super::timers::Timer;
use super::verdict::{Verdict, decide};
use super::{Action, Event, Outcome, Registry};
use crate::membership::gathering::list;
use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, Gone, Members, ProcessRecord, Report, Slot, ViewMessage, Why};

/// A change that is under way.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Since when.
    pub(super) since: Instant,
    /// Whether members were told to stop; otherwise they stand at a boundary by themselves.
    pub(super) is_told: bool,
    /// How many members there were when they were found too few, and how many newcomers.
    pub(super) waiting: Option<(usize, usize)>,
}

/// A view on its way to the disk.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    /// What the shell gives back when it is there.
    pub(super) number: u64,
    pub(super) generation: Generation,
    pub(super) counted: u64,
    /// Its slots, in the order of ranks.
    pub(super) order: Vec<Slot>,
    pub(super) joined: Vec<Slot>,
    pub(super) gone: Vec<Gone>,
    pub(super) broken: Vec<(Slot, Slot)>,
    verdict: String,
    since: Instant,
}

impl Registry {
    /// Tells the members to stop, unless they were told.
    pub(super) fn begin_change(&mut self, now: Instant) {
        let Some(generation) = self.generation.filter(|_| self.publication.is_none()) else { return };
        let change = self.change.get_or_insert(Change { since: now, is_told: false, waiting: None });
        if std::mem::replace(&mut change.is_told, true) {
            return;
        }
        self.members_stop(now);
        let connections = self.slots.members().filter_map(|(_, entry)| entry.connection).collect();
        self.tell_all(connections, FromRegistry::Prepare { generation, gone: self.gone.clone() });
    }

    /// Members are told to stop, or the first has stopped by itself: from now on the others are waited for.
    fn members_stop(&mut self, now: Instant) {
        if self.stopping_since.is_none() {
            self.stopping_since = Some(now);
            let limit = self.config.heartbeat_limit;
            self.timers.set(Timer::Overdue, Deadline::after(now, limit + limit / 4));
        }
    }

    /// A member has stopped.
    pub(super) fn hear_report(&mut self, now: Instant, slot: Slot, report: Report) {
        let counted = self.counted;
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if Some(report.generation) != self.generation || self.publication.is_some() || !entry.is_member() {
            self.ignored += 1;
            return;
        }
        if report.counted < counted || (report.holds && report.boundary) {
            let detail = format!("it reported {report:?} when {counted} steps counted");
            return self.lose(slot, Why::Defect, &detail);
        }
        // It is frozen: what it says again, after a break, is the same.
        if entry.report.is_none() {
            entry.report = Some(report);
            self.awaited.remove(&slot);
            if !report.boundary {
                // Unasked, by one that was told to stop by this registry before it was started again.
                self.begin_change(now);
            }
            self.members_stop(now);
        }
    }

    /// A member is not waited for any longer.
    pub(super) fn awaits_no_more(&mut self, slot: Slot) {
        self.awaited.remove(&slot);
    }

    /// Names the members that are to stop and have not reported. When they have not for the elastic timeout, the job is
    /// over: they are not judged to be out, and without them nobody goes on.
    pub(super) fn name_overdue(&mut self, now: Instant) {
        let Some(since) = self.stopping_since.filter(|_| !self.awaited.is_empty()) else { return };
        let waited = now.saturating_duration_since(since);
        if waited >= self.config.elastic_timeout {
            let slots: Vec<Slot> = self.awaited.iter().copied().collect();
            let (slots, waited) = (list(&slots), waited.as_secs_f64());
            let reason = format!(
                "members that the others wait for did not stop within {waited:.0} s, as they were to, though their hosts \
                 answer: slots {slots}"
            );
            return self.finish(now, Outcome::Failed(reason));
        }
        self.timers.set(Timer::Overdue, Deadline::after(since, self.config.elastic_timeout));
        let waited = waited.as_secs_f64();
        for slot in self.awaited.clone() {
            let Some(entry) = self.slots.get_mut(slot).filter(|entry| !entry.is_named) else { continue };
            entry.is_named = true;
            let detail = format!("it was told to stop {waited:.1} s ago and has not; the others wait for it");
            self.note(Event::Named { slot, detail });
        }
    }

    /// What can be done about the next view now. True if something was, and more may be possible.
    pub(super) fn try_change(&mut self, now: Instant) -> bool {
        if !self.gone.is_empty() {
            self.begin_change(now);
        }
        if !self.awaited.is_empty() {
            self.tell_wanted();
            return false;
        }
        let reports: Vec<(Slot, Report)> =
            self.slots.members().filter_map(|(slot, entry)| Some((slot, entry.report?))).collect();
        if reports.is_empty() {
            self.nobody_goes_on(now);
            return false;
        }
        let (verdict, reason) = decide(&reports);
        if !verdict.impossible.is_empty() {
            for slot in verdict.impossible {
                self.lose(slot, Why::Defect, "another passed a commit that it says it had not entered");
            }
            return true;
        }
        if let Some((slot, detail)) = self.worst_link(now) {
            self.lose(slot, Why::Link, &detail);
            return true;
        }
        let brings_state = |slot: Slot| self.slots.get(slot).is_some_and(|entry| !entry.is_fresh(verdict.counted));
        if !reports.iter().any(|(slot, _)| brings_state(*slot)) {
            let reason = "all members that had the state of the training are gone";
            self.finish(now, Outcome::Failed(reason.into()));
            return false;
        }
        self.try_publish(now, reports.len(), &verdict, reason)
    }

    /// All that go on have reported: the next view, if there are enough for one.
    fn try_publish(&mut self, now: Instant, have: usize, verdict: &Verdict, reason: String) -> bool {
        let max_np = if self.is_ending { 0 } else { self.config.max_np };
        let min_np = if self.is_ending { 1 } else { self.config.min_np };
        let joined: Vec<Slot> =
            self.slots.newcomers().map(|(slot, _)| slot).take(max_np.saturating_sub(have)).collect();
        // Newcomers join between steps. With too few members there is no choice: the step under way is given up.
        let joined = if verdict.is_boundary || have < min_np { joined } else { Vec::new() };
        if have + joined.len() < min_np {
            self.wait_for_newcomers(now, have, joined.len());
            return false;
        }
        if self.config.reset_limit.is_some_and(|limit| self.changes >= limit) {
            let limit = self.changes;
            let reason =
                format!("the view would change more often than {limit} time{}", if limit == 1 { "" } else { "s" });
            self.finish(now, Outcome::Failed(reason));
            return false;
        }
        let order = self.slots.members().map(|(slot, _)| slot).chain(joined.iter().copied()).collect();
        self.publish(now, verdict.counted, order, joined, reason);
        true
    }

    /// The first view.
    pub(super) fn publish_first(&mut self, now: Instant, members: Vec<Slot>) {
        self.next_slot = self.slots.lowest_free(0).max(self.config.np);
        self.next_slot = self.slots.iter().map(|(slot, _)| slot + 1).max().unwrap_or(0).max(self.next_slot);
        self.publish(now, 0, members.clone(), members, "the first view".into());
    }

    fn publish(&mut self, now: Instant, counted: u64, order: Vec<Slot>, joined: Vec<Slot>, verdict: String) {
        let generation = self.generation.map_or(self.first, |generation| Generation(generation.0 + 1));
        let mut gone = std::mem::take(&mut self.gone);
        let left = self.slots.in_order().filter(|(_, entry)| entry.standing == Standing::Left);
        gone.extend(left.map(|(slot, _)| Gone { slot, why: Why::Left, detail: "it said goodbye".into() }));
        let stays: BTreeSet<Slot> = order.iter().copied().collect();
        let broken = self
            .links
            .pairs()
            .into_iter()
            .filter(|(one, other)| stays.contains(one) && stays.contains(other))
            .collect();
        let since = self.change.as_ref().map_or(now, |change| change.since);
        self.changes += u64::from(self.generation.is_some());
        self.timers.clear(Timer::Start);
        self.timers.clear(Timer::Elastic);
        self.timers.clear(Timer::Overdue);
        let number = self.persists + 1;
        self.publication =
            Some(Publication { number, generation, counted, order, joined, gone, broken, verdict, since });
        self.persist();
    }

    /// The view is durable: it is the one that is.
    pub(super) fn install(&mut self, now: Instant) {
        let Some(publication) = self.publication.take() else { return };
        let Publication { generation, counted, order, joined, gone, broken, verdict, since, .. } = publication;
        let is_first = self.generation.is_none();
        for out in &gone {
            self.slots.remove(out.slot);
            self.timers.clear(Timer::Silence(out.slot));
        }
        self.generation = Some(generation);
        self.counted = counted;
        self.change = None;
        self.stopping_since = None;
        self.is_wanted_told = false;
        for (one, other) in self.links.pairs() {
            self.timers.clear(Timer::Link(one, other));
        }
        self.links.settle(now, self.config.link_window, &broken);
        for slot in &joined {
            if self.slots.get(*slot).is_some_and(|entry| entry.standing == Standing::Newcomer) {
                self.slots.set_standing(*slot, Standing::Member);
            }
            if let Some(entry) = self.slots.get_mut(*slot) {
                entry.joined = (!is_first).then_some(counted);
            }
        }
        self.slots.order.clone_from(&order);
        for slot in &order {
            if let Some(entry) = self.slots.get_mut(*slot) {
                entry.report = None;
                // That it got no further while one was waited for that is gone now is not held against it.
                (entry.advanced, entry.is_named) = (now, false);
            }
        }
        self.awaited = self.slots.members().map(|(slot, _)| slot).collect();
        self.last_gone.clone_from(&gone);
        self.last_broken.clone_from(&broken);
        if is_first {
            self.timers.set(Timer::Look, Deadline::after(now, self.config.name_after / 4));
        }
        let held_up = now.saturating_duration_since(since);
        let (whole, change) = (self.whole_view(generation), self.changed_view(generation, &joined));
        let is_joined: BTreeSet<Slot> = joined.iter().copied().collect();
        let to = |is_new: bool| {
            self.slots
                .members()
                .filter(|(slot, _)| is_joined.contains(slot) == is_new)
                .filter_map(|(_, entry)| entry.connection)
                .collect::<Vec<_>>()
        };
        let (new, old) = (to(true), to(false));
        self.tell_all(old, FromRegistry::View(change));
        self.tell_all(new, FromRegistry::View(whole));
        self.note(Event::View { generation, members: order, counted, verdict, gone, joined, broken, held_up });
        if self.slots.in_order().any(|(_, entry)| entry.standing == Standing::Left) {
            // It left before there was this view, and is going to do nothing in it.
            self.begin_change(now);
        }
    }

    /// The view with all its members, for those that do not have the one before.
    pub(super) fn whole_view(&self, generation: Generation) -> ViewMessage {
        let members = self.records(&self.slots.order);
        self.view_message(generation, Members::All(members))
    }

    /// The view as a change of the one before: as long as what changed, not as what is.
    fn changed_view(&self, generation: Generation, joined: &[Slot]) -> ViewMessage {
        self.view_message(generation, Members::Change(self.records(joined)))
    }

    fn records(&self, slots: &[Slot]) -> Vec<(Slot, Arc<ProcessRecord>)> {
        slots.iter().filter_map(|slot| Some((*slot, self.slots.get(*slot)?.process.clone()))).collect()
    }

    fn view_message(&self, generation: Generation, members: Members) -> ViewMessage {
        let counted = self.counted;
        let newcomers = self.slots.in_order().filter(|(_, entry)| entry.is_fresh(counted)).map(|(slot, _)| slot);
        ViewMessage {
            generation,
            counted,
            members,
            newcomers: newcomers.collect(),
            gone: self.last_gone.clone(),
            broken: self.last_broken.clone(),
        }
    }

    /// Somebody waits to join: the members are told once in each view.
    fn tell_wanted(&mut self) {
        let Some(generation) = self.generation.filter(|_| self.change.is_none() && !self.is_wanted_told) else {
            return;
        };
        if self.is_ending || self.slots.newcomer_count() == 0 || self.slots.member_count() >= self.config.max_np {
            return;
        }
        self.is_wanted_told = true;
        let connections = self.slots.members().filter_map(|(_, entry)| entry.connection).collect();
        self.tell_all(connections, FromRegistry::Wanted { generation });
    }

    fn nobody_goes_on(&mut self, now: Instant) {
        if !self.goodbyes.is_empty() {
            // A registry that dies here and is started again would wait for those that have said goodbye.
            return;
        }
        let outcome = match self.gone.first() {
            None => Outcome::Finished,
            Some(gone) => Outcome::Failed(format!("no member is left; the last to be lost: {gone}")),
        };
        self.finish(now, outcome);
    }

    fn wait_for_newcomers(&mut self, now: Instant, have: usize, newcomers: usize) {
        let change = self.change.get_or_insert(Change { since: now, is_told: false, waiting: None });
        if change.waiting.is_none() {
            self.timers.set(Timer::Elastic, Deadline::after(now, self.config.elastic_timeout));
        }
        if change.waiting.replace((have, newcomers)) != Some((have, newcomers)) {
            self.note(Event::Waiting { have: have + newcomers, need: self.config.min_np });
            self.tell_waiting(now, None);
        }
    }

    /// Tells one process, or all, that there are too few members, if that is so.
    pub(super) fn tell_waiting(&mut self, now: Instant, only: Option<Slot>) {
        let Some((have, newcomers)) = self.change.as_ref().and_then(|change| change.waiting) else { return };
        let remaining = self.timers.time(Timer::Elastic).map_or(Duration::ZERO, |end| end.remaining(now));
        let message = FromRegistry::Waiting { have: have + newcomers, need: self.config.min_np, remaining };
        match only {
            Some(slot) => self.tell_slot(slot, message),
            None => {
                let waits = |standing: &Standing| matches!(standing, Standing::Member | Standing::Newcomer);
                let connections = self
                    .slots
                    .iter()
                    .filter(|(_, entry)| waits(&entry.standing))
                    .filter_map(|(_, entry)| entry.connection)
                    .collect();
                self.tell_all(connections, message);
            }
        }
    }

    /// Nobody came to make up the fewest members.
    pub(super) fn elastic_is_over(&mut self, now: Instant) {
        let Some((have, newcomers)) = self.change.as_ref().and_then(|change| change.waiting) else { return };
        let have = have + newcomers;
        let reason = format!(
            "{have} member{} left, the job needs {}, and no more came within {} s",
            if have == 1 { " is" } else { "s are" },
            self.config.min_np,
            self.config.elastic_timeout.as_secs_f64()
        );
        self.finish(now, Outcome::Failed(reason));
    }

    /// Hands out the state, now or when the disk is free: nobody waits for it.
    pub(super) fn persist_soon(&mut self) {
        self.is_unsaved = self.persisted < self.persists;
        if !self.is_unsaved {
            self.persist();
        }
    }

    /// Hands out the state that is, or that is about to be.
    fn persist(&mut self) {
        if let Some(state) = self.state() {
            self.persists += 1;
            self.actions.push_back(Action::Persist { number: self.persists, state });
        }
    }
}
