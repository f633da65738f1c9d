//! What members do together: steps of collectives, each closed by a commit.
//!
//! A stage (the collectives of a step, or its commit, in one view) is entered by each member, and is complete at a
//! member once what every other member sent when it entered has arrived. So nobody passes a commit before all have
//! entered it; but who passes it when, or never, is the network's and the faults' choice: what a member that died, or a
//! link that broke, had sent arrives at some and not at others.

use std::collections::{BTreeMap, BTreeSet};

use super::bugs::Bug;
use super::network::End;
use super::plan::Point;
use super::world::{Event, World};
use crate::wire::registry::{Parting, Slot};

/// Which stage: the number of the view, the step, and whether it is the step's commit.
pub(super) type StageKey = (u64, u64, bool);

/// How far one has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage {
    /// Who is to enter it, by process.
    pub(super) members: Vec<usize>,
    pub(super) entered: BTreeSet<usize>,
    /// Those at which it will never be complete: something for them was lost.
    pub(super) lost: BTreeSet<usize>,
    pub(super) complete: BTreeSet<usize>,
    /// For a commit: whether one that entered asks all to stop behind it.
    pub(super) flag: bool,
}

impl Stage {
    pub(super) fn is_entered(&self) -> bool {
        self.entered.len() == self.members.len()
    }
}

/// All stages. Those of views that are over are kept for those that do not know it yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Stages(pub(super) BTreeMap<StageKey, Stage>);

impl Stages {
    /// Views before `generation` are over for all.
    pub(super) fn forget_before(&mut self, generation: u64) {
        self.0 = self.0.split_off(&(generation, 0, false));
    }
}

/// Whether nobody may come in behind a step: all know it, as they run the same program.
pub(super) fn is_closed(step: u64) -> bool {
    step % 3 == 1
}

/// Where a process is in its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has no view, or has gone.
    Nowhere,
    /// It computes by itself.
    Working,
    /// It waits for the collectives of the step.
    Collecting,
    /// It has all results and has not entered the commit.
    Holding,
    /// It has entered the commit.
    Committing,
    /// It stands still until the next view.
    Frozen,
}

/// The engine of a process.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) generation: u64,
    /// The members of the view, by process, and their slots.
    pub(super) members: Vec<usize>,
    pub(super) slots: Vec<Slot>,
    pub(super) counted: u64,
    pub(super) place: Place,
    /// Asked to stop behind the next commit.
    pub(super) is_wanted: bool,
    /// Peers whose link is lost here.
    pub(super) down: BTreeSet<usize>,
    /// Changes with each view and each stop: what was begun before is over.
    pub(super) epoch: u32,
    /// Takes this much longer for its next step.
    pub(super) delay: u64,
    /// Whether it has the state of the training: from the beginning, or since a step counted with it.
    pub(super) has_state: bool,
    /// Whether it held a step's results when it stopped.
    pub(super) holds_at_stop: bool,
}

impl Engine {
    pub(super) fn new() -> Self {
        Engine {
            generation: 0,
            members: Vec::new(),
            slots: Vec::new(),
            counted: 0,
            place: Place::Nowhere,
            is_wanted: false,
            down: BTreeSet::new(),
            epoch: 0,
            delay: 0,
            has_state: false,
            holds_at_stop: false,
        }
    }

    /// The stage it is in.
    pub(super) fn stage(&self) -> Option<StageKey> {
        match self.place {
            Place::Collecting => Some((self.generation, self.counted + 1, false)),
            Place::Committing => Some((self.generation, self.counted + 1, true)),
            _ => None,
        }
    }

    /// What a report says of the step under way.
    pub(super) fn holds(&self) -> bool {
        self.place == Place::Committing
    }
}

impl World {
    /// Begins the next step, or goes.
    pub(super) fn next_step(&mut self, number: usize) {
        let process = &mut self.processes[number];
        let is_done = self.plan.last_step.is_some_and(|last| process.engine.counted >= last);
        if is_done || process.is_leaving {
            process.engine.place = Place::Nowhere;
            process.has_said_goodbye = true;
            return self.with_member(number, |member, now| match is_done {
                true => member.leave(now, Parting::Done, "its work is done"),
                false => member.leave(now, Parting::Asked, "it was asked to go"),
            });
        }
        process.engine.place = Place::Working;
        let epoch = process.engine.epoch;
        let extra = std::mem::take(&mut process.engine.delay);
        let (low, high) = self.plan.work;
        let work = self.random.between(low, high) + extra;
        self.schedule(work, Event::Worked { process: number, epoch });
    }

