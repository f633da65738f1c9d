//! A member's side: how one process stays in the world.
//!
//! ```text
//!              Welcome        View                Prepare               suspended
//!   registers ─────────▶ waits ──▶ ┌─────────┐ ─────────▶ suspending ──────────────▶ ┌────────┐
//!                                  │ running │                                       │ frozen │
//!                                  └─────────┘ ────────────────────────────────────▶ └────────┘
//!                                       ▲            stopped at a boundary                │
//!                                       └─────────────────────────────────────────────────┘
//!                                               View: go on, as its `Outcome` says
//! ```
//!
//! A pure state machine. The shell tells what comes from the registry and from the engine; [`Action`]s come out of
//! [`poll_action`](Member::poll_action), to be carried out in their order. While the registry is away the machine keeps
//! trying to come back, and the work goes on; only when it cannot go on without a word of the registry does time begin to
//! run against it. A message that comes twice, or late, does no harm.

mod config;
mod install;
mod link;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

pub use config::MemberConfig;
pub use install::{Installation, Outcome};

use crate::types::{Deadline, Generation};
use crate::wire::registry::{FromRegistry, Gone, Parting, Report, Slot, ToRegistry};
use link::Link;

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Dial the registry and prove the job's key, then call [`Member::handle_connected`] or
    /// [`Member::handle_disconnected`].
    Connect,
    /// Close the connection, or give up dialling. Nothing more is said about it.
    Disconnect,
    /// Send a message to the registry.
    Send(ToRegistry),
    /// Give up everything that is in flight in this view, begin nothing new, enter and pass no commit; then call
    /// [`Member::handle_suspended`] with how far it had come. This is a promise: it holds until the next
    /// [`Action::Install`].
    Suspend {
        /// The view.
        generation: Generation,
        /// Who is out, so far.
        gone: Vec<Gone>,
    },
    /// Go over to another view.
    Install(Box<Installation>),
    /// Ask the others, in the next commit's agreement, to stop behind it.
    Wanted,
    /// There are fewer members than the job needs.
    Waiting {
        /// How many there are.
        have: usize,
        /// How many it needs.
        need: usize,
        /// How long the registry is going to wait for more.
        remaining: Duration,
    },
    /// It cannot go on without the registry's word, and the registry has been away for longer than the heartbeat limit.
    /// Said once for each time that it is away.
    Stuck {
        /// For how long the registry has been away.
        away: Duration,
        /// What it waits for, in words.
        detail: String,
        /// How much longer it is going to wait.
        remaining: Duration,
    },
    /// The registry is away. The work goes on.
    Away {
        /// How that was noticed.
        detail: String,
    },
    /// The registry is back.
    Back,
    /// It is over for this member. Nothing comes after this.
    Stop(Stop),
}

/// Why it is over for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It said goodbye. `was_heard` is false when the registry was away.
    Left {
        /// Whether the registry heard it.
        was_heard: bool,
    },
    /// The others went on without it. It can come again, as a newcomer with a token of its own.
    Evicted {
        /// The view that the registry was at.
        generation: Generation,
        /// Why, in the registry's words.
        reason: String,
    },
    /// The job is over for all.
    Ended {
        /// Why, in the registry's words.
        reason: String,
    },
    /// The registry did not let it in.
    Refused {
        /// What was compared.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// There was no view with it in time.
    NotAdmitted {
        /// How long it waited.
        waited: Duration,
        /// Whether the registry ever answered.
        was_welcome: bool,
        /// What is known, in words.
        detail: String,
    },
    /// It needs the registry's word to go on, and cannot reach it.
    CutOff {
        /// For how long the registry has been away.
        away: Duration,
        /// What it waits for, in words.
        detail: String,
    },
    /// It stood still for longer than any change may take, and the registry, which can be reached, said nothing.
    NoView {
        /// For how long.
        waited: Duration,
        /// What it waits for, in words.
        detail: String,
    },
    /// What it was told cannot be. A defect.
    Defect {
        /// What.
        what: String,
    },
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Left { was_heard: true } => write!(f, "it said goodbye"),
            Stop::Left { was_heard: false } => write!(f, "it said goodbye, but the registry was away"),
            Stop::Evicted { generation, reason } => {
                write!(f, "the others went on without this process ({generation}): {reason}")
            }
            Stop::Ended { reason } => write!(f, "the job is over: {reason}"),
            Stop::Refused { what, hint } => write!(f, "the registry did not let this process in: {what}; {hint}"),
            Stop::NotAdmitted { waited, was_welcome, detail } => write!(
                f,
                "{} within {:.1} s{}{detail}",
                if *was_welcome {
                    "the registry answered, but there was no view with this process"
                } else {
                    "no answer from the registry"
                },
                waited.as_secs_f64(),
                if detail.is_empty() { "" } else { ": " }
            ),
            Stop::CutOff { away, detail } => {
                write!(f, "cut off from the registry for {:.1} s: {detail}", away.as_secs_f64())
            }
            Stop::NoView { waited, detail } => {
                write!(f, "the registry said no view within {:.1} s: {detail}", waited.as_secs_f64())
            }
            Stop::Defect { what } => write!(f, "defect in Phalanx: {what}"),
        }
    }
}

