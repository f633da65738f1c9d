//! What this member knows of the step under way, and of the view it runs in: one lock, shared by the training thread and
//! the thread that talks to the registry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::comm::Communicator;
use crate::membership::member::Outcome;
use crate::types::{Error, Generation, Result};

/// A view that was installed.
#[derive(Clone)]
pub(super) struct Installed {
    pub generation: Generation,
    /// The members, in rank order.
    pub slots: Arc<[usize]>,
    /// The communicator of all of them.
    pub communicator: Communicator,
    /// The latest generation with which members came.
    pub joined: Generation,
    /// Why it began.
    pub cause: Arc<str>,
}

/// A view of the job's history, as this member lived it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRecord {
    /// Its generation.
    pub generation: Generation,
    /// Its members' slots, in rank order.
    pub slots: Arc<[usize]>,
    /// Why it began.
    pub cause: Arc<str>,
    /// How many steps counted when it began.
    pub counted: u64,
    /// How long this member was held up by the change: from the word to stop until the view was there.
    pub held_up: Duration,
}

/// The results of a step, all of which are here.
#[derive(Clone)]
pub(super) struct Held {
    /// The view in which they came to be, whose members' inputs are in them.
    pub view: Installed,
    /// Whether nobody may come in behind this step.
    pub closed: bool,
}

/// The state under the lock.
#[derive(Default)]
pub(super) struct Ledger {
    /// Steps that counted, as far as this member knows.
    pub counted: u64,
    /// The results of step `counted + 1`, once all of them are here.
    pub held: Option<Held>,
    /// The view in which the results of step `counted` came to be.
    pub computed: Option<Installed>,
    /// The view that all members know they are in, whatever later ones they have heard of: see `install`.
    pub agreed: Option<Installed>,
    /// Whether this member waits between two steps for a change that all agreed to make.
    pub at_boundary: bool,
    /// The view in which operations run.
    pub view: Option<Installed>,
    /// The view is over; the next has not come.
    pub suspended: bool,
    /// The registry was told of a link that is lost in the view: it is going to say what becomes of it. The member's
    /// machine alone says so.
    pub doomed: bool,
    /// How many of the engine's words on lost links the machine has heard.
    pub heard: u64,
    /// A change between steps is wanted: by the registry, or because this member is to go.
    pub wanted: bool,
    /// This member is to go after the step.
    pub leaving: bool,
    /// The generation up to which the caller knows of changes.
    pub seen: Generation,
    /// The generation of the newest members that have the state, as far as this member brought it to them.
    pub synced: Generation,
    /// Whether this member has the job's state.
    pub has_state: bool,
    /// What happened to the view so far.
    pub history: Vec<ViewRecord>,
    /// When this member was told to stop in the present view.
    pub suspended_since: Option<Instant>,
    /// A step was given up by all, and the caller does not know yet.
    pub given_up: bool,
    /// Since when the registry has been away, and how that was noticed.
    pub away: Option<(Instant, Arc<str>)>,
    /// Where nothing is kept: the caller has been told that the view is another, and no step has counted since.
    pub is_told: bool,
    /// Why this member is out, for good.
    pub stop: Option<Error>,
    /// Whether it is out of a job that goes on, or may, and takes newcomers.
    pub can_rejoin: bool,
}

impl Ledger {
    /// The step under way is computed and agreed on: it counts, unless the registry has been told otherwise meanwhile.
    /// Returns whether it does.
    ///
    /// `wanted` says that all have agreed to make a change now: then this member is at the boundary.
    pub fn pass(&mut self, generation: Generation, wanted: bool) -> bool {
        if !self.runs_in(generation) {
            return false;
        }
        self.count();
        self.at_boundary = wanted;
        true
    }

    /// Whether this member may join again as another one.
    pub fn can_rejoin(&self) -> bool {
        self.can_rejoin || (self.stop.is_none() && self.away.is_some())
    }

    /// Whether operations run in the view of this generation.
    pub fn runs_in(&self, generation: Generation) -> bool {
        let is_current = self.view.as_ref().is_some_and(|view| view.generation == generation);
        is_current && !self.suspended && self.stop.is_none()
    }

    /// An operation's error, with what else is known that may explain it.
    pub fn explained(&self, error: Error, now: Instant) -> Error {
        match (error, &self.away) {
            (Error::Timeout { operation, waiting_for, waited, detail }, Some((since, why))) => {
                let away = now.saturating_duration_since(*since).as_secs_f64();
                let comma = if detail.is_empty() { "" } else { "; " };
                let detail = format!("{detail}{comma}the registry has been away for {away:.1} s: {why}").into();
                Error::Timeout { operation, waiting_for, waited, detail }
            }
            (error, _) => error,
        }
    }

