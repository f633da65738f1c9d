//! A world that closes its ranks and goes on.
//!
//! An elastic job has a registry (`membership::Registry`, which the launcher runs, or `phalanx registry`), the one judge
//! of who is in. Each member has a thread that talks to it (`client`) and drives the pure `membership::Member`; what it
//! hears goes into the `ledger`, which the training thread shares.
//!
//! Training is a row of [steps](Elastic::step). Inputs of a step's collectives are kept until its commit, in which all
//! agree that everybody has all results. If a member is lost before, the others stop, report how far they are, and get the
//! next view together with the verdict on the step: it counts, or is run again by those who are left. Newcomers come in
//! between two steps, and get the [state](State) from the ranks that have it ([`Elastic::sync`]). Samples are shared by an
//! [`ElasticSampler`], whose state rides along.

mod client;
mod control;
mod join;
mod ledger;
mod sampler;
mod service;
mod state;
mod state_file;
mod step;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::control::{Command, Control};
use self::ledger::{Installed, Shared};
use crate::bootstrap::Settings;
use crate::comm::{Communicator, Handle};
use crate::types::{Error, Generation, Result};
use crate::wire::registry::Parting;

pub use self::join::join;
pub use self::ledger::ViewRecord;
pub use self::sampler::{ElasticSampler, epoch_order};
pub use self::service::{OnEvent, RegistryService};
pub use self::state::State;
pub use self::state_file::{Owner, StateFile};
pub use self::step::{Attempt, Changes, RawStep, Step, StepOutcome};

/// What is kept of a step until it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The inputs, so that a step can be run again without the program knowing. Costs memory for the results of the
    /// largest step's in-place collectives, and a copy of each when the step counts.
    #[default]
    Inputs,
    /// Nothing: a step whose view ends fails with [`Error::ViewChanged`], on all ranks alike.
    Nothing,
}

/// A member of an elastic job.
pub struct Elastic {
    shared: Arc<Shared>,
    control: Control,
    client: Mutex<Option<client::Client>>,
    views: client::SharedViews,
    keep: Keep,
    settings: Settings,
    /// Memory for results that wait for their step to count.
    staging: Mutex<Vec<Vec<u128>>>,
    /// Asked now and then while this member waits; see [`set_go_on`](Self::set_go_on).
    go_on: Mutex<Option<GoOn>>,
}

/// Says whether to go on waiting.
type GoOn = Box<dyn FnMut() -> bool + Send>;

/// How often a waiting member asks whether to go on.
const ASK_PERIOD: Duration = Duration::from_millis(50);

impl Elastic {
    /// The same member, keeping something else. Must be the same on every rank.
    pub fn with_keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Has `go_on` asked about every 50 ms while this member waits; when it says no, the wait ends with an error. For
    /// languages in which signals are handled between two instructions of the program.
    pub fn set_go_on(&self, go_on: Option<GoOn>) {
        *self.go_on.lock().unwrap_or_else(PoisonError::into_inner) = go_on;
    }

    /// The communicator of the present view, waiting for one if a change is under way, or known to come because a rank
    /// is lost. Groups made of it, and calls on it, last as long as the view. Then they fail with
    /// [`Error::ViewChanged`] on every member, those that wait as well as those that are made later, also in groups
    /// that have lost nobody: take the next communicator, and make the groups anew. A member that had
    /// finished a call before the others gave it up has its result: only a step ends for all alike.
    ///
    /// # Errors
    ///
    /// When this member is out, or the job has ended: why.
    pub fn communicator(&self) -> Result<Communicator> {
        Ok(self.shared.whole_view(&mut || self.ask())?.communicator)
    }

    /// This member's slot: its number for the life of the job, while ranks change with the view.
    pub fn slot(&self) -> usize {
        let ledger = self.shared.lock();
        ledger.view.as_ref().and_then(|view| view.slots.get(view.communicator.rank()).copied()).unwrap_or(0)
    }

