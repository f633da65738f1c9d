//! Clauses 10 to 12: notices, failure, goodbye.

use super::Carrier;
use super::basics::sizes;
use super::world::{Memory, Random, signature, tag};
use crate::transport::{Event, Notice};

fn notice(text: &[u8]) -> Event {
    Event::Notice(Notice(text.into()))
}

/// Clause 10: all of them, in order, of every length, with messages in between.
pub fn notices_arrive_in_order(carrier: &Carrier) {
    let mut random = Random(1);
    let mut pair = (carrier.pair)();
    let mut expected = Vec::new();
    for i in 0..200_usize {
        let text = Memory::filled([0, 1, 100, Notice::MAX_BYTES][i % 4], 0, i as u64);
        pair.a.notify(text.slice());
        expected.push(notice(text.slice()));
        if random.below(3) == 0 {
            pair.a.send(tag(i as u64), Memory::filled(random.below(5000), 0, 1));
        }
        if random.below(3) == 0 {
            pair.a.progress();
        }
        if random.below(3) == 0 {
            pair.b.progress();
        }
    }
    pair.run_randomly("all notices", &mut random, |pair| {
        pair.b.count(|event| matches!(event, Event::Notice(_))) == expected.len()
    });
    pair.b.events.retain(|event| matches!(event, Event::Notice(_)));
    assert_eq!(pair.b.events, expected);
}

/// Clause 10: a notice does not wait for the long message that is being sent, nor for the messages behind it.
pub fn notices_overtake_data(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let bytes = carrier.long(24 << 20);
    let token = pair.b.recv(tag(1), Memory::new(bytes, 0));
    pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
    // Far enough that bytes flow, and the carrier is full.
    for _ in 0..3 {
        pair.a.progress();
        pair.b.progress();
    }
    for i in 0..100 {
        pair.a.send(tag(2 + i), Memory::filled(carrier.eager_limit, 0, 2));
    }
    pair.a.notify(b"hurry");
    pair.run_until("the notice", |pair| pair.b.has(&notice(b"hurry")));
    let messages = pair.b.count(|event| matches!(event, Event::Early { .. } | Event::Received(_)));
    // What a carrier's buffers hold, half a MiB at most, had left before the notice was given. All would be 100.
    let held = ((512 << 10) / carrier.eager_limit).clamp(10, 64);
    assert!(messages <= held, "{messages} messages came before the notice");
    pair.run_until("the long message", |pair| pair.b.has(&Event::Received(token)));
    assert!(pair.b.take(token).slice() == Memory::filled(bytes, 0, 1).slice());
}

/// Clause 1, and what it is for: a short message does not wait until a long one is through.
pub fn short_messages_overtake_long_ones(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let bytes = carrier.long(24 << 20);
    let long = pair.b.recv(tag(1), Memory::new(bytes, 0));
    pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
    for _ in 0..3 {
        pair.a.progress();
        pair.b.progress();
    }
    let short = pair.b.recv(tag(2), Memory::new(8, 0));
    pair.a.send(tag(2), Memory::filled(8, 0, 2));
    pair.run_until("the short message", |pair| pair.b.has(&Event::Received(short)));
    assert!(!pair.b.has(&Event::Received(long)), "the short message came after the long one");
}

/// The same among long ones: they take turns, so that the shorter is through first.
pub fn long_messages_take_turns(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let (longer, shorter) = (carrier.long(24 << 20), 8 * carrier.eager_limit);
    let first = pair.b.recv(tag(1), Memory::new(longer, 0));
    let second = pair.b.recv(tag(2), Memory::new(shorter, 0));
    pair.a.send(tag(1), Memory::filled(longer, 0, 1));
    for _ in 0..3 {
        pair.a.progress();
        pair.b.progress();
    }
    pair.a.send(tag(2), Memory::filled(shorter, 0, 2));
    pair.run_until("the shorter message", |pair| pair.b.has(&Event::Received(second)));
    assert!(!pair.b.has(&Event::Received(first)), "the shorter message came after the longer one");
    assert!(pair.b.take(second).slice() == Memory::filled(shorter, 0, 2).slice());
}

