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
}

/// A plan and the algorithm that was chosen for it.
#[derive(Clone)]
pub(super) struct Plan {
    pub algorithm: Algorithm,
    pub schedule: Arc<Schedule>,
}

/// The plans of one communicator.
#[derive(Default)]
pub(super) struct Plans(Mutex<HashMap<Key, Plan>>);

impl Plans {
    /// A training loop has a few dozen shapes. When there are more, all are forgotten: making one takes microseconds.
    const KEPT: usize = 256;

    /// The plan for this call, made by `make` if there is none.
    pub fn get(
        &self,
        call: &Call,
        forced: Option<Algorithm>,
        deterministic: bool,
        make: impl FnOnce() -> Result<Plan>,
    ) -> Result<Plan> {
        let key = Key {
            collective: call.collective,
            extent: call.extent.clone(),
            root: call.root,
            in_place: call.in_place,
            dtype: call.dtype,
            forced,
            deterministic,
        };
        if let Some(plan) = self.lock().get(&key) {
            return Ok(plan.clone());
        }
        let plan = make()?;
        let mut plans = self.lock();
        if plans.len() >= Self::KEPT {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(plan)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Plan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
