//! The processes: each a member's machine, an engine, and the shell between them.

use super::bugs::Bug;
use super::network::{Connection, End};
use super::plan::{MILLI, Point, SECOND, Time};
use super::work::{Engine, Place, is_closed};
use super::world::{Event, World};
use crate::membership::member::{Action, Installation, Member, MemberConfig, Outcome, Stop};
use crate::membership::registry::Broken;
use crate::wire::registry::{FromRegistry, ProcessRecord, Slot, ToRegistry, Token};

/// One process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) member: Member,
    pub(super) token: Token,
    pub(super) engine: Engine,
    pub(super) is_alive: bool,
    pub(super) stop: Option<Stop>,
    pub(super) paused_until: Option<Time>,
    /// What came while it was stopped.
    pub(super) inbox: Vec<Event>,
    /// Its connection to the registry.
    pub(super) connection: Option<usize>,
    /// Which attempt to connect is under way.
    pub(super) dial: u32,
    pub(super) wake: Option<Time>,
    /// Whether a fault has struck it, so that the others may be right to go on without it.
    pub(super) is_touched: bool,
    /// Whether it was asked to go.
    pub(super) is_leaving: bool,
    pub(super) has_said_goodbye: bool,
    /// When its host went with it.
    pub(super) vanished_at: Option<Time>,
}

impl World {
    /// A process comes.
    pub(super) fn spawn(&mut self, wish: Option<usize>) -> usize {
        let number = self.processes.len();
        let mut token = [0; 16];
        token[8..].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        token[..8].copy_from_slice(&self.random.next().to_le_bytes());
        let process = ProcessRecord {
            pid: number as u32,
            host: vec![1; 16],
            host_name: String::from("node"),
            addresses: vec![7; 32],
        };
        let config = MemberConfig { wish, ..MemberConfig::new(token, process) };
        let member = Member::new(self.instant(), config);
        self.processes.push(Process {
            member,
            token,
            engine: Engine::new(),
            is_alive: true,
            stop: None,
            paused_until: None,
            inbox: Vec::new(),
            connection: None,
            dial: 0,
            wake: None,
            is_touched: false,
            is_leaving: false,
            has_said_goodbye: false,
            vanished_at: None,
        });
        self.by_token.insert(token, number);
        self.trace(|| format!("process {number} comes"));
        self.drain(number);
        number
    }

    /// Runs `act` on a process's machine, and carries out what it asks for.
    pub(super) fn with_member(&mut self, process: usize, act: impl FnOnce(&mut Member, std::time::Instant)) {
        let now = self.instant();
        if self.processes[process].is_alive {
            act(&mut self.processes[process].member, now);
        }
        self.drain(process);
    }

    fn drain(&mut self, number: usize) {
        while let Some(action) =
            self.processes[number].is_alive.then(|| self.processes[number].member.poll_action()).flatten()
        {
            match action {
                Action::Connect => self.dial(number),
                Action::Disconnect => self.hang_up(number),
                Action::Send(message) => self.member_says(number, message),
                Action::Suspend { .. } => {
                    self.passes(Point::Suspends, Some(number));
                    let longest = self.plan.stopping * if self.random.chance(5) { 20 } else { 1 };
                    let delay = self.random.between(0, longest);
                    let engine = &self.processes[number].engine;
                    let told = (engine.counted, engine.holds());
                    self.schedule(delay, Event::Freeze { process: number, epoch: engine.epoch, told });
                }
                Action::Install(installation) => self.install(number, &installation),
                Action::Wanted => self.processes[number].engine.is_wanted = true,
                Action::Stop(stop) => self.stops(number, stop),
                Action::Waiting { .. } | Action::Stuck { .. } | Action::Away { .. } | Action::Back => {}
            }
        }
        if !self.processes[number].is_alive {
            return;
        }
        let deadline = self.processes[number].member.deadline();
        if let Some(at) = self.earlier(deadline, self.processes[number].wake) {
            self.processes[number].wake = Some(at);
            self.schedule_at(at, Event::WakeMember(number));
        }
    }

    fn dial(&mut self, number: usize) {
        self.processes[number].dial += 1;
        let dial = self.processes[number].dial;
        let blocked = self.barriers.blocked(self.now, End::Process(number), End::Registry);
        let delay = match blocked {
            Some(_) => self.limit(),
            None => 3 * self.delay(),
        };
        self.schedule(delay, Event::Dialled { process: number, dial, is_blocked: blocked.is_some() });
    }

