//! Lanes over a stand-in for the adapter: the contract, and what only RDMA can get wrong.

mod stand_in;

use std::sync::atomic::{AtomicU64, Ordering};

use self::stand_in::{StandIn, Way, lanes};
use super::adapter::Adapter;
use super::lane::{LAST, LEAST_IN_PLACE, LINGER, RdmaLane};
use crate::transport::Event;
use crate::transport::conformance::{Carrier, Memory, Pair, Side, tag};
use crate::transport::lane::{Lane, LaneError};
use crate::transport::stream::{StreamConfig, StreamEndpoint};
use crate::types::{Generation, TransportKind};

/// Two endpoints; and, if wanted, the memory of all messages where the adapter can read it.
fn pair(stream: StreamConfig, in_place: bool) -> (Pair, [Way; 2]) {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let mut ways = Vec::new();
    let [a, b] = lanes(SEED.fetch_add(1, Ordering::Relaxed)).map(|(lane, sleeper)| {
        ways.push(lane.adapter().way());
        let heap = sleeper.board().unwrap().heap().unwrap().clone();
        let endpoint = StreamEndpoint::new(vec![Box::new(lane)], Generation(1), stream);
        let side = Side::new(Box::new(endpoint), move |limit| sleeper.sleep(limit));
        if in_place { side.with_heap(heap) } else { side }
    });
    let ways = ways.try_into().unwrap_or_else(|_| panic!("two ways"));
    (Pair { a, b }, ways)
}

mod suite {
    use super::*;

    fn carrier() -> Carrier {
        let stream = StreamConfig::for_kind(TransportKind::Rdma);
        Carrier::over_streams(stream, move || pair(stream, false).0)
    }

    crate::transport::conformance::suite!(carrier());
}

/// With payloads that the adapter reads where they are. Short ones, too, are long enough for that.
mod in_place {
    use super::*;

    fn carrier() -> Carrier {
        let stream = StreamConfig::for_kind(TransportKind::Rdma);
        Carrier::over_streams(stream, move || pair(stream, true).0)
    }

    crate::transport::conformance::suite!(carrier());
}

/// Reads until the end; what came, and how it ended.
fn everything(lane: &mut RdmaLane<StandIn>) -> (Vec<u8>, LaneError) {
    let mut bytes = Vec::new();
    loop {
        match lane.fill(1) {
            Ok(window) => {
                let count = window.len();
                bytes.extend_from_slice(window);
                lane.consume(count);
            }
            Err(error) => return (bytes, error),
        }
    }
}

/// A lane with these bytes in its ring, of which nothing was noticed yet, and the one that wrote them.
fn with_unseen(bytes: &[u8]) -> [RdmaLane<StandIn>; 2] {
    let [(mut ours, _), (theirs, _)] = lanes(7);
    assert_eq!(ours.write(&[], bytes), Ok(bytes.len()));
    ours.adapter().move_all();
    [ours, theirs]
}

#[test]
fn what_came_is_read_before_a_failure_that_shows_first() {
    let bytes = Memory::filled(100_000, 0, 5);
    for asleep in [false, true] {
        let [ours, mut theirs] = with_unseen(bytes.slice());
        theirs.adapter().fail();
        // Either of these looks at what was sent first.
        if asleep {
            assert!(!theirs.prepare_sleep(true));
        } else {
            let _ = theirs.look_at_sent();
        }
        assert!(theirs.has_ended(), "the failure was not noticed");
        assert_eq!(theirs.write(&[], &[1]), Ok(0));
        let (came, end) = everything(&mut theirs);
        assert!(came == bytes.slice(), "{} bytes came before the end", came.len());
        let LaneError::Broken(how) = end else { panic!("the failure was not told") };
        assert!(how.contains("IBV_WC_REM_ACCESS_ERR"), "{how}");
        assert!(theirs.prepare_sleep(true), "told once");
        drop(ours);
    }
}

#[test]
fn what_came_is_read_before_the_trouble_of_a_device() {
    let bytes = Memory::filled(50_000, 0, 6);
    let [_ours, mut theirs] = with_unseen(bytes.slice());
    *theirs.adapter().trouble_of().lock().unwrap() = Some("the port is down".into());
    assert!(!theirs.prepare_sleep(false));
    let (came, end) = everything(&mut theirs);
    assert!(came == bytes.slice(), "{} bytes came before the end", came.len());
    assert_eq!(end, LaneError::Broken("the port is down".into()));
}

