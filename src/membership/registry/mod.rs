//! The registry: the one judge of who is in the world.
//!
//! A job's life is a row of views. [`Registry`] brings the first members together (`first`), hears signs of life and
//! of death (`evidence`), and when a member is lost, or members wait to join, has the others stop, hears how far each
//! came, and publishes the next view with the verdict on the step that was under way (`change`, `verdict`).
//!
//! ```text
//!                  np registered,                 a member is lost: Prepare
//!                  or min_np at the               all stand at a boundary
//!                  start deadline                 ┌────────────┐
//!   Gathering ─────────────────────▶ Steady ─────▶│  Changing  │─────▶ publishing ─────▶ Steady ...
//!                                                 └────────────┘ all that go on   persisted: View
//!                                                   ▲       │    reported
//!                                        newcomers  │       ▼ fewer than min_np
//!                                                 Waiting ──────────▶ Ended
//!                                                          elastic timeout
//! ```
//!
//! It is a pure state machine. Messages, ends of connections, ends of processes and the time go in; [`Action`]s come
//! out of [`poll_action`](Registry::poll_action), to be carried out in their order. A view leaves only after the shell
//! has made it durable, so that a registry that is started again never says something else than it said before.
//!
//! Connections are numbers that the shell chooses and does not use twice. Each has its messages in order; nothing is
//! assumed about the order across connections, and any connection may break at any time: whoever comes back says again
//! what still holds, and hears again what it may have missed.
//!
//! Silence is counted only while the registry itself listens (`lateness`). The shell's part in that: it comes back by
//! [`deadline`](Registry::deadline), and hands over all that has arrived before it calls
//! [`handle_timeout`](Registry::handle_timeout) again.

mod change;
mod config;
mod evidence;
mod first;
mod kept;
mod lateness;
mod links;
mod persistence;
mod registration;
mod roster;
mod status;
#[cfg(test)]
mod tests;
mod timers;
pub mod verdict;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use config::RegistryConfig;
pub use kept::{Keeper, Kept};
pub use persistence::{State, StoredMember};

use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, Gone, Parting, ProcessRecord, Slot, ToRegistry, Token, Whom, Why};
use change::{Change, Publication};
use links::Links;
use roster::{Slots, Standing};
use timers::{Timer, Timers};

/// A connection, as the shell numbers them.
pub type Connection = u64;

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the same message over these connections.
    Tell {
        /// Which.
        connections: Vec<Connection>,
        /// What.
        message: FromRegistry,
    },
    /// Close a connection once all it was told has been written, or after a while.
    Close {
        /// Which.
        connection: Connection,
    },
    /// Find out whether the host at the other end of a connection owes an answer to something that was sent to it, and
    /// if so, call [`Registry::handle_host`] with the time since it last answered anything. The kernel knows. Nothing
    /// is to be done where it does not.
    LookAtHost {
        /// Which.
        connection: Connection,
    },
    /// Make a state durable, in place of the one before and in this order, then call [`Registry::handle_persisted`].
    Persist {
        /// To be given back.
        number: u64,
        /// What.
        state: State,
    },
    /// Something that people and logs want to know.
    Event(Event),
}

/// What happened, for people and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process registered.
    Registered {
        /// Its slot.
        slot: Slot,
        /// Which process.
        process: Arc<ProcessRecord>,
    },
    /// A process that waited for a view is gone.
    Forgotten {
        /// Its slot.
        slot: Slot,
        /// Why.
        detail: String,
    },
    /// A member is out.
    Lost(Gone),
    /// A member said goodbye.
    Left {
        /// Its slot.
        slot: Slot,
        /// What it said of its work.
        parting: Parting,
        /// Its reason.
        reason: String,
    },
    /// A member's connection broke; it may come back.
    Away {
        /// Its slot.
        slot: Slot,
        /// How.
        detail: String,
    },
    /// A member lost its link to another.
    LinkLost {
        /// Who says so.
        by: Slot,
        /// To whom.
        of: Slot,
        /// How.
        detail: String,
    },
    /// A member gives no sign of life though its host answers, or its work does not advance, or it does not stop as it
    /// was told to. Said once.
    Named {
        /// Its slot.
        slot: Slot,
        /// What is the matter.
        detail: String,
    },
    /// A view was published.
    View {
        /// Its number.
        generation: Generation,
        /// Its slots, in the order of ranks.
        members: Vec<Slot>,
        /// How many steps count, and why, in words.
        counted: u64,
        /// The verdict in words.
        verdict: String,
        /// Who was in the view before and is not in this one.
        gone: Vec<Gone>,
        /// Who is new.
        joined: Vec<Slot>,
        /// Links that are made again.
        broken: Vec<(Slot, Slot)>,
        /// From the first reason for the change to its publication.
        held_up: Duration,
    },
    /// There are fewer members than the job needs.
    Waiting {
        /// How many.
        have: usize,
        /// How many it needs.
        need: usize,
    },
    /// The job is over.
    Ended(Outcome),
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All members said goodbye.
    Finished,
    /// It cannot go on, for this reason.
    Failed(String),
}

