//! Where an operation's outcome waits for its owner.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::types::Result;

/// The outcome of one operation, shared between the engine and whoever waits for it.
#[derive(Default)]
pub struct Completion {
    done: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    outcome: Option<Result<()>>,
    kept: Option<Box<dyn Any + Send>>,
}

impl Completion {
    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        // Pairs with the release in `finish`: who sees true also sees what the operation wrote.
        self.done.load(Ordering::Acquire)
    }

    /// The outcome, once the operation has ended.
    pub fn outcome(&self) -> Option<Result<()>> {
        if !self.is_done() {
            return None;
        }
        self.lock().outcome.clone()
    }

    /// Takes what the operation was given to keep, once it has ended.
    pub fn take_kept(&self) -> Option<Box<dyn Any + Send>> {
        if !self.is_done() {
            return None;
        }
        self.lock().kept.take()
    }

    /// Ends the operation. What was kept alive for it comes back here.
    pub(super) fn finish(&self, outcome: Result<()>, kept: Option<Box<dyn Any + Send>>) {
        let mut inner = self.lock();
        inner.outcome = Some(outcome);
        inner.kept = kept;
        self.done.store(true, Ordering::Release);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // The inner value is whole after every statement, so that a panic elsewhere cannot have torn it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
