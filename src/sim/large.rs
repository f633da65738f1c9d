//! What a change of view costs a large cluster: messages, bytes and time, at the registry and at each member.
//!
//! The machines are real; between them there is only a registry's processor and network card, which everything has to
//! pass one by one: [`PER_MESSAGE`] and [`PER_KILOBYTE`] are what a message costs there. Signs of life are left out: they
//! cost the same whatever happens.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::checks::file;
use super::plan::{MILLI, Time};
use super::random::Random;
use crate::membership::member::{self, Member, MemberConfig};
use crate::membership::registry::{self, Broken, Registry, RegistryConfig};
use crate::wire::registry::{FromRegistry, ProcessRecord, Slot, ToRegistry};

/// Microseconds that the registry's host spends on a message.
const PER_MESSAGE: Time = 5;

/// Microseconds that a kilobyte takes on the registry's link of 10 Gbit/s.
const PER_KILOBYTE: f64 = 0.8;

/// The longest time, in microseconds, that a message travels.
const LONGEST_WAY: Time = 200;

/// How long a state of a kilobyte takes to be durable, beyond the two milliseconds that any state takes.
const DISK_PER_KILOBYTE: Time = 2;

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }
}

/// What one change cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) registry_sent: Traffic,
    pub(super) registry_received: Traffic,
    /// The most that one member of the view before sent, and received.
    pub(super) member_sent: Traffic,
    pub(super) member_received: Traffic,
    /// From the first event to the last member's going over to the view.
    pub(super) time: Time,
}

enum Event {
    ToRegistry(usize, ToRegistry),
    ToMember(usize, Rc<FromRegistry>),
    Closed(usize),
    LinkLost(usize, Slot),
    Persisted(u64),
}

/// A large cluster. Members are known by the number of their connection.
pub(super) struct Large {
    base: Instant,
    now: Time,
    random: Random,
    registry: Registry,
    members: Vec<Option<Member>>,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Event>,
    sequence: u64,
    /// Until when the registry's host is busy.
    busy: Time,
    /// When the last message to each member, and from it, arrives.
    last: Vec<[Time; 2]>,
    sent: Vec<Traffic>,
    received: Vec<Traffic>,
    cost: Cost,
    installed: Time,
}