    /// This member's rank in the present view.
    pub fn rank(&self) -> usize {
        self.shared.lock().view.as_ref().map_or(0, |view| view.communicator.rank())
    }

    /// The number of members in the present view.
    pub fn size(&self) -> usize {
        self.shared.lock().view.as_ref().map_or(1, |view| view.communicator.size())
    }

    /// The communicator of the agreed view: the one in which the last step that counted was computed, or that of the
    /// newcomers where members joined since. Every member finds the same one between the same two steps, while some
    /// hear earlier than others of a view that is newer. Calls on it fail with [`Error::ViewChanged`] when it is over.
    pub fn agreed(&self) -> Result<Communicator> {
        let agreed = self.shared.lock().agreed.clone();
        agreed.map(|view| view.communicator).ok_or_else(|| Error::internal("a member without a view"))
    }

    /// The number of the present view.
    pub fn generation(&self) -> Generation {
        self.shared.generation()
    }

    /// Who shares the samples of the next step, as slots in rank order: the same on every rank. Give it to
    /// [`ElasticSampler::next_batch`].
    pub fn basis(&self) -> Arc<[usize]> {
        self.shared.lock().agreed.as_ref().map_or_else(|| Arc::from([]), |view| view.slots.clone())
    }

    /// How many steps counted so far.
    pub fn counted(&self) -> u64 {
        self.shared.lock().counted
    }

    /// The views that this member has lived through.
    pub fn history(&self) -> Vec<ViewRecord> {
        self.shared.lock().history.clone()
    }