/// A goodbye that is being said.
#[derive(Clone, Debug)]
struct Leaving {
    parting: Parting,
    reason: String,
    until: Deadline,
}

impl Leaving {
    fn message(&self) -> ToRegistry {
        ToRegistry::Leave { parting: self.parting, reason: self.reason.clone() }
    }
}

/// A member's state machine.
#[derive(Clone, Debug)]
pub struct Member {
    config: MemberConfig,
    began: Instant,
    link: Link,
    slot: Option<Slot>,
    interval: Duration,
    heartbeat_limit: Duration,
    elastic_timeout: Duration,
    view: Option<install::Current>,
    /// It was told to stop, and the engine has not said that it did.
    is_suspending: bool,
    /// What it reported in this view: it stands still.
    frozen: Option<Report>,
    /// The members whose links were lost in this view, and how.
    suspects: BTreeMap<Slot, String>,
    /// Whether another member gave a call of this view up for a lost link of its own.
    is_link_told: bool,
    /// Since when it has not been able to go on without a word of the registry.
    needs_since: Option<Instant>,
    /// Since when operations have been in flight and none has been begun: what they wait for may never come.
    stalled_since: Option<Instant>,
    /// Until when the registry waits for more members, as it last said in this view, and some more.
    waits_until: Option<Deadline>,
    /// When a registry last answered on a new connection.
    welcomed: Option<Instant>,
    /// Whether it was said that it is stuck.
    is_stuck_told: bool,
    /// It was stopped itself when it was about to give up: it has until then to reach the registry.
    excused_until: Option<Deadline>,
    leaving: Option<Leaving>,
    number: u64,
    progress: u64,
    counted: u64,
    beat: Option<Deadline>,
    actions: VecDeque<Action>,
    is_over: bool,
}

impl Member {
    /// A process that wants to be let in.
    pub fn new(now: Instant, config: MemberConfig) -> Self {
        let mut member = Member {
            began: now,
            link: Link::new(now),
            slot: None,
            interval: Duration::from_secs(1),
            heartbeat_limit: Duration::from_secs(5),
            elastic_timeout: config.patience,
            view: None,
            is_suspending: false,
            frozen: None,
            suspects: BTreeMap::new(),
            is_link_told: false,
            needs_since: None,
            stalled_since: None,
            waits_until: None,
            welcomed: None,
            is_stuck_told: false,
            excused_until: None,
            leaving: None,
            number: 0,
            progress: 0,
            counted: 0,
            beat: None,
            actions: VecDeque::new(),
            is_over: false,
            config,
        };
        member.dial();
        member
    }

    /// What the shell is to do next, if anything.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The slot, once the registry has given one; until the first view it may change.
    pub fn slot(&self) -> Option<Slot> {
        self.slot
    }

    /// The view it is in.
    pub fn generation(&self) -> Option<Generation> {
        self.view.as_ref().map(|view| view.generation)
    }

