//! What becomes of calls, as those who wait for them, their thread, and the end of the world see it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::GRACE;
use crate::device::Event;
use crate::types::{Deadline, Error, Result};

/// What became of a call.
#[derive(Default)]
pub(in crate::comm) struct Outcome {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    told: Option<Result<Arc<Event>>>,
    /// Whether its memory may be in use.
    has_begun: bool,
    /// Why nobody wants it any more.
    given_up: Option<Error>,
}

impl Outcome {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call, once: what comes later is not heard.
    pub fn tell(&self, outcome: Result<Arc<Event>>) {
        self.lock().told.get_or_insert(outcome);
        self.changed.notify_all();
    }

    /// Begins to use its memory, unless it was given up.
    pub fn begin(&self) -> Result<()> {
        let mut state = self.lock();
        state.has_begun = state.given_up.is_none();
        state.given_up.clone().map_or(Ok(()), Err)
    }

    /// Why it was given up here, if it was.
    pub fn given_up(&self) -> Option<Error> {
        self.lock().given_up.clone()
    }

    /// What became of it, if it has ended.
    pub fn get(&self) -> Option<Result<Arc<Event>>> {
        self.lock().told.clone()
    }

    /// Waits for it, at most `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Result<Arc<Event>>> {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |state| state.told.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.told.clone()
    }

    /// Gives the call up, unless it has ended. One that has not begun ends at once; the others hear of it when its turn
    /// comes.
    pub fn give_up(&self, cause: Error) {
        let mut state = self.lock();
        if state.told.is_none() {
            let cause = state.given_up.get_or_insert(cause).clone();
            if !state.has_begun {
                state.told = Some(Err(cause));
                self.changed.notify_all();
            }
        }
    }
}

/// The calls of a process that have not ended, over all its communicators.
#[derive(Default)]
pub(in crate::comm) struct InFlight(Mutex<Vec<Weak<Outcome>>>);

impl InFlight {
    /// Counts a call among them until it has ended.
    pub(super) fn add(&self, call: &Arc<Outcome>) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|call| call.upgrade().is_some_and(|call| call.get().is_none()));
        calls.push(Arc::downgrade(call));
    }

    /// Waits for all of them until the deadline, then gives up what is left, so that nothing uses their memory.
    pub fn end(&self, deadline: Deadline) {
        let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let calls: Vec<_> = calls.iter().filter_map(Weak::upgrade).collect();
        let late = calls.iter().filter(|call| call.wait(deadline.remaining(Instant::now())).is_none());
        let late: Vec<_> = late.collect();
        late.iter().for_each(|call| call.give_up(Error::Closed { what: "a call on device memory".into() }));
        for call in late {
            // What is under way on the device is waited for by the call's thread.
            let _ = call.wait(GRACE);
        }
    }
}
