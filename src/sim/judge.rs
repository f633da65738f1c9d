//! The host of the registry: its connections, its disk, and the launcher's eye on processes.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::bugs::Bug;
use super::network::End;
use super::plan::{MILLI, Point, SECOND, Time};
use super::world::{Event, World};
use crate::membership::registry::{self, Action, Broken, Registry, Who};
use crate::types::Generation;
use crate::wire::registry::{FromRegistry, Slot, ToRegistry};

/// The registry and what it runs on.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    pub(super) registry: Option<Registry>,
    pub(super) incarnation: u32,
    pub(super) paused_until: Option<Time>,
    /// What came while it was stopped.
    pub(super) inbox: Vec<Event>,
    pub(super) wake: Option<Time>,
    pub(super) outcome: Option<registry::Outcome>,
    /// How often it died or stopped.
    pub(super) faults: u32,
    /// What members reported in this view, for the mistake that needs it.
    reports: BTreeMap<Slot, u64>,
}

impl Judge {
    pub(super) fn new(registry: Registry) -> Self {
        Judge {
            registry: Some(registry),
            incarnation: 0,
            paused_until: None,
            inbox: Vec::new(),
            wake: None,
            outcome: None,
            faults: 0,
            reports: BTreeMap::new(),
        }
    }
}

impl World {
    /// Runs `act` on the registry, if it runs, and carries out what it asks for.
    pub(super) fn with_registry(&mut self, act: impl FnOnce(&mut Registry, std::time::Instant)) {
        let now = self.instant();
        if let Some(registry) = &mut self.judge.registry {
            act(registry, now);
        }
        self.drain_registry();
    }

    pub(super) fn drain_registry(&mut self) {
        while let Some(action) = self.judge.registry.as_mut().and_then(Registry::poll_action) {
            match action {
                Action::Tell { connections, message } => self.registry_tells(connections, message),
                Action::Close { connection } => self.close_at_registry(connection as usize),
                Action::LookAtHost { connection } => self.looks_at_host(connection),
                Action::Persist { number, mut state } => {
                    self.passes(Point::Persists, None);
                    if self.bug == Bug::VerdictByLeast
                        && let Some(least) = self.least(state.generation)
                    {
                        state.counted = least;
                    }
                    let incarnation = self.judge.incarnation;
                    self.disk_free = self.disk_free.max(self.now) + self.random.between(0, self.plan.disk);
                    let delay = self.disk_free - self.now;
                    if self.bug == Bug::SaysBeforeDisk {
                        let now = self.instant();
                        self.schedule(delay, Event::Persisted { incarnation, number, state: Box::new(state) });
                        if let Some(registry) = &mut self.judge.registry {
                            registry.handle_persisted(now, number);
                        }
                    } else {
                        self.schedule(delay, Event::Persisted { incarnation, number, state: Box::new(state) });
                    }
                }
                Action::Event(event) => self.registry_notes(event),
            }
        }
        let deadline = self.judge.registry.as_ref().and_then(Registry::deadline);
        if let Some(at) = self.earlier(deadline, self.judge.wake) {
            self.judge.wake = Some(at);
            self.schedule_at(at, Event::WakeRegistry(self.judge.incarnation));
        }
    }

    /// What the least that members reported would have been, for the view that follows theirs.
    fn least(&self, generation: Generation) -> Option<u64> {
        (generation.0 > 1).then(|| self.judge.reports.values().min().copied()).flatten()
    }

    fn registry_tells(&mut self, connections: Vec<u64>, mut message: FromRegistry) {
        if let FromRegistry::View(view) = &mut message {
            if self.bug == Bug::VerdictByLeast
                && let Some(stored) = self.checks.disk().filter(|state| state.generation == view.generation)
            {
                view.counted = stored.counted;
            }
            self.checks.said(view.generation.0);
            self.passes(Point::Publishes, None);
        }
        let message = Rc::new(message);
        for connection in connections {
            let connection = connection as usize;
            let delay = self.delay();
            let Some(end) = self.connections.get_mut(connection).filter(|end| end.is_up_at_registry) else { continue };
            end.last_to_member = end.last_to_member.max(self.now + delay);
            let at = end.last_to_member;
            if self.random.chance(self.plan.duplicates) {
                self.schedule_at(at, Event::ToMember(connection, message.clone()));
            }
            self.schedule_at(at, Event::ToMember(connection, message.clone()));
        }
    }

    /// What the kernel knows of the host at the other end of a connection.
    fn looks_at_host(&mut self, connection: u64) {
        let Some(end) = self.connections.get(connection as usize) else { return };
        let vanished = self.processes[end.process].vanished_at.map(|at| self.now - at);
        let silent = vanished.into_iter().chain(self.barriers.silent_for(self.now, end.process)).max();
        if let Some(silent) = silent {
            let now = self.instant();
            if let Some(registry) = &mut self.judge.registry {
                registry.handle_host(now, connection, Duration::from_micros(silent));
            }
        }
    }

