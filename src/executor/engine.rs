//! The engine: the lock around the state, who drives it, and when it sleeps.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::channel::{Channel, InHostWay};
use super::completion::Completion;
use super::core::{Core, Now, OnLost, Outcome};
use super::operation::Work;
use crate::transport::Endpoint;
use crate::transport::board::Board;
use crate::types::{CommunicatorId, Deadline, Error, Generation, Result, TransportKind};

mod leading;
mod patience;

use leading::Until;
pub use patience::EngineConfig;
use patience::Patience;

/// Sleeps until something happens on a link.
pub trait Sleep: Send + Sync {
    /// Returns when a peer has done something since the endpoints' `prepare_sleep`, after `kick`, or after `timeout`.
    /// May return early for no reason.
    fn sleep(&self, timeout: Duration);

    /// Ends the current sleep, or the next one.
    fn kick(&self);

    /// What this process shows to its peers on the same host, where it can.
    fn board(&self) -> Option<Arc<Board>> {
        None
    }

    /// Whether all that can end a sleep comes through memory.
    fn sleeps_on_memory(&self) -> bool {
        false
    }
}

impl Sleep for crate::transport::sleep::Sleeper {
    fn sleep(&self, timeout: Duration) {
        self.sleep(timeout);
    }

    fn kick(&self) {
        self.kick();
    }

    fn board(&self) -> Option<Arc<Board>> {
        self.board().ok().cloned()
    }

    fn sleeps_on_memory(&self) -> bool {
        self.sleeps_on_memory()
    }
}

#[cfg(feature = "mpi")]
impl Sleep for crate::transport::mpi::Nap {
    fn sleep(&self, timeout: Duration) {
        self.sleep(timeout);
    }

    fn kick(&self) {
        self.kick();
    }
}

/// Makes connections.
pub trait Dial: Send {
    /// Begins to connect to a world rank, without blocking. The outcome goes to [`Engine::connection_handler`].
    fn dial(&mut self, peer: usize);

    /// A connection that is there at once, dialled or made by the peer, of a carrier that needs no thread to connect.
    fn connected(&mut self) -> Option<(usize, Box<dyn Endpoint>)> {
        None
    }
}

/// Runs the operations of one process. See the room's story in `mod.rs`.
pub struct Engine {
    shared: Arc<Shared>,
    progress: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    /// Threads that want the lock. The leader lets them in between two polls.
    contenders: AtomicUsize,
    /// Waiting threads sleep here until an operation ends or the leader leaves.
    changed: Condvar,
    /// The progress thread sleeps here until there is work that nobody waits for.
    work: Condvar,
    sleeper: Arc<dyn Sleep>,
}

struct State {
    core: Core,
    config: EngineConfig,
    /// Whether a thread is driving.
    led: bool,
    /// Threads that wait for an operation while another drives. They rather drive themselves than be woken by the
    /// progress thread.
    followers: usize,
    /// The engine is being dropped.
    stopping: bool,
}

/// The longest sleep without a look at deadlines and departed peers.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// How long a rank that ends after a failure tries to reach those who may not have heard of it. A connection within a
/// host takes a millisecond; a rank that is stopped must not hold the others up.
const TELL_LIMIT: Duration = Duration::from_secs(1);

