//! What strikes a cluster: by the plan's clock, or at points that it passes.

use super::super::network::{End, Partition};
use super::super::plan::{Fault, SECOND, Strike, Time};
use super::super::process::Process;
use super::super::work::Place;
use super::{Event, World};
use crate::membership::registry::Broken;
use crate::wire::registry::{Parting, Whom};
use std::time::Duration;

impl World {
    pub(super) fn strikes_at_point(&mut self, strike: Strike, actor: Option<usize>) {
        self.trace(|| format!("strike: {strike:?} by {actor:?}"));
        let actor = match actor {
            Some(actor) => Some(actor),
            None => self.victim(|process| process.is_alive),
        };
        let Some(actor) = actor else { return };
        match strike {
            Strike::Crash => self.crash(actor, false),
            Strike::CrashOther => {
                let others: Vec<usize> =
                    (0..self.processes.len()).filter(|it| *it != actor && self.processes[*it].is_alive).collect();
                if !others.is_empty() {
                    let other = self.random.pick(&others);
                    self.crash(other, false);
                }
            }
            Strike::Pause(length) => self.pause(actor, length),
            Strike::Break => self.break_control(actor),
            Strike::CrashRegistry(length) => self.registry_dies(false, length),
        }
    }

    pub(super) fn crash(&mut self, victim: usize, has_vanished: bool) {
        self.trace(|| format!("process {victim} dies"));
        self.processes[victim].is_touched = true;
        self.end_process(victim, has_vanished);
    }

    fn pause(&mut self, victim: usize, length: Time) {
        let process = &mut self.processes[victim];
        if process.is_alive && process.paused_until.is_none() {
            process.is_touched = true;
            process.paused_until = Some(self.now + length);
            self.trace(|| format!("process {victim} is stopped"));
            self.schedule(length, Event::Continue(victim));
        }
    }

    fn break_control(&mut self, victim: usize) {
        self.trace(|| format!("the connection of process {victim} breaks"));
        let cuts_links = |fault: &Fault| matches!(fault, Fault::Partition(_) | Fault::BadLink(_) | Fault::BreakLink);
        let is_back_in_time = !self.plan.faults.iter().any(|(_, fault)| cuts_links(fault))
            && self.plan.config.close_grace >= Duration::from_millis(500)
            && self.plan.delay.1 * if self.plan.slow_messages > 0 { 20 } else { 1 } < SECOND / 20;
        self.processes[victim].is_touched |= !is_back_in_time;
        if let Some(connection) = self.processes[victim].connection {
            self.break_connection(connection);
        }
    }

    /// One of the processes for which `fits` holds.
    fn victim(&mut self, fits: impl Fn(&Process) -> bool) -> Option<usize> {
        let victims: Vec<usize> = (0..self.processes.len()).filter(|number| fits(&self.processes[*number])).collect();
        (!victims.is_empty()).then(|| self.random.pick(&victims))
    }

    pub(super) fn strikes(&mut self, fault: Fault) {
        let alive = |process: &Process| process.is_alive;
        self.trace(|| format!("fault: {fault:?}"));
        match fault {
            Fault::Crash | Fault::Vanish => {
                let Some(victim) = self.victim(alive) else { return };
                self.crash(victim, fault == Fault::Vanish);
            }
            Fault::Pause(length) => {
                let Some(victim) = self.victim(|process| process.is_alive && process.paused_until.is_none()) else {
                    return;
                };
                self.pause(victim, length);
            }
            Fault::BreakControl => {
                let Some(victim) = self.victim(|process| process.is_alive && process.connection.is_some()) else {
                    return;
                };
                self.break_control(victim);
            }
            Fault::BreakLink | Fault::BadLink(_) => self.strikes_link(fault),
            Fault::Partition(length) | Fault::HideRegistry(length) => {
                let share = self.random.between(1, 60);
                let mut is_far: Vec<bool> = self.processes.iter().map(|_| self.random.chance(share)).collect();
                if let Some(victim) = self.victim(alive) {
                    is_far[victim] = true;
                }
                self.trace(|| format!("cut off: {:?}", (0..is_far.len()).filter(|at| is_far[*at]).collect::<Vec<_>>()));
                let cuts_links = matches!(fault, Fault::Partition(_));
                let partition =
                    Partition { is_far, since: self.now, until: self.now + length, cuts_links, cuts_registry: true };
                self.cut(partition);
            }
            Fault::CrashRegistry(length) => self.registry_dies(false, length),
            Fault::VanishRegistry(length) => self.registry_dies(true, length),
            Fault::PauseRegistry(length) => self.registry_pauses(length),
            Fault::Spawn => _ = self.spawn(None),
            Fault::SpawnAndCrash(length) => {
                let process = self.spawn(None);
                self.processes[process].is_touched = true;
                self.schedule(length, Event::Crash(process));
            }
            Fault::Leave => {
                let Some(victim) = self.victim(|process| process.is_alive && !process.is_leaving) else { return };
                self.processes[victim].is_leaving = true;
                self.processes[victim].is_touched = true;
                self.trace(|| format!("process {victim} is asked to go"));
                if self.processes[victim].engine.generation == 0 {
                    self.processes[victim].has_said_goodbye = true;
                    self.with_member(victim, |member, now| member.leave(now, Parting::Asked, "it was asked to go"));
                }
            }
            Fault::Evict => {
                let Some(victim) = self.victim(|process| process.is_alive && process.engine.generation > 0) else {
                    return;
                };
                let Some(slot) = self.processes[victim].member.slot() else { return };
                self.processes[victim].is_touched = true;
                self.with_registry(|registry, now| _ = registry.evict(now, Whom::Slot(slot), "an operator said so"));
            }
            Fault::Slow(length) => {
                if let Some(victim) = self.victim(alive) {
                    self.processes[victim].engine.delay = length;
                }
            }
        }
    }