    pub(super) fn dialled(&mut self, number: usize, dial: u32, is_blocked: bool) {
        if self.processes[number].dial != dial {
            return;
        }
        if is_blocked || self.judge.registry.is_none() {
            return self.with_member(number, |member, now| member.handle_disconnected(now, "nobody answers"));
        }
        self.connections.push(Connection::new(number, self.judge.incarnation));
        self.processes[number].connection = Some(self.connections.len() - 1);
        self.with_member(number, |member, now| member.handle_connected(now));
    }

    fn hang_up(&mut self, number: usize) {
        self.processes[number].dial += 1;
        let Some(connection) = self.processes[number].connection.take() else { return };
        self.connections[connection].is_up_at_member = false;
        let at = self.connections[connection].last_to_registry.max(self.now + self.plan.delay.0);
        self.schedule_at(at, Event::BrokenAtRegistry(connection, Broken::Closed));
    }

    fn member_says(&mut self, number: usize, message: ToRegistry) {
        let Some(connection) = self.processes[number].connection else { return };
        let point = match &message {
            ToRegistry::Register(_) => Some(Point::Registers),
            ToRegistry::Report(report) if report.boundary => Some(Point::Stops),
            ToRegistry::Report(_) => Some(Point::Reports),
            ToRegistry::Leave { .. } => Some(Point::Leaves),
            _ => None,
        };
        if let Some(point) = point {
            self.passes(point, Some(number));
        }
        let delay = self.delay();
        let end = &mut self.connections[connection];
        end.last_to_registry = end.last_to_registry.max(self.now + delay);
        let at = end.last_to_registry;
        if self.random.chance(self.plan.duplicates) {
            self.schedule_at(at, Event::ToRegistry(connection, message.clone()));
        }
        self.schedule_at(at, Event::ToRegistry(connection, message));
    }

    /// A message arrives at a member.
    pub(super) fn arrives_at_member(&mut self, connection: usize, message: std::rc::Rc<FromRegistry>) {
        let end = &self.connections[connection];
        let number = end.process;
        if end.is_cut || !end.is_up_at_member || self.processes[number].connection != Some(connection) {
            return;
        }
        if let Some(until) = self.barriers.blocked(self.now, End::Process(number), End::Registry) {
            let at = until + self.delay();
            let last = &mut self.connections[connection].last_to_member;
            *last = (*last).max(at);
            let at = *last;
            return self.schedule_at(at, Event::ToMember(connection, message));
        }
        if self.bug == Bug::IgnoresEviction && matches!(*message, FromRegistry::Evicted { .. }) {
            return;
        }
        let mut message = std::rc::Rc::unwrap_or_clone(message);
        if self.plan.encodes {
            message = FromRegistry::decode(&message.encode()[4..]).expect("what is encoded can be decoded");
        }
        self.with_member(number, |member, now| member.handle_message(now, message));
    }

    pub(super) fn breaks_at_member(&mut self, connection: usize) {
        let number = self.connections[connection].process;
        self.connections[connection].is_up_at_member = false;
        if self.processes[number].connection == Some(connection) {
            self.processes[number].connection = None;
            self.with_member(number, |member, now| member.handle_disconnected(now, "its connection ended"));
        }
    }

    pub(super) fn member_wakes(&mut self, number: usize) {
        self.processes[number].wake = None;
        let engine = &self.processes[number].engine;
        let (progress, is_waiting) = (engine.counted, engine.stage().is_some());
        self.with_member(number, |member, now| {
            member.handle_progress(now, progress, is_waiting);
            member.handle_timeout(now);
        });
    }

    /// A connection breaks between its ends: both learn it, and what is on its way is lost.
    pub(super) fn break_connection(&mut self, connection: usize) {
        self.connections[connection].is_cut = true;
        let (one, other) = (self.delay(), self.delay());
        self.schedule(one, Event::BrokenAtMember(connection));
        self.schedule(other, Event::BrokenAtRegistry(connection, Broken::Closed));
    }

    fn stops(&mut self, number: usize, stop: Stop) {
        self.trace(|| format!("process {number} stops: {stop}"));
        let process = &mut self.processes[number];
        let is_fair = match &stop {
            Stop::Left { .. } | Stop::Ended { .. } => true,
            Stop::Defect { .. } => false,
            _ => process.is_touched,
        };
        if !is_fair {
            self.checks.fail(format!("process {number} stops, and no fault touched it: {stop}"));
        }
        let is_out = matches!(stop, Stop::Evicted { .. } | Stop::CutOff { .. });
        self.processes[number].stop = Some(stop);
        self.end_process(number, false);
        if is_out && self.plan.rejoins {
            let delay = self.random.between(MILLI, SECOND);
            self.schedule(delay, Event::Spawn);
        }
    }

