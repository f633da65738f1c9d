//! What the registry says.

use std::time::Instant;

use super::{Fleet, LAST_WORDS, REMEMBERED, Standing, Worker};
use crate::launch::fleet::words;
use crate::launch::signal::Signal;
use crate::launch::supervise::{Action, Cause};
use crate::launch::words::{ALWAYS, NORMAL, VERBOSE};
use crate::membership::registry::{Event, Outcome};
use crate::wire::registry::{Gone, Parting, Slot, Why};

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
        if !self.limits.owns_registry {
            self.say(VERBOSE, format!("worker {id} has slot {slot}"));
            self.slotted.insert(id);
            while self.slotted.len() > REMEMBERED {
                self.slotted.pop_first();
            }
        }
    }

    /// The registry that runs elsewhere can be reached.
    pub(in crate::launch::fleet) fn handle_reached(&mut self, now: Instant) {
        self.reach = Some(Ok(()));
        self.advance(now);
    }

    /// It cannot be reached. That it could be once is enough: it may be started again.
    pub(in crate::launch::fleet) fn handle_unreached(&mut self, now: Instant, what: String) {
        if self.reach.is_none() {
            self.say(NORMAL, format!("{what}; the workers wait for it"));
        }
        if self.reach != Some(Ok(())) {
            self.reach = Some(Err(what));
        }
        self.advance(now);
    }

    /// The registry said something.
    pub(in crate::launch::fleet) fn handle_news(&mut self, now: Instant, event: &Event) {
        let (level, text) = words::news(&self.with_causes(event), !self.has_view);
        match event {
            // A worker that failed was named when it did.
            Event::Lost(gone) if self.is_ended(gone.slot) => self.say(VERBOSE, text),
            Event::Ended(Outcome::Failed(_)) => self.on_failed(now, text),
            _ => self.say(level, text),
        }
        match event {
            Event::Registered { .. } | Event::Away { .. } | Event::LinkLost { .. } | Event::Named { .. } => {}
            Event::Waiting { .. } | Event::Ended(Outcome::Failed(_)) => {}
            Event::Forgotten { slot, .. } => self.set_standing(*slot, Standing::Unknown),
            Event::Left { slot, parting, .. } => {
                self.set_standing(*slot, Standing::Left(*parting));
                // One that somebody else started has no exit code here: it is taken for a success.
                let is_stranger = self.worker_in(*slot).is_none();
                if *parting == Parting::Done || (*parting == Parting::Unsaid && is_stranger) {
                    self.is_done = true;
                }
                if *parting == Parting::Done {
                    self.wind_up();
                }
            }
            Event::Lost(gone) => self.on_lost(now, gone),
            Event::View { members, .. } => self.on_view(now, members),
            Event::Ended(Outcome::Finished) => self.on_finished(now),
        }
        self.advance(now);
    }

    /// The same, with what the launcher saw of processes whose connections were seen to end first.
    fn with_causes(&self, event: &Event) -> Event {
        let mut event = event.clone();
        let gone = match &mut event {
            Event::Lost(gone) => std::slice::from_mut(gone),
            Event::View { gone, .. } => &mut gone[..],
            _ => &mut [],
        };
        for gone in gone.iter_mut().filter(|gone| gone.why == Why::Closed) {
            if let Some(how) = self.endings.get(&gone.slot) {
                gone.detail.clone_from(how);
            }
        }
        event
    }

    fn is_ended(&mut self, slot: Slot) -> bool {
        self.worker_in(slot).is_some_and(|(_, worker)| !worker.is_alive())
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

    fn on_view(&mut self, now: Instant, members: &[Slot]) {
        let is_first = !std::mem::replace(&mut self.has_view, true);
        self.failed_starts = 0;
        self.first_failure = None;
        for worker in self.workers.values_mut() {
            worker.is_closed_up |= matches!(worker.standing, Standing::Out { .. } | Standing::Left(_));
        }
        for &slot in members {
            self.next_label = self.next_label.max(slot + 1);
            let Some((id, worker)) = self.worker_in(slot) else { continue };
            if worker.standing == Standing::Registered {
                worker.standing = Standing::Member;
                worker.has_joined = true;
                worker.joined_at = Some(now);
                worker.is_closed_up = false;
                // The others are what newcomers are measured by.
                if is_first {
                    worker.is_proven = true;
                    let host = worker.placement.host.name.clone();
                    self.hosts.prove(&host, id);
                }
            }
        }
    }

    fn on_lost(&mut self, now: Instant, gone: &Gone) {
        let grace = self.limits.policy.grace;
        let Gone { slot, why, .. } = gone;
        if *why == Why::Left {
            return self.set_standing(*slot, Standing::Left(Parting::Unsaid));
        }
        if let Some((_, worker)) = self.worker_in(*slot) {
            worker.standing = Standing::Out { is_excused: *why == Why::Evicted };
            // It may come back as somebody new, or end; one that is stopped does neither.
            if worker.is_alive() && !worker.is_asked {
                worker.kill_at = now.checked_add(grace);
            }
        }
    }

    /// All members said goodbye. They end by themselves; who came too late has nothing to do any more.
    fn on_finished(&mut self, now: Instant) {
        self.is_over = true;
        self.start_no_more();
        let grace = self.limits.policy.grace;
        for (&rank, worker) in &mut self.workers {
            if worker.is_alive() && !matches!(worker.standing, Standing::Left(_)) {
                worker.is_asked = !matches!(worker.standing, Standing::Out { .. });
                worker.kill_at = now.checked_add(grace);
                self.actions.push_back(Action::Signal { rank, signal: Signal::TERM });
            }
        }
    }

    /// The job cannot go on. The members hear it from the registry; what they have to say to that comes first.
    fn on_failed(&mut self, now: Instant, why: String) {
        let cause = self.first_failure.unwrap_or(Cause::CannotGoOn);
        if !self.course.end(now, cause) {
            return;
        }
        self.start_no_more();
        self.say(ALWAYS, why);
        self.ask_at = now.checked_add(LAST_WORDS.min(self.limits.policy.grace / 2));
    }
}