impl Engine {
    /// An engine without connections, and its progress thread.
    pub fn new(
        rank: usize,
        size: usize,
        dial: Box<dyn Dial>,
        sleeper: Arc<dyn Sleep>,
        config: EngineConfig,
    ) -> Result<Self> {
        let place = sleeper.clone();
        let board = Box::new(move || place.board());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                core: Core::new(rank, size, dial, board),
                config,
                led: false,
                followers: 0,
                stopping: false,
            }),
            contenders: AtomicUsize::new(0),
            changed: Condvar::new(),
            work: Condvar::new(),
            sleeper,
        });
        let engine = Self { shared, progress: Mutex::new(None) };
        if size > 1 && config.in_background {
            engine.start_progress()?;
        }
        Ok(engine)
    }

    fn start_progress(&self) -> Result<()> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.is_none() {
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("phalanx-progress".into()).spawn(move || shared.attend());
            *progress = Some(spawned.map_err(|error| {
                Error::environment(
                    format_args!("cannot start the progress thread: {error}"),
                    "raise the limit on threads (ulimit -u, or the container's pids limit)",
                )
            })?);
        }
        Ok(())
    }

    /// From here on this is the engine of an elastic world: who is gone is not for the ranks to judge, and peers are
    /// slots. `on_lost` hears of every link that is lost; it is called under the engine's lock, and must neither block
    /// nor call the engine.
    pub fn judge(&self, generation: Generation, on_lost: OnLost) {
        self.shared.lock().core.judge(generation, on_lost);
    }

    /// Gives up everything in flight and refuses what comes, with `cause`, until a communicator of a later view is
    /// added.
    pub fn suspend(&self, cause: &Error) {
        let mut state = self.shared.lock();
        state.core.suspend(cause);
        self.shared.after_change(&mut state);
        drop(state);
        self.shared.sleeper.kick();
    }

    /// The next view of an elastic world: of these slots, this rank's among them. Links to others are closed, those to
    /// `broken` are to be made anew. Returns every slot of which that is so. Calls in earlier views fail with `cause`.
    ///
    /// # Errors
    ///
    /// When the progress thread is needed now and cannot be started.
    pub fn install(
        &self,
        generation: Generation,
        members: &[usize],
        broken: &[usize],
        cause: &Error,
        config: EngineConfig,
    ) -> Result<Vec<usize>> {
        let mut state = self.shared.lock();
        let again = state.core.install(generation, members, broken, cause);
        state.config = config;
        self.shared.after_change(&mut state);
        drop(state);
        self.shared.sleeper.kick();
        if members.len() > 1 {
            self.start_progress()?;
        }
        Ok(again)
    }

    /// Whether operations are in flight.
    pub fn is_busy(&self) -> bool {
        self.shared.lock().core.active > 0
    }

    /// How many messages of views that were over have been dropped.
    pub fn stale(&self) -> u64 {
        self.shared.lock().core.stale()
    }

    /// What the connector calls with each connection, or the reason why there is none, and the generation of either. Holds
    /// no reference that keeps the engine alive.
    pub fn connection_handler(&self) -> impl Fn(usize, Generation, Result<Box<dyn Endpoint>>) + Send + Sync + use<> {
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        move |peer, generation, outcome| {
            if let Some(shared) = shared.upgrade() {
                let mut state = shared.lock();
                state.core.handle_connection(peer, generation, outcome);
                shared.after_change(&mut state);
                shared.tell(&mut state);
                drop(state);
                shared.sleeper.kick();
            }
        }
    }

    /// Adds a communicator: its id, its members as world ranks, and which of them this is.
    /// `in_host` says that its calls are to go over the boards of its members, who share a host, if that can be; the same
    /// on every rank.
    pub fn add_channel(&self, id: CommunicatorId, members: Arc<[usize]>, rank: usize, in_host: bool) -> Result<()> {
        let mut channel = Channel::new(members, rank);
        if in_host {
            channel.in_host = InHostWay::Unknown;
        }
        self.shared.lock().core.add_channel(id, channel)
    }

    /// Adds a channel for messages from one rank to another. `names` is what the two, given as world ranks, are called
    /// in errors; `rank` is 0 on the sender and 1 on the receiver.
    pub fn add_link(&self, id: CommunicatorId, members: [usize; 2], names: [usize; 2], rank: usize) -> Result<()> {
        self.shared.lock().core.add_channel(id, Channel::link(members, names, rank))
    }

    /// Forgets a communicator.
    pub fn remove_channel(&self, id: CommunicatorId) {
        self.shared.lock().core.remove_channel(id);
    }

    /// Starts an operation. It moves on when somebody waits; with `detached` the progress thread moves it as well.
    ///
    /// # Safety
    ///
    /// The pointers of `work` must be valid for their counts until the completion is done: the input for reads, the
    /// output for reads and writes by this operation alone.
    pub unsafe fn submit(&self, work: Work, detached: bool) -> Arc<Completion> {
        let completion = Arc::new(Completion::default());
        let mut state = self.shared.lock();
        if !state.config.may_drive() {
            drop(state);
            completion.finish(Err(not_the_owner()), work.keep);
            return completion;
        }
        // SAFETY: the caller's promise.
        unsafe { state.core.submit(work, &completion, Instant::now()) };
        self.shared.after_change(&mut state);
        self.shared.tell(&mut state);
        if detached && state.core.active > 0 {
            if state.led {
                // The leader may sleep with an earlier deadline, or without knowing of a new message to write.
                drop(state);
                self.shared.sleeper.kick();
            } else {
                self.shared.work.notify_one();
            }
        }
        completion
    }

    /// What this process shows to its peers on the same host, where it can.
    pub fn board(&self) -> Option<Arc<Board>> {
        self.shared.sleeper.board()
    }

    /// Runs a call to its end if it is short and goes over boards, and no other thread drives; as far as the time allows
    /// that a waiting thread polls. What has not ended by then goes on as the operation that `work` describes, and is
    /// returned; so is what cannot be run like this.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit), for both.
    pub unsafe fn run_now(&self, call: &Now<'_>, work: impl FnOnce() -> Work) -> Option<Arc<Completion>> {
        let mut state = self.shared.lock();
        if !state.led {
            let mut patience = Patience::new(state.config, &self.shared.contenders);
            let core = &mut state.core;
            // SAFETY: the caller's promise.
            match unsafe { core.run_now(call, &mut || patience.goes_on()) } {
                Outcome::Done => return None,
                Outcome::Pending(begun) => {
                    let completion = Arc::new(Completion::default());
                    // SAFETY: the caller's promise.
                    unsafe { core.go_on_with(*begun, work(), &completion, Instant::now()) };
                    return Some(completion);
                }
                Outcome::NotBegun => {}
            }
        }
        drop(state);
        // SAFETY: the caller's promise.
        Some(unsafe { self.submit(work(), false) })
    }

    /// Waits until the operation has ended or `until` has passed. Returns the outcome if it has ended.
    pub fn wait(&self, completion: &Completion, until: Option<Deadline>) -> Option<Result<()>> {
        if let Some(outcome) = completion.outcome() {
            return Some(outcome);
        }
        let mut state = self.shared.lock();
        while !completion.is_done() && !until.is_some_and(|deadline| deadline.has_passed(Instant::now())) {
            if state.led || !state.config.may_drive() {
                state.followers += 1;
                // A leader that nobody waits for gives way.
                self.shared.sleeper.kick();
                let limit = until.map_or(MAX_SLEEP, |deadline| deadline.remaining(Instant::now()).min(MAX_SLEEP));
                let (back, _) = self.shared.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
                state = back;
                state.followers -= 1;
            } else {
                state = self.shared.lead(state, &Until::Done(completion, until));
                self.shared.leave(&mut state);
            }
        }
        drop(state);
        completion.outcome()
    }

    /// Whether the operation has ended; lends a hand if nobody is driving.
    pub fn poll(&self, completion: &Completion) -> Option<Result<()>> {
        if !completion.is_done()
            && let Ok(mut state) = self.shared.state.try_lock()
            && !state.led
            && state.config.may_drive()
        {
            state.core.progress();
            self.shared.after_change(&mut state);
        }
        completion.outcome()
    }

    /// Drops every connection without goodbye, as a process that dies does. Operations in flight fail.
    pub fn vanish(&self) {
        let mut state = self.shared.lock();
        state.core.vanish();
        self.shared.after_change(&mut state);
        drop(state);
        self.shared.sleeper.kick();
    }

    /// Gives an operation up on every rank. Its memory is free when this returns.
    pub fn give_up(&self, completion: &Arc<Completion>, cause: Error) {
        let mut state = self.shared.lock();
        state.core.give_up(completion, cause);
        self.shared.after_change(&mut state);
        self.shared.tell(&mut state);
        drop(state);
        self.shared.sleeper.kick();
    }

    /// Takes the next number of a communicator without an operation, and gives it up on every rank.
    #[cfg(feature = "cuda")]
    pub fn refuse(&self, communicator: CommunicatorId, cause: Error) {
        let mut state = self.shared.lock();
        state.core.refuse(communicator, &cause);
        self.shared.after_change(&mut state);
        self.shared.tell(&mut state);
        drop(state);
        self.shared.sleeper.kick();
    }

    /// Why `call`, were it the next of a communicator, would fail, if that is known. For what waits outside of the engine,
    /// and must end when other ranks give it up. Moves the engine on if nobody does.
    #[cfg(feature = "cuda")]
    pub fn refusal(&self, communicator: CommunicatorId, call: &crate::types::Signature) -> Option<Error> {
        self.moved_on().core.refusal(communicator, call)
    }

    /// As [`refusal`](Self::refusal), of what other ranks have told: that one is gone does not count.
    #[cfg(feature = "cuda")]
    pub fn abandonment(&self, communicator: CommunicatorId, call: &crate::types::Signature) -> Option<Error> {
        self.moved_on().core.abandonment(communicator, call)
    }

    #[cfg(feature = "cuda")]
    fn moved_on(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.shared.lock();
        if !state.led && state.config.may_drive() {
            state.core.progress();
            self.shared.after_change(&mut state);
        }
        state
    }

    /// The number that the next operation of a communicator has.
    #[cfg(feature = "nccl")]
    pub fn next_number(&self, communicator: CommunicatorId) -> u64 {
        self.shared.lock().core.next_number(communicator)
    }

    /// Whether the view of a communicator is over, or about to be.
    #[cfg(feature = "nccl")]
    pub fn is_over(&self, communicator: CommunicatorId) -> bool {
        self.shared.lock().core.is_over(communicator).is_some()
    }

    /// The carrier to each peer that is connected.
    pub fn links(&self) -> Vec<(usize, TransportKind)> {
        self.shared.lock().core.links()
    }

    /// Waits for what is in flight, says goodbye, and hands everything to the carriers; all of it by `deadline`.
    pub fn close(&self, deadline: Deadline) {
        let mut state = self.shared.lock();
        let mut closed = false;
        let mut told_by = None;
        if !state.config.may_drive() {
            tracing::warn!("a communicator was closed on a thread that may not call MPI: its peers see no goodbye");
            return state.core.close();
        }
        loop {
            if state.led {
                self.shared.sleeper.kick();
                state.followers += 1;
                let (back, _) =
                    self.shared.changed.wait_timeout(state, MAX_SLEEP).unwrap_or_else(PoisonError::into_inner);
                state = back;
                state.followers -= 1;
                continue;
            }
            let now = Instant::now();
            if !closed && (state.core.active == 0 || deadline.has_passed(now)) {
                let told_by = *told_by.get_or_insert_with(|| {
                    state.core.tell_the_unconnected();
                    Deadline::after(now, TELL_LIMIT).min(deadline)
                });
                if state.core.is_telling() && !told_by.has_passed(now) {
                    state = self.shared.lead(state, &Until::Told(told_by));
                    self.shared.leave(&mut state);
                    continue;
                }
                state.core.close();
                closed = true;
            }
            state = self.shared.lead(state, &Until::Drained(deadline));
            self.shared.leave(&mut state);
            if (closed && state.core.is_drained()) || deadline.has_passed(Instant::now()) {
                return;
            }
        }
    }
}

/// What a call ends with on a thread that may not drive.
fn not_the_owner() -> Error {
    Error::environment(
        "this thread may not call MPI, whose thread level lets only the one that started it",
        "make the calls of Phalanx on that thread, or call MPI_Init_thread with MPI_THREAD_MULTIPLE",
    )
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        self.shared.sleeper.kick();
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(progress) = progress {
            // A panic of that thread has been reported by the panic hook; there is nothing left to save.
            let _ = progress.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