    fn strikes_link(&mut self, fault: Fault) {
        let works = |process: &Process| process.is_alive && process.engine.place != Place::Nowhere;
        let Some(one) = self.victim(works) else { return };
        let members = self.processes[one].engine.members.clone();
        let others: Vec<usize> =
            members.into_iter().filter(|other| *other != one && works(&self.processes[*other])).collect();
        if others.is_empty() {
            return;
        }
        let other = self.random.pick(&others);
        self.trace(|| format!("the link between processes {one} and {other} breaks"));
        self.processes[one].is_touched = true;
        self.processes[other].is_touched = true;
        match fault {
            Fault::BadLink(length) => {
                self.barriers.add_bad_link(one, other, self.now + length);
                self.watch_links(one);
                self.watch_links(other);
            }
            _ => {
                let generation = self.processes[one].engine.generation;
                self.link_broke = Some(self.now);
                let delay = self.delay();
                self.schedule(delay, Event::LinkLost { process: one, other, generation });
                // The other end may see nothing of it.
                if self.random.chance(60) {
                    let delay = self.delay();
                    self.schedule(delay, Event::LinkLost { process: other, other: one, generation });
                }
            }
        }
    }

    fn cut(&mut self, partition: Partition) {
        for (process, is_far) in self.processes.iter_mut().zip(&partition.is_far) {
            process.is_touched |= is_far;
        }
        // Who complains about whom decides who goes when links break again and again: then nobody is sure to stay.
        let cuts = |fault: &Fault| matches!(fault, Fault::Partition(_) | Fault::BadLink(_) | Fault::BreakLink);
        if self.plan.faults.iter().filter(|(_, fault)| cuts(fault)).count() >= 3 {
            self.processes.iter_mut().for_each(|process| process.is_touched = true);
        }
        let is_far = partition.is_far.clone();
        let cuts_links = partition.cuts_links;
        self.barriers.add(partition);
        let limit = self.limit();
        for (number, is_far) in is_far.into_iter().enumerate() {
            if !self.processes[number].is_alive {
                continue;
            }
            if cuts_links {
                self.watch_links(number);
            }
            if is_far && let Some(connection) = self.processes[number].connection {
                let delay = self.random.between(limit / 2, limit + limit / 4);
                self.schedule(delay, Event::LookAtControl { connection });
            }
        }
    }

    /// The ends of a connection give it up, if they still cannot reach each other.
    pub(super) fn look_at_control(&mut self, connection: usize) {
        let process = self.connections[connection].process;
        if self.barriers.blocked(self.now, End::Process(process), End::Registry).is_some() {
            self.connections[connection].is_cut = true;
            let (one, other) = (self.random.below(self.limit()), self.random.below(self.limit()));
            self.schedule(one / 4, Event::BrokenAtMember(connection));
            self.schedule(other / 4, Event::BrokenAtRegistry(connection, Broken::Unreachable));
        }
    }

    pub(super) fn continues(&mut self, process: usize) {
        if self.processes[process].paused_until.take().is_none() {
            return;
        }
        self.trace(|| format!("process {process} continues"));
        let inbox = std::mem::take(&mut self.processes[process].inbox);
        for event in inbox {
            self.schedule(0, event);
        }
    }
}
