//! When the registry itself was away: stopped, starved of processors, or held up by its disk.
//!
//! The shell promises to come back by [`deadline`](Registry::deadline). When it comes later, nobody listened for that
//! time: what members said lies unread, what they waited for was not answered. So that time is not counted as silence,
//! and what was to end with it is given a moment more, in which what has arrived is read and answered.

use std::time::{Duration, Instant};

use super::Registry;
use super::timers::Timer;
use crate::types::Deadline;
use crate::wire::registry::Why;

impl Registry {
    /// Begins every turn of the shell.
    pub(super) fn turn(&mut self, now: Instant) {
        let late = self.timers.next().map_or(Duration::ZERO, |next| next.overdue(now));
        if late.is_zero() {
            return;
        }
        let interval = self.config.heartbeat_interval();
        if late >= interval / 2 {
            self.slots.forgive(now, late);
        }
        for (timer, overdue) in self.timers.due(now) {
            let moment = self.moment(timer);
            if overdue >= (moment / 2).min(interval) {
                self.timers.set(timer, Deadline::after(now, moment));
            }
        }
    }

    /// How long those whom a timer concerns need to be heard, once the registry listens again.
    fn moment(&self, timer: Timer) -> Duration {
        match timer {
            Timer::Away(slot) => {
                let away = self.slots.get(slot).and_then(|entry| entry.away.as_ref());
                let is_restart = away.is_some_and(|away| away.why == Why::Missing);
                if is_restart { self.config.restart_grace / 2 } else { self.config.close_grace }
            }
            Timer::Exit(_) => self.config.exit_grace,
            Timer::Start | Timer::Silence(_) | Timer::Link(..) | Timer::Overdue | Timer::Elastic | Timer::Look => {
                self.config.heartbeat_interval()
            }
        }
    }
}