/// Who said that it writes no more has not failed, whatever the adapter says of what is written to it then.
#[test]
fn a_peer_that_had_said_everything_has_closed() {
    let bytes = Memory::filled(70_000, 0, 8);
    let [ours, mut theirs] = with_unseen(bytes.slice());
    ours.adapter().post_word(LAST, None).unwrap();
    ours.adapter().move_all();
    theirs.adapter().fail();
    assert!(!theirs.prepare_sleep(true));
    let (came, end) = everything(&mut theirs);
    assert!(came == bytes.slice(), "{} bytes came before the end", came.len());
    assert_eq!(end, LaneError::Closed);
}

/// After something that no sound peer does, nothing that it says is heard.
#[test]
fn a_violation_ends_at_once() {
    let [(ours, _), (mut theirs, _)] = lanes(9);
    // Credit for a message that was never sent; then bytes.
    ours.adapter().post_word(1 << 16, None).unwrap();
    ours.adapter().move_all();
    let failed = |lane: &mut RdmaLane<StandIn>| loop {
        if let Err(error) = lane.fill(1).map(|window| assert!(window.is_empty())) {
            return error;
        }
    };
    let LaneError::Broken(how) = failed(&mut theirs) else { panic!("taken for an end") };
    assert!(how.contains("protocol violation") && how.contains("1 messages"), "{how}");
    ours.adapter().post_write(0, 100, 0, None).unwrap();
    ours.adapter().move_all();
    failed(&mut theirs);
}

/// Writes a header and a payload on loan while the other end reads. What came.
fn carry(ours: &mut RdmaLane<StandIn>, theirs: &mut RdmaLane<StandIn>, head: &[u8], body: &[u8]) -> Vec<u8> {
    let (mut written, mut loan, mut came) = (0, 0, Vec::new());
    while came.len() < head.len() + body.len() {
        let head_left = &head[written.min(head.len())..];
        let body_left = &body[written.saturating_sub(head.len())..];
        // SAFETY: the caller's memory stays as it is until the lane has returned it, which is waited for below.
        let (count, number) = unsafe { ours.write_lent(head_left, body_left) }.unwrap();
        written += count;
        loan = number.unwrap_or(loan);
        let window = theirs.fill(1).unwrap();
        came.extend_from_slice(window);
        let count = window.len();
        theirs.consume(count);
        let _ = ours.fill(1).unwrap();
    }
    while ours.returned() < loan {}
    came
}

#[test]
fn a_long_payload_is_copied_only_where_it_cannot_be_read() {
    const HEAD: [u8; 40] = [9; 40];
    let [(mut ours, sleeper), (mut theirs, _)] = lanes(3);
    let heap = sleeper.board().unwrap().heap().unwrap();
    let mut in_place = 0;
    for misalignment in [0, 1, 63] {
        let length = 3 * super::lane::RING_BYTES + 12_345;
        let memory = Memory::filled(length, misalignment, 4).moved_to(heap);
        let (copied_before, in_place_before) = ours.copied();
        let came = carry(&mut ours, &mut theirs, &HEAD, memory.slice());
        assert!(came[..40] == HEAD && &came[40..] == memory.slice(), "other bytes came");
        let (copied, there) = ours.copied();
        assert_eq!((copied - copied_before) + (there - in_place_before), 40 + length as u64);
        // The header, and a rest that is not worth a request of its own.
        assert!(copied - copied_before < 40 + LEAST_IN_PLACE as u64, "{copied} bytes were copied");
        assert_eq!(ours.adapter().registered(), 1);
        memory.check_guards();
        drop(memory);
        assert_eq!(ours.adapter().registered(), 0, "registered longer than it is in use");
        in_place = there;
    }
    // Memory of another kind, and what is short.
    let (memory, short) = (Memory::filled(100_000, 0, 5), Memory::filled(LEAST_IN_PLACE - 1, 0, 6).moved_to(heap));
    for memory in [memory, short] {
        assert!(carry(&mut ours, &mut theirs, &HEAD, memory.slice())[40..] == *memory.slice());
    }
    assert_eq!(ours.copied().1, in_place);
}