/// How a connection ended, as the shell saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The other host said so, by an end or a reset: its process is gone, or closed the connection.
    Closed,
    /// The other host has not answered for the heartbeat limit.
    Unreachable,
}

/// Whose process ended, in the launcher's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The one in a slot.
    Slot(Slot),
    /// The one that registered with a token.
    Token(Token),
    /// A process of a host, by the host's identity and the process's number.
    Process {
        /// The host's identity, as members tell it.
        host: Vec<u8>,
        /// The number.
        pid: u32,
    },
}

/// The registry's state machine.
#[derive(Clone, Debug)]
pub struct Registry {
    config: RegistryConfig,
    began: Instant,
    /// The number of the view that members have; none before the first.
    generation: Option<Generation>,
    /// The number of the first view.
    first: Generation,
    counted: u64,
    changes: u64,
    next_slot: Slot,
    /// Slots below the next that nobody has had: others wished for later ones. They are for those that wish for them.
    skipped: BTreeSet<Slot>,
    slots: Slots,
    /// The change that is under way.
    change: Option<Change>,
    /// Since when members of the view have been told to stop, or have stopped by themselves.
    stopping_since: Option<Instant>,
    /// Who is judged to be out, but still in the view, or in the one that is being published.
    gone: Vec<Gone>,
    /// Members of the view that have not reported.
    awaited: BTreeSet<Slot>,
    /// The view that is being made durable.
    publication: Option<Publication>,
    /// What the last view said about the one before it, for those that hear of it late.
    last_gone: Vec<Gone>,
    last_broken: Vec<(Slot, Slot)>,
    /// A member said that its work is done: that of the others is about to be. Nobody joins any more, and nobody waits for
    /// more members.
    is_ending: bool,
    /// Whether the members of this view were told that a change is wanted.
    is_wanted_told: bool,
    links: Links,
    /// Who is out for good, with the first view without it and the words that it is told.
    out: BTreeMap<Slot, (Generation, String)>,
    /// How many states were handed out, and how many are durable.
    persists: u64,
    persisted: u64,
    /// Whether something that is worth keeping waits for the disk to be free.
    is_unsaved: bool,
    /// Goodbyes that are answered once the state with this number is durable.
    goodbyes: Vec<(u64, Slot)>,
    ignored: u64,
    timers: Timers,
    actions: VecDeque<Action>,
    outcome: Option<Outcome>,
}

impl Registry {
    /// A registry of a job that begins.
    pub fn new(now: Instant, config: RegistryConfig) -> Self {
        let config = config.checked();
        let mut registry = Registry {
            began: now,
            generation: None,
            first: Generation::FIRST,
            counted: 0,
            changes: 0,
            next_slot: config.np,
            skipped: BTreeSet::new(),
            slots: Slots::default(),
            change: None,
            stopping_since: None,
            gone: Vec::new(),
            awaited: BTreeSet::new(),
            publication: None,
            last_gone: Vec::new(),
            last_broken: Vec::new(),
            is_ending: false,
            is_wanted_told: false,
            links: Links::default(),
            out: BTreeMap::new(),
            persists: 0,
            persisted: 0,
            is_unsaved: false,
            goodbyes: Vec::new(),
            ignored: 0,
            timers: Timers::default(),
            actions: VecDeque::new(),
            outcome: None,
            config,
        };
        registry.timers.set(Timer::Start, Deadline::after(now, registry.config.start_timeout));
        registry
    }

