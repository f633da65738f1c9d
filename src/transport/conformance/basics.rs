//! Clauses 1 to 6: order, memory, lengths, and reduction on receive.

use super::Carrier;
use super::world::{Memory, Pair, Random, reducing, signature, tag};
use crate::transport::{Event, Receive, Token};
use crate::types::{DataType, Finish, Order, ReduceOp, Reduction};

/// The sizes at which something changes.
pub fn sizes(carrier: &Carrier) -> Vec<usize> {
    let eager = carrier.eager_limit;
    vec![0, 1, 7, 8, 64, 4095, 4096, 4097, eager - 1, eager, eager + 1, carrier.long((1 << 20) + 3)]
}

/// Clauses 3, 4 and 5: every length arrives, whichever side posts first.
pub fn every_size_arrives(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let mut number = 0;
    for bytes in sizes(carrier) {
        for recv_first in [false, true] {
            for misalignment in [0, 1, 13] {
                number += 1;
                let source = Memory::filled(bytes, misalignment, number);
                let target = Memory::new(bytes, misalignment * 3);
                let target = pair.transfer(tag(number), source, target, Receive::Store, recv_first);
                let expected = Memory::filled(bytes, 0, number);
                assert!(target.slice() == expected.slice(), "{bytes} bytes, receive first: {recv_first}");
            }
        }
    }
}

/// Posts `lengths.len()` messages in both directions under one tag, each side in its own mood, and checks that the
/// k-th receive got the k-th message.
fn exchange(pair: &mut Pair, sequence: u64, lengths: &[usize], random: &mut Random) {
    let mut sends: [Vec<Token>; 2] = Default::default();
    let mut recvs: [Vec<Token>; 2] = Default::default();
    while sends.iter().chain(&recvs).any(|posted| posted.len() < lengths.len()) {
        let (from, which) = (random.below(2), random.below(2));
        for _ in 0..random.below(4) {
            let posted = if which == 0 { &mut sends[from] } else { &mut recvs[from] };
            let Some(&bytes) = lengths.get(posted.len()) else { break };
            let number = posted.len() as u64;
            let side = if from == 0 { &mut pair.a } else { &mut pair.b };
            let token = if which == 0 {
                let seed = sequence << 32 | number << 1 | from as u64;
                side.send(tag(sequence), Memory::filled(bytes, random.below(9), seed))
            } else {
                side.recv(tag(sequence), Memory::new(bytes, random.below(9)))
            };
            posted.push(token);
        }
        for _ in 0..random.below(3) {
            if random.below(2) == 0 {
                pair.a.progress()
            } else {
                pair.b.progress()
            };
        }
    }
    pair.run_randomly("an exchange", random, |pair| {
        let done = |side: &super::Side, token: &Token, sent: bool| {
            side.has(&if sent { Event::Sent(*token) } else { Event::Received(*token) })
        };
        sends[0].iter().all(|token| done(&pair.a, token, true))
            && sends[1].iter().all(|token| done(&pair.b, token, true))
            && recvs[0].iter().all(|token| done(&pair.a, token, false))
            && recvs[1].iter().all(|token| done(&pair.b, token, false))
    });
    for (at, side) in [&mut pair.a, &mut pair.b].into_iter().enumerate() {
        for (number, (&token, &bytes)) in (0..).zip(recvs[at].iter().zip(lengths)) {
            let got = side.take(token);
            let expected = Memory::filled(bytes, 0, sequence << 32 | number << 1 | (1 - at) as u64);
            assert!(got.slice() == expected.slice(), "message {number} of {bytes} bytes, to side {at}");
        }
        for &token in &sends[at] {
            side.take(token);
        }
        side.events.clear();
    }
}

/// Clause 1: within a tag, order holds across lengths, directions and moments of posting.
pub fn one_tag_keeps_its_order(carrier: &Carrier) {
    let sizes = sizes(carrier);
    let mut pair = (carrier.pair)();
    for seed in 0..carrier.times(40) {
        let mut random = Random(seed);
        // Messages of one tag that belong to one call all carry its signature, whatever their lengths: here each
        // length is a call of its own, so that one exchange uses one length, or tags apart.
        let bytes = sizes[random.below(sizes.len())];
        let many = if bytes > 10_000 { 12 } else { 60 };
        let lengths = vec![bytes; 1 + random.below(many)];
        exchange(&mut pair, seed, &lengths, &mut random);
    }
}