    /// Whether it stands still until the next view.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Whether links are lost in its view. The registry has been told, or is told when it is back, by this member or
    /// another, and says the next view, or that there is none.
    pub fn has_lost_links(&self) -> bool {
        !self.suspects.is_empty() || self.is_link_told
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// A message came from the registry.
    pub fn handle_message(&mut self, now: Instant, message: FromRegistry) {
        if self.is_over {
            return;
        }
        match message {
            FromRegistry::Welcome { slot, heartbeat_interval, heartbeat_limit, elastic_timeout } => {
                self.heartbeat_limit = heartbeat_limit;
                self.interval = heartbeat_interval.max(Duration::from_millis(1));
                self.elastic_timeout = elastic_timeout;
                if self.view.is_none() {
                    self.slot = Some(slot);
                }
                self.welcomed = Some(now);
                self.is_welcome();
                self.beat.get_or_insert(Deadline::after(now, self.interval));
            }
            FromRegistry::Prepare { generation, gone } => self.prepare(now, generation, gone),
            FromRegistry::View(view) => self.install(now, view),
            FromRegistry::Wanted { generation } => {
                if Some(generation) == self.generation() && self.frozen.is_none() {
                    self.actions.push_back(Action::Wanted);
                }
            }
            FromRegistry::Waiting { have, need, remaining } => {
                self.waits_until = Some(Deadline::after(now, remaining.saturating_add(self.slack())));
                self.actions.push_back(Action::Waiting { have, need, remaining });
            }
            FromRegistry::Evicted { generation, reason } => self.stop(Stop::Evicted { generation, reason }),
            FromRegistry::End { reason } => self.end(reason),
            FromRegistry::Goodbye => {
                if self.leaving.is_some() {
                    self.stop(Stop::Left { was_heard: true });
                }
            }
            FromRegistry::Probe => self.send_beat(now),
            FromRegistry::Refused { what, hint } => self.stop(Stop::Refused { what, hint }),
            FromRegistry::Status(_) | FromRegistry::Done { .. } => {}
        }
    }

    /// How many operations this process has begun, and whether some of them are in flight. To be called before
    /// [`handle_timeout`](Self::handle_timeout).
    pub fn handle_progress(&mut self, now: Instant, progress: u64, is_waiting: bool) {
        if std::mem::replace(&mut self.progress, progress) != progress || !is_waiting {
            self.stalled_since = None;
        }
        if is_waiting {
            self.stalled_since.get_or_insert(now);
        }
    }

    /// How many steps count, as far as the engine knows: for operators, who are told of it with the next sign of life.
    pub fn handle_counted(&mut self, counted: u64) {
        self.counted = counted;
    }

    /// The engine has stopped, as [`Action::Suspend`] asked: it has passed `counted` commits, and `holds` says whether
    /// it has entered the next one; `closed`, that nobody may come in behind that. Not to be called when the engine was at
    /// a boundary already, nor for a view that is over.
    pub fn handle_suspended(&mut self, now: Instant, counted: u64, holds: bool, closed: bool) {
        if std::mem::take(&mut self.is_suspending) {
            self.freeze(now, (counted, holds, false, closed && holds));
        }
    }

    /// The engine has passed commit number `counted`, with which all members agreed to stop, and stands still behind it.
    pub fn handle_boundary(&mut self, now: Instant, counted: u64) {
        self.is_suspending = false;
        self.freeze(now, (counted, false, true, false));
    }

    fn freeze(&mut self, now: Instant, (counted, holds, boundary, closed): (u64, bool, bool, bool)) {
        let Some(generation) = self.generation().filter(|_| self.frozen.is_none() && !self.is_over) else { return };
        let report = Report { generation, counted, holds, boundary, closed };
        self.frozen = Some(report);
        self.needs_since.get_or_insert(now);
        self.send(ToRegistry::Report(report));
    }

    /// The engine has lost its link to another member.
    pub fn handle_link_lost(&mut self, now: Instant, slot: Slot, detail: &str) {
        let Some(view) = self.view.as_ref().filter(|view| view.has(slot) && !self.is_over) else { return };
        let generation = view.generation;
        if self.suspects.insert(slot, detail.into()).is_none() {
            self.needs_since.get_or_insert(now);
            self.send(ToRegistry::Suspect { generation, slot, detail: detail.into() });
        }
    }

    /// Another member of the view has lost a link, and gave a call up for that. It tells the registry; if it falls before
    /// it does, the registry hears of that. Both end the view.
    pub fn handle_link_told(&mut self, now: Instant) {
        if self.view.is_some() && !self.is_over {
            self.is_link_told = true;
            self.needs_since.get_or_insert(now);
        }
    }

    /// This process goes, and needs nothing more from the others. What it says first counts. [`Action::Stop`] follows.
    pub fn leave(&mut self, now: Instant, parting: Parting, reason: &str) {
        if self.leaving.is_none() && !self.is_over {
            let leaving =
                Leaving { parting, reason: reason.into(), until: Deadline::after(now, self.config.leave_timeout) };
            self.send(leaving.message());
            self.leaving = Some(leaving);
        }
    }

    fn prepare(&mut self, now: Instant, generation: Generation, gone: Vec<Gone>) {
        if Some(generation) != self.generation() || self.frozen.is_some() || self.is_suspending {
            return;
        }
        self.is_suspending = true;
        self.needs_since.get_or_insert(now);
        self.actions.push_back(Action::Suspend { generation, gone });
    }

    fn end(&mut self, reason: String) {
        self.stop(if self.leaving.is_some() { Stop::Left { was_heard: true } } else { Stop::Ended { reason } });
    }

    fn stop(&mut self, stop: Stop) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.actions.push_back(Action::Disconnect);
            self.actions.push_back(Action::Stop(stop));
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn deadline(&self) -> Option<Deadline> {
        if self.is_over {
            return None;
        }
        let leave = self.leaving.as_ref().map(|leaving| leaving.until);
        let admission = self.view.is_none().then(|| Deadline::after(self.began, self.config.patience));
        let waits = [self.stuck(), self.cut_off(), self.no_view()];
        [leave, admission, self.beat, self.link.retry()].into_iter().chain(waits).flatten().min()
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_over = |at: Option<Deadline>| at.is_some_and(|at| at.has_passed(now));
        if self.is_over {
            return;
        }
        if is_over(self.leaving.as_ref().map(|leaving| leaving.until)) {
            return self.stop(Stop::Left { was_heard: false });
        }
        if self.view.is_none() && Deadline::after(self.began, self.config.patience).has_passed(now) {
            let waited = now.saturating_duration_since(self.began);
            let (was_welcome, detail) = (self.slot.is_some(), self.link.detail().to_string());
            return self.stop(Stop::NotAdmitted { waited, was_welcome, detail });
        }
        let end = self.cut_off().or(self.no_view());
        if self.excused_until.is_none() && end.is_some_and(|at| at.overdue(now) >= self.interval) {
            // It was stopped itself, or dialled for long: the registry may be back, or have said something.
            self.excused_until = Some(Deadline::after(now, self.config.last_excuse));
        }
        if is_over(self.cut_off()) {
            let away = self.link.away(now);
            return self.stop(Stop::CutOff { away, detail: self.need() });
        }
        if is_over(self.no_view()) {
            let waited = self.needs_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            return self.stop(Stop::NoView { waited, detail: self.need() });
        }
        if is_over(self.stuck()) {
            self.is_stuck_told = true;
            let remaining = self.cut_off().map_or(Duration::ZERO, |at| at.remaining(now));
            let (away, detail) = (self.link.away(now), self.need());
            self.actions.push_back(Action::Stuck { away, detail, remaining });
        }
        if is_over(self.link.retry()) {
            self.dial();
        }
        if is_over(self.beat) {
            self.send_beat(now);
        }
    }

    /// Since when it has not been able to go on, and the registry has been away.
    fn stuck_since(&self) -> Option<Instant> {
        let stands = self.needs_since.into_iter().chain(self.stalled_since).min()?;
        Some(self.link.away_since()?.max(stands))
    }

    /// When it says that it waits for a registry that is away.
    fn stuck(&self) -> Option<Deadline> {
        let since = self.stuck_since().filter(|_| self.view.is_some() && !self.is_stuck_told)?;
        Some(Deadline::after(since, self.heartbeat_limit))
    }

    /// When it gives up waiting for a registry that is away, if it cannot go on without its word.
    fn cut_off(&self) -> Option<Deadline> {
        let at = Deadline::after(self.stuck_since()?, self.elastic_timeout);
        Some(self.excused_until.map_or(at, |excused| at.max(excused)))
    }

    /// When it gives up waiting for the word of a registry that can be reached. The registry ends every change within the
    /// elastic timeout, counted from when it found what it waits for; that it does not means that it is stopped itself.
    fn no_view(&self) -> Option<Deadline> {
        let since = self.needs_since.filter(|_| self.view.is_some() && self.link.away_since().is_none())?;
        // One that has just come back begins the change anew.
        let since = self.welcomed.map_or(since, |welcomed| since.max(welcomed));
        let at = Deadline::after(since, self.elastic_timeout.saturating_add(self.slack()));
        Some([self.waits_until, self.excused_until].into_iter().flatten().fold(at, Deadline::max))
    }

    /// How much later than the registry it is. It notices a change up to a heartbeat limit earlier.
    fn slack(&self) -> Duration {
        self.heartbeat_limit.saturating_mul(4)
    }

    /// What it needs the registry for, in words.
    fn need(&self) -> String {
        let lost = self.suspects.iter().map(|(slot, detail)| format!("the link to slot {slot} is lost ({detail})"));
        let frozen = (self.frozen.is_some() || self.is_suspending).then(|| "the next view is to come".to_string());
        let told = self.is_link_told.then(|| "another rank has lost a link".to_string());
        let stalled = (self.needs_since.is_none() && self.stalled_since.is_some())
            .then(|| "its operations do not advance, as of ranks that are cut off".to_string());
        lost.chain(told).chain(frozen).chain(stalled).collect::<Vec<_>>().join(", ")
    }

    fn send(&mut self, message: ToRegistry) {
        if self.link.is_up() {
            self.actions.push_back(Action::Send(message));
        }
    }

    fn send_beat(&mut self, now: Instant) {
        self.number += 1;
        self.beat = Some(Deadline::after(now, self.interval));
        let (number, progress, is_waiting) = (self.number, self.progress, self.stalled_since.is_some());
        self.send(ToRegistry::Heartbeat { number, progress, is_waiting, counted: self.counted });
    }
}
