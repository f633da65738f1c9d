//! What the training thread asks of the thread that talks to the registry.

use std::sync::{Arc, Mutex, PoisonError};

use crate::executor::Lost;
use crate::sys::EventFd;
use crate::types::Generation;
use crate::wire::registry::Parting;

/// A request.
#[derive(Debug)]
pub(super) enum Command {
    /// The link to a member is lost.
    LinkLost(Lost),
    /// This member has passed a commit after which all agreed to change the view, and waits.
    Boundary { generation: Generation },
    /// This member goes, and says this of its work.
    Leave { parting: Parting, why: &'static str },
    /// The thread is to end as a process does that dies.
    Vanish,
}

/// The queue of requests.
#[derive(Clone)]
pub(super) struct Control {
    queue: Arc<Mutex<Vec<Command>>>,
    pub wake: Arc<EventFd>,
}

impl Control {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { queue: Arc::default(), wake: Arc::new(EventFd::new()?) })
    }

    /// Neither blocks nor fails.
    pub fn send(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        // An event descriptor of our own cannot fail.
        let _ = self.wake.signal();
    }

    pub fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
