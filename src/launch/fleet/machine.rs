//! The life of an elastic job, as a state machine: what happens goes in, what is to be done comes out.
//!
//! A worker's standing is what the registry last said of it:
//!
//! ```text
//!   Unknown ──▶ Registered ──▶ Member ──▶ Left     it said goodbye, and perhaps what that says of its work
//!                    ▲            │
//!                    │            ▼
//!                    └────────── Out               the registry judged that it is gone
//! ```
//!
//! What its end means depends on both, process and standing; `ends.rs` decides. `news.rs` hears the registry, `surplus.rs`
//! sees to those for which there is no slot any more.

mod ends;
mod news;
mod surplus;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::health::Cooldown;
use super::hosts::{After, Hosts};
use super::{Sizes, words};
use crate::launch::course::{Course, Turn};
use crate::launch::hosts::Host;
use crate::launch::signal::Signal;
use crate::launch::supervise::{Action, Cause, Event, Notice, Policy};
use crate::launch::words::{ALWAYS, NORMAL, UNDONE, VERBOSE, plural};
use crate::wire::registry::{Parting, Slot};

/// What the machine is held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) sizes: Sizes,
    pub(super) policy: Policy,
    pub(super) respawn: bool,
    pub(super) leave_grace: Duration,
    pub(super) cooldown: Option<Cooldown>,
    /// How many in a row may fail to come to work on a slot.
    pub(super) respawn_limit: u32,
    /// How long members stay for which there is no slot, because the job needs them.
    pub(super) elastic_timeout: Duration,
    /// Whether the registry is the launcher's own, and heard; otherwise nothing is known but what processes do.
    pub(super) owns_registry: bool,
}

/// The end of a worker, for the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) worker: usize,
    /// Its slot, if it is known.
    pub(super) slot: Option<Slot>,
    pub(super) how: String,
}

/// Where a worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) host: Host,
    /// Its number among the workers of its host.
    pub(super) local_rank: usize,
    /// The slot that it is to have, where the launcher has a say.
    pub(super) wish: Option<Slot>,
}

/// Where a worker's process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Waiting,
    Starting,
    Running,
    Ended,
    Gone,
}

/// What the registry last said of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unknown,
    Registered,
    Member,
    Left(Parting),
    /// `is_excused`: an operator wanted it out, which is no failure.
    Out {
        is_excused: bool,
    },
}

/// A worker of which something is left.
#[derive(Clone, Debug)]
struct Worker {
    placement: Placement,
    label: usize,
    life: Life,
    standing: Standing,
    slot: Option<Slot>,
    pid: Option<i32>,
    started: Instant,
    has_joined: bool,
    /// When it came into a view.
    joined_at: Option<Instant>,
    /// It has come to work: it was in the first view, or in one for long enough.
    is_proven: bool,
    /// There was a view without it: what became of the job later is not its fault.
    is_closed_up: bool,
    /// It was asked to leave: however it ends, that is no failure.
    is_asked: bool,
    /// There is no slot for it, but the job needs it.
    is_kept: bool,
    /// It is killed then.
    kill_at: Option<Instant>,
    /// How it ended, as a cause for the job's end; whether that was by itself with code 0.
    end: Option<(Cause, bool)>,
    /// Whether it is decided what its end means.
    is_settled: bool,
    /// What becomes of its place.
    after: After,
}

impl Worker {
    fn is_alive(&self) -> bool {
        matches!(self.life, Life::Waiting | Life::Starting | Life::Running)
    }
}

/// When the registry has ended the job, its members hear of it and say so; then they are asked to end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A worker that has been a member for so long has come to work; without a registry to ask, one that ran for so long.
const AT_WORK: Duration = Duration::from_secs(10);

/// How many workers of which nothing is left are known by name.
const REMEMBERED: usize = 4096;

/// The state machine.
#[derive(Debug)]
pub(super) struct Fleet {
    limits: Limits,
    course: Course,
    hosts: Hosts,
    workers: BTreeMap<usize, Worker>,
    /// Of every worker, its label and its host.
    names: BTreeMap<usize, (usize, String)>,
    /// Whose labels are slots, where the registry runs elsewhere.
    slotted: BTreeSet<usize>,
    /// Whether that can be reached, and if not yet, why; unknown at first.
    reach: Option<Result<(), String>>,
    next_worker: usize,
    next_label: usize,
    has_view: bool,
    /// A member said that its work is done: that of the others is about to be.
    is_winding_up: bool,
    /// The registry says that the job has finished.
    is_over: bool,
    /// The work is done, as far as somebody said, in words or by an exit code.
    is_done: bool,
    /// That is to be told to the registry, which cannot know.
    is_done_news: bool,
    /// It was said that the job ended before its work was done.
    is_undone_told: bool,
    /// How many starts failed before the first view; without a registry of our own: in a row.
    failed_starts: usize,
    /// The first failure since the last view.
    first_failure: Option<Cause>,
    /// A failure of a member that had said goodbye.
    late_failure: Option<Cause>,
    /// Whether a worker failed after all had been asked to end.
    ended_badly: bool,
    /// The workers that are kept though there is no slot for them, as was told.
    kept: Vec<usize>,
    /// When the job ends, because there has been no room for the members that it needs.
    short_until: Option<Instant>,
    /// When those that the job's end leaves without work are asked to end.
    ask_at: Option<Instant>,
    /// How the processes in slots ended.
    endings: BTreeMap<Slot, String>,
    exits: VecDeque<Exit>,
    actions: VecDeque<Action>,
}

