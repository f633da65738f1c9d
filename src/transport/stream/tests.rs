//! The suite of the contract over streams of every shape, and what only streams can get wrong.

mod accounting;
mod hostile;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::transport::conformance::{Carrier, Memory, Pair, Random, Side, signature, tag};
use crate::transport::inproc::{self, InprocLane, Wake};
use crate::transport::{LaneError, Receive, Token};

/// Wakes a thread that waits, or the next that will.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration) {
        let rung = self.rung.lock().unwrap();
        let (mut rung, _) = self.changed.wait_timeout_while(rung, limit, |rung| !*rung).unwrap();
        *rung = false;
    }
}

fn bell() -> (Wake, impl FnMut(Duration) + Send + 'static) {
    let bell = Arc::new(Bell::default());
    let waiter = bell.clone();
    (Arc::new(move || bell.ring()), move |limit| waiter.wait(limit))
}

fn pair(lanes: usize, config: StreamConfig, wrap: fn(InprocLane) -> Box<dyn Lane>) -> Pair {
    let ((wake_a, sleep_a), (wake_b, sleep_b)) = (bell(), bell());
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..lanes {
        let (lane_a, lane_b) = inproc::pair(wake_a.clone(), wake_b.clone());
        a.push(wrap(lane_a));
        b.push(wrap(lane_b));
    }
    let endpoint = |lanes| Box::new(StreamEndpoint::new(lanes, Generation::FIRST, config));
    Pair { a: Side::new(endpoint(a), sleep_a), b: Side::new(endpoint(b), sleep_b) }
}

fn plain(lane: InprocLane) -> Box<dyn Lane> {
    Box::new(lane)
}

/// A lane that gives and takes a few bytes at a time, so that everything is cut everywhere.
struct Choppy {
    lane: InprocLane,
    random: Random,
    /// How much of what the lane shows is to be seen.
    shown: usize,
}

impl Choppy {
    fn wrap(lane: InprocLane) -> Box<dyn Lane> {
        Box::new(Self { lane, random: Random(11), shown: 0 })
    }

    /// A few bytes, or many; sometimes none, as if the lane were full.
    fn some(&mut self) -> usize {
        match self.random.below(10) {
            0 => 0,
            1..=6 => 1 + self.random.below(200),
            _ => 1 + self.random.below(60_000),
        }
    }
}

impl Lane for Choppy {
    fn kind(&self) -> TransportKind {
        self.lane.kind()
    }

    fn link(&self) -> Arc<str> {
        self.lane.link()
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        let some = self.some();
        let head_part = &head[..some.min(head.len())];
        let body_part = &body[..(some - head_part.len()).min(body.len())];
        self.lane.write(head_part, body_part)
    }

    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError> {
        let more = if self.shown < wanted { self.some().max(1) } else { 0 };
        let window = self.lane.fill(wanted)?;
        self.shown = (self.shown + more).min(window.len());
        Ok(&window[..self.shown])
    }

    fn consume(&mut self, count: usize) {
        self.shown -= count;
        self.lane.consume(count);
    }

    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError> {
        let some = self.some().max(1);
        // SAFETY: the caller's promise, for a part of the target.
        let count = unsafe { self.lane.read_into(target, bytes.min(some))? };
        self.shown = self.shown.saturating_sub(count);
        Ok(count)
    }

    fn prepare_sleep(&mut self, wants_write: bool) -> bool {
        // What was held back may still be there: only the lane's window can tell.
        let held_back = self.lane.fill(1).map_or(true, |window| window.len() > self.shown);
        !held_back && self.lane.prepare_sleep(wants_write)
    }
}

fn carrier(lanes: usize, config: StreamConfig, wrap: fn(InprocLane) -> Box<dyn Lane>) -> Carrier {
    let config = config.sound();
    Carrier::over_streams(config, move || pair(lanes, config, wrap))
}

/// Limits so low that every one of them is met all the time.
const TIGHT: StreamConfig = StreamConfig {
    eager_limit: 1000,
    early_budget: 8000,
    segment_bytes: 64 * 17,
    announce_limit: 9,
    ready_limit: 3,
    copy_limit: 20,
    turn_bytes: 20_000,
    turn_frames: 5,
};

mod one_lane {
    use super::*;

    crate::transport::conformance::suite!(carrier(1, StreamConfig::for_kind(TransportKind::Inproc), plain));
}

mod four_lanes {
    use super::*;

    crate::transport::conformance::suite!(carrier(4, StreamConfig::for_kind(TransportKind::Inproc), plain));
}

mod tight {
    use super::*;

    crate::transport::conformance::suite!(carrier(1, TIGHT, plain));
}

mod tight_over_three_lanes {
    use super::*;

    crate::transport::conformance::suite!(carrier(3, TIGHT, plain));
}

mod choppy {
    use super::*;

    crate::transport::conformance::suite!(carrier(1, StreamConfig::for_kind(TransportKind::Inproc), Choppy::wrap));
}

mod choppy_and_tight_over_two_lanes {
    use super::*;

    crate::transport::conformance::suite!(carrier(2, TIGHT, Choppy::wrap));
}

#[test]
fn what_is_pushed_arrives_while_the_sender_does_something_else() {
    let mut pair = pair(1, StreamConfig::for_kind(TransportKind::Inproc), plain);
    let received = pair.b.recv(tag(1), Memory::new(3000, 0));
    let sent = pair.a.send(tag(1), Memory::filled(3000, 0, 1));
    pair.a.endpoint.push();
    while pair.b.progress() {}
    assert!(pair.b.has(&Event::Received(received)));
    assert!(pair.b.take(received).slice() == Memory::filled(3000, 0, 1).slice());
    assert!(pair.a.progress() && pair.a.has(&Event::Sent(sent)), "told by progress, which others wait for");
}

#[test]
fn an_endpoint_is_idle_when_only_the_peer_can_move_it() {
    let mut pair = pair(2, StreamConfig::for_kind(TransportKind::Inproc), plain);
    assert!(!pair.a.endpoint.is_idle(), "hello is not said");
    while pair.a.progress() | pair.b.progress() {}
    assert!(pair.a.endpoint.is_idle());
    let received = pair.a.recv(tag(1), Memory::new(8, 0));
    assert!(!pair.a.endpoint.is_idle());
    let sent = pair.b.send(tag(1), Memory::filled(8, 0, 1));
    assert!(!pair.b.endpoint.is_idle());
    pair.b.endpoint.push();
    assert!(!pair.b.endpoint.is_idle(), "an event is not told");
    while pair.a.progress() | pair.b.progress() {}
    assert!(pair.a.has(&Event::Received(received)) && pair.b.has(&Event::Sent(sent)));
    pair.a.notify(b"news");
    assert!(!pair.a.endpoint.is_idle());
    while pair.a.progress() | pair.b.progress() {}
    assert!(pair.a.endpoint.is_idle() && pair.b.endpoint.is_idle());
}
