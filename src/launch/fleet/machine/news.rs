//! What the registry says.

use std::time::Instant;

use super::{Fleet, LAST_WORDS, Standing, Worker};
use crate::launch::fleet::words;
use crate::launch::signal::Signal;
use crate::launch::supervise::{Action, Cause};
use crate::launch::words::{ALWAYS, NORMAL, VERBOSE, plural};
use crate::membership::registry::{Event, Outcome};
use crate::wire::registry::{Gone, Slot, Why};

impl Fleet {
    /// The process of this worker, or one that it started, registered.
    pub(in crate::launch::fleet) fn handle_registered(&mut self, id: usize, slot: Slot) {
        self.next_label = self.next_label.max(slot + 1);
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.slot = Some(slot);
        worker.label = slot;
        worker.standing = Standing::Registered;
        // One that was out comes as somebody new.
        if !worker.is_asked {
            worker.kill_at = None;
        }
        if let Some((label, _)) = self.names.get_mut(&id) {
            *label = slot;
        }
    }

    /// The registry said something.
    pub(in crate::launch::fleet) fn handle_news(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Registered { slot, .. } => self.say(VERBOSE, format!("slot {slot} registered")),
            Event::Forgotten { slot, detail } => {
                self.set_standing(*slot, Standing::Unknown);
                self.say(VERBOSE, format!("slot {slot} is gone before it was a member: {detail}"));
            }
            Event::Away { slot, detail } => self.say(VERBOSE, format!("slot {slot} lost its connection: {detail}")),
            Event::Named { slot, detail } => self.say(NORMAL, format!("slot {slot}: {detail}")),
            Event::Left { slot, reason } => {
                self.set_standing(*slot, Standing::Left);
                if reason == "done" {
                    self.wind_up();
                }
                self.say(VERBOSE, format!("slot {slot} said goodbye: {reason}"));
            }
            Event::Lost(gone) => self.on_lost(now, gone),
            Event::Waiting { have, need } => {
                let are = if *have == 1 { "is" } else { "are" };
                self.say(
                    NORMAL,
                    format!("{} {are} there, the job needs {need}: waiting for more", plural(*have, "rank")),
                );
            }
            Event::View { generation, members, gone, joined, broken, held_up, .. } => {
                let held_up = *held_up;
                let generation = generation.0;
                let change = words::ViewChange { generation, members, gone, joined, broken, held_up };
                match self.has_view || !gone.is_empty() {
                    true => self.say(NORMAL, words::view(&change)),
                    false => self.say(VERBOSE, format!("view {generation}: {}", plural(members.len(), "rank"))),
                }
                self.on_view(members);
            }
            Event::Ended(Outcome::Finished) => self.on_finished(now),
            Event::Ended(Outcome::Failed(reason)) => self.on_failed(now, reason),
        }
        self.advance(now);
    }

    fn worker_in(&mut self, slot: Slot) -> Option<(usize, &mut Worker)> {
        let found = self.workers.iter_mut().find(|(_, worker)| worker.slot == Some(slot));
        found.map(|(id, worker)| (*id, worker))
    }

    fn set_standing(&mut self, slot: Slot, standing: Standing) {
        if let Some((_, worker)) = self.worker_in(slot) {
            worker.standing = standing;
        }
    }

    fn on_view(&mut self, members: &[Slot]) {
        self.has_view = true;
        self.failed_starts = 0;
        self.first_failure = None;
        for &slot in members {
            self.next_label = self.next_label.max(slot + 1);
            let Some((_, worker)) = self.worker_in(slot) else { continue };
            if worker.standing == Standing::Registered {
                worker.standing = Standing::Member;
                worker.has_joined = true;
                let host = worker.placement.host.name.clone();
                if let Some(entry) = self.hosts.get_mut(&host) {
                    entry.health.handle_joined();
                }
            }
        }
    }

    fn on_lost(&mut self, now: Instant, gone: &Gone) {
        let grace = self.limits.policy.grace;
        let Gone { slot, why, .. } = gone;
        if *why == Why::Left {
            return self.set_standing(*slot, Standing::Left);
        }
        let is_known = self.worker_in(*slot).is_some_and(|(_, worker)| !worker.is_alive());
        if let Some((_, worker)) = self.worker_in(*slot) {
            worker.standing = Standing::Out { is_excused: *why == Why::Evicted };
            // It may come back as somebody new, or end; one that is stopped does neither.
            if worker.is_alive() && !worker.is_asked {
                worker.kill_at = now.checked_add(grace);
            }
        }
        self.say(if is_known { VERBOSE } else { NORMAL }, format!("{}: it is out", words::gone(gone)));
    }

    /// All members said goodbye. They end by themselves; who came too late has nothing to do any more.
    fn on_finished(&mut self, now: Instant) {
        self.is_over = true;
        self.start_no_more();
        let grace = self.limits.policy.grace;
        for (&rank, worker) in &mut self.workers {
            if worker.is_alive() && worker.standing != Standing::Left {
                worker.is_asked = true;
                worker.kill_at = now.checked_add(grace);
                self.actions.push_back(Action::Signal { rank, signal: Signal::TERM });
            }
        }
    }

    /// The job cannot go on. The members hear it from the registry; what they have to say to that comes first.
    fn on_failed(&mut self, now: Instant, reason: &str) {
        let cause = self.first_failure.unwrap_or(Cause::CannotGoOn);
        if !self.course.end(now, cause) {
            return;
        }
        self.start_no_more();
        self.say(ALWAYS, format!("the job cannot go on: {reason}"));
        self.ask_at = now.checked_add(LAST_WORDS.min(self.limits.policy.grace / 2));
    }
}
