//! Who drives: a thread that waits, or the progress thread, until what it drives for is reached.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::patience::POLLS_PER_LOOK;
use super::{EngineConfig, MAX_SLEEP, Shared, State};
use crate::executor::completion::Completion;
use crate::types::Deadline;

/// When a leader stops driving.
pub(super) enum Until<'a> {
    /// The operation has ended, or the deadline has passed.
    Done(&'a Completion, Option<Deadline>),
    /// Nothing is in flight, or a thread that waits wants to drive.
    Idle,
    /// Nobody is being connected to hear something, or the deadline has passed.
    Told(Deadline),
    /// Everything said has been handed to the carriers, or the deadline has passed.
    Drained(Deadline),
}

impl Until<'_> {
    fn is_reached(&self, state: &mut State) -> bool {
        match self {
            Until::Done(completion, _) => completion.is_done(),
            Until::Idle => !state.core.needs_driving() || state.followers > 0 || state.stopping,
            Until::Told(_) => !state.core.is_telling(),
            Until::Drained(_) => state.core.active == 0 && state.core.is_drained(),
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Lets other threads at the lock, then takes it again.
    fn let_in<'a>(&'a self, state: MutexGuard<'a, State>, yields: bool) -> MutexGuard<'a, State> {
        drop(state);
        if yields || self.contenders.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads whose operations may have ended.
    pub(super) fn after_change(&self, state: &mut State) {
        if std::mem::take(&mut state.core.ended) && state.followers > 0 {
            self.changed.notify_all();
        }
    }

    /// After an operation may have been given up outside of driving: its notices leave now, or with the progress thread.
    pub(super) fn tell(&self, state: &mut State) {
        if !state.led && state.core.active == 0 && state.core.needs_driving() {
            state.core.progress();
            self.after_change(state);
            if state.core.needs_driving() {
                self.work.notify_one();
            }
        }
    }

    /// Called by a leader that leaves: somebody else drives on.
    pub(super) fn leave(&self, state: &mut State) {
        if state.followers > 0 {
            self.changed.notify_all();
        } else if state.core.needs_driving() {
            self.tell(state);
            if state.core.active > 0 {
                self.work.notify_one();
            }
        }
    }

    /// Drives until the goal is reached. The caller has seen that nobody drives.
    pub(super) fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>, until: &Until<'_>) -> MutexGuard<'a, State> {
        state.led = true;
        let mut polls = 0u32;
        let mut idle_since: Option<Instant> = None;
        // Since the last sleep.
        let mut has_moved = false;
        loop {
            let moved = state.core.progress();
            self.after_change(&mut state);
            if until.is_reached(&mut state) {
                break;
            }
            if moved {
                polls = 0;
                idle_since = None;
                has_moved = true;
                state = self.let_in(state, false);
                continue;
            }
            polls += 1;
            if polls % POLLS_PER_LOOK != 1 {
                let yields = state.config.yields;
                state = self.let_in(state, yields);
                continue;
            }
            let now = Instant::now();
            state.core.check(now);
            self.after_change(&mut state);
            // What it ended is told at once, not after a sleep.
            if until.is_reached(&mut state) {
                break;
            }
            let limit = match until {
                Until::Done(_, limit) => *limit,
                Until::Told(limit) | Until::Drained(limit) => Some(*limit),
                Until::Idle => None,
            };
            if limit.is_some_and(|limit| limit.has_passed(now)) {
                break;
            }
            let EngineConfig { spin, yields, .. } = state.config;
            // The progress thread takes its core from threads that compute. It spins only where the next piece is sure to
            // come sooner than a wake-up: from in-host peers that have cores of their own, as long as pieces come.
            let may_spin = || has_moved && !yields && self.sleeper.sleeps_on_memory();
            let spin = if !matches!(until, Until::Idle) || may_spin() { spin } else { Duration::ZERO };
            if now.duration_since(*idle_since.get_or_insert(now)) < spin {
                state = self.let_in(state, yields);
                continue;
            }
            if !state.core.prepare_sleep() {
                state = self.let_in(state, false);
                continue;
            }
            let limits = [limit.map(|limit| limit.remaining(now)), state.core.time_to_check(now)];
            let sleep = limits.into_iter().flatten().fold(MAX_SLEEP, Duration::min);
            drop(state);
            self.sleeper.sleep(sleep);
            state = self.lock();
            polls = 0;
            has_moved = false;
        }
        state.led = false;
        state
    }

    /// The progress thread.
    pub(super) fn attend(&self) {
        let mut state = self.lock();
        while !state.stopping {
            if state.core.needs_driving() && !state.led && state.followers == 0 {
                state = self.lead(state, &Until::Idle);
                if state.followers > 0 {
                    self.changed.notify_all();
                }
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
