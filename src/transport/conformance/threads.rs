//! Clause 13, and everything else with each end in a thread of its own.

use std::time::{Duration, Instant};

use super::Carrier;
use super::basics::sizes;
use super::world::{Memory, PATIENCE, Random, Side, tag};
use crate::transport::{Event, Token};

/// How long a sleeper waits before it says that its wake-up was lost.
const TOO_LONG: Duration = Duration::from_secs(30);

/// Drives one end until the condition holds, asleep whenever the contract allows it.
fn attend(side: &mut Side, what: &str, mut done: impl FnMut(&Side) -> bool) {
    let begun = Instant::now();
    let mut random = Random(5);
    while !done(side) {
        if side.progress() {
            continue;
        }
        // Whatever happens in between must not be slept through.
        for _ in 0..random.below(3000) {
            std::hint::spin_loop();
        }
        if side.endpoint.prepare_sleep() {
            let asleep = Instant::now();
            (side.sleep)(TOO_LONG);
            assert!(asleep.elapsed() < TOO_LONG, "no wake-up while waiting for {what}");
        }
        assert!(begun.elapsed() < PATIENCE, "gave up on: {what}");
    }
}

/// Clause 13: two sleepers that play ball never sleep through their turn, at any length.
pub fn no_wake_up_is_lost(carrier: &Carrier) {
    let sizes = sizes(carrier);
    let pair = (carrier.pair)();
    let rounds = carrier.times(400);
    let play = |mut side: Side, begins: bool| {
        let mut random = Random(if begins { 1 } else { 2 });
        for round in 0..rounds {
            // The longest only now and then.
            let size = sizes[round as usize % (sizes.len() - 1 + usize::from(round % 50 == 0))];
            // Sometimes late, so that the other has gone to sleep, or early, so that it is about to.
            for _ in 0..random.below(2000) {
                std::hint::spin_loop();
            }
            let sends = begins == (round % 2 == 0);
            let event = if sends {
                Event::Sent(side.send(tag(round), Memory::filled(size, 0, round)))
            } else {
                Event::Received(side.recv(tag(round), Memory::new(size, 0)))
            };
            attend(&mut side, "the ball", |side| side.has(&event));
            if let Event::Received(token) = event {
                assert!(side.take(token).slice() == Memory::filled(size, 0, round).slice(), "round {round}");
            }
            // The other side may have finished its last round, and said goodbye, before this one has looked.
            side.events.retain(|event| *event == Event::Goodbye);
        }
        side.endpoint.say_goodbye();
        attend(&mut side, "goodbye", |side| side.endpoint.is_drained() && side.has(&Event::Goodbye));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(pair.a, true));
        scope.spawn(|| play(pair.b, false));
    });
}

/// Clause 13: with nothing to do, an endpoint lets its thread sleep.
pub fn an_idle_endpoint_sleeps(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    pair.settle();
    assert!(pair.a.endpoint.prepare_sleep() && pair.b.endpoint.prepare_sleep());
    // Also with everything waiting for a peer that does not come.
    pair.a.send(tag(1), Memory::filled(carrier.eager_limit * 2, 0, 1));
    pair.a.recv(tag(2), Memory::new(carrier.eager_limit * 2, 0));
    pair.a.recv(tag(3), Memory::new(8, 0));
    pair.settle();
    assert!(pair.a.endpoint.prepare_sleep() && pair.b.endpoint.prepare_sleep());
}

/// Clause 13: a sleeper wakes when its peer dies.
pub fn death_wakes_a_sleeper(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    pair.settle();
    let (mut a, mut b) = (pair.a, pair.b);
    std::thread::scope(|scope| {
        scope.spawn(move || attend(&mut b, "the failure", |side| side.failure().is_some()));
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            a.kill();
        });
    });
}

/// Everything at once, with each end in a thread of its own that does not know where the other is.
pub fn two_threads_exchange_everything(carrier: &Carrier) {
    let sizes = sizes(carrier);
    for seed in 0..carrier.times(4) {
        let pair = (carrier.pair)();
        let number = 120_u64;
        let work = |mut side: Side, own: u64| {
            let mut random = Random(seed << 8 | own);
            let mut sends: Vec<u64> = (0..number).collect();
            let mut recvs = sends.clone();
            random.shuffle(&mut sends);
            random.shuffle(&mut recvs);
            let size = |from: u64, i: u64| sizes[Random(seed + from * 1000 + i).below(sizes.len())];
            let mut posted: Vec<(Token, u64)> = Vec::new();
            let mut sent = Vec::new();
            while !sends.is_empty() || !recvs.is_empty() {
                for _ in 0..random.below(4) {
                    if let Some(i) = sends.pop() {
                        let source = Memory::filled(size(own, i), random.below(5), own << 20 | i);
                        sent.push(side.send(tag(own << 32 | i), source));
                    }
                    if let Some(i) = recvs.pop() {
                        let target = Memory::new(size(1 - own, i), random.below(5));
                        posted.push((side.recv(tag((1 - own) << 32 | i), target), i));
                    }
                }
                side.progress();
            }
            attend(&mut side, "all messages", |side| {
                side.count(|event| matches!(event, Event::Received(_) | Event::Sent(_))) == 2 * number as usize
            });
            for (token, i) in posted {
                let expected = Memory::filled(size(1 - own, i), 0, (1 - own) << 20 | i);
                assert!(side.take(token).slice() == expected.slice(), "seed {seed}, message {i} to {own}");
            }
            side.endpoint.say_goodbye();
            attend(&mut side, "goodbye", |side| side.endpoint.is_drained() && side.has(&Event::Goodbye));
            assert!(side.failure().is_none());
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(pair.a, 0));
            scope.spawn(|| work(pair.b, 1));
        });
    }
}
