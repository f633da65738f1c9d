//! How the job is, for operators.

use std::time::{Duration, Instant};

use super::Registry;
use super::roster::{Entry, Standing};
use crate::membership::gathering;
use crate::types::Generation;
use crate::wire::registry::{Condition, MAX_MEMBERS, MemberStatus, Phase, Slot, Status};

impl Registry {
    /// How the job is.
    pub fn status(&self, now: Instant) -> Status {
        let slow = self.slow(now);
        let ranks = self.slots.order.iter().enumerate();
        let members = ranks.filter_map(|(rank, slot)| Some((Some(rank), *slot, self.slots.get(*slot)?)));
        let newcomers = self.slots.newcomers().map(|(slot, entry)| (None, slot, entry));
        let members = members.chain(newcomers).take(MAX_MEMBERS).map(|(rank, slot, entry)| MemberStatus {
            slot,
            rank,
            process: entry.process.clone(),
            condition: self.condition(now, entry, slow.contains(&slot)),
            quiet: whole_millis(now, entry.heard),
            progress: entry.progress,
            idle: whole_millis(now, entry.advanced),
            has_reported: entry.report.is_some(),
        });
        Status {
            phase: self.phase(),
            generation: self.generation.unwrap_or(Generation(0)),
            counted: self.slots.members().map(|(_, entry)| entry.counted).fold(self.counted, u64::max),
            changes: self.changes,
            min_np: self.config.min_np,
            max_np: self.config.max_np,
            waits_for: self.waits_for(),
            members: members.collect(),
        }
    }

    fn phase(&self) -> Phase {
        match &self.change {
            _ if self.outcome.is_some() => Phase::Ended,
            _ if self.generation.is_none() => Phase::Gathering,
            Some(change) if change.waiting.is_some() => Phase::Waiting,
            Some(_) => Phase::Changing,
            None if self.publication.is_some() => Phase::Changing,
            None => Phase::Steady,
        }
    }

    fn waits_for(&self) -> String {
        match self.phase() {
            Phase::Gathering => format!("{} of {} ranks to come", self.missing(), self.config.np),
            Phase::Changing => {
                let awaited: Vec<Slot> = self.awaited.iter().copied().collect();
                if awaited.is_empty() {
                    "the state to be written".into()
                } else {
                    format!("slots to stop and report: {}", gathering::list(&awaited))
                }
            }
            Phase::Waiting => format!("at least {} members", self.config.min_np),
            Phase::Steady | Phase::Ended => String::new(),
        }
    }

    fn missing(&self) -> usize {
        (0..self.config.np).filter(|slot| self.slots.get(*slot).is_none()).count()
    }

    fn condition(&self, now: Instant, entry: &Entry, is_slow: bool) -> Condition {
        let quiet = now.saturating_duration_since(entry.heard);
        match entry.standing {
            Standing::Gone => Condition::Gone,
            Standing::Left => Condition::Left,
            _ if entry.connection.is_none() => Condition::Away,
            _ if quiet >= self.config.heartbeat_limit => Condition::Silent,
            _ if is_slow => Condition::Slow,
            _ => Condition::Live,
        }
    }
}

/// How long ago something was, as finely as it is told.
fn whole_millis(now: Instant, since: Instant) -> Duration {
    let millis = now.saturating_duration_since(since).as_millis();
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}