    /// A process has done its own part of a step, or holds all results of one: on to the next stage.
    pub(super) fn enters(&mut self, number: usize, epoch: u32) {
        let process = &mut self.processes[number];
        if !process.is_alive || process.engine.epoch != epoch {
            return;
        }
        process.engine.place = match process.engine.place {
            Place::Working => Place::Collecting,
            Place::Holding => Place::Committing,
            _ => return,
        };
        let Some(key) = process.engine.stage() else { return };
        let (members, generation) = (process.engine.members.clone(), process.engine.generation);
        let is_wanted = process.engine.is_wanted && !is_closed(key.1);
        let stage = self.stages.0.entry(key).or_default();
        if stage.members.is_empty() {
            stage.members.clone_from(&members);
        }
        stage.entered.insert(number);
        stage.flag |= is_wanted;
        let is_entered = stage.is_entered();
        if key.2 {
            self.passes(Point::Enters, Some(number));
        }
        if is_entered {
            self.all_entered(key);
        } else {
            // It needs a peer that is not there any more.
            for other in members {
                if !self.processes[other].is_alive {
                    self.schedule_loss(number, other, generation);
                }
            }
        }
    }

    fn all_entered(&mut self, key: StageKey) {
        let members = self.stages.0.get(&key).map(|stage| stage.members.clone()).unwrap_or_default();
        let is_any_down = members.iter().any(|member| !self.processes[*member].engine.down.is_empty());
        for &member in &members {
            let engine = &self.processes[member].engine;
            let is_cut = is_any_down
                && members
                    .iter()
                    .any(|other| engine.down.contains(other) || self.processes[*other].engine.down.contains(&member));
            if is_cut && let Some(stage) = self.stages.0.get_mut(&key) {
                stage.lost.insert(member);
            }
            if self.stages.0.get(&key).is_some_and(|stage| !stage.lost.contains(&member)) {
                let delay = self.delay();
                self.schedule(delay, Event::Complete { process: member, key });
            }
        }
    }

    /// What all others sent has arrived at a process.
    pub(super) fn completes(&mut self, number: usize, key: StageKey) {
        let goes_on = self.bug == Bug::GoesOnAfterReport
            && self.processes[number].engine.place == Place::Frozen
            && key == (self.processes[number].engine.generation, self.processes[number].engine.counted + 1, true);
        if !self.processes[number].is_alive || !(goes_on || self.processes[number].engine.stage() == Some(key)) {
            return;
        }
        let Some(stage) = self.stages.0.get(&key).filter(|stage| !stage.lost.contains(&number)) else { return };
        if self.barriers.is_any(self.now) {
            let far = stage.members.iter().filter(|other| **other != number);
            let ends =
                far.filter_map(|other| self.barriers.blocked(self.now, End::Process(number), End::Process(*other)));
            if let Some(until) = ends.max() {
                let at = until + self.delay();
                return self.schedule_at(at, Event::Complete { process: number, key });
            }
        }
        let flag = stage.flag;
        if let Some(stage) = self.stages.0.get_mut(&key) {
            stage.complete.insert(number);
        }
        let engine = &mut self.processes[number].engine;
        if !key.2 {
            engine.place = Place::Holding;
            let epoch = engine.epoch;
            let delay = self.random.between(0, self.plan.work.0 / 4);
            return self.schedule(delay, Event::Worked { process: number, epoch });
        }
        self.counts(number, key.1, key.0);
        self.passes(Point::Passes, Some(number));
        if goes_on {
            return;
        }
        if flag {
            let engine = &mut self.processes[number].engine;
            engine.place = Place::Frozen;
            engine.epoch += 1;
            let counted = engine.counted;
            return self.with_member(number, |member, now| member.handle_boundary(now, counted));
        }
        self.next_step(number);
    }

    /// A process applies a step: what the members of `generation` contributed.
    pub(super) fn counts(&mut self, number: usize, step: u64, generation: u64) {
        let before = self.processes[number].engine.counted;
        let is_ending = self.processes.iter().any(|process| process.has_said_goodbye);
        let fewest = if is_ending { 1 } else { self.plan.config.min_np };
        self.checks.step(&format!("process {number}"), before, step, generation, fewest);
        self.processes[number].engine.counted = step;
        self.processes[number].engine.has_state = true;
    }