    fn close_at_registry(&mut self, connection: usize) {
        let delay = self.delay();
        let Some(end) = self.connections.get_mut(connection).filter(|end| end.is_up_at_registry) else { return };
        end.is_up_at_registry = false;
        let at = end.last_to_member.max(self.now + delay);
        self.schedule_at(at, Event::BrokenAtMember(connection));
    }

    fn registry_notes(&mut self, event: registry::Event) {
        self.trace(|| format!("registry: {event:?}"));
        match event {
            registry::Event::View { generation, members, counted, gone, broken, .. } => {
                self.judge.reports.clear();
                if gone.is_empty() && !broken.is_empty() {
                    self.mended_after = self.link_broke.take().map(|since| self.now - since);
                }
                self.has_waited |= generation == Generation::FIRST && self.now >= 25 * SECOND;
                self.checks.view("the registry", generation.0, &members, self.shown(generation, counted));
            }
            registry::Event::Waiting { .. } => self.has_waited = true,
            registry::Event::Ended(outcome) => {
                self.check_outcome(&outcome);
                self.judge.outcome = Some(outcome);
            }
            registry::Event::Lost(gone) => {
                let lost = self.process_in(gone.slot).filter(|process| {
                    let process = &self.processes[*process];
                    process.is_alive && !process.is_touched
                });
                if lost.is_some() {
                    self.checks.fail(format!("the registry takes {gone} for lost, and no fault touched it"));
                }
            }
            _ => {}
        }
    }

    /// What counts as the registry says it, mistakes included.
    fn shown(&self, generation: Generation, counted: u64) -> u64 {
        let stored = self.checks.disk().filter(|state| state.generation == generation);
        if self.bug == Bug::VerdictByLeast { stored.map_or(counted, |state| state.counted) } else { counted }
    }

    /// A message arrives at the registry.
    pub(super) fn arrives_at_registry(&mut self, connection: usize, mut message: ToRegistry) {
        let end = &self.connections[connection];
        if end.is_cut || !end.is_up_at_registry || end.incarnation != self.judge.incarnation {
            return;
        }
        let process = end.process;
        if !matches!(message, ToRegistry::Heartbeat { .. }) {
            self.trace(|| format!("process {process} says {message:?}"));
        }
        if let Some(until) = self.barriers.blocked(self.now, End::Process(process), End::Registry) {
            let at = until + self.delay();
            let last = &mut self.connections[connection].last_to_registry;
            *last = (*last).max(at);
            let at = *last;
            return self.schedule_at(at, Event::ToRegistry(connection, message));
        }
        if self.plan.encodes {
            message = ToRegistry::decode(&message.encode()[4..]).expect("what is encoded can be decoded");
        }
        if let ToRegistry::Report(report) = &mut message {
            let current = self.judge.registry.as_ref().and_then(Registry::generation);
            if self.bug == Bug::StaleReports {
                report.generation = current.unwrap_or(report.generation);
            }
            if self.bug == Bug::BoundaryUnknown {
                report.boundary = !report.boundary && !report.holds;
            }
            if Some(report.generation) == current
                && let Some(slot) = self.processes[process].member.slot()
            {
                self.judge.reports.insert(slot, report.counted);
            }
        }
        self.with_registry(|registry, now| registry.handle_message(now, connection as u64, message));
    }

    pub(super) fn breaks_at_registry(&mut self, connection: usize, how: Broken) {
        let end = &mut self.connections[connection];
        if !end.is_up_at_registry || end.incarnation != self.judge.incarnation {
            return;
        }
        end.is_up_at_registry = false;
        let detail = match how {
            Broken::Closed => "its connection was closed",
            Broken::Unreachable => "its host does not answer",
        };
        self.with_registry(|registry, now| registry.handle_closed(now, connection as u64, how, detail));
    }

    pub(super) fn registry_wakes(&mut self, incarnation: u32) {
        if incarnation != self.judge.incarnation {
            return;
        }
        self.judge.wake = None;
        self.with_registry(|registry, now| registry.handle_timeout(now));
    }

    pub(super) fn is_persisted(&mut self, incarnation: u32, number: u64, state: registry::State) {
        if incarnation != self.judge.incarnation {
            if incarnation + 1 == self.judge.incarnation && self.now <= self.disk_stops {
                self.checks.stored(&state);
            }
            return;
        }
        self.checks.stored(&state);
        self.with_registry(|registry, now| registry.handle_persisted(now, number));
    }

    /// The launcher saw a process end.
    pub(super) fn launcher_sees(&mut self, process: usize) {
        let token = self.processes[process].token;
        self.with_registry(|registry, now| _ = registry.handle_exit(now, &Who::Token(token), "killed"));
    }