/// Clause 1: messages of different lengths within one call keep their order too.
pub fn lengths_may_vary_within_a_call(carrier: &Carrier) {
    let sizes = sizes(carrier);
    for seed in 0..carrier.times(20) {
        let mut random = Random(seed);
        let mut pair = (carrier.pair)();
        let call = signature(999);
        let lengths: Vec<usize> = (0..24).map(|_| sizes[random.below(sizes.len())]).collect();
        let (mut sent, mut posted) = (0, Vec::new());
        while sent < lengths.len() || posted.len() < lengths.len() {
            if random.below(2) == 0 && sent < lengths.len() {
                let source = Memory::filled(lengths[sent], random.below(5), sent as u64);
                pair.a.send_as(tag(seed), call, source);
                sent += 1;
            } else if posted.len() < lengths.len() {
                let target = Memory::new(lengths[posted.len()], random.below(5));
                posted.push(pair.b.recv_as(tag(seed), call, target, Receive::Store));
            }
            if random.below(2) == 0 {
                pair.a.progress();
                pair.b.progress();
            }
        }
        pair.run_randomly("a mixed call", &mut random, |pair| {
            posted.iter().all(|&token| pair.b.has(&Event::Received(token)))
        });
        for (number, (&token, &bytes)) in (0..).zip(posted.iter().zip(&lengths)) {
            let got = pair.b.take(token);
            assert!(got.slice() == Memory::filled(bytes, 0, number).slice(), "seed {seed}, message {number}");
        }
    }
}

/// Clause 1: no tag waits for another's receive, in whatever order they come.
pub fn tags_are_independent(carrier: &Carrier) {
    let sizes = sizes(carrier);
    for seed in 0..carrier.times(6) {
        let mut random = Random(seed);
        let mut pair = (carrier.pair)();
        let lengths: Vec<usize> = (0..150).map(|_| sizes[random.below(sizes.len() - 1)]).collect();
        // One message whose receive is posted only after all others are through.
        let (late, late_bytes) = (tag(1 << 50), sizes[random.below(sizes.len())]);
        pair.a.send(late, Memory::filled(late_bytes, 0, 5));
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        random.shuffle(&mut order);
        for &i in &order {
            pair.a.send(tag(i as u64), Memory::filled(lengths[i], i % 7, i as u64));
            if random.below(3) == 0 {
                pair.a.progress();
            }
        }
        random.shuffle(&mut order);
        let mut posted = Vec::new();
        for &i in &order {
            posted.push((i, pair.b.recv(tag(i as u64), Memory::new(lengths[i], i % 5))));
            if random.below(3) == 0 {
                pair.b.progress();
            }
        }
        pair.run_randomly("many tags", &mut random, |pair| {
            posted.iter().all(|(_, token)| pair.b.has(&Event::Received(*token)))
        });
        for (i, token) in posted {
            let got = pair.b.take(token);
            assert!(got.slice() == Memory::filled(lengths[i], 0, i as u64).slice(), "seed {seed}, tag {i}");
        }
        let token = pair.b.recv(late, Memory::new(late_bytes, 1));
        pair.run_until("the late receive", |pair| pair.b.has(&Event::Received(token)));
        assert!(pair.b.take(token).slice() == Memory::filled(late_bytes, 0, 5).slice());
    }
}

