//! A pending operation, untyped.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::world::World;
use crate::executor::Completion;
use crate::types::{Deadline, Error, Result};

/// A pending operation. Dropping it is safe: the operation goes on, and what was given to keep is kept until it ends.
pub struct Handle {
    pub(super) world: Arc<World>,
    pub(super) completion: Arc<Completion>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl Handle {
    /// Waits until the operation has ended. Its own deadline ends it in any case.
    pub fn wait(&self) -> Result<()> {
        let since = Instant::now();
        let outcome = self.world.engine.wait(&self.completion, None);
        self.world.count_wait(since);
        outcome.unwrap_or_else(|| Err(Error::internal("a wait ended before its operation")))
    }

    /// Waits at most `limit`. `None` says that the operation is still pending; it goes on.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<()>> {
        let since = Instant::now();
        let outcome = self.world.engine.wait(&self.completion, Some(Deadline::after(since, limit)));
        self.world.count_wait(since);
        outcome
    }

    /// Waits until the operation has ended, and asks `go_on` about every `period` whether to wait on. When it says no,
    /// the operation is given up on every rank, and its memory is the caller's again.
    pub fn wait_while(&self, period: Duration, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        loop {
            if let Some(outcome) = self.wait_for(period) {
                return outcome;
            }
            if !go_on() {
                self.give_up("the wait was interrupted");
                return self.wait();
            }
        }
    }

    /// Whether the operation has ended. Neither waits nor moves anything.
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }

    /// The outcome, if the operation has ended, after lending a hand if nobody is moving it. Does not wait.
    pub fn poll(&self) -> Option<Result<()>> {
        self.world.engine.poll(&self.completion)
    }

    /// Gives the operation up on every rank. When this returns, its memory is the caller's again.
    pub fn give_up(&self, why: &str) {
        self.world.engine.give_up(&self.completion, Error::invalid(why));
    }

    /// What was given to keep, once the operation has ended.
    pub(super) fn take_kept(&self) -> Option<Box<dyn Any + Send>> {
        self.completion.take_kept()
    }
}
