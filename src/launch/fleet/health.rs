//! When a worker may be started on a host on which others failed.
//!
//! Two rules, for two kinds of trouble:
//!
//! - **Starts that fail.** A worker that fails before it was in a view, or within ten seconds of that, did not come to work.
//!   After the first such end on a host the next start there waits a second, after each further one twice as long, a
//!   minute at most; a worker that comes to work makes that forgotten. So a program that cannot start, or falls as soon as
//!   it has joined, is not started in a hot loop, while one that was at work and fell is replaced at once. A slot on which
//!   too many in a row did not come to work is given up.
//! - **Hosts that fail.** With a range of cooldown, MIN to MAX, a host on which a worker failed is marked; from the second
//!   failure in a row it is blacklisted: nothing is started there for MIN, then twice as long each time, MAX at most. What
//!   runs there goes on. A host without a failure for MAX, and a minute at least, after that is as good as new.

use std::time::{Duration, Instant};

/// How long a host on which workers fail again and again is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cooldown {
    /// The first time.
    pub least: Duration,
    /// At most.
    pub most: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The shortest time after which failures are forgotten.
const SHORTEST_MEMORY: Duration = Duration::from_secs(60);

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The next worker can be started at once.
    None,
    /// It has to wait.
    Pause(Duration),
    /// The host is not used for so long.
    Blacklisted(Duration),
}

/// What is known of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// Starts in a row that failed.
    failed_starts: u32,
    /// Failures in a row.
    failures: u32,
    /// When those are forgotten.
    forgotten_at: Option<Instant>,
    /// Nothing is to be started before.
    rests_until: Option<Instant>,
}

/// `first`, doubled so many times, at most `most`.
fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    2_u32.checked_pow(times).and_then(|factor| first.checked_mul(factor)).map_or(most, |length| length.min(most))
}

impl Health {
    /// A worker failed here. `was_at_work`: it had come to work.
    pub(super) fn handle_failure(&mut self, now: Instant, was_at_work: bool, cooldown: Option<Cooldown>) -> Rest {
        let mut rest = Rest::None;
        let mut length = Duration::ZERO;
        if !was_at_work {
            length = doubled(FIRST_PAUSE, self.failed_starts, LONGEST_PAUSE);
            self.failed_starts = self.failed_starts.saturating_add(1);
            rest = Rest::Pause(length);
        }
        if let Some(Cooldown { least, most }) = cooldown {
            if self.forgotten_at.is_some_and(|at| now >= at) {
                self.failures = 0;
            }
            self.failures = self.failures.saturating_add(1);
            if self.failures > 1 {
                length = doubled(least, self.failures - 2, most).max(length);
                rest = Rest::Blacklisted(length);
            }
            self.forgotten_at = now.checked_add(length + most.max(SHORTEST_MEMORY));
        }
        if rest != Rest::None {
            self.rests_until = self.rests_until.max(now.checked_add(length));
        }
        rest
    }

    /// A worker of this host came to work.
    pub(super) fn handle_success(&mut self) {
        self.failed_starts = 0;
    }

    /// Until when nothing is to be started here, if that is not over.
    pub(super) fn rests_until(&self, now: Instant) -> Option<Instant> {
        self.rests_until.filter(|until| *until > now)
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_good(&self, now: Instant) -> bool {
        self.failed_starts == 0 && self.rests_until(now).is_none() && self.forgotten_at.is_none_or(|at| now >= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn starts_that_fail_wait_longer_each_time_until_one_succeeds() {
        let now = Instant::now();
        let mut health = Health::default();
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(health.handle_failure(now, false, None), Rest::Pause(seconds * SECOND));
            assert_eq!(health.rests_until(now), Some(now + seconds * SECOND));
            assert_eq!(health.rests_until(now + seconds * SECOND), None);
        }
        assert!(!health.is_good(now));
        health.handle_success();
        assert!(health.is_good(now + 60 * SECOND));
        assert_eq!(health.handle_failure(now, false, None), Rest::Pause(SECOND));
    }

    #[test]
    fn a_worker_that_was_at_work_is_replaced_at_once() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..100 {
            assert_eq!(health.handle_failure(now, true, None), Rest::None);
        }
        assert!(health.is_good(now));
    }

    #[test]
    fn hosts_that_fail_repeatedly_are_blacklisted_within_the_range() {
        let mut now = Instant::now();
        let mut health = Health::default();
        let range = Some(Cooldown { least: 10 * SECOND, most: 100 * SECOND });
        assert_eq!(health.handle_failure(now, true, range), Rest::None, "once is no habit");
        for seconds in [10, 20, 40, 80, 100, 100] {
            assert_eq!(health.handle_failure(now, true, range), Rest::Blacklisted(seconds * SECOND));
            now = health.rests_until(now).expect("it rests");
        }
        now += 100 * SECOND;
        assert!(health.is_good(now));
        assert_eq!(health.handle_failure(now, true, range), Rest::None);
        // Two that fall at the same moment are two failures.
        assert_eq!(health.handle_failure(now, true, range), Rest::Blacklisted(10 * SECOND));
    }

    #[test]
    fn the_longer_of_both_rules_counts() {
        let now = Instant::now();
        let mut health = Health::default();
        let range = Some(Cooldown { least: SECOND / 10, most: SECOND });
        assert_eq!(health.handle_failure(now, false, range), Rest::Pause(SECOND));
        assert_eq!(health.handle_failure(now, false, range), Rest::Blacklisted(2 * SECOND));
        assert_eq!(health.handle_failure(now, true, range), Rest::Blacklisted(SECOND / 5));
        assert_eq!(health.rests_until(now), Some(now + 2 * SECOND), "a shorter rest does not end a longer one");
    }
}
