//! Clause 9: giving up.

use super::Carrier;
use super::basics::sizes;
use super::world::{Memory, Pair, Random, Side, signature, tag};
use crate::transport::{Event, Receive, Token};

/// Memory that was given back by a cancel, and what its owner wrote into it since.
struct Reclaimed {
    memory: Memory,
    written: u64,
}

impl Reclaimed {
    fn new(mut memory: Memory, written: u64) -> Self {
        let scribble = Memory::filled(memory.slice().len(), 0, written);
        memory.slice_mut().copy_from_slice(scribble.slice());
        Self { memory, written }
    }

    fn check(&self) {
        self.memory.check_guards();
        let expected = Memory::filled(self.memory.slice().len(), 0, self.written);
        assert!(self.memory.slice() == expected.slice(), "memory was written after its tag was cancelled");
    }
}

/// Cancels a tag on one side, takes back the memory of everything not completed, and writes over it. Returns it, and
/// the tokens that must not be heard of again.
fn give_up(side: &mut Side, sequence: u64, tokens: &[Token], scribble: u64) -> (Vec<Reclaimed>, Vec<Token>) {
    side.endpoint.cancel(tag(sequence));
    let open = |token: &&Token| !side.has(&Event::Sent(**token)) && !side.has(&Event::Received(**token));
    let open: Vec<Token> = tokens.iter().filter(open).copied().collect();
    let reclaimed = open.iter().map(|&token| Reclaimed::new(side.take(token), scribble)).collect();
    (reclaimed, open)
}

fn told(side: &Side, tokens: &[Token]) -> bool {
    tokens.iter().any(|&token| side.has(&Event::Sent(token)) || side.has(&Event::Received(token)))
}

/// One tag is given up at a random moment, on one side or both, while another goes on.
fn cancel_somewhere(carrier: &Carrier, pair: &mut Pair, seed: u64) {
    const VICTIM: u64 = 0;
    let sizes = sizes(carrier);
    let mut random = Random(seed);
    let base = seed * 10;
    let bytes = sizes[random.below(sizes.len())];
    let other_bytes = sizes[random.below(sizes.len())];
    let number = 1 + random.below(3) as u64;
    let (mut a_tokens, mut b_tokens) = (Vec::new(), Vec::new());
    let mut other = Vec::new();
    for i in 0..number {
        let post = random.below(8);
        if post != 0 {
            a_tokens.push(pair.a.send(tag(base + VICTIM), Memory::filled(bytes, 1, seed + i)));
        }
        if post != 1 {
            b_tokens.push(pair.b.recv(tag(base + VICTIM), Memory::new(bytes, 3)));
        }
        pair.a.send(tag(base + 1), Memory::filled(other_bytes, 2, !seed + i));
        other.push(pair.b.recv(tag(base + 1), Memory::new(other_bytes, 0)));
        for _ in 0..random.below(6) {
            if random.below(2) == 0 {
                pair.a.progress()
            } else {
                pair.b.progress()
            };
        }
    }
    for _ in 0..random.below(20) {
        if random.below(2) == 0 {
            pair.a.progress()
        } else {
            pair.b.progress()
        };
    }
    let who = random.below(3);
    let (mut a_open, mut b_open) = (Vec::new(), Vec::new());
    let mut reclaimed = Vec::new();
    if who != 1 {
        let (memory, open) = give_up(&mut pair.a, base + VICTIM, &a_tokens, seed ^ 1);
        reclaimed.extend(memory);
        a_open = open;
    }
    for _ in 0..random.below(6) {
        if random.below(2) == 0 {
            pair.a.progress()
        } else {
            pair.b.progress()
        };
    }
    if who != 0 {
        let (memory, open) = give_up(&mut pair.b, base + VICTIM, &b_tokens, seed ^ 2);
        reclaimed.extend(memory);
        b_open = open;
        // Once more changes nothing, and what is posted under a dead tag is not heard of.
        pair.b.endpoint.cancel(tag(base + VICTIM));
        b_open.push(pair.b.recv(tag(base + VICTIM), Memory::new(bytes, 0)));
    }
    // What is posted next may get the place of what was given up, and must not get its bytes.
    let next = pair.b.recv(tag(base + 2), Memory::new(bytes, 2));
    let next_sent = pair.a.send(tag(base + 2), Memory::filled(bytes, 0, seed << 20));
    pair.run_randomly("the other tags", &mut random, |pair| {
        other.iter().chain([&next]).all(|&token| pair.b.has(&Event::Received(token)))
            && pair.a.has(&Event::Sent(next_sent))
    });
    assert!(pair.b.take(next).slice() == Memory::filled(bytes, 0, seed << 20).slice(), "seed {seed}: the next tag");
    pair.settle();
    assert!(pair.a.failure().is_none() && pair.b.failure().is_none(), "seed {seed}: {:?}", pair.a.events);
    assert!(!told(&pair.a, &a_open) && !told(&pair.b, &b_open), "seed {seed}: an event after the cancel");
    reclaimed.iter().for_each(Reclaimed::check);
    for (i, token) in (0..).zip(other) {
        let expected = Memory::filled(other_bytes, 0, (!seed).wrapping_add(i));
        assert!(pair.b.take(token).slice() == expected.slice(), "seed {seed}: the other tag got something else");
    }
    // What did arrive is what was sent, although the sender's memory has been written over since.
    for (i, &token) in (0..).zip(&b_tokens) {
        if pair.b.has(&Event::Received(token)) && a_tokens.len() as u64 == number {
            let expected = Memory::filled(bytes, 0, seed + i);
            assert!(pair.b.take(token).slice() == expected.slice(), "seed {seed}: message {i}");
        }
    }
    // In the end everybody gives up, and nothing is left of it.
    pair.a.endpoint.cancel(tag(base + VICTIM));
    pair.b.endpoint.cancel(tag(base + VICTIM));
    for side in [&mut pair.a, &mut pair.b] {
        side.memory.clear();
        side.events.clear();
    }
}