    /// Whether members came that do not have the state yet.
    pub fn is_sync_due(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.joined > self.synced)
    }

    /// The view is over: this member stops and is about to report.
    pub fn suspend(&mut self, now: Instant) {
        self.suspended = true;
        self.suspended_since.get_or_insert(now);
    }

    fn count(&mut self) {
        if let Some(held) = self.held.take() {
            self.counted += 1;
            self.is_told = false;
            self.agreed = Some(held.view.clone());
            self.computed = Some(held.view);
        }
    }

    /// A view begins, and with it comes the verdict on the step that was under way. `has_joined` says whether members
    /// came with it.
    ///
    /// The agreed view is the one in which the last step that counted was computed: all of its members know that by the
    /// results they hold, even if some hear of a newer view earlier than others. Only where members join, which finds
    /// everybody between the same two steps, is it the new one. So ranks change in step, and samples are shared alike.
    pub fn install(&mut self, view: Installed, outcome: Outcome, counted: u64, has_joined: bool, now: Instant) {
        let held_up = self.suspended_since.take().map_or(Duration::ZERO, |since| now.duration_since(since));
        self.history.push(ViewRecord {
            generation: view.generation,
            slots: view.slots.clone(),
            cause: view.cause.clone(),
            counted,
            held_up,
        });
        match outcome {
            Outcome::Joined => self.counted = counted,
            Outcome::Counted => {
                // Behind a closed step nobody comes in unless there were too few: then the others, who may be in the
                // step after it, give that up.
                self.given_up |= has_joined && self.held.as_ref().is_some_and(|held| held.closed);
                self.count();
            }
            Outcome::GivenUp => self.given_up = true,
            Outcome::Boundary | Outcome::Again => {}
        }
        // The results of an attempt that does not count must not be taken for the next one's.
        self.held = None;
        let joined = match (has_joined, &self.view) {
            (false, Some(before)) => before.joined,
            _ => view.generation,
        };
        self.suspended = false;
        self.at_boundary = false;
        self.wanted = self.leaving;
        let view = Installed { joined, ..view };
        if has_joined {
            self.agreed = Some(view.clone());
        }
        self.view = Some(view);
    }
}

/// The lock, and what wakes those who wait for a change.
#[derive(Default)]
pub(super) struct Shared {
    ledger: Mutex<Ledger>,
    changed: Condvar,
    generation: AtomicU64,
    lost_links: Arc<LostLinks>,
}

/// How often the engine has said that a link is lost. Apart from the ledger, which holds the engine.
#[derive(Default)]
pub(super) struct LostLinks(AtomicU64);

impl LostLinks {
    /// The engine is about to say so once more. Takes no lock.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Every statement leaves the ledger whole.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation in which operations run.
    /// Takes no lock.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Where the engine's words on lost links are counted.
    pub fn lost_links(&self) -> Arc<LostLinks> {
        self.lost_links.clone()
    }

    /// Tells those who wait that the ledger has changed.
    pub fn notify(&self) {
        let generation = self.lock().view.as_ref().map_or(0, |view| view.generation.0);
        self.generation.store(generation, Ordering::Release);
        self.changed.notify_all();
    }

    /// The view in which the next operations run: waits while there is none, or it is `after` or older. The member's
    /// machine ends the wait in time, with a view or a reason to stop. `go_on` is asked about every 50 ms.
    pub fn view_after(&self, after: Generation, go_on: &mut dyn FnMut() -> bool) -> Result<Installed> {
        self.view_that(&|_, view| view.generation > after, go_on)
    }

    /// As [`view_after`](Self::view_after), any view in which no link is lost, as far as the engine has noticed by now.
    pub fn whole_view(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Installed> {
        let told = self.lost_links.0.load(Ordering::Acquire);
        self.view_that(&|ledger, _| ledger.heard >= told && !ledger.doomed, go_on)
    }

    fn view_that(
        &self,
        is_wanted: &dyn Fn(&Ledger, &Installed) -> bool,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Installed> {
        let mut ledger = self.lock();
        loop {
            if let Some(stop) = &ledger.stop {
                return Err(stop.clone());
            }
            if let Some(view) = &ledger.view
                && !ledger.suspended
                && is_wanted(&ledger, view)
            {
                return Ok(view.clone());
            }
            let (back, _) =
                self.changed.wait_timeout(ledger, Duration::from_millis(50)).unwrap_or_else(PoisonError::into_inner);
            drop(back);
            // Whoever is asked may want to look at the ledger.
            if !go_on() {
                return Err(Error::invalid("the wait for the next view was interrupted"));
            }
            ledger = self.lock();
        }
    }
}
