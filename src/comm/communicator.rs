//! The communicator: a group of ranks, its settings, and the way of a call into the engine.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::call::Call;
use super::handle::Handle;
use super::plans::{Plan, Plans};
use super::tuning::Tuning;
use super::world::{Statistics, World};
use crate::executor::{Layout, MOST_RANKS, Now, Work};
use crate::schedule::cost::{Basis, Choice, Selection, select_by};
use crate::schedule::{self, PlanRequest};
use crate::types::{Algorithm, CommunicatorId, Deadline, Error, ReduceOp, Reduction, Result, Tag, TransportKind, View};

/// How a communicator's operations behave. Settings that change what travels must be the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long an operation may take before it fails. 300 s: longer than a slow rank's checkpoint, shorter than an
    /// operator's patience.
    pub timeout: Duration,
    /// The algorithm for every collective that has it; others, and all when `None`, are chosen by size.
    pub algorithm: Option<Algorithm>,
    /// Reduces in rank order whatever the algorithm.
    pub deterministic: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(300), algorithm: None, deterministic: false }
    }
}

/// A group of ranks that make collective calls together. Clones share the group and its order of operations.
#[derive(Clone)]
pub struct Communicator {
    pub(super) inner: Arc<Inner>,
    settings: Settings,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

pub(super) struct Inner {
    pub world: Arc<World>,
    pub id: CommunicatorId,
    /// World ranks in the order of this communicator's ranks.
    pub members: Arc<[usize]>,
    pub rank: usize,
    pub view: View,
    /// What algorithms are chosen by: the same on every rank.
    basis: Mutex<Arc<Basis>>,
    /// Whether its calls may go over the boards of ranks on one host.
    pub in_host: bool,
    plans: Plans,
    pub tuning: Tuning,
    /// Whether algorithms are tried while the program runs.
    pub tries: bool,
    pub points: Mutex<HashMap<CommunicatorId, u64>>,
    /// How many times this communicator was split.
    pub groups: AtomicU64,
    /// How many subgroups were made of each list of ranks.
    subgroups: Mutex<HashMap<Vec<usize>, u64>>,
    /// Its calls on device memory, from the first on.
    #[cfg(feature = "cuda")]
    pub device: std::sync::OnceLock<super::device::DeviceCalls>,
    #[cfg(feature = "cuda")]
    pub making_device: Mutex<()>,
}

impl Inner {
    /// What algorithms are chosen by.
    pub fn basis(&self) -> Arc<Basis> {
        self.basis.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Chooses by something else from now on; every rank must do so between the same calls.
    pub fn choose_by(&self, basis: Basis) {
        *self.basis.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(basis);
        self.plans.forget();
    }

    /// Which subgroup of this list of ranks is being made: the same number on each of them.
    pub fn count_subgroup(&self, ranks: &[usize]) -> u64 {
        let mut subgroups = self.subgroups.lock().unwrap_or_else(PoisonError::into_inner);
        let next = subgroups.entry(ranks.to_vec()).or_insert(0);
        *next += 1;
        *next - 1
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The world's own goes with the engine.
        if self.id != CommunicatorId::WORLD {
            self.world.engine.remove_channel(self.id);
        }
        let points = self.points.get_mut().unwrap_or_else(PoisonError::into_inner);
        points.keys().for_each(|&id| self.world.engine.remove_channel(id));
    }
}

impl Communicator {
    /// A communicator over members of the world, known to the engine under `id`.
    pub(super) fn new(
        world: Arc<World>,
        id: CommunicatorId,
        members: Arc<[usize]>,
        rank: usize,
        view: View,
        basis: Arc<Basis>,
        settings: Settings,
    ) -> Result<Self> {
        let one_host = view.hosts.iter().all(|host| *host == view.hosts[0]);
        let in_host =
            world.is_connected && basis.shares_memory && one_host && (2..=MOST_RANKS).contains(&members.len());
        world.engine.add_channel(id, members.clone(), rank, in_host)?;
        let inner = Inner {
            world,
            id,
            members,
            rank,
            view,
            tries: basis.tuning,
            basis: Mutex::new(basis),
            in_host,
            plans: Plans::default(),
            tuning: Tuning::default(),
            points: Mutex::new(HashMap::new()),
            groups: AtomicU64::new(0),
            subgroups: Mutex::new(HashMap::new()),
            #[cfg(feature = "cuda")]
            device: std::sync::OnceLock::new(),
            #[cfg(feature = "cuda")]
            making_device: Mutex::new(()),
        };
        Ok(Self { inner: Arc::new(inner), settings })
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.inner.members.len()
    }

