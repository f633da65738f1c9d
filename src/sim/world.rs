//! The event loop of a run.

mod strikes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::bugs::Bug;
use super::checks::Checks;
use super::judge::Judge;
use super::network::{Barriers, Connection};
use super::plan::{Fault, Plan, Point, SECOND, Strike, Time};
use super::process::Process;
use super::random::Random;
use super::work::{Place, StageKey, Stages};
use crate::membership::registry::{Broken, Registry, State};
use crate::types::Deadline;
use crate::wire::registry::{FromRegistry, Slot, ToRegistry, Token};

/// What happens next.
#[derive(Clone, Debug)]
pub(super) enum Event {
    ToRegistry(usize, ToRegistry),
    ToMember(usize, Rc<FromRegistry>),
    BrokenAtMember(usize),
    BrokenAtRegistry(usize, Broken),
    Dialled { process: usize, dial: u32, is_blocked: bool },
    WakeMember(usize),
    WakeRegistry(u32),
    Persisted { incarnation: u32, number: u64, state: Box<State> },
    Exited(usize),
    Freeze { process: usize, epoch: u32, told: (u64, bool) },
    Worked { process: usize, epoch: u32 },
    Complete { process: usize, key: StageKey },
    LinkLost { process: usize, other: usize, generation: u64 },
    LookAtLink { process: usize, other: usize, generation: u64 },
    LookAtControl { connection: usize },
    Continue(usize),
    Crash(usize),
    RegistryStarts(u32),
    RegistryContinues,
    Spawn,
    Fault(Fault),
    Strike(Strike, Option<usize>),
    Look,
}

/// How a run went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) events: u64,
    pub(super) views: usize,
    pub(super) steps: u64,
    pub(super) time: Time,
    /// How long after the last fault all was well again.
    pub(super) settled_after: Time,
    /// From the break of a link between two that live to the view that makes it again, which is without a loss.
    pub(super) mended_after: Option<Time>,
}

/// A cluster.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) bug: Bug,
    pub(super) random: Random,
    base: Instant,
    pub(super) now: Time,
    queue: BinaryHeap<Reverse<Item>>,
    sequence: u64,
    pub(super) processes: Vec<Process>,
    pub(super) by_token: BTreeMap<Token, usize>,
    pub(super) by_slot: BTreeMap<Slot, usize>,
    pub(super) connections: Vec<Connection>,
    pub(super) barriers: Barriers,
    pub(super) judge: Judge,
    pub(super) stages: Stages,
    pub(super) checks: Checks,
    /// When the disk has written all it was given.
    pub(super) disk_free: Time,
    /// When a registry that died had its last state written.
    pub(super) disk_stops: Time,
    /// What was on the disk before the last state, for the mistake that needs it.
    pub(super) stored_before: Option<State>,
    is_told: bool,
    /// Whether it had to wait for members to come, as long as they were given.
    pub(super) has_waited: bool,
    /// When a link between two that live was broken, and how long it then took to make it again.
    pub(super) link_broke: Option<Time>,
    pub(super) mended_after: Option<Time>,
    /// How many steps counted when the faults had stopped and all were in one view.
    steady: Option<(u64, u64)>,
}

struct Item {
    at: Time,
    sequence: u64,
    event: Event,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Item {}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl World {
    /// The cluster of a plan. `base` is when it begins; `is_told` has it print what happens.
    pub(super) fn new(base: Instant, seed: u64, plan: Plan, bug: Bug, is_told: bool) -> Self {
        let registry = Registry::new(base, plan.config.clone());
        World {
            random: Random::new(seed),
            plan,
            bug,
            base,
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            processes: Vec::new(),
            by_token: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            connections: Vec::new(),
            barriers: Barriers::default(),
            judge: Judge::new(registry),
            stages: Stages::default(),
            checks: Checks::default(),
            disk_free: 0,
            disk_stops: 0,
            stored_before: None,
            is_told,
            has_waited: false,
            link_broke: None,
            mended_after: None,
            steady: None,
        }
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            println!("{:>12.6} {}", self.now as f64 / SECOND as f64, what());
        }
    }

    pub(super) fn schedule(&mut self, delay: Time, event: Event) {
        self.schedule_at(self.now + delay, event);
    }