    /// A process ends, by itself or not.
    pub(super) fn end_process(&mut self, number: usize, has_vanished: bool) {
        let limit = self.limit();
        let process = &mut self.processes[number];
        if !process.is_alive {
            return;
        }
        process.is_alive = false;
        process.vanished_at = has_vanished.then_some(self.now);
        process.paused_until = None;
        process.inbox.clear();
        let has_drained = process.has_said_goodbye;
        if let Some(connection) = process.connection.take() {
            let loses = self.random.chance(30) && !has_drained;
            let end = &mut self.connections[connection];
            end.is_up_at_member = false;
            end.is_cut |= loses || has_vanished;
            let at = end.last_to_registry.max(self.now + self.plan.delay.0);
            if has_vanished {
                let delay = self.random.between(limit / 2, limit + limit / 4);
                self.schedule(delay, Event::BrokenAtRegistry(connection, Broken::Unreachable));
            } else {
                self.schedule_at(at, Event::BrokenAtRegistry(connection, Broken::Closed));
            }
        }
        if self.plan.has_launcher && !has_vanished {
            let delay = self.random.between(100, 20 * MILLI);
            self.schedule(delay, Event::Exited(number));
        }
        if !has_drained {
            self.loses_sent(number);
        }
        for other in 0..self.processes.len() {
            let engine = &self.processes[other].engine;
            if other != number && engine.members.contains(&number) {
                self.schedule_loss(other, number, engine.generation);
            }
        }
    }

    /// Goes over to another view.
    fn install(&mut self, number: usize, installation: &Installation) {
        let by = format!("process {number}");
        let generation = installation.generation.0;
        let slots: Vec<Slot> = installation.members.iter().map(|(slot, _)| *slot).collect();
        self.trace(|| {
            format!(
                "{by} installs generation {generation}: {slots:?}, {} steps, {:?}",
                installation.counted, installation.outcome
            )
        });
        self.checks.view(&by, generation, &slots, installation.counted);
        self.checks.owner(installation.slot, self.processes[number].token);
        let members: Vec<usize> = installation.members.iter().map(|(_, process)| process.pid as usize).collect();
        self.by_slot.extend(slots.iter().copied().zip(members.iter().copied()));
        let before = self.processes[number].engine.clone();
        if generation <= before.generation {
            self.checks.fail(format!("{by} goes from generation {} to {generation}", before.generation));
        }
        let applies = match self.bug {
            Bug::AppliesWhatItHolds => before.generation > 0 && self.processes[number].engine.holds_at_stop,
            _ => installation.outcome == Outcome::Counted,
        };
        if installation.outcome == Outcome::Counted && !before.holds_at_stop {
            self.checks.fail(format!("{by} is told to apply step {}, and lacks its results", before.counted + 1));
        }
        if matches!(installation.outcome, Outcome::Counted | Outcome::Boundary)
            && !installation.joined.is_empty()
            && is_closed(installation.counted)
            && members.len() - installation.joined.len() >= self.plan.config.min_np
        {
            self.checks
                .fail(format!("{by} sees others come in behind step {}, which lets nobody in", installation.counted));
        }
        if installation.outcome == Outcome::GivenUp {
            let stayed = members.len() - installation.joined.len();
            if stayed >= self.plan.config.min_np {
                self.checks.fail(format!("{by} gives up a step, though {stayed} that could run it again are left"));
            }
        }
        if applies {
            self.counts(number, before.counted + 1, before.generation);
        }
        let engine = &mut self.processes[number].engine;
        if installation.outcome == Outcome::Joined {
            engine.counted = installation.counted;
            engine.has_state = generation == 1;
        }
        if engine.counted != installation.counted {
            let counted = engine.counted;
            self.checks.fail(format!("{by} counts {counted} steps in a view that counts {}", installation.counted));
            return;
        }
        engine.generation = generation;
        engine.epoch += 1;
        engine.is_wanted = false;
        engine.holds_at_stop = false;
        engine.members.clone_from(&members);
        engine.slots = slots;
        engine.place = Place::Working;
        let made_again: Vec<usize> = installation
            .broken
            .iter()
            .filter_map(|(one, other)| match installation.slot {
                slot if slot == *one => Some(*other),
                slot if slot == *other => Some(*one),
                _ => None,
            })
            .filter_map(|slot| installation.members.iter().find(|(member, _)| *member == slot))
            .map(|(_, process)| process.pid as usize)
            .collect();
        engine.down.retain(|other| members.contains(other) && !made_again.contains(other));
        self.watch_links(number);
        self.passes(Point::Installs, Some(number));
        self.next_step(number);
    }

    /// The process in a slot of some view.
    pub(super) fn process_in(&self, slot: Slot) -> Option<usize> {
        self.by_slot.get(&slot).copied()
    }
}
