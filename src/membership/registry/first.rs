//! The first members come together.

use std::time::Instant;

use super::{Outcome, Registry};
use crate::membership::gathering;
use crate::wire::registry::Slot;

impl Registry {
    /// Publishes the first view once all its places are taken.
    pub(super) fn try_first_view(&mut self, now: Instant) -> bool {
        let np = self.config.np;
        if self.slots.newcomer_count() < np {
            return false;
        }
        let first: Vec<Slot> = self.slots.newcomers().map(|(slot, _)| slot).filter(|slot| *slot < np).collect();
        if first.len() < np {
            return false;
        }
        self.publish_first(now, first);
        true
    }

    /// The time to come together is over.
    pub(super) fn start_is_over(&mut self, now: Instant) {
        if self.generation.is_some() || self.publication.is_some() {
            return;
        }
        let (np, min_np) = (self.config.np, self.config.min_np);
        let there: Vec<Slot> = self.slots.newcomers().map(|(slot, _)| slot).take(np).collect();
        if there.len() >= min_np {
            return self.publish_first(now, there);
        }
        let missing: Vec<Slot> = (0..np).filter(|slot| self.slots.get(*slot).is_none()).collect();
        let waited = now.saturating_duration_since(self.began).as_secs_f64();
        let reason = format!(
            "{} of {np} ranks came within {waited:.1} s, and the job needs {min_np}; not there: {}",
            there.len(),
            gathering::list(&missing)
        );
        self.finish(now, Outcome::Failed(reason));
    }
}