    /// How many messages of views that were over came to this member, and were dropped.
    pub fn stale_messages(&self) -> u64 {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |views| views.stale())
    }

    /// Asks to leave after the step under way, as a signal would: the next step's outcome has `left` set.
    pub fn request_leave(&self) {
        let mut ledger = self.shared.lock();
        (ledger.leaving, ledger.wanted) = (true, true);
    }

    /// Whether this member was asked to leave.
    pub fn is_leaving(&self) -> bool {
        self.shared.lock().leaving
    }

    /// Says that the work is done, and goodbye to the registry and the other members, and ends. What the others do later
    /// does not need this one. A member that has left as it was asked to is not done, and says no more.
    ///
    /// Nobody but this says that the work is done. A member that is dropped without it, as on the way out of a program that
    /// failed, says goodbye alone: the others close up, and its launcher goes by the exit code of its process, as for any
    /// program. With 0 it is done as well; with another it has failed, and is replaced.
    pub fn shutdown(&self) {
        self.end(Parting::Done, "its work is done");
    }

    /// Says goodbye and nothing of the work, as dropping this does: how the process ends says whether it is done.
    pub fn close(&self) {
        self.end(Parting::Unsaid, "it ended");
    }

    fn end(&self, parting: Parting, why: &'static str) {
        self.leave(parting, why);
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(client) = client {
            client.join();
        }
        let views = self.views.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(views) = views {
            views.close();
        }
    }

    /// Whether this process is out though the job goes on, or may: the others went on without it ([`Error::Evicted`]), or
    /// it cannot reach the registry, whether it has given up waiting for it or not. Then [`rejoin`](Self::rejoin) is
    /// possible; while steps still count, there is no reason for it.
    pub fn can_rejoin(&self) -> bool {
        self.shared.lock().can_rejoin()
    }

    /// Joins the job again after [`can_rejoin`](Self::can_rejoin), in the same process, as a newcomer with a slot of its
    /// own. Waits for a view, as [`join()`] does; [`sync`](Self::sync) comes next, with this process among those that
    /// lack the state.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when this process is still a member; why it is out, when the job is over for it. As
    /// [`join()`].
    pub fn rejoin(self) -> Result<Self> {
        {
            let ledger = self.shared.lock();
            let stop = ledger
                .stop
                .clone()
                .unwrap_or_else(|| Error::invalid("rejoin: this process is a member, and nothing says that it is out"));
            if !ledger.can_rejoin() {
                return Err(stop);
            }
        }
        let go_on = std::mem::take(&mut *self.go_on.lock().unwrap_or_else(PoisonError::into_inner));
        let (settings, keep) = (self.settings.clone(), self.keep);
        // Its connections and its memory are given back before the new member takes its own.
        drop(self);
        let again = Self::join_while(&settings, go_on)?;
        Ok(again.with_keep(keep))
    }

    /// Ends this member as a process that dies does: without a word, to the registry or to the others.
    pub(crate) fn vanish(&self) {
        self.control.send(Command::Vanish);
        if let Some(client) = self.client.lock().unwrap_or_else(PoisonError::into_inner).take() {
            client.join();
        }
    }

    fn keep(&self) -> Keep {
        self.keep
    }

    fn leave(&self, parting: Parting, why: &'static str) {
        self.control.send(Command::Leave { parting, why });
    }

    /// Refuses to begin a step after a change that the caller has to act on.
    fn expect_no_change(&self) -> Result<()> {
        let mut ledger = self.shared.lock();
        let Some(view) = &ledger.view else { return Ok(()) };
        let (generation, cause) = (view.generation, view.cause.clone());
        if std::mem::take(&mut ledger.given_up) {
            ledger.seen = generation;
            return Err(Error::ViewChanged { generation, cause });
        }
        if ledger.is_sync_due() {
            return Err(Error::invalid(
                "members joined that do not have the state, as all of them at the beginning: sync comes before the next \
                 step",
            ));
        }
        Ok(())
    }

    /// Where nothing is kept, refuses to run a step in another view than the agreed one, once on each member: all of them
    /// find this at the same step, however late they hear of the view.
    fn expect_agreed(&self, view: &Installed) -> Result<()> {
        let mut ledger = self.shared.lock();
        let is_agreed = ledger.agreed.as_ref().is_some_and(|agreed| agreed.generation == view.generation);
        if is_agreed || std::mem::replace(&mut ledger.is_told, true) {
            return Ok(());
        }
        ledger.seen = view.generation;
        Err(Error::ViewChanged { generation: view.generation, cause: view.cause.clone() })
    }

    fn see(&self, generation: Generation) {
        let mut ledger = self.shared.lock();
        ledger.seen = ledger.seen.max(generation);
    }

    /// The present view, if there is one in which operations run.
    fn current_view(&self) -> Result<Option<Installed>> {
        let ledger = self.shared.lock();
        match &ledger.stop {
            Some(stop) => Err(stop.clone()),
            None => Ok(ledger.view.clone().filter(|view| ledger.runs_in(view.generation))),
        }
    }

    fn wait_for_view(&self, after: Generation) -> Result<Installed> {
        self.shared.view_after(after, &mut || self.ask())
    }

    fn ask(&self) -> bool {
        let mut go_on = self.go_on.lock().unwrap_or_else(PoisonError::into_inner);
        go_on.as_mut().is_none_or(|go_on| go_on())
    }

    fn wait(&self, handle: &Handle) -> Result<()> {
        let asks = self.go_on.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if asks { handle.wait_while(ASK_PERIOD, &mut || self.ask()) } else { handle.wait() }
    }

    /// Memory for `bytes` bytes of results.
    fn stage(&self, bytes: usize) -> Vec<u128> {
        let words = bytes.div_ceil(size_of::<u128>());
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // Steps are alike: the smallest that is large enough is the one that the step before gave back.
        let fits = (0..staging.len()).filter(|&at| staging[at].len() >= words).min_by_key(|&at| staging[at].len());
        match fits {
            Some(at) if staging[at].len() <= 2 * words + 64 => staging.swap_remove(at),
            _ => vec![0; words],
        }
    }

    fn unstage(&self, memory: Vec<u128>) {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if staging.len() == MAX_STAGED {
            staging.remove(0);
        }
        staging.push(memory);
    }
}

/// How many buffers are kept for the next step.
const MAX_STAGED: usize = 64;

impl Drop for Elastic {
    fn drop(&mut self) {
        self.close();
    }
}
