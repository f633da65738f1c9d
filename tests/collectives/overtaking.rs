//! Operations in flight together do not wait for each other. What ended before what is shown by who was let go when, or
//! seen in the handles, never by a time.

use std::sync::Barrier;

use phalanx::types::ReduceOp;

use crate::support::{TRANSPORTS, on_world};

/// The last rank begins a long call only when the others have ended all that they began after it.
#[test]
fn what_a_late_rank_keeps_open_keeps_nothing_else() {
    const COUNT: usize = 300_000;
    for kind in TRANSPORTS {
        // Where the first call of a communicator finds out how its ranks reach each other, and where that is known.
        for is_known in [false, true] {
            let ended = Barrier::new(3);
            on_world(kind, 3, |comm| {
                if is_known {
                    comm.barrier().expect("all are there");
                }
                let input = vec![comm.rank() as u32 + 1; COUNT];
                if comm.rank() == 2 {
                    ended.wait();
                    let sum = comm.start_allreduce(input, ReduceOp::Sum).expect("started").wait().expect("a sum");
                    assert!(sum.iter().all(|found| *found == 6), "{kind}");
                    return;
                }
                let peer = 1 - comm.rank();
                let group = comm.subgroup(&[0, 1]).expect("a list").expect("a member");
                let open = comm.start_allreduce(input, ReduceOp::Sum).expect("started");
                let long = group.start_allreduce(vec![7_u64; COUNT], ReduceOp::Sum).expect("started");
                let mut short = [5_u8];
                group.allreduce(&mut short, ReduceOp::Sum).expect("a sum");
                assert_eq!(short, [10]);
                let received = comm.start_recv(vec![0_i16; COUNT], peer, 3).expect("started");
                comm.send(&vec![9_i16; COUNT], peer, 3).expect("sent");
                assert!(received.wait().expect("received").iter().all(|found| *found == 9));
                assert!(long.wait().expect("a sum").iter().all(|found| *found == 14));
                assert!(!open.is_done(), "{kind}: the last rank has not begun it");
                ended.wait();
                assert!(open.wait().expect("a sum").iter().all(|found| *found == 6), "{kind}");
            });
        }
    }
}

/// A short call that is begun after a long one of the same communicator ends before it on both ranks. That may fail to be
/// seen where a rank is not given a processor in time, and is then tried again.
#[test]
fn short_calls_overtake_long_ones() {
    const COUNT: usize = 4 << 20;
    const TRIES: usize = 50;
    for kind in TRANSPORTS {
        on_world(kind, 2, |comm| {
            let mut buffer = vec![0_f32; COUNT];
            let seen = (0..TRIES).any(|_| {
                buffer.fill(1.0);
                let long = comm.start_allreduce(std::mem::take(&mut buffer), ReduceOp::Sum).expect("started");
                let mut short = [3_i32];
                comm.allreduce(&mut short, ReduceOp::Sum).expect("a sum");
                let mut overtook = [u8::from(!long.is_done())];
                assert_eq!(short, [6]);
                buffer = long.wait().expect("a sum");
                assert!(buffer.iter().all(|found| *found == 2.0), "{kind}");
                // All try as often.
                comm.allreduce(&mut overtook, ReduceOp::Min).expect("a minimum");
                overtook == [1]
            });
            assert!(seen, "{kind}: the short call ended after the long one, {TRIES} times");
        });
    }
}