    /// The registry's process dies; a state that was on its way to the disk may have got there.
    pub(super) fn registry_dies(&mut self, is_silent: bool, back_after: Time) {
        // A job that is over is not begun again.
        if self.judge.outcome.is_some() || self.judge.registry.take().is_none() {
            return;
        }
        self.judge.faults += 1;
        self.judge.incarnation += 1;
        self.judge.wake = None;
        self.judge.paused_until = None;
        self.judge.inbox.clear();
        self.judge.reports.clear();
        self.disk_stops = self.random.between(self.now, self.disk_free.max(self.now));
        let back_after = back_after.max(self.disk_free.saturating_sub(self.now) + 1);
        let limit = self.limit();
        for connection in 0..self.connections.len() {
            if self.connections[connection].is_up_at_registry {
                let delay = if is_silent { self.random.between(limit / 2, limit + limit / 4) } else { self.delay() };
                let end = &mut self.connections[connection];
                end.is_up_at_registry = false;
                end.is_cut = true;
                self.schedule(delay, Event::BrokenAtMember(connection));
            }
        }
        let incarnation = self.judge.incarnation;
        self.schedule(back_after, Event::RegistryStarts(incarnation));
    }

    pub(super) fn registry_starts(&mut self, incarnation: u32) {
        if incarnation != self.judge.incarnation || self.judge.registry.is_some() {
            return;
        }
        let now = self.instant();
        let mut config = self.plan.config.clone();
        if self.bug == Bug::NoRestartGrace {
            config.restart_grace = Duration::ZERO;
        }
        let stored = match self.bug {
            Bug::ForgetsAll => None,
            Bug::DiskLosesLast => self.stored_before.clone(),
            _ => self.checks.disk().cloned(),
        };
        self.trace(|| format!("registry starts from {:?}", stored.as_ref().map(|state| state.generation)));
        self.judge.registry = Some(match stored {
            Some(state) => Registry::restore(now, config, state),
            None => Registry::new(now, config),
        });
        self.drain_registry();
    }

    pub(super) fn registry_pauses(&mut self, length: Time) {
        if self.judge.registry.is_some() && self.judge.paused_until.is_none() {
            self.judge.faults += 1;
            self.judge.paused_until = Some(self.now + length);
            self.schedule(length, Event::RegistryContinues);
        }
    }

    pub(super) fn registry_continues(&mut self) {
        self.judge.paused_until = None;
        if self.bug == Bug::CountsPauses {
            self.passes_unheard();
        }
        let inbox = std::mem::take(&mut self.judge.inbox);
        for event in inbox {
            self.schedule(0, event);
        }
    }

    /// The registry's time passes up to now, and nothing is heard.
    fn passes_unheard(&mut self) {
        let now = self.instant();
        let due = |registry: &Registry| {
            registry.deadline().filter(|deadline| deadline.has_passed(now)).map(|deadline| now - deadline.overdue(now))
        };
        while let Some(at) = self.judge.registry.as_ref().and_then(due) {
            self.with_registry(|registry, _| registry.handle_timeout(at));
        }
    }

    /// A job ends only for a reason.
    fn check_outcome(&mut self, outcome: &registry::Outcome) {
        let registry::Outcome::Failed(reason) = outcome else {
            let still = (0..self.processes.len()).find(|process| {
                let process = &self.processes[*process];
                process.is_alive && !process.has_said_goodbye && process.engine.generation > 0 && !process.is_touched
            });
            if let Some(still) = still {
                self.checks.fail(format!("the job is finished, and process {still} is not"));
            }
            return;
        };
        let is_over_limit = self.plan.config.reset_limit.is_some_and(|limit| self.checks.views() as u64 > limit);
        let current = self.judge.registry.as_ref().and_then(Registry::generation).map_or(0, |generation| generation.0);
        let sound = self.processes.iter().filter(|process| {
            process.is_alive && !process.is_touched && !process.has_said_goodbye && process.engine.generation == current
        });
        let (sound, with_state) =
            sound.fold((0, 0), |(all, with), process| (all + 1, with + usize::from(process.engine.has_state)));
        let has_state = current == 0 || with_state > 0;
        if sound >= self.plan.config.min_np && has_state && !is_over_limit {
            self.checks.fail(format!("the job fails with {sound} sound members: {reason}"));
        }
    }

    /// How long the heartbeat limit is.
    pub(super) fn limit(&self) -> Time {
        self.plan.config.heartbeat_limit.as_micros() as Time
    }

    /// How long a message takes.
    pub(super) fn delay(&mut self) -> Time {
        let (low, high) = self.plan.delay;
        let delay = self.random.between(low, high);
        if self.plan.slow_messages > 0 && self.random.chance(self.plan.slow_messages) {
            (delay * self.random.between(1, 20)).min(300 * MILLI)
        } else {
            delay
        }
    }
}
