//! Until when an operation may wait.

use std::time::{Duration, Instant};

/// A point in time after which a wait ends with an error. One deadline is handed down through every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `length` after `now`. Lengths that no clock can hold become a century.
    pub fn after(now: Instant, length: Duration) -> Self {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Self(now.checked_add(length.min(CENTURY)).unwrap_or(now))
    }

    /// Whether the deadline has passed at `now`.
    pub fn has_passed(self, now: Instant) -> bool {
        now >= self.0
    }

    /// How long ago the deadline was at `now`; zero before it.
    pub fn overdue(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.0)
    }

    /// What is left at `now`; zero once it has passed.
    pub fn remaining(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }
}
