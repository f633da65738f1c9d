//! Where a rank sleeps that has nothing to sleep on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Port;

/// The shortest pause between two looks: about what a sleep and its wake-up cost anyway.
const SHORTEST: Duration = Duration::from_micros(50);

/// The longest. A rank that has waited long looks 250 times a second; each look costs 5 to 30 us, most of which is the wake-up,
/// and so less than 1 % of a processor.
const LONGEST: Duration = Duration::from_millis(4);

/// A pause is this part of the time for which nothing has moved: what comes is seen late by at most this part of
/// what was waited for it. After 10 ms of waiting that is about a millisecond.
const PART: u32 = 8;

/// Sleeps in pauses that grow while nothing moves.
pub struct Nap {
    port: Arc<Port>,
    state: Mutex<State>,
    kicked: Condvar,
}

struct State {
    is_kicked: bool,
    /// Since when nothing has moved.
    still_since: Instant,
}

impl Nap {
    /// For the rank of this port.
    pub fn new(port: Arc<Port>) -> Self {
        let state = State { is_kicked: false, still_since: Instant::now() };
        Self { port, state: Mutex::new(state), kicked: Condvar::new() }
    }

    /// Returns after the next pause, a kick, or `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if self.port.take_moved() {
            state.still_since = now;
        }
        let pause = (now.duration_since(state.still_since) / PART).clamp(SHORTEST, LONGEST);
        let end = now + pause.min(timeout);
        while !state.is_kicked {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (state, _) = self.kicked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_kicked = false;
    }

    /// Ends the current sleep, or the next one.
    pub fn kick(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_kicked = true;
        self.kicked.notify_all();
    }
}