impl Fleet {
    /// A job that begins now, without a host.
    pub(super) fn new(now: Instant, limits: Limits) -> Self {
        Self {
            limits,
            course: Course::new(now, limits.policy),
            hosts: Hosts::default(),
            workers: BTreeMap::new(),
            names: BTreeMap::new(),
            slotted: BTreeSet::new(),
            reach: None,
            next_worker: 0,
            next_label: if limits.owns_registry { limits.sizes.np } else { 0 },
            has_view: false,
            is_winding_up: false,
            is_over: false,
            is_done: false,
            is_done_news: false,
            is_undone_told: false,
            failed_starts: 0,
            first_failure: None,
            late_failure: None,
            ended_badly: false,
            kept: Vec::new(),
            short_until: None,
            ask_at: None,
            endings: BTreeMap::new(),
            exits: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// Whether workers may still be started.
    pub(super) fn is_hiring(&self) -> bool {
        self.course.cause().is_none() && !self.is_over && !self.is_winding_up
    }

    /// Tells the user what is to be known.
    pub(super) fn warn(&mut self, text: String) {
        self.say(NORMAL, text);
    }

    /// The job cannot be carried out.
    pub(super) fn give_up(&mut self, now: Instant, why: String) {
        self.end(now, Cause::CannotGoOn, Some(why));
        self.advance(now);
    }

    /// These are the hosts from now on. `is_news`: the user is told what that changes.
    pub(super) fn set_hosts(&mut self, now: Instant, hosts: &[Host], is_news: bool) {
        for change in self.hosts.update(now, hosts) {
            self.say(if is_news { NORMAL } else { VERBOSE }, words::hosts(&change));
        }
        self.ask_surplus(now);
        self.advance(now);
    }

    /// Takes an event of a process, or a signal.
    pub(super) fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Started { rank, pid } => {
                if let Some(worker) = self.workers.get_mut(&rank) {
                    worker.pid = Some(pid);
                    if worker.life == Life::Starting {
                        worker.life = Life::Running;
                    }
                }
            }
            Event::NotStarted { rank, errno } => self.on_end(rank, Cause::NotStarted { rank, errno }, false),
            Event::Ended { rank, ending } => {
                self.on_end(rank, Cause::Failed { rank, ending }, ending.is_success());
            }
            Event::Gone { rank } => {
                self.on_end(rank, Cause::Lost { rank }, false);
                if let Some(worker) = self.workers.get_mut(&rank).filter(|worker| worker.life == Life::Ended) {
                    worker.life = Life::Gone;
                }
            }
            Event::Signal(arrived) => {
                let turn = self.course.handle_signal(now, arrived);
                self.take(turn);
            }
            Event::OutputClosed => self.end(now, Cause::OutputClosed, None),
        }
        self.advance(now);
    }