    /// What the shell is to do next, if anything.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn deadline(&self) -> Option<Deadline> {
        self.timers.next()
    }

    /// How the job ended, if it did.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The number of the view that members have; none before the first.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// The slots of the view, in the order of ranks.
    pub fn members(&self) -> &[Slot] {
        &self.slots.order
    }

    /// How many processes wait for a view that they are in.
    pub fn waiting(&self) -> usize {
        self.slots.newcomer_count()
    }

    /// How many messages were of no use: of another view, or from nobody.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// A message came over a connection.
    pub fn handle_message(&mut self, now: Instant, connection: Connection, message: ToRegistry) {
        self.turn(now);
        match message {
            ToRegistry::Register(register) => self.register(now, connection, register),
            ToRegistry::StatusRequest => {
                let status = self.status(now);
                self.tell(connection, FromRegistry::Status(status));
            }
            ToRegistry::Evict { whom, reason } => self.handle_evict_request(now, connection, whom, &reason),
            message => match self.slots.of_connection(connection).filter(|_| self.outcome.is_none()) {
                None => self.ignored += 1,
                Some(slot) => {
                    // The most frequent message changes nothing; with thousands of members that matters.
                    if let ToRegistry::Heartbeat { progress, is_waiting, counted, .. } = message {
                        self.hear(now, slot);
                        self.answers_suspicion(now, slot);
                        self.hear_counted(slot, counted);
                        return self.hear_progress(now, slot, progress, is_waiting);
                    }
                    self.handle_word(now, slot, message);
                }
            },
        }
        self.advance(now);
    }

    /// What a registered process says.
    fn handle_word(&mut self, now: Instant, slot: Slot, message: ToRegistry) {
        self.hear(now, slot);
        self.answers_suspicion(now, slot);
        match message {
            ToRegistry::Suspect { generation, slot: other, detail } => {
                self.hear_suspicion(now, generation, slot, other, &detail);
            }
            ToRegistry::Report(report) => self.hear_report(now, slot, report),
            ToRegistry::Leave { parting, reason } => self.hear_leave(slot, parting, reason),
            _ => self.ignored += 1,
        }
    }

    /// A connection ended.
    pub fn handle_closed(&mut self, now: Instant, connection: Connection, how: Broken, detail: &str) {
        self.turn(now);
        if let Some(slot) = self.slots.of_connection(connection) {
            self.slots.unbind(slot);
            if self.outcome.is_none() {
                self.hear_broken(now, slot, how, detail);
            }
        }
        self.advance(now);
    }

    /// A host owes an answer, as [`Action::LookAtHost`] asked: it last gave one so long ago.
    pub fn handle_host(&mut self, now: Instant, connection: Connection, unanswered: Duration) {
        self.turn(now);
        if let Some(slot) = self.slots.of_connection(connection).filter(|_| self.outcome.is_none()) {
            self.hear_host(now, slot, unanswered);
        }
        self.advance(now);
    }

    /// The launcher saw a process end. Returns the slot it had, if it had one.
    pub fn handle_exit(&mut self, now: Instant, who: &Who, how: &str) -> Option<Slot> {
        self.turn(now);
        let slot = match who {
            Who::Slot(slot) => self.slots.get(*slot).map(|_| *slot),
            Who::Token(token) => self.slots.of_token(token),
            Who::Process { host, pid } => self
                .slots
                .iter()
                .find(|(_, entry)| entry.process.pid == *pid && entry.process.host == *host)
                .map(|(slot, _)| slot),
        }?;
        if self.outcome.is_none() {
            self.hear_exit(now, slot, how);
            self.advance(now);
        }
        Some(slot)
    }

    /// The work of a member that left without a word on it was done, as the launcher saw by how its process ended: as if
    /// it had said so.
    pub fn handle_done(&mut self, now: Instant) {
        self.turn(now);
        if self.outcome.is_none() && self.generation.is_some() && !self.is_ending {
            self.is_ending = true;
            self.persist_soon();
        }
        self.advance(now);
    }

    /// An operator, or the launcher's policy, wants a member out. Returns its slot, if there is such a member.
    pub fn evict(&mut self, now: Instant, whom: Whom, reason: &str) -> Option<Slot> {
        let slot = match whom {
            Whom::Slot(slot) => slot,
            Whom::Rank(rank) => self.slots.order.get(rank).copied()?,
        };
        if self.outcome.is_some()
            || self.slots.get(slot).is_none_or(|entry| matches!(entry.standing, Standing::Gone | Standing::Left))
        {
            return None;
        }
        self.lose(slot, Why::Evicted, reason);
        self.advance(now);
        Some(slot)
    }

    /// The launcher ends the job.
    pub fn end(&mut self, now: Instant, reason: &str) {
        self.finish(now, Outcome::Failed(reason.into()));
    }

    /// The state with this number, and with it all before, is durable.
    pub fn handle_persisted(&mut self, now: Instant, number: u64) {
        self.turn(now);
        self.persisted = self.persisted.max(number);
        // Before a view in which whoever said goodbye has no connection any more.
        self.answer_goodbyes();
        if self.publication.as_ref().is_some_and(|publication| publication.number <= number) {
            self.install(now);
        }
        if self.is_unsaved {
            self.persist_soon();
        }
        self.advance(now);
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.turn(now);
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Start => self.start_is_over(now),
                Timer::Silence(slot) => self.look_at_silence(now, slot),
                Timer::Away(slot) => self.away_is_over(slot),
                Timer::Exit(slot) => self.exit_is_over(slot),
                Timer::Link(one, other) => self.link_is_broken(now, one, other),
                Timer::Overdue => self.name_overdue(now),
                Timer::Elastic => self.elastic_is_over(now),
                Timer::Look => self.look_for_slow(now),
            }
            self.advance(now);
        }
    }

    fn handle_evict_request(&mut self, now: Instant, connection: Connection, whom: Whom, reason: &str) {
        if self.slots.of_connection(connection).is_some() {
            // Members judge by Suspect; only operators evict.
            self.ignored += 1;
            return;
        }
        let answer = match self.evict(now, whom, reason) {
            Some(slot) => FromRegistry::Done { what: format!("slot {slot} is out") },
            None => FromRegistry::Refused {
                what: match whom {
                    Whom::Slot(slot) => format!("there is no member in slot {slot}"),
                    Whom::Rank(rank) => format!("there is no rank {rank}: the view has {}", self.slots.order.len()),
                },
                hint: "ask for the status to see who is there".into(),
            },
        };
        self.tell(connection, answer);
    }

    /// Does whatever can be done now. Called after everything that may have changed something.
    fn advance(&mut self, now: Instant) {
        while self.outcome.is_none() && self.publication.is_none() && self.take_step(now) {}
    }

    /// One step towards the next view. False when there is nothing to do but wait.
    fn take_step(&mut self, now: Instant) -> bool {
        if self.generation.is_none() { self.try_first_view(now) } else { self.try_change(now) }
    }

    fn tell(&mut self, connection: Connection, message: FromRegistry) {
        self.actions.push_back(Action::Tell { connections: vec![connection], message });
    }

    fn tell_all(&mut self, connections: Vec<Connection>, message: FromRegistry) {
        if !connections.is_empty() {
            self.actions.push_back(Action::Tell { connections, message });
        }
    }

    fn tell_slot(&mut self, slot: Slot, message: FromRegistry) {
        if let Some(connection) = self.slots.get(slot).and_then(|entry| entry.connection) {
            self.tell(connection, message);
        }
    }

    fn note(&mut self, event: Event) {
        self.actions.push_back(Action::Event(event));
    }

    /// The job is over; all hear it.
    fn finish(&mut self, _now: Instant, outcome: Outcome) {
        if self.outcome.is_some() {
            return;
        }
        let reason = match &outcome {
            Outcome::Finished => "the job has finished".to_string(),
            Outcome::Failed(reason) => reason.clone(),
        };
        let connections = self.slots.iter().filter_map(|(_, entry)| entry.connection).collect();
        self.tell_all(connections, FromRegistry::End { reason });
        self.timers.clear_all();
        self.note(Event::Ended(outcome.clone()));
        self.outcome = Some(outcome);
    }
}
