//! The memory through which the host carries device calls.

use std::sync::Barrier;

use phalanx::{ReduceOp, TransportKind};

use crate::harness::{StandIn, buffer, on_world, run, soon, start, text};

/// Slots of a rank.
const SLOTS: i64 = 4;

#[test]
fn slots_are_memory_that_the_other_ranks_read_where_it_is() {
    run("staged-shared");
}

#[test]
fn a_slot_that_cannot_be_pinned_where_others_read_it_is_memory_of_its_own() {
    let Some(output) = start("staged-refused", &[("PHALANX_TEST_FAIL", "cuMemHostRegister_v2:3:801")]) else { return };
    assert!(output.status.success(), "{}", text(&output));
}

pub fn inside(scenario: &str) {
    let refused = i64::from(scenario == "staged-refused");
    let stand_in = StandIn::open();
    let barrier = Barrier::new(2);
    on_world(TransportKind::Shm, 2, |comm, stream| {
        let mut data = buffer(&stream, &vec![comm.rank() as f32; 3_000_000]);
        // What makes the contents is pinned, too.
        barrier.wait();
        let before = stand_in.calls("cuMemHostAlloc");
        barrier.wait();
        // The second call finds the slots of the first.
        for _ in 0..2 {
            comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
        }
        barrier.wait();
        assert_eq!(stand_in.calls("cuMemHostRegister_v2"), 2 * SLOTS);
        assert_eq!(stand_in.calls("cuMemHostAlloc") - before, refused);
        barrier.wait();
        assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), vec![2.0; 3_000_000]);
    });
    assert_eq!(stand_in.live(), 0, "something of the device was left over");
}
