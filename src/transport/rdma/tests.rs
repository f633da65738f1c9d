//! Lanes over a stand-in for the adapter: the contract, and what only RDMA can get wrong.

mod stand_in;

use std::sync::atomic::{AtomicU64, Ordering};

use self::stand_in::{StandIn, lanes};
use super::adapter::Adapter;
use super::lane::{LAST, RdmaLane};
use crate::transport::conformance::{Carrier, Memory, Pair, Side};
use crate::transport::lane::{Lane, LaneError};
use crate::transport::stream::{StreamConfig, StreamEndpoint};
use crate::types::{Generation, TransportKind};

mod suite {
    use super::*;

    fn carrier() -> Carrier {
        let stream = StreamConfig::for_kind(TransportKind::Rdma);
        Carrier::over_streams(stream, move || {
            static SEED: AtomicU64 = AtomicU64::new(1);
            let [a, b] = lanes(SEED.fetch_add(1, Ordering::Relaxed)).map(|(lane, sleeper)| {
                let endpoint = StreamEndpoint::new(vec![Box::new(lane)], Generation(1), stream);
                Side::new(Box::new(endpoint), move |limit| sleeper.sleep(limit))
            });
            Pair { a, b }
        })
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