    /// This rank's number among the ranks of its host.
    pub fn local_rank(&self) -> usize {
        self.inner.view.local(self.rank()).0
    }

    /// The number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.inner.view.local(self.rank()).1
    }

    /// This rank's number among the ranks with the same local rank, one a host.
    pub fn cross_rank(&self) -> usize {
        self.inner.view.cross(self.rank()).0
    }

    /// The number of hosts that have a rank with this local rank.
    pub fn cross_size(&self) -> usize {
        self.inner.view.cross(self.rank()).1
    }

    /// The members and their hosts.
    pub fn view(&self) -> &View {
        &self.inner.view
    }

    /// The settings of this clone.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The same communicator with another limit on the time that an operation may take.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_settings(Settings { timeout, ..self.settings })
    }

    /// The same communicator with a forced algorithm, or with the choice left to it. Must be the same on every rank.
    pub fn with_algorithm(&self, algorithm: Option<Algorithm>) -> Self {
        self.with_settings(Settings { algorithm, ..self.settings })
    }

    /// The same communicator, reducing in rank order whatever the algorithm. Must be the same on every rank.
    pub fn with_deterministic(&self, deterministic: bool) -> Self {
        self.with_settings(Settings { deterministic, ..self.settings })
    }

    /// The same communicator with other settings.
    pub fn with_settings(&self, settings: Settings) -> Self {
        Self { inner: self.inner.clone(), settings }
    }

    /// Counters of this process.
    pub fn statistics(&self) -> Statistics {
        self.inner.world.statistics()
    }

    /// The carrier to each peer that is connected, by world rank. Connections are made on first use.
    pub fn links(&self) -> Vec<(usize, TransportKind)> {
        self.inner.world.engine.links()
    }