/// Many tags, given up at many moments. When it returns, nothing is under way.
pub fn cancel_storm(carrier: &Carrier, pair: &mut Pair) {
    for seed in 1..carrier.times(300) {
        cancel_somewhere(carrier, pair, seed);
    }
    pair.settle();
}

/// Clause 9, at many moments: no memory is touched after, no event comes after, the others go on.
pub fn cancel_at_any_moment(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    cancel_storm(carrier, &mut pair);
    // After all that, nothing has leaked: as many early messages fit as at first.
    let bytes = carrier.eager_limit / 2;
    let source: &'static [u8] = Vec::leak(vec![1; bytes]);
    let fitting = carrier.early_budget / (bytes + 256) * 3 / 4;
    let tokens: Vec<Token> =
        (0..fitting as u64).map(|i| pair.a.send_shared(tag(1 << 40 | i), signature(bytes), source)).collect();
    pair.run_until("as many early messages as at first", |pair| {
        tokens.iter().all(|&token| pair.a.has(&Event::Sent(token)))
    });
}

/// Clause 9: what comes for a given-up tag is dropped, and does not count as early, however much it is.
pub fn late_messages_of_a_cancelled_tag_are_dropped(carrier: &Carrier) {
    for bytes in sizes(carrier) {
        let mut pair = (carrier.pair)();
        pair.b.endpoint.cancel(tag(1));
        let source: &'static [u8] = Vec::leak(vec![1; bytes]);
        // Announcements count until their sender gives them up too, so that there must not be too many of those.
        let many = if bytes <= carrier.eager_limit { 3 * carrier.early_budget / (bytes + 256) } else { 5 };
        let mut tokens = Vec::new();
        for _ in 0..many {
            tokens.push(pair.a.send_shared(tag(1), signature(bytes), source));
            pair.a.progress();
            pair.b.progress();
        }
        pair.settle();
        assert_eq!(pair.b.events, [], "{bytes} bytes");
        assert!(pair.a.failure().is_none());
        if bytes > carrier.eager_limit {
            assert_eq!(pair.a.events, [], "a long message without a receive was sent");
        }
        let token = pair.b.recv(tag(2), Memory::new(64, 0));
        pair.a.send(tag(2), Memory::filled(64, 0, 4));
        pair.run_until("another tag", |pair| pair.b.has(&Event::Received(token)));
    }
}

/// Clause 9: events of what was complete before its tag was given up, but not told yet, are not told any more.
pub fn cancel_takes_back_untold_events(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    pair.a.send(tag(1), Memory::filled(100, 0, 1));
    pair.run_until("an early message", |pair| !pair.b.events.is_empty());
    let token = pair.b.recv_as(tag(1), signature(100), Memory::new(100, 0), Receive::Store);
    pair.b.endpoint.cancel(tag(1));
    pair.settle();
    assert!(!pair.b.has(&Event::Received(token)));
}