    pub(super) fn schedule_at(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse(Item { at: at.max(self.now), sequence: self.sequence, event }));
    }

    /// A deadline as virtual time, if it is earlier than the wake-up that is set.
    pub(super) fn earlier(&self, deadline: Option<Deadline>, set: Option<Time>) -> Option<Time> {
        let remaining = deadline?.remaining(self.instant());
        // Rounded up: whoever wakes too early has to wake again.
        let at = self.now + remaining.as_nanos().div_ceil(1000) as Time;
        set.is_none_or(|set| at < set).then_some(at)
    }

    /// Runs until all that live agree again and work, or have ended. The error says what is wrong.
    pub(super) fn run(&mut self) -> Result<Figures, String> {
        for wish in 0..self.plan.np {
            self.spawn(Some(wish));
        }
        for (at, fault) in self.plan.faults.clone() {
            self.schedule_at(at, Event::Fault(fault));
        }
        self.drain_registry();
        self.schedule(SECOND, Event::Look);
        let steps = self.plan.last_step.unwrap_or(0);
        let patience = 100 * SECOND + 6 * self.limit() + 2 * steps * self.plan.work.1;
        let mut figures = Figures::default();
        while let Some(Reverse(Item { at, event, .. })) = self.queue.pop() {
            self.now = at;
            figures.events += 1;
            if matches!(event, Event::Look) {
                if self.is_settled() {
                    break;
                }
                if at > self.plan.quiet + patience {
                    let why = self.unsettled();
                    self.checks.fail(format!("{} s after the last fault: {why}", patience / SECOND));
                }
                let pause = if at > self.plan.quiet { self.plan.work.1.max(SECOND / 5) } else { SECOND };
                self.schedule(pause, Event::Look);
            } else {
                self.happens(event);
            }
            if let Some(failure) = self.checks.failure.take() {
                return Err(format!("at {:.6} s: {failure}", at as f64 / SECOND as f64));
            }
        }
        figures.views = self.checks.views();
        figures.steps = self.checks.counted();
        figures.time = self.now;
        figures.settled_after = self.now - self.plan.quiet;
        figures.mended_after = self.mended_after;
        let grace = self.plan.config.restart_grace.as_micros() as Time;
        let bound = grace + 2 * self.limit() + 16 * SECOND;
        let is_bound = !self.has_waited && self.plan.last_step.is_none() && figures.views > 0;
        if is_bound && figures.settled_after > bound {
            let (after, bound) = (figures.settled_after / SECOND, bound / SECOND);
            return Err(format!("all is well only {after} s after the last fault, later than {bound} s"));
        }
        Ok(figures)
    }

    fn happens(&mut self, event: Event) {
        if let Some(process) = self.concerns(&event)
            && self.processes[process].paused_until.is_some()
        {
            return self.processes[process].inbox.push(event);
        }
        if self.judge.paused_until.is_some()
            && matches!(
                event,
                Event::ToRegistry(..)
                    | Event::BrokenAtRegistry(..)
                    | Event::WakeRegistry(_)
                    | Event::Persisted { .. }
                    | Event::Exited(_)
            )
        {
            return self.judge.inbox.push(event);
        }
        match event {
            Event::ToRegistry(connection, message) => self.arrives_at_registry(connection, message),
            Event::ToMember(connection, message) => self.arrives_at_member(connection, message),
            Event::BrokenAtMember(connection) => self.breaks_at_member(connection),
            Event::BrokenAtRegistry(connection, how) => self.breaks_at_registry(connection, how),
            Event::Dialled { process, dial, is_blocked } => self.dialled(process, dial, is_blocked),
            Event::WakeMember(process) => self.member_wakes(process),
            Event::WakeRegistry(incarnation) => self.registry_wakes(incarnation),
            Event::Persisted { incarnation, number, state } => {
                if self.bug == Bug::DiskLosesLast {
                    self.stored_before = self.checks.disk().cloned();
                }
                self.is_persisted(incarnation, number, *state);
            }
            Event::Exited(process) => self.launcher_sees(process),
            Event::Freeze { process, epoch, told } => self.freezes(process, epoch, told),
            Event::Worked { process, epoch } => self.enters(process, epoch),
            Event::Complete { process, key } => self.completes(process, key),
            Event::LinkLost { process, other, generation } => self.link_lost(process, other, generation),
            Event::LookAtLink { process, other, generation } => self.look_at_link(process, other, generation),
            Event::LookAtControl { connection } => self.look_at_control(connection),
            Event::Continue(process) => self.continues(process),
            Event::Crash(process) => self.end_process(process, false),
            Event::RegistryStarts(incarnation) => self.registry_starts(incarnation),
            Event::RegistryContinues => self.registry_continues(),
            Event::Spawn => _ = self.spawn(None),
            Event::Fault(fault) => self.strikes(fault),
            Event::Strike(strike, actor) => self.strikes_at_point(strike, actor),
            Event::Look => {}
        }
    }

    /// The process that an event waits for while it is stopped.
    fn concerns(&self, event: &Event) -> Option<usize> {
        match event {
            Event::ToMember(connection, _) | Event::BrokenAtMember(connection) => {
                Some(self.connections[*connection].process)
            }
            Event::Dialled { process, .. }
            | Event::WakeMember(process)
            | Event::Freeze { process, .. }
            | Event::Worked { process, .. }
            | Event::Complete { process, .. }
            | Event::LinkLost { process, .. }
            | Event::LookAtLink { process, .. } => Some(*process),
            _ => None,
        }
    }

    /// A point of the protocol is passed, by a process or by the registry.
    pub(super) fn passes(&mut self, point: Point, actor: Option<usize>) {
        if self.plan.traps.is_empty() {
            return;
        }
        let mut struck = Vec::new();
        self.plan.traps.retain_mut(|trap| {
            if trap.point != point {
                return true;
            }
            if trap.turn == 0 {
                struck.push(trap.strike);
                return false;
            }
            trap.turn -= 1;
            true
        });
        for strike in struck {
            let delay = if self.random.chance(50) { 0 } else { self.random.below(3 * self.plan.delay.1) };
            self.schedule(delay, Event::Strike(strike, actor));
            let length = match strike {
                Strike::Pause(length) | Strike::CrashRegistry(length) => length,
                Strike::Crash | Strike::CrashOther | Strike::Break => 0,
            };
            self.plan.quiet = self.plan.quiet.max(self.now + delay + length);
            self.steady = None;
        }
    }

    /// Whether all that live are in one view and count steps, or have ended.
    fn is_settled(&mut self) -> bool {
        if self.plan.encodes
            && let Some(registry) = &self.judge.registry
        {
            let status = FromRegistry::Status(registry.status(self.instant()));
            if FromRegistry::decode(&status.encode()[4..]).as_ref() != Ok(&status) {
                self.checks.fail(format!("a status is not read as it was written: {status:?}"));
            }
        }
        if self.now <= self.plan.quiet {
            return false;
        }
        if self.processes.iter().all(|process| !process.is_alive) {
            return true;
        }
        if self.plan.last_step.is_some() || self.unsettled_reason().is_some() {
            self.steady = None;
            return false;
        }
        let generation = self.judge.registry.as_ref().and_then(Registry::generation).map_or(0, |current| current.0);
        let members = self.processes.iter().filter(|process| process.is_alive && process.engine.generation > 0);
        let counted = members.map(|process| process.engine.counted).min().unwrap_or(0);
        match self.steady {
            Some((before, since)) if before == generation => counted >= since + 2,
            _ => {
                self.steady = Some((generation, counted));
                self.stages.forget_before(generation);
                false
            }
        }
    }

    fn unsettled_reason(&self) -> Option<String> {
        let Some(registry) = &self.judge.registry else { return Some("there is no registry".into()) };
        if let Some(outcome) = registry.outcome() {
            let process = self.processes.iter().position(|process| process.is_alive)?;
            return Some(format!("the job is over ({outcome:?}), and process {process} is not"));
        }
        let generation = registry.generation().map_or(0, |generation| generation.0);
        let free = self.plan.config.max_np.saturating_sub(registry.members().len());
        let mut waiting = 0;
        for (number, process) in self.processes.iter().enumerate().filter(|(_, process)| process.is_alive) {
            if process.engine.generation == 0 {
                waiting += 1;
            } else if process.engine.generation != generation || process.engine.place == Place::Frozen {
                let Process { engine, .. } = process;
                return Some(format!(
                    "process {number} is {:?} in generation {} after {} steps, the registry at {generation}",
                    engine.place, engine.generation, engine.counted
                ));
            }
        }
        (waiting > 0 && free > 0).then(|| format!("{waiting} processes wait, and there is room for {free}"))
    }

    fn unsettled(&self) -> String {
        let reason = self.unsettled_reason().unwrap_or_else(|| "no step counts".into());
        let status = self.judge.registry.as_ref().map(|registry| registry.status(self.instant()));
        let waits_for = status.map(|status| format!("{} ({})", status.phase.name(), status.waits_for));
        self.trace(|| {
            let members = self.processes.iter().enumerate().filter(|(_, process)| process.is_alive);
            let members = members.map(|(number, process)| {
                let Process { engine, connection, .. } = process;
                let stage = engine.stage().and_then(|key| self.stages.0.get(&key));
                let lacks = stage.map(|stage| (stage.entered.len(), stage.lost.contains(&number)));
                format!("{number} {:?} {connection:?} {:?} {lacks:?}", engine.place, engine.down)
            });
            members.collect::<Vec<_>>().join("\n")
        });
        format!("{reason}; the registry is {}", waits_for.unwrap_or_else(|| "away".into()))
    }
}
