//! Every deadline of the registry, in one table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::types::Deadline;
use crate::wire::registry::Slot;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The first view begins with whoever is there, or not at all.
    Start,
    /// A member that lives would have been heard of by now: it is asked, named, or removed by policy.
    Silence(Slot),
    /// A member whose connection broke would have come back by now.
    Away(Slot),
    /// A member whose process ended would have been heard to say goodbye by now.
    Exit(Slot),
    /// Other evidence would have explained by now why two members lost their link.
    Link(Slot, Slot),
    /// Members that were told to stop would have reported by now: those that have not are named, or end the job.
    Overdue,
    /// Newcomers would have made up the fewest members by now.
    Elastic,
    /// It is time to look for members whose work does not advance.
    Look,
}

/// When each timer fires. One that is set again forgets its earlier time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    times: BTreeMap<Timer, Deadline>,
    queue: BTreeSet<(Deadline, Timer)>,
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, at: Deadline) {
        self.clear(timer);
        self.times.insert(timer, at);
        self.queue.insert((at, timer));
    }

    pub(super) fn set_if_earlier(&mut self, timer: Timer, at: Deadline) {
        if self.times.get(&timer).is_none_or(|set| at < *set) {
            self.set(timer, at);
        }
    }

    pub(super) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.times.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    /// What is left until a timer fires.
    pub(super) fn time(&self, timer: Timer) -> Option<Deadline> {
        self.times.get(&timer).copied()
    }

    pub(super) fn next(&self) -> Option<Deadline> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = *self.queue.first()?;
        if !at.has_passed(now) {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }

    /// The timers that are due, and for how long.
    pub(super) fn due(&self, now: Instant) -> Vec<(Timer, Duration)> {
        let due = self.queue.iter().take_while(|(at, _)| at.has_passed(now));
        due.map(|(at, timer)| (*timer, at.overdue(now))).collect()
    }

    pub(super) fn clear_all(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_once_and_at_their_last_setting() {
        let now = Instant::now();
        let at = |millis| Deadline::after(now, Duration::from_millis(millis));
        let mut timers = Timers::default();
        timers.set(Timer::Away(3), at(10));
        timers.set(Timer::Exit(3), at(20));
        timers.set(Timer::Away(3), at(30));
        timers.set_if_earlier(Timer::Exit(3), at(25));
        assert_eq!(timers.next(), Some(at(20)));
        let later = now + Duration::from_millis(40);
        assert_eq!(timers.pop_due(now), None);
        assert_eq!(timers.pop_due(later), Some(Timer::Exit(3)));
        assert_eq!(timers.pop_due(later), Some(Timer::Away(3)));
        assert_eq!((timers.pop_due(later), timers.next()), (None, None));
    }
}
