//! Clause 4: what belongs to another call.

use super::Carrier;
use super::world::{Memory, Pair, Side, signature, tag};
use crate::transport::{Event, Receive};
use crate::types::{Collective, ReduceOp, Signature};

/// What one side posts under the tag in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    Send,
    Recv,
}

fn post(side: &mut Side, what: Post, bytes: usize, call: Signature) {
    match what {
        Post::Send => side.send_as(tag(1), call, Memory::filled(bytes, 0, 1)),
        Post::Recv => side.recv_as(tag(1), call, Memory::new(bytes, 0), Receive::Store),
    };
}

fn mismatch(theirs: Signature) -> Event {
    Event::Mismatch { tag: tag(1), theirs }
}

/// Every pair of posts of which one is a send: both sides hear of the other's call, once, and the link stays usable.
pub fn another_call_is_told_on_both_sides(carrier: &Carrier) {
    let (short, long) = (8, carrier.eager_limit + 8);
    let (ours, theirs) = (signature(1), Signature { op: Some(ReduceOp::Max), ..signature(2) });
    for (a_posts, b_posts) in [(Post::Send, Post::Recv), (Post::Send, Post::Send)] {
        for (a_bytes, b_bytes) in [(short, short), (short, long), (long, short), (long, long)] {
            for first in [0, 1, 2] {
                let mut pair = (carrier.pair)();
                if first != 1 {
                    post(&mut pair.a, a_posts, a_bytes, ours);
                }
                if first == 0 {
                    pair.settle();
                }
                post(&mut pair.b, b_posts, b_bytes, theirs);
                if first == 1 {
                    pair.settle();
                    post(&mut pair.a, a_posts, a_bytes, ours);
                }
                let what = format!("a posts {a_posts:?} of {a_bytes}, b {b_posts:?} of {b_bytes}, first {first}");
                pair.run_until(&what, |pair| pair.a.has(&mismatch(theirs)) && pair.b.has(&mismatch(ours)));
                pair.settle();
                for side in [&pair.a, &pair.b] {
                    assert_eq!(side.count(|event| matches!(event, Event::Mismatch { .. })), 1, "{what}");
                    assert_eq!(side.count(|event| matches!(event, Event::Received(_))), 0, "{what}");
                    assert!(side.failure().is_none(), "{what}: {:?}", side.events);
                }
                goes_on(&mut pair);
            }
        }
    }
}

/// Gives the tag up on both sides and uses another.
fn goes_on(pair: &mut Pair) {
    pair.a.endpoint.cancel(tag(1));
    pair.b.endpoint.cancel(tag(1));
    for (number, bytes) in [(2, 8), (3, 200_000)] {
        let (source, target) = (Memory::filled(bytes, 0, 3), Memory::new(bytes, 0));
        let got = pair.transfer(tag(number), source, target, Receive::Store, number == 2);
        assert!(got.slice() == Memory::filled(bytes, 0, 3).slice());
    }
}

/// A tag's second message may belong to another call than its first; the first has arrived by then.
pub fn a_later_message_may_differ(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let (first, second) = (signature(8), signature(16));
    let token = pair.b.recv_as(tag(1), first, Memory::new(8, 0), Receive::Store);
    pair.b.recv_as(tag(1), first, Memory::new(8, 0), Receive::Store);
    pair.a.send_as(tag(1), first, Memory::filled(8, 0, 1));
    pair.a.send_as(tag(1), second, Memory::filled(8, 0, 1));
    pair.run_until("the mismatch", |pair| pair.b.has(&mismatch(second)));
    assert!(pair.b.has(&Event::Received(token)));
    goes_on(&mut pair);
}

/// Messages from one rank to another under one tag are calls of their own: only those that meet must agree.
pub fn point_to_point_messages_agree_in_pairs(carrier: &Carrier) {
    let call = |bytes: usize| Signature { collective: Collective::SendRecv, op: None, digest: 0, ..signature(bytes) };
    let mut pair = (carrier.pair)();
    let lengths = [8, 16, carrier.eager_limit * 2, 24, carrier.eager_limit + 1];
    // Both directions at once, with different lengths, under the same tag.
    let mut tokens = Vec::new();
    for &bytes in &lengths {
        pair.a.send_as(tag(1), call(bytes), Memory::filled(bytes, 0, 1));
        pair.b.send_as(tag(1), call(bytes + 1), Memory::filled(bytes + 1, 0, 2));
    }
    for &bytes in &lengths {
        let to_a = pair.a.recv_as(tag(1), call(bytes + 1), Memory::new(bytes + 1, 0), Receive::Store);
        let to_b = pair.b.recv_as(tag(1), call(bytes), Memory::new(bytes, 0), Receive::Store);
        tokens.push((to_a, to_b));
    }
    pair.run_until("messages both ways", |pair| {
        tokens.iter().all(|&(a, b)| pair.a.has(&Event::Received(a)) && pair.b.has(&Event::Received(b)))
    });
    // And one that does not agree.
    pair.b.recv_as(tag(1), call(7), Memory::new(7, 0), Receive::Store);
    pair.a.send_as(tag(1), call(9), Memory::filled(9, 0, 1));
    pair.run_until("the mismatch", |pair| pair.b.has(&mismatch(call(9))) && pair.a.has(&mismatch(call(7))));
    goes_on(&mut pair);
}