    /// Does what is due at `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let turn = self.course.handle_timeout(now);
        self.take(turn);
        if self.ask_at.is_some_and(|at| now >= at) {
            self.ask_at = None;
            self.signal_living(Signal::TERM);
        }
        self.end_if_short(now);
        let due = |worker: &Worker| worker.kill_at.is_some_and(|at| now >= at) && worker.life != Life::Gone;
        let late: Vec<usize> = self.workers.iter().filter(|(_, worker)| due(worker)).map(|(id, _)| *id).collect();
        for id in late {
            let text = format!("{} did not end when asked; killing it", self.name(id));
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.kill_at = None;
            }
            self.say(NORMAL, text);
            self.actions.push_back(Action::Kill { rank: id });
        }
        self.advance(now);
    }

    /// When [`Fleet::handle_timeout`] is to be called next.
    pub(super) fn poll_deadline(&self, now: Instant) -> Option<Instant> {
        let start = if self.wants_more() { self.hosts.next_free(now) } else { None };
        let kills = self.workers.values().filter_map(|worker| worker.kill_at);
        kills.chain(self.course.poll_deadline()).chain(self.ask_at).chain(self.short_until).chain(start).min()
    }

    /// The next thing to do.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        loop {
            let action = self.actions.pop_front()?;
            let Action::Spawn { rank } = action else { return Some(action) };
            if let Some(worker) = self.workers.get_mut(&rank).filter(|worker| worker.life == Life::Waiting) {
                worker.life = Life::Starting;
                return Some(action);
            }
        }
    }

    /// Whether the next action starts a worker.
    pub(super) fn is_spawning(&self) -> bool {
        matches!(self.actions.front(), Some(Action::Spawn { .. }))
    }

    /// The next end of a worker that the registry is to be told.
    pub(super) fn poll_exit(&mut self) -> Option<Exit> {
        self.exits.pop_front()
    }

    /// Whether the registry is to be told that the work is done. Once.
    pub(super) fn poll_done(&mut self) -> bool {
        std::mem::take(&mut self.is_done_news)
    }

    /// Why the job ended, once nothing of any worker is left and nothing more is to come.
    pub(super) fn outcome(&self) -> Option<Cause> {
        if !self.workers.is_empty() {
            return None;
        }
        match self.course.cause() {
            // Workers that took the signal as a request to finish, and did, make a job that finished.
            Some(Cause::Signal(_)) if self.is_done && !self.ended_badly => Some(Cause::Done),
            Some(cause) => Some(cause),
            None if self.is_over => {
                let end = if self.is_done { Cause::Done } else { Cause::CannotGoOn };
                Some(self.late_failure.unwrap_or(end))
            }
            // Members elsewhere may go on: the registry is going to say.
            None if self.limits.owns_registry && self.has_view => None,
            None if self.limits.owns_registry => self.is_done.then_some(Cause::Done),
            None => match &self.reach {
                // Whoever ended well had nobody to take part with.
                Some(Err(_)) => self.is_done.then_some(Cause::CannotGoOn),
                Some(Ok(())) => self.is_done.then_some(Cause::Done),
                None => None,
            },
        }
    }

    /// Where a worker runs.
    pub(super) fn placement(&self, worker: usize) -> Option<&Placement> {
        self.workers.get(&worker).map(|worker| &worker.placement)
    }

    /// The number that stands before a worker's lines.
    pub(super) fn label(&self, worker: usize) -> usize {
        self.names.get(&worker).map_or(worker, |(label, _)| *label)
    }

    /// A worker's slot, if it is known.
    pub(super) fn slot(&self, worker: usize) -> Option<Slot> {
        self.workers.get(&worker).and_then(|worker| worker.slot)
    }

    /// What a worker is called.
    pub(super) fn name(&self, worker: usize) -> String {
        let has_slot = self.limits.owns_registry || self.slotted.contains(&worker);
        format!("{} {}", if has_slot { "slot" } else { "worker" }, self.label(worker))
    }

    /// The name of a worker's host.
    pub(super) fn host_name(&self, worker: usize) -> &str {
        self.names.get(&worker).map_or("?", |(_, host)| host)
    }

    fn say(&mut self, level: u8, text: String) {
        self.actions.push_back(Action::Say { level, text });
    }

    /// Everything that follows from what happened.
    fn advance(&mut self, now: Instant) {
        self.prove(now);
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            self.settle(now, worker);
        }
        let is_over = |worker: &Worker| worker.life == Life::Gone && worker.is_settled;
        while let Some(id) = self.workers.iter().find_map(|(id, worker)| is_over(worker).then_some(*id)) {
            let Some(worker) = self.workers.remove(&id) else { break };
            self.hosts.release(&worker.placement.host.name, id, worker.after);
        }
        if !self.kept.is_empty() {
            self.ask_surplus(now);
        }
        self.start_more(now);
        self.tell_if_undone();
    }

    /// Those that have been members for long enough have come to work.
    fn prove(&mut self, now: Instant) {
        let has_lasted = |at: Instant| now.saturating_duration_since(at) >= AT_WORK;
        for (id, worker) in &mut self.workers {
            if worker.joined_at.is_some_and(|at| has_lasted(at) && !worker.is_proven) {
                worker.is_proven = true;
                self.hosts.prove(&worker.placement.host.name, *id);
            }
        }
    }

    /// Once nobody is left, and nobody said that the work is done: all left as they were asked to. Or there was nobody who
    /// could be told.
    fn tell_if_undone(&mut self) {
        if let (Some(Err(what)), true, None) = (&self.reach, self.is_done, self.course.cause())
            && self.workers.is_empty()
            && !self.is_undone_told
        {
            let text = format!("no worker took part in a job: {what}");
            self.is_undone_told = true;
            self.say(ALWAYS, text);
        }
        let is_ending_well = matches!(self.course.cause(), None | Some(Cause::Signal(_)));
        let has_failed = self.late_failure.is_some() || self.ended_badly;
        let is_undone = self.is_over && is_ending_well && self.workers.is_empty() && !self.is_done && !has_failed;
        if is_undone && !std::mem::replace(&mut self.is_undone_told, true) {
            self.say(ALWAYS, UNDONE.into());
        }
    }

    /// How many workers there are that are to stay, and places that are not to be filled again.
    fn staying(&self) -> usize {
        let stays = |worker: &&Worker| {
            (worker.is_alive() && !worker.is_asked && !worker.is_kept) || worker.after == After::UsedUp
        };
        self.workers.values().filter(stays).count() + self.hosts.used_up()
    }

    /// Whether more workers are to be started where there is room. Until the first view only those are that it is to have.
    fn wants_more(&self) -> bool {
        let Sizes { np, max_np, .. } = self.limits.sizes;
        self.is_hiring()
            && match self.limits.owns_registry && !self.has_view {
                true => self.workers.len() + self.hosts.used_up() < np,
                false => self.staying() < max_np,
            }
    }

    fn start_more(&mut self, now: Instant) {
        while self.wants_more() {
            let Some((host, local_rank)) = self.hosts.free(now) else { return };
            let host = host.clone();
            let id = self.next_worker;
            self.next_worker += 1;
            let label = self.next_label();
            self.hosts.occupy(&host.name, local_rank, id);
            self.names.insert(id, (label, host.name.clone()));
            if self.names.len() > REMEMBERED {
                self.names.pop_first();
            }
            let wish = self.limits.owns_registry.then_some(label);
            let worker = Worker {
                placement: Placement { host, local_rank, wish },
                label,
                life: Life::Waiting,
                standing: Standing::Unknown,
                slot: None,
                pid: None,
                started: now,
                has_joined: false,
                joined_at: None,
                is_proven: false,
                is_closed_up: false,
                is_asked: false,
                is_kept: false,
                kill_at: None,
                end: None,
                is_settled: false,
                after: After::Free,
            };
            self.workers.insert(id, worker);
            self.actions.push_back(Action::Spawn { rank: id });
        }
    }

    /// The lowest rank that no worker has, until the first view; then a number that was never used.
    fn next_label(&mut self) -> usize {
        if self.limits.owns_registry && !self.has_view {
            let is_free = |label: &usize| !self.workers.values().any(|worker| worker.label == *label);
            if let Some(label) = (0..self.limits.sizes.np).find(is_free) {
                return label;
            }
        }
        self.next_label += 1;
        self.next_label - 1
    }

    /// A worker that was not started is not going to be.
    fn forget(&mut self, id: usize) {
        if let Some(worker) = self.workers.remove(&id) {
            self.hosts.release(&worker.placement.host.name, id, After::Free);
        }
    }

    fn living(&self) -> Vec<usize> {
        let runs = |worker: &Worker| matches!(worker.life, Life::Starting | Life::Running);
        self.workers.iter().filter(|(_, worker)| runs(worker)).map(|(id, _)| *id).collect()
    }

    fn signal_living(&mut self, signal: Signal) {
        for rank in self.living() {
            self.actions.push_back(Action::Signal { rank, signal });
        }
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::GoOn => {}
            Turn::PassOn(signal) => self.signal_living(signal),
            Turn::Suspend => {
                self.signal_living(Signal::STOP);
                self.actions.push_back(Action::Suspend);
            }
            Turn::End { cause, signal } => {
                self.start_no_more();
                let others = self.living().len();
                self.actions.push_back(Action::Tell(Notice::Ending { cause, others }));
                self.signal_living(signal);
            }
            Turn::Kill { at_once } => {
                let ranks = self.living().len();
                if ranks > 0 {
                    self.actions.push_back(Action::Tell(Notice::Killing { ranks, at_once }));
                }
                for (&rank, worker) in &self.workers {
                    if worker.life != Life::Gone {
                        self.actions.push_back(Action::Kill { rank });
                    }
                }
            }
        }
    }

    /// The work is about to be done.
    fn wind_up(&mut self) {
        self.is_winding_up = true;
        self.start_no_more();
    }

    fn start_no_more(&mut self) {
        self.actions.retain(|action| !matches!(action, Action::Spawn { .. }));
        let waits = |worker: &Worker| worker.life == Life::Waiting;
        let waiting: Vec<usize> = self.workers.iter().filter(|(_, worker)| waits(worker)).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.forget(id));
    }

    /// The job ends, for this reason, which is said in these words.
    fn end(&mut self, now: Instant, cause: Cause, why: Option<String>) {
        if !self.course.end(now, cause) {
            return;
        }
        self.start_no_more();
        let others = self.living().len();
        match why {
            Some(why) if others == 0 => self.say(ALWAYS, why),
            Some(why) => self.say(ALWAYS, format!("{why}; ending {}", plural(others, "worker"))),
            None => self.actions.push_back(Action::Tell(Notice::Ending { cause, others })),
        }
        self.signal_living(Signal::TERM);
    }
}