/// A flood of short messages does not hold a long one up.
pub fn short_messages_do_not_starve_long_ones(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let bytes = 4 * carrier.eager_limit;
    let long = pair.b.recv(tag(0), Memory::new(bytes, 0));
    pair.a.send(tag(0), Memory::filled(bytes, 0, 1));
    let source: &'static [u8] = Vec::leak(vec![3; carrier.eager_limit]);
    let (mut posted, mut through) = (0, 0);
    pair.run_until("the long message", |pair| {
        // There is always a short message that could leave.
        while posted < through + 40 {
            posted += 1;
            pair.b.recv(tag(posted), Memory::new(source.len(), 0));
            pair.a.send_shared(tag(posted), signature(source.len()), source);
        }
        through = pair.b.count(|event| matches!(event, Event::Received(token) if *token != long)) as u64;
        pair.b.has(&Event::Received(long))
    });
    assert!(through < 400, "{through} short messages came before the long one");
}

/// Clause 11: whenever the peer goes, that is told once, after everything that arrived; then nothing moves.
pub fn a_dead_peer_is_told_once(carrier: &Carrier) {
    let sizes = sizes(carrier);
    for seed in 0..carrier.times(40) {
        let mut random = Random(seed);
        let mut pair = (carrier.pair)();
        let mut expected = Vec::new();
        for i in 0..8 {
            let bytes = sizes[random.below(sizes.len())];
            let (source, target) = (Memory::filled(bytes, 0, i), Memory::new(bytes, 1));
            if random.below(2) == 0 {
                pair.a.send(tag(i), source);
                let token = pair.b.recv(tag(i), target);
                expected.push((token, bytes, i));
            } else {
                pair.a.recv(tag(i), target);
                pair.b.send(tag(i), source);
            }
            for _ in 0..random.below(5) {
                if random.below(2) == 0 {
                    pair.a.progress()
                } else {
                    pair.b.progress()
                };
            }
        }
        pair.a.kill();
        pair.run_until("the failure", |pair| pair.b.failure().is_some());
        let text = pair.b.failure().unwrap_or_default().to_owned();
        assert!(text.contains(&*pair.b.endpoint.link()), "the link is not in {text:?}");
        let told = pair.b.events.len();
        assert!(matches!(pair.b.events.last(), Some(Event::Failed(_))), "seed {seed}: an event after the failure");
        for (token, bytes, i) in expected {
            if pair.b.has(&Event::Received(token)) {
                assert!(pair.b.take(token).slice() == Memory::filled(bytes, 0, i).slice(), "seed {seed}");
            }
        }
        // The memory is the user's again: it may go away.
        pair.b.memory.clear();
        pair.b.send(tag(100), Memory::filled(8, 0, 1));
        pair.b.recv(tag(101), Memory::new(8, 0));
        pair.b.notify(b"anybody?");
        pair.b.endpoint.cancel(tag(100));
        for _ in 0..5 {
            assert!(!pair.b.progress(), "seed {seed}: moves after the failure");
        }
        assert_eq!(pair.b.events.len(), told);
        assert!(pair.b.endpoint.prepare_sleep() && pair.b.endpoint.is_drained());
    }
}