/// Clause 4: another length under the same signature breaks the link, whatever the lengths and whoever is first.
pub fn another_length_is_a_violation(carrier: &Carrier) {
    let (short, long) = (carrier.eager_limit - 1, carrier.eager_limit * 2);
    for (sent, wanted) in [(8, 16), (0, 1), (1, 0), (short, long), (long, short), (long, long + 1)] {
        for recv_first in [false, true] {
            let mut pair = (carrier.pair)();
            let call = signature(5);
            if recv_first {
                pair.b.recv_as(tag(1), call, Memory::new(wanted, 0), Receive::Store);
                pair.settle();
            }
            pair.a.send_as(tag(1), call, Memory::filled(sent, 0, 1));
            pair.settle();
            if !recv_first {
                pair.b.recv_as(tag(1), call, Memory::new(wanted, 0), Receive::Store);
            }
            pair.run_until("a violation", |pair| pair.a.failure().or(pair.b.failure()).is_some());
            let text = pair.a.failure().or(pair.b.failure()).unwrap_or_default();
            for number in [sent, wanted] {
                assert!(text.contains(&number.to_string()), "{number} is not in {text:?}");
            }
            assert_eq!(pair.b.count(|event| matches!(event, Event::Received(_))), 0);
        }
    }
}

/// Clause 6: every element is combined exactly once, for every type, wherever the pieces are cut.
pub fn every_element_is_combined_once(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let mut number = 0;
    for dtype in DataType::ALL {
        let size = dtype.size();
        for count in
            [0, 1, 3, 511, carrier.eager_limit / size, carrier.eager_limit / size + 1, carrier.long(300_001) / size]
        {
            for (recv_first, order) in [(true, Order::HereFirst), (false, Order::IncomingFirst)] {
                number += 1;
                let bytes = count * size;
                let op = if dtype.is_float() { ReduceOp::Max } else { ReduceOp::Sum };
                let misalignment = (number % 5) as usize;
                let source = Memory::filled(bytes, misalignment, number);
                let target = Memory::filled(bytes, misalignment + 1, !number);
                let mut expected = Memory::filled(bytes, 0, !number);
                let mut incoming = Memory::filled(bytes, 0, number);
                if count > 0 {
                    // SAFETY: both have `count` elements and are apart.
                    unsafe {
                        let (target, incoming) = (expected.pointer(), incoming.pointer());
                        crate::reduce::combine(
                            &Reduction::new(op),
                            dtype,
                            target,
                            incoming,
                            count,
                            order,
                            Finish::NONE,
                        );
                    }
                }
                let mode = reducing(dtype, op, order, Finish::NONE);
                let got = pair.transfer(tag(number), source, target, mode, recv_first);
                assert!(got.slice() == expected.slice(), "{count} elements of {dtype}, receive first: {recv_first}");
            }
        }
    }
}

/// Clause 6: the operands keep their sides and the finish is applied once, which a function that is neither
/// commutative nor idempotent shows.
pub fn a_users_function_sees_its_operands_in_order(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let function = |accumulator: &mut [u8], incoming: &[u8], _: DataType| {
        for (a, b) in accumulator.chunks_exact_mut(4).zip(incoming.chunks_exact(4)) {
            let word = |bytes: &[u8]| u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            let result = word(a).wrapping_mul(3).wrapping_add(word(b)).wrapping_add(1);
            a.copy_from_slice(&result.to_le_bytes());
        }
    };
    for (number, order) in [(1, Order::HereFirst), (2, Order::IncomingFirst)] {
        for (step, count) in [(0, 5), (1, carrier.eager_limit)] {
            let how = crate::transport::Accumulate {
                dtype: DataType::U32,
                reduction: std::sync::Arc::new(Reduction::user("three and one", function)),
                order,
                finish: Finish::NONE,
            };
            let (source, target) = (Memory::filled(count * 4, 1, 10), Memory::filled(count * 4, 2, 20));
            let got = pair.transfer(tag(number << 8 | step), source, target, Receive::Reduce(how), true);
            let (here, incoming) = (Memory::filled(count * 4, 0, 20), Memory::filled(count * 4, 0, 10));
            let mut expected = match order {
                Order::HereFirst => here.slice().to_vec(),
                Order::IncomingFirst => incoming.slice().to_vec(),
            };
            let right = if order == Order::HereFirst { incoming.slice() } else { here.slice() };
            function(&mut expected, right, DataType::U32);
            assert!(got.slice() == expected, "{order:?}, {count} elements");
        }
    }
}