#[test]
fn memory_is_on_loan_until_the_adapter_has_done_with_it() {
    let (mut pair, [way, _]) = pair(StreamConfig::for_kind(TransportKind::Rdma), true);
    let bytes = 100_000;
    let received = pair.b.recv(tag(1), Memory::new(bytes, 0));
    pair.run_until("the offer", |pair| !(pair.a.progress() | pair.b.progress()));
    way.cut(true);
    let sent = pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
    for _ in 0..1000 {
        pair.a.progress();
    }
    assert!(way.under_way() > 1 && !pair.a.has(&Event::Sent(sent)), "its memory was said to be free");
    assert!(pair.a.endpoint.prepare_sleep(), "nothing can be done");
    way.cut(false);
    pair.run_until("the message", |pair| pair.a.has(&Event::Sent(sent)) && pair.b.has(&Event::Received(received)));
    assert!(pair.b.take(received).slice() == Memory::filled(bytes, 0, 1).slice());
}

/// Clause 9 where the memory is on loan: what is under way comes as it was, and nothing reads when `cancel` has returned.
#[test]
fn giving_up_waits_for_the_adapter() {
    for progress in 0..12 {
        let (mut pair, [way, _]) = pair(StreamConfig::for_kind(TransportKind::Rdma), true);
        let bytes = 1 << 20;
        pair.b.recv(tag(1), Memory::new(bytes, 0));
        let sent = pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
        for _ in 0..progress {
            pair.a.progress();
            pair.b.progress();
        }
        let was_told = pair.a.has(&Event::Sent(sent));
        pair.a.endpoint.cancel(tag(1));
        assert_eq!(way.under_way(), 0, "read after cancel");
        pair.a.take(sent).slice_mut().fill(0xee);
        // The stream goes on.
        let received = pair.b.recv(tag(2), Memory::new(bytes, 0));
        pair.a.send(tag(2), Memory::filled(bytes, 0, 2));
        pair.run_until("another tag", |pair| pair.b.has(&Event::Received(received)));
        assert!(pair.b.take(received).slice() == Memory::filled(bytes, 0, 2).slice());
        assert_eq!(pair.a.has(&Event::Sent(sent)), was_told, "told after cancel");
        pair.b.endpoint.cancel(tag(1));
    }
}

#[test]
fn giving_up_where_the_way_is_cut_takes_the_link_down() {
    let (mut pair, [way, _]) = pair(StreamConfig::for_kind(TransportKind::Rdma), true);
    let bytes = 1 << 20;
    pair.b.recv(tag(1), Memory::new(bytes, 0));
    pair.run_until("the offer", |pair| !(pair.a.progress() | pair.b.progress()));
    way.cut(true);
    let sent = pair.a.send(tag(1), Memory::filled(bytes, 0, 1));
    pair.a.progress();
    assert!(way.under_way() > 1);
    pair.a.endpoint.cancel(tag(1));
    assert_eq!(way.under_way(), 0, "read after cancel");
    drop(pair.a.take(sent));
    pair.run_until("the failure", |pair| pair.a.failure().is_some());
    assert!(pair.a.failure().unwrap().contains("did not end in time"), "{:?}", pair.a.failure());
}

/// Of many links whose ways are cut, the first is waited for; when that was in vain, the others have had their time.
#[test]
fn what_was_lent_long_ago_is_not_waited_for() {
    let [(mut ours, sleeper), _theirs] = lanes(11);
    let memory = Memory::filled(100_000, 0, 1).moved_to(sleeper.board().unwrap().heap().unwrap());
    let way = ours.adapter().way();
    way.cut(true);
    // SAFETY: the memory stays as it is until it is taken back.
    let (_, loan) = unsafe { ours.write_lent(&[], memory.slice()) }.unwrap();
    let loan = loan.expect("read where it is");
    assert!(ours.returned() < loan);
    ours.age_loans();
    let begun = std::time::Instant::now();
    ours.take_back();
    assert!(begun.elapsed() < LINGER / 2, "{:?}", begun.elapsed());
    assert!(ours.has_ended() && way.under_way() == 0 && ours.returned() >= loan);
}

/// A peer that falls, at many moments, while its memory and ours are on loan: see also the suite.
#[test]
fn nothing_is_read_after_a_failure() {
    for progress in 0..12 {
        let (mut pair, [way, _]) = pair(StreamConfig::for_kind(TransportKind::Rdma), true);
        pair.b.recv(tag(1), Memory::new(1 << 20, 0));
        pair.a.send(tag(1), Memory::filled(1 << 20, 0, 1));
        for _ in 0..progress {
            pair.a.progress();
            pair.b.progress();
        }
        pair.b.kill();
        pair.run_until("the failure", |pair| pair.a.failure().is_some());
        assert_eq!(way.under_way(), 0, "after the failure");
    }
}