impl Large {
    /// A cluster of `np` members whose first view stands, and what that cost.
    pub(super) fn new(base: Instant, np: usize) -> (Self, Cost) {
        let mut config = RegistryConfig::new(np);
        config.max_np = np + 1;
        let mut large = Large {
            base,
            now: 0,
            random: Random::new(np as u64),
            registry: Registry::new(base, config),
            members: Vec::new(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            busy: 0,
            last: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            cost: Cost::default(),
            installed: 0,
        };
        (0..np).for_each(|wish| large.start(Some(wish)));
        let cost = large.settle(0);
        (large, cost)
    }

    fn start(&mut self, wish: Option<usize>) {
        let number = self.members.len();
        let mut token = [0; 16];
        token[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let process = ProcessRecord {
            pid: number as u32,
            host: vec![1; 16],
            host_name: format!("node{:05}", number / 8),
            addresses: vec![7; 64],
        };
        let mut member = Member::new(self.instant(), MemberConfig { wish, ..MemberConfig::new(token, process) });
        member.handle_connected(self.instant());
        self.members.push(Some(member));
        self.last.push([0; 2]);
        self.sent.push(Traffic::default());
        self.received.push(Traffic::default());
        self.drain_member(number);
    }

    /// Members die at once: their connections end, and each of the others notices that its links are lost.
    pub(super) fn kill(&mut self, victims: &[usize]) -> Cost {
        let began = self.begin();
        for &victim in victims {
            self.members[victim] = None;
            self.schedule(began + LONGEST_WAY, Event::Closed(victim));
        }
        for number in (0..self.members.len()).filter(|number| !victims.contains(number)) {
            for &victim in victims {
                let delay = 1 + self.random.below(LONGEST_WAY);
                self.schedule(began + delay, Event::LinkLost(number, victim));
            }
        }
        self.settle(began)
    }

    /// A process comes, and joins once all members have stopped at a boundary.
    pub(super) fn join(&mut self) -> Cost {
        let began = self.begin();
        self.start(None);
        self.settle(began)
    }

    fn begin(&mut self) -> Time {
        self.cost = Cost::default();
        self.sent.fill(Traffic::default());
        self.received.fill(Traffic::default());
        self.now = self.now.max(self.busy);
        self.now
    }

    /// Runs until nothing is under way.
    fn settle(&mut self, began: Time) -> Cost {
        while let Some(Reverse((at, sequence))) = self.queue.pop() {
            self.now = at;
            let Some(event) = self.events.remove(&sequence) else { continue };
            self.happens(event);
        }
        let most = |traffic: &[Traffic]| traffic.iter().copied().max_by_key(|it| it.bytes).unwrap_or_default();
        let newest = usize::from(self.members.len() as u64 > self.registry.members().len() as u64);
        let old = self.members.len() - newest;
        self.cost.member_sent = most(&self.sent[..old]);
        self.cost.member_received = most(&self.received[..old]);
        self.cost.time = self.installed.saturating_sub(began);
        self.cost
    }

    /// Whether all that live are in the registry's view.
    pub(super) fn is_settled(&self) -> bool {
        let generation = self.registry.generation();
        let live = self.members.iter().flatten();
        live.clone().count() == self.registry.members().len() && live.clone().all(|it| it.generation() == generation)
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.events.insert(self.sequence, event);
    }

    /// What a message costs the registry's host; it is done when that says.
    fn work(&mut self, bytes: usize) -> Time {
        let cost = PER_MESSAGE + (bytes as f64 / 1024.0 * PER_KILOBYTE) as Time;
        self.busy = self.busy.max(self.now) + cost;
        self.busy
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::ToRegistry(from, message) => {
                let bytes = message.encode().len();
                self.cost.registry_received.add(bytes);
                self.work(bytes);
                let now = self.instant();
                self.registry.handle_message(now, from as u64, message);
                self.drain_registry();
            }
            Event::Closed(number) => {
                let now = self.instant();
                self.registry.handle_closed(now, number as u64, Broken::Closed, "its connection was closed");
                self.drain_registry();
            }
            Event::Persisted(number) => {
                let now = self.instant();
                self.registry.handle_persisted(now, number);
                self.drain_registry();
            }
            Event::ToMember(number, message) => {
                let now = self.instant();
                let Some(member) = &mut self.members[number] else { return };
                member.handle_message(now, FromRegistry::clone(&message));
                self.drain_member(number);
            }
            Event::LinkLost(number, slot) => {
                let now = self.instant();
                let Some(member) = &mut self.members[number] else { return };
                member.handle_link_lost(now, slot, "its connection was reset by the other host");
                self.drain_member(number);
            }
        }
    }

    fn drain_registry(&mut self) {
        while let Some(action) = self.registry.poll_action() {
            match action {
                registry::Action::Tell { connections, message } => {
                    let bytes = message.encode().len();
                    let message = Rc::new(message);
                    for number in connections.into_iter().map(|number| number as usize) {
                        self.cost.registry_sent.add(bytes);
                        self.received[number].add(bytes);
                        let at = self.work(bytes) + 1 + self.random.below(LONGEST_WAY);
                        let at = at.max(self.last[number][0]);
                        self.last[number][0] = at;
                        self.schedule(at, Event::ToMember(number, message.clone()));
                    }
                }
                registry::Action::Persist { number, state } => {
                    let disk = 2 * MILLI + file(&state).encode().len() as Time / 1024 * DISK_PER_KILOBYTE;
                    self.schedule(self.now + disk, Event::Persisted(number));
                }
                registry::Action::Close { .. } | registry::Action::LookAtHost { .. } | registry::Action::Event(_) => {}
            }
        }
    }

    fn drain_member(&mut self, number: usize) {
        let now = self.instant();
        while let Some(action) = self.members[number].as_mut().and_then(Member::poll_action) {
            let Some(member) = &mut self.members[number] else { return };
            match action {
                member::Action::Send(message) => {
                    self.sent[number].add(message.encode().len());
                    let at = (self.now + 1 + self.random.below(LONGEST_WAY)).max(self.last[number][1]);
                    self.last[number][1] = at;
                    self.schedule(at, Event::ToRegistry(number, message));
                }
                member::Action::Suspend { .. } => member.handle_suspended(now, 7, number != 0, false),
                member::Action::Wanted => member.handle_boundary(now, 7),
                member::Action::Install(_) => self.installed = self.now,
                _ => {}
            }
        }
    }
}
