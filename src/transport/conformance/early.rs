//! Clauses 7 and 8: messages that come before their receive.

use super::Carrier;
use super::basics::sizes;
use super::world::{Memory, Random, signature, tag};
use crate::transport::{Event, Receive, Token};

/// Clause 8: the first unposted message of a tag is told, with its call, and the others are not.
pub fn early_messages_are_told_once(carrier: &Carrier) {
    for bytes in sizes(carrier) {
        let mut pair = (carrier.pair)();
        let tokens: Vec<Token> = (0..3).map(|seed| pair.a.send(tag(1), Memory::filled(bytes, 0, seed))).collect();
        pair.run_until("an early message", |pair| !pair.b.events.is_empty());
        pair.settle();
        assert_eq!(pair.b.events, [Event::Early { tag: tag(1), signature: signature(bytes) }], "{bytes} bytes");
        let received: Vec<Token> = (0..3).map(|_| pair.b.recv(tag(1), Memory::new(bytes, 0))).collect();
        pair.run_until("their receives", |pair| received.iter().all(|&token| pair.b.has(&Event::Received(token))));
        pair.a.send(tag(1), Memory::filled(bytes, 0, 3));
        pair.settle();
        assert_eq!(pair.b.count(|event| matches!(event, Event::Early { .. })), 1, "{bytes} bytes");
        for (seed, token) in (0..).zip(received) {
            assert!(pair.b.take(token).slice() == Memory::filled(bytes, 0, seed).slice());
        }
        assert!(tokens.iter().all(|&token| pair.a.has(&Event::Sent(token))));
    }
}

/// Clause 8: a message whose receive is posted is not early, nor is one that comes after a receive was.
pub fn posted_messages_are_not_early(carrier: &Carrier) {
    for bytes in sizes(carrier) {
        let mut pair = (carrier.pair)();
        pair.b.recv(tag(1), Memory::new(bytes, 0));
        for _ in 0..2 {
            pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
        }
        pair.settle();
        assert_eq!(pair.b.count(|event| matches!(event, Event::Early { .. })), 0, "{bytes} bytes");
    }
}

/// Clause 7: a flood of messages that nobody receives stays with its sender, but for what was agreed on and what the
/// carrier holds; and all of it arrives once it is asked for.
pub fn a_flood_stays_with_its_sender(carrier: &Carrier) {
    let mut random = Random(3);
    for bytes in [0, 40, carrier.eager_limit / 2] {
        let mut pair = (carrier.pair)();
        let source: &'static [u8] = Vec::leak(vec![7; bytes]);
        let enough = 4 * carrier.early_budget / (bytes + 256) + 50;
        for i in 0..enough {
            pair.a.send_shared(tag(i as u64), signature(bytes), source);
            if i % 16 == 0 {
                pair.a.progress();
                pair.b.progress();
            }
        }
        pair.settle();
        let left = pair.a.count(|event| matches!(event, Event::Sent(_)));
        assert!(left < enough, "everything left the sender");
        assert!((left + 1) * bytes <= carrier.early_budget + carrier.eager_limit, "{left} messages of {bytes} bytes");
        let mut order: Vec<u64> = (0..enough as u64).collect();
        random.shuffle(&mut order);
        let tokens: Vec<Token> = order.iter().map(|&i| pair.b.recv(tag(i), Memory::new(bytes, 0))).collect();
        pair.run_randomly("the flood", &mut random, |pair| {
            pair.b.count(|event| matches!(event, Event::Received(_))) == enough
                && pair.a.count(|event| matches!(event, Event::Sent(_))) == enough
        });
        assert!(tokens.into_iter().all(|token| pair.b.take(token).slice() == source));
    }
}

/// Clause 7: credit comes back, so that a peer which keeps up can be sent to for ever.
pub fn credit_comes_back(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let bytes = carrier.eager_limit / 3;
    let source: &'static [u8] = Vec::leak(vec![9; bytes]);
    let rounds = 10 * carrier.early_budget / bytes;
    for round in 0..rounds as u64 {
        let early = round % 2 == 0;
        if early {
            pair.a.send_shared(tag(round), signature(bytes), source);
            pair.run_until("an early message", |pair| {
                pair.b.has(&Event::Early { tag: tag(round), signature: signature(bytes) })
            });
        }
        let token = pair.b.recv(tag(round), Memory::new(bytes, 0));
        if !early {
            pair.a.send_shared(tag(round), signature(bytes), source);
        }
        pair.run_until("its receive", |pair| pair.b.has(&Event::Received(token)));
        pair.b.take(token);
        pair.a.events.clear();
        pair.b.events.clear();
    }
}

/// Clause 7: receives that wait for messages are bounded at the peer too, and none of them is forgotten.
pub fn many_receives_may_wait(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let bytes = carrier.eager_limit + 1;
    let source: &'static [u8] = Vec::leak(vec![5; bytes]);
    let count = carrier.ready_limit + 20;
    let mut tokens = Vec::new();
    for i in 0..count as u64 {
        // Two a tag, so that held-back receives have others of their tag behind them.
        tokens.push(pair.b.recv_as(tag(i / 2), signature(bytes), Memory::new(bytes, 0), Receive::Store));
    }
    pair.settle();
    let mut random = Random(9);
    let mut order: Vec<u64> = (0..count as u64).collect();
    random.shuffle(&mut order);
    for i in order {
        pair.a.send_shared(tag(i / 2), signature(bytes), source);
        if random.below(4) == 0 {
            pair.a.progress();
            pair.b.progress();
        }
    }
    pair.run_randomly("all receives", &mut random, |pair| {
        pair.b.count(|event| matches!(event, Event::Received(_))) == count
    });
    assert!(tokens.into_iter().all(|token| pair.b.take(token).slice() == source));
}