/// Clause 11: what was written before the end arrives, although the writer is gone before anything is read.
pub fn what_was_written_before_the_end_arrives(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    pair.settle();
    let tokens: Vec<_> = (0..5).map(|i| pair.b.recv(tag(i), Memory::new(100, 0))).collect();
    for i in 0..5 {
        pair.a.send(tag(i), Memory::filled(100, 0, i));
    }
    pair.a.notify(b"last words");
    while !pair.a.endpoint.is_drained() {
        pair.a.progress();
    }
    // Something to write, so that the reader meets the broken link first when writing.
    for i in 0..20 {
        pair.b.send(tag(50 + i), Memory::filled(100, 0, 1));
    }
    pair.a.kill();
    pair.run_until("the failure", |pair| pair.b.failure().is_some());
    assert!(pair.b.has(&notice(b"last words")));
    assert!(tokens.iter().all(|&token| pair.b.has(&Event::Received(token))));
}

/// Clause 12: goodbye comes after everything, and closing after it is no failure.
pub fn goodbye_comes_last(carrier: &Carrier) {
    for seed in 0..carrier.times(10) {
        let mut random = Random(seed);
        let sizes = sizes(carrier);
        let mut pair = (carrier.pair)();
        let mut tokens = Vec::new();
        for i in 0..10 {
            let bytes = sizes[random.below(sizes.len())];
            pair.a.send(tag(i), Memory::filled(bytes, 0, i));
            tokens.push((pair.b.recv(tag(i), Memory::new(bytes, 0)), bytes, i));
        }
        pair.a.notify(b"so long");
        pair.a.endpoint.say_goodbye();
        assert!(!pair.a.endpoint.is_drained());
        pair.run_randomly("the drain", &mut random, |pair| pair.a.endpoint.is_drained());
        pair.a.kill();
        pair.run_until("goodbye", |pair| pair.b.has(&Event::Goodbye));
        assert_eq!(pair.b.events.last(), Some(&Event::Goodbye), "seed {seed}");
        assert!(pair.b.has(&notice(b"so long")));
        for (token, bytes, i) in tokens {
            assert!(pair.b.take(token).slice() == Memory::filled(bytes, 0, i).slice(), "seed {seed}, message {i}");
        }
        pair.settle();
        assert!(pair.b.failure().is_none(), "seed {seed}: {:?}", pair.b.events);
        // There is nobody to say goodbye to, which must not keep anybody waiting.
        pair.b.endpoint.say_goodbye();
        pair.run_until("the other drain", |pair| pair.b.endpoint.is_drained());
    }
}

/// Clause 12: whoever has said goodbye still receives what the other side has to say, long messages too.
pub fn goodbye_closes_one_direction(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    pair.a.endpoint.say_goodbye();
    pair.run_until("goodbye", |pair| pair.b.has(&Event::Goodbye));
    for (i, bytes) in (0..).zip(sizes(carrier)) {
        let token = pair.a.recv(tag(i), Memory::new(bytes, 0));
        pair.b.send(tag(i), Memory::filled(bytes, 0, i));
        pair.run_until("a message after goodbye", |pair| pair.a.has(&Event::Received(token)));
        assert!(pair.a.take(token).slice() == Memory::filled(bytes, 0, i).slice());
    }
    pair.b.endpoint.say_goodbye();
    pair.run_until("both goodbyes", |pair| pair.a.has(&Event::Goodbye) && pair.b.endpoint.is_drained());
    pair.a.kill();
    pair.settle();
    assert!(pair.b.failure().is_none());
    assert_eq!(pair.b.count(|event| *event == Event::Goodbye), 1);
}

/// Clause 12: goodbye waits for a message whose receive is posted late.
pub fn goodbye_waits_for_late_receives(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let bytes = 3 * carrier.eager_limit;
    pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
    pair.a.endpoint.say_goodbye();
    pair.settle();
    assert!(!pair.b.has(&Event::Goodbye) && !pair.a.endpoint.is_drained());
    assert!(pair.b.has(&Event::Early { tag: tag(1), signature: signature(bytes) }));
    let token = pair.b.recv(tag(1), Memory::new(bytes, 0));
    pair.run_until("goodbye", |pair| pair.b.has(&Event::Goodbye));
    assert!(pair.b.take(token).slice() == Memory::filled(bytes, 0, 1).slice());
}
