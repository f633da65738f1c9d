//! Which algorithm a call tries, where the program asked for tuning: see `schedule::cost::tune`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::call::Call;
use super::communicator::Communicator;
use crate::schedule::cost::tune::{Class, Turn};
use crate::types::{Algorithm, Collective, DataType, ReduceOp, Result};

/// Calls for which the same would be chosen, about: of one power of two of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    collective: Collective,
    dtype: DataType,
    bucket: u32,
    boards: bool,
    inexact: bool,
}

/// The classes of one communicator.
#[derive(Default)]
pub(super) struct Tuning(Mutex<HashMap<Kind, Class>>);

impl Tuning {
    fn with<T>(&self, kind: Kind, what: impl FnOnce(&mut Class) -> T, make: impl FnOnce() -> Class) -> T {
        what(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_insert_with(make))
    }
}

/// The algorithm that a call tries or keeps, and of which class it is if it is to be timed.
pub(super) type Tried = (Option<Algorithm>, Option<(Kind, Algorithm)>);

impl Communicator {
    /// The class of a call; `None` if nothing is tried for it.
    fn kind(&self, call: &Call) -> Option<Kind> {
        let settings = self.settings();
        if !self.inner.tries || settings.algorithm.is_some() || settings.deterministic || self.size() < 2 {
            return None;
        }
        let bytes = call.selection_elements(self.size()).saturating_mul(call.dtype.size());
        (!call.is_unequal()).then(|| Kind {
            collective: call.collective,
            dtype: call.dtype,
            bucket: bytes.max(1).ilog2(),
            boards: self.may_use_boards(call),
            inexact: call.is_inexact(),
        })
    }

    /// What tuning has settled on for a call, if it has.
    pub(super) fn kept(&self, call: &Call) -> Option<Algorithm> {
        self.inner.tuning.with(self.kind(call)?, |class| class.kept(), || Class::new(&self.candidates(call)))
    }

    /// Takes the turn of a call that is sound, on all ranks alike. May wait for the other ranks to make the same call.
    pub(super) fn take_turn(&self, call: &Call) -> Result<Tried> {
        let Some(kind) = self.kind(call) else { return Ok((None, None)) };
        let make = || Class::new(&self.candidates(call));
        loop {
            match self.inner.tuning.with(kind, Class::turn, make) {
                Turn::Usual => return Ok((None, None)),
                Turn::Keep(algorithm) => return Ok((Some(algorithm), None)),
                Turn::Try(algorithm) => return Ok((Some(algorithm), Some((kind, algorithm)))),
                Turn::Agree => {
                    let mut times = self.inner.tuning.with(kind, |class| class.times(), make);
                    // Forced, so that it takes no turn itself.
                    self.with_algorithm(Some(Algorithm::OneShot)).allreduce(&mut times, ReduceOp::Max)?;
                    self.inner.tuning.with(kind, |class| class.agreed(&times), make);
                    tracing::debug!(collective = %call.collective, bytes = 1_usize << kind.bucket, ?times, "the ranks agreed on an algorithm");
                }
            }
        }
    }

    /// A call that was to be timed took so long here.
    pub(super) fn took(&self, (kind, algorithm): (Kind, Algorithm), time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.inner.tuning.with(kind, |class| class.took(algorithm, nanoseconds), || Class::new(&[]));
    }

    /// What may be tried for a call: the chosen one, and the best predicted of those that may stand in for it.
    fn candidates(&self, call: &Call) -> Vec<Algorithm> {
        let choice = self.choose(call, None);
        let others = choice.alternatives.iter().map(|(algorithm, _)| *algorithm);
        let others = others.filter(|one| *one != choice.algorithm && choice.interchangeable.contains(one));
        std::iter::once(choice.algorithm).chain(others).collect()
    }
}
