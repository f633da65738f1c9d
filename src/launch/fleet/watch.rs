//! What the launcher asks of a registry that runs elsewhere: whether it can be reached, and which slots its workers have.
//!
//! A thread, `phalanx-watch`, asks as an operator does, more and more seldom, until every worker that was started is known
//! by its slot. It is left behind when the job ends: what it waits for at most is one answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bootstrap::{KeySource, control};
use crate::launch::operator::Operator;
use crate::types::{Error, Result};
use crate::wire::registry::{ProcessRecord, Slot};

/// From one question to the next, at first and at most.
const FIRST_PERIOD: Duration = Duration::from_millis(50);
const LONGEST_PERIOD: Duration = Duration::from_secs(5);

/// Who is there: members and those that wait, with their slots. Or why the registry cannot be reached.
pub(super) type Seen = std::result::Result<Vec<(Slot, Arc<ProcessRecord>)>, String>;

/// What both sides know.
#[derive(Default)]
struct Shared {
    /// Whether there are workers that are not known yet.
    wanted: bool,
    /// Whether one was started since the last question.
    is_new: bool,
    is_over: bool,
    seen: Option<Seen>,
}

/// The registry as it is seen from here. Dropping it ends the thread after its present question.
pub(super) struct Watch {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    wake: Arc<OwnedFd>,
}

impl Watch {
    /// Begins to ask the registry at `place`.
    ///
    /// # Errors
    ///
    /// This process has no descriptor or thread left.
    pub(super) fn start(place: &str, key: KeySource) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::environment(format!("cannot watch the registry: {error}"), "see the limits of this process")
        };
        let wake = Arc::new(control::new_wake().map_err(failed)?);
        let shared = Arc::new((Mutex::new(Shared { wanted: true, ..Shared::default() }), Condvar::new()));
        let asker = Asker { place: place.into(), key, shared: shared.clone(), wake: wake.clone(), operator: None };
        std::thread::Builder::new().name("phalanx-watch".into()).spawn(move || asker.run()).map_err(failed)?;
        Ok(Self { shared, wake })
    }

    /// Somebody new is to be known.
    pub(super) fn ask(&self) {
        let mut shared = lock(&self.shared.0);
        (shared.wanted, shared.is_new) = (true, true);
        self.shared.1.notify_all();
    }

    /// All are known.
    pub(super) fn rest(&self) {
        lock(&self.shared.0).wanted = false;
    }

    /// The newest answer, once.
    pub(super) fn take(&self) -> Option<Seen> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        lock(&self.shared.0).seen.take()
    }

    /// What is readable when there is an answer.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.0).is_over = true;
        self.shared.1.notify_all();
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Asker {
    place: String,
    key: KeySource,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    wake: Arc<OwnedFd>,
    operator: Option<Operator>,
}

impl Asker {
    fn run(mut self) {
        let mut period = FIRST_PERIOD;
        loop {
            let seen = self.look().map_err(|error| error.to_string());
            let (mutex, changed) = &*self.shared;
            let mut shared = lock(mutex);
            shared.seen = Some(seen);
            // The counter cannot be full: it is read before it is.
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
            let until = Instant::now() + period;
            period = (period * 2).min(LONGEST_PERIOD);
            while !shared.is_over && !shared.is_new {
                let left = until.saturating_duration_since(Instant::now());
                if shared.wanted && left.is_zero() {
                    break;
                }
                let left = if shared.wanted { left } else { LONGEST_PERIOD };
                shared = changed.wait_timeout(shared, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if shared.is_over {
                return;
            }
            if std::mem::take(&mut shared.is_new) {
                period = FIRST_PERIOD;
            }
        }
    }

    fn look(&mut self) -> Result<Vec<(Slot, Arc<ProcessRecord>)>> {
        let mut operator = match self.operator.take() {
            Some(operator) => operator,
            None => Operator::dial(&self.place, &self.key)?,
        };
        let status = operator.status()?;
        self.operator = Some(operator);
        Ok(status.members.into_iter().map(|member| (member.slot, member.process)).collect())
    }
}