    /// The carriers in use, in words: `shm`, `tcp`, `shm+tcp`, or `none` before the first message.
    pub fn transport_summary(&self) -> String {
        let mut kinds: Vec<_> = self.links().into_iter().map(|(_, kind)| kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() {
            return "none".into();
        }
        kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join("+")
    }

    /// Waits for what is in flight, says goodbye to all peers and closes every communicator of this process. Later
    /// calls fail. Dropping the last communicator does the same.
    pub fn shutdown(&self) {
        self.inner.world.close();
    }

    /// Ends this rank as a process that dies does: connections close without goodbye.
    pub(crate) fn vanish(&self) {
        self.inner.world.vanish();
    }

    /// The algorithm that `call` would use here, if it is not the turn of another to be tried.
    pub fn algorithm_for(&self, call: &Call) -> Result<Algorithm> {
        call.validate(self.rank(), self.size())?;
        Ok(self.plan(call, self.kept(call))?.algorithm)
    }

    /// What is chosen for `call` here, why, and what each alternative would cost. Costs what a choice costs.
    pub fn choice_for(&self, call: &Call) -> Result<Choice> {
        call.validate(self.rank(), self.size())?;
        Ok(self.choose(call, None))
    }

    /// Starts a call on raw memory. `keep` is kept alive until the operation ends.
    ///
    /// # Errors
    ///
    /// When the arguments cannot be used; nothing was sent then. Everything else is the handle's outcome.
    ///
    /// # Safety
    ///
    /// `input` and `output` must have the elements that the call needs on this rank (see [`Call`]), in any alignment,
    /// and stay valid until the operation has ended: input for reads, output for reads and writes by nobody else.
    /// They must not overlap. Either may be null when it has no elements, and `input` must be null in place.
    pub unsafe fn submit(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Handle> {
        // SAFETY: the caller's promise.
        unsafe { self.start(call, input, output, keep, true) }
    }

    /// As [`submit`](Self::submit), for a caller that waits for it at once: no other thread is woken to see to it.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit).
    pub(crate) unsafe fn submit_to_wait(&self, call: &Call, input: *const u8, output: *mut u8) -> Result<Handle> {
        // SAFETY: the caller's promise.
        unsafe { self.start(call, input, output, None, false) }
    }

    /// Runs a call to its end.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit), for the length of this call.
    pub unsafe fn run(&self, call: &Call, input: *const u8, output: *mut u8) -> Result<()> {
        // SAFETY: the caller's promise; the memory is the operation's until `wait` has returned, and the guard gives
        // the operation up should `wait` unwind.
        unsafe { self.run_with(call, input, output, |handle| handle.wait()) }
    }

    /// Runs a call to its end, for threads that others may want to interrupt: asks `go_on` about every `period`, and
    /// gives the operation up on every rank when it says no.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit), for the length of this call.
    pub unsafe fn run_while(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        period: Duration,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        // SAFETY: as in `run`.
        unsafe { self.run_with(call, input, output, |handle| handle.wait_while(period, go_on)) }
    }

    /// Runs a call to its end, waiting as `wait` does.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run).
    pub(super) unsafe fn run_with(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        wait: impl FnOnce(&Handle) -> Result<()>,
    ) -> Result<()> {
        // First: a call that is refused here has no turn on the other ranks either.
        let memory = self.check(call, input, output)?;
        let (way, timed) = self.take_turn(call)?;
        let since = timed.map(|_| Instant::now());
        // SAFETY: the caller's promise.
        if let Some(handle) = unsafe { self.start_blocking(call, way, memory)? } {
            let guard = GiveUpOnUnwind(&handle);
            let outcome = wait(guard.0);
            std::mem::forget(guard);
            outcome?;
        }
        if let (Some(timed), Some(since)) = (timed, since) {
            self.took(timed, since.elapsed());
        }
        Ok(())
    }

    /// Starts a call whose caller waits for it. `None` when it has ended well already.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit).
    unsafe fn start_blocking(&self, call: &Call, way: Option<Algorithm>, memory: Memory) -> Result<Option<Handle>> {
        let plan = self.plan(call, way)?;
        let prescales = call.reduction.as_ref().is_some_and(|reduction| reduction.prescale != 1.0);
        let Some(layout) = self.layout(call, &plan).filter(|_| !prescales) else {
            // SAFETY: the caller's promise.
            return unsafe { self.begin(call, plan, memory, None, false).map(Some) };
        };
        let none = Reduction::new(ReduceOp::Sum);
        let now = Now {
            communicator: self.inner.id,
            signature: call.signature(plan.algorithm, self.settings.deterministic, self.size()),
            layout,
            dtype: call.dtype,
            reduction: call.reduction.as_ref().unwrap_or(&none),
            input: memory.input,
            output: memory.output,
        };
        let world = &self.inner.world;
        let number = world.count_operation(memory.bytes(call));
        let since = World::is_timed(number).then(Instant::now);
        // SAFETY: the caller's promise, for the counts that the call itself gives.
        let completion = unsafe { world.engine.run_now(&now, || self.work(call, plan, memory, None)) };
        if let (None, Some(since)) = (&completion, since) {
            world.count_timed_wait(since);
        }
        Ok(completion.map(|completion| Handle { world: world.clone(), completion }))
    }

    /// # Safety
    ///
    /// As [`submit`](Self::submit).
    unsafe fn start(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        keep: Option<Box<dyn Any + Send>>,
        detached: bool,
    ) -> Result<Handle> {
        let memory = self.check(call, input, output)?;
        let (way, _) = self.take_turn(call)?;
        let plan = self.plan(call, way)?;
        // SAFETY: the caller's promise.
        unsafe { self.begin(call, plan, memory, keep, detached) }
    }

    /// # Safety
    ///
    /// As [`submit`](Self::submit), for the memory of a call that was checked.
    unsafe fn begin(
        &self,
        call: &Call,
        plan: Plan,
        memory: Memory,
        keep: Option<Box<dyn Any + Send>>,
        detached: bool,
    ) -> Result<Handle> {
        let world = &self.inner.world;
        world.count_operation(memory.bytes(call));
        let work = self.work(call, plan, memory, keep);
        // SAFETY: the caller's promise, for the counts that the call itself gives.
        let completion = unsafe { world.engine.submit(work, detached) };
        Ok(Handle { world: world.clone(), completion })
    }

    /// Checks a call and its pointers.
    fn check(&self, call: &Call, input: *const u8, output: *mut u8) -> Result<Memory> {
        call.validate(self.rank(), self.size())?;
        let (input_count, output_count) = call.buffer_counts(self.rank(), self.size());
        for (name, is_null, count) in
            [("input", input.is_null(), input_count), ("output", output.is_null(), output_count)]
        {
            if is_null && count > 0 {
                let what = format_args!("{}: the {name} is null, {count} elements expected", call.collective);
                return Err(Error::invalid(what));
            }
        }
        let input = if input_count == 0 { std::ptr::null() } else { input };
        Ok(Memory { input, input_count, output, output_count })
    }

    fn work(&self, call: &Call, plan: Plan, memory: Memory, keep: Option<Box<dyn Any + Send>>) -> Work {
        let Memory { input, input_count, output, output_count } = memory;
        let layout = self.layout(call, &plan);
        let (reduction, spoilt) = guarded(call.reduction.clone().unwrap_or(Reduction::new(ReduceOp::Sum)));
        Work {
            tag: Tag { communicator: self.inner.id, sequence: 0 },
            signature: call.signature(plan.algorithm, self.settings.deterministic, self.size()),
            schedule: plan.schedule,
            dtype: call.dtype,
            reduction: Arc::new(reduction),
            unequal: call.is_unequal(),
            contributions: self.size(),
            input,
            input_count,
            output,
            output_count,
            deadline: self.deadline(),
            spoilt,
            keep,
            layout,
        }
    }

    /// Whether the call may go over the boards of ranks on one host.
    pub(super) fn may_use_boards(&self, call: &Call) -> bool {
        let is_users = call.reduction.as_ref().is_some_and(|reduction| reduction.op == ReduceOp::User);
        self.inner.in_host && !is_users && !call.is_unequal()
    }

    /// How the call lies in memory, if it goes over boards.
    fn layout(&self, call: &Call, plan: &Plan) -> Option<Layout> {
        if plan.algorithm != Algorithm::Boards {
            return None;
        }
        Some(Layout {
            collective: call.collective,
            extent: call.in_host_extent()?,
            root: call.root,
            in_place: call.is_in_place(self.rank()),
            rank: self.rank(),
            size: self.size(),
            width: call.dtype.size(),
        })
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(Instant::now(), self.settings.timeout)
    }

    /// Chooses, unless the settings force an algorithm, or `way` names one.
    pub(super) fn choose(&self, call: &Call, way: Option<Algorithm>) -> Choice {
        let Settings { algorithm, deterministic, .. } = self.settings;
        let forced = algorithm.or(way);
        let size = self.size();
        let selection = Selection {
            collective: call.collective,
            elements: call.selection_elements(size),
            dtype: call.dtype,
            size,
            hosts: &self.inner.view.hosts,
            equal: !call.is_unequal(),
            deterministic,
            forced,
            boards: self.may_use_boards(call),
            inexact: call.is_inexact(),
        };
        select_by(&selection, &self.inner.basis())
    }

    fn plan(&self, call: &Call, way: Option<Algorithm>) -> Result<Plan> {
        let Settings { algorithm, deterministic, .. } = self.settings;
        let forced = algorithm.or(way);
        let boards = self.may_use_boards(call);
        self.inner.plans.get(call, (forced, deterministic, boards), || {
            let (rank, size) = (self.rank(), self.size());
            let blocks = call.blocks(size);
            let shape = call.shape(&blocks);
            let hosts = &self.inner.view.hosts;
            let choice = self.choose(call, way);
            tracing::debug!(call = ?call.collective, algorithm = %choice.algorithm, reason = choice.reason, "planned");
            let request = PlanRequest {
                collective: call.collective,
                algorithm: choice.schedule,
                rank,
                size,
                root: call.root,
                shape,
                in_place: call.is_in_place(rank),
                hosts,
                segment: choice.segment,
                deterministic,
            };
            let schedule = schedule::plan(&request).map_err(Error::invalid)?;
            Ok(Plan { algorithm: choice.algorithm, schedule: Arc::new(schedule) })
        })
    }
}

/// The memory of a call, with the counts that the call gives.
#[derive(Clone, Copy)]
struct Memory {
    input: *const u8,
    input_count: usize,
    output: *mut u8,
    output_count: usize,
}

impl Memory {
    /// Bytes of the larger buffer.
    fn bytes(&self, call: &Call) -> usize {
        self.input_count.max(self.output_count) * call.dtype.size()
    }
}

struct GiveUpOnUnwind<'a>(&'a Handle);

impl Drop for GiveUpOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.give_up("the waiting thread panicked");
    }
}

/// Keeps a panic of a user's function out of the engine. The first one sets the flag, which ends the operation with an
/// error; from then on the function is not called again in it.
fn guarded(reduction: Reduction) -> (Reduction, Option<Arc<AtomicBool>>) {
    let Some((name, function)) = reduction.function.clone() else {
        return (reduction, None);
    };
    let spoilt = Arc::new(AtomicBool::new(false));
    let flag = spoilt.clone();
    let guarded = move |here: &mut [u8], incoming: &[u8], dtype| {
        if !flag.load(Ordering::Relaxed) && catch_unwind(AssertUnwindSafe(|| function(here, incoming, dtype))).is_err()
        {
            flag.store(true, Ordering::Relaxed);
        }
    };
    (Reduction { function: Some((name, Arc::new(guarded))), ..reduction }, Some(spoilt))
}
