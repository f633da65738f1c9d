//! Plans made before: the same call again costs a look-up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::call::{Call, Extent};
use crate::schedule::Schedule;
use crate::types::{Algorithm, Collective, DataType, Result};

/// Everything a plan depends on, within one communicator.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    extent: Extent,
    root: usize,
    in_place: bool,
    dtype: DataType,
    forced: Option<Algorithm>,
    deterministic: bool,
    boards: bool,
}

/// What a plan depends on beside the call: the algorithm that is forced, whether rank order is asked for, and whether the
/// call may go over boards.
pub(super) type Manner = (Option<Algorithm>, bool, bool);

/// A plan and the algorithm that was chosen for it.
#[derive(Clone)]
pub(super) struct Plan {
    pub algorithm: Algorithm,
    pub schedule: Arc<Schedule>,
}

impl Key {
    fn is_of(&self, call: &Call, (forced, deterministic, boards): Manner) -> bool {
        self.collective == call.collective
            && self.extent == call.extent
            && self.root == call.root
            && self.in_place == call.in_place
            && self.dtype == call.dtype
            && self.forced == forced
            && self.deterministic == deterministic
            && self.boards == boards
    }
}

/// The plans of one communicator.
#[derive(Default)]
pub(super) struct Plans(Mutex<Known>);

#[derive(Default)]
struct Known {
    plans: HashMap<Arc<Key>, Plan>,
    /// Some that were asked for last, found without hashing: loops make the same few calls again and again.
    recent: [Option<(Arc<Key>, Plan)>; RECENT],
    /// Whose place is taken next.
    oldest: usize,
}

/// How many are tried one by one: as many as cost less than a hash.
const RECENT: usize = 4;

impl Known {
    fn remember(&mut self, key: Arc<Key>, plan: Plan) {
        self.recent[self.oldest] = Some((key, plan));
        self.oldest = (self.oldest + 1) % RECENT;
    }
}

impl Plans {
    /// A training loop has a few dozen shapes. When there are more, all are forgotten: making one takes microseconds.
    const KEPT: usize = 256;

    /// The plan for this call, made by `make` if there is none.
    pub fn get(&self, call: &Call, manner: Manner, make: impl FnOnce() -> Result<Plan>) -> Result<Plan> {
        let (forced, deterministic, boards) = manner;
        let mut known = self.lock();
        if let Some((_, plan)) = known.recent.iter().flatten().find(|(key, _)| key.is_of(call, manner)) {
            return Ok(plan.clone());
        }
        let key = Key {
            collective: call.collective,
            extent: call.extent.clone(),
            root: call.root,
            in_place: call.in_place,
            dtype: call.dtype,
            forced,
            deterministic,
            boards,
        };
        if let Some((key, plan)) = known.plans.get_key_value(&key).map(|(key, plan)| (key.clone(), plan.clone())) {
            known.remember(key, plan.clone());
            return Ok(plan);
        }
        drop(known);
        let plan = make()?;
        let mut known = self.lock();
        if known.plans.len() >= Self::KEPT {
            *known = Known::default();
        }
        let key = Arc::new(key);
        known.plans.insert(key.clone(), plan.clone());
        known.remember(key, plan.clone());
        Ok(plan)
    }

    /// Forgets all: they were made by other figures.
    pub fn forget(&self) {
        *self.lock() = Known::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