    /// The engine has stopped, as it was told to.
    pub(super) fn freezes(&mut self, number: usize, epoch: u32, told: (u64, bool)) {
        let process = &mut self.processes[number];
        // It may have stopped at a boundary before, and even have gone on from there.
        if !process.is_alive || process.engine.epoch != epoch || process.engine.place == Place::Nowhere {
            return;
        }
        let (mut counted, mut holds) = (process.engine.counted, process.engine.holds());
        process.engine.holds_at_stop = holds;
        if self.bug == Bug::ReportsEarly {
            holds |= matches!(process.engine.place, Place::Collecting | Place::Holding);
        }
        if self.bug == Bug::ReportsBeforeStopping {
            (counted, holds) = told;
        }
        process.engine.place = Place::Frozen;
        process.engine.epoch += 1;
        self.with_member(number, |member, now| member.handle_suspended(now, counted, holds, is_closed(counted + 1)));
    }

    /// What a process that ends had sent arrives at some, and not at others.
    pub(super) fn loses_sent(&mut self, number: usize) {
        let generation = self.processes[number].engine.generation;
        let keys: Vec<StageKey> = self
            .stages
            .0
            .range((generation, 0, false)..(generation + 1, 0, false))
            .filter(|(_, stage)| stage.entered.contains(&number) && stage.complete.len() < stage.members.len())
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            let Some(stage) = self.stages.0.get_mut(&key) else { continue };
            for member in stage.members.clone() {
                if !stage.complete.contains(&member) && self.random.chance(50) {
                    stage.lost.insert(member);
                }
            }
        }
    }

    /// A process is going to notice that its link to another is lost.
    pub(super) fn schedule_loss(&mut self, number: usize, other: usize, generation: u64) {
        let peer = &self.processes[other];
        let limit = self.limit();
        let delay = match (peer.is_alive, peer.vanished_at.is_some()) {
            (false, true) => self.random.between(limit / 2, limit + limit / 2),
            (false, false) if !self.plan.has_sockets && !peer.has_said_goodbye => return,
            _ => self.delay(),
        };
        self.schedule(delay, Event::LinkLost { process: number, other, generation });
    }

    /// One end of a link notices that it is lost. What is on its way is lost, or has just arrived.
    pub(super) fn link_lost(&mut self, number: usize, other: usize, generation: u64) {
        let process = &mut self.processes[number];
        if !process.is_alive || process.engine.generation != generation || process.engine.place == Place::Nowhere {
            return;
        }
        if !process.engine.down.insert(other) {
            return;
        }
        for (receiver, sender) in [(number, other), (other, number)] {
            let Some(key) = self.processes[receiver].engine.stage().filter(|key| key.0 == generation) else { continue };
            let coin = self.random.chance(50);
            if let Some(stage) = self.stages.0.get_mut(&key)
                && (coin || !stage.entered.contains(&sender))
            {
                stage.lost.insert(receiver);
            }
        }
        let engine = &self.processes[number].engine;
        let place = engine.members.iter().position(|process| *process == other);
        if let Some(slot) = place.map(|place| engine.slots[place]) {
            self.with_member(number, |member, now| member.handle_link_lost(now, slot, "its link is lost"));
        }
    }

    /// Looks, after a while, whether peers that cannot be reached now still cannot be.
    pub(super) fn watch_links(&mut self, number: usize) {
        if !self.barriers.is_any(self.now) {
            return;
        }
        let limit = self.limit();
        let (members, generation) =
            (self.processes[number].engine.members.clone(), self.processes[number].engine.generation);
        for other in members {
            if self.barriers.blocked(self.now, End::Process(number), End::Process(other)).is_some() {
                let delay = self.random.between(limit / 3, limit + limit / 4);
                self.schedule(delay, Event::LookAtLink { process: number, other, generation });
            }
        }
    }

    pub(super) fn look_at_link(&mut self, number: usize, other: usize, generation: u64) {
        if self.barriers.blocked(self.now, End::Process(number), End::Process(other)).is_some() {
            self.link_lost(number, other, generation);
        }
    }
}
