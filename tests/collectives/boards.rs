//! Calls over boards of shared memory, where they differ from others: ranks that run ahead, many communicators.

use phalanx::types::DataType;
use phalanx::{Call, ReduceOp, TransportKind};

use super::support::{TRANSPORTS, on_world};

/// A root needs nothing from the others, and may be calls ahead of them. What it has shown stays until all have read it.
#[test]
fn a_root_that_runs_ahead_overwrites_nothing() {
    for (size, length, calls) in [(2, 1, 2000), (3, 1_000, 500), (2, 4_100, 500), (4, 50_000, 60), (2, 300_000, 20)] {
        on_world(TransportKind::Shm, size, |comm| {
            let mut random = comm.rank() as u32;
            for call in 0..calls {
                let mut data = vec![if comm.rank() == 0 { call } else { u32::MAX }; length];
                // Now this rank is late, now that one.
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (0..random >> 27).for_each(|_| std::thread::yield_now());
                comm.broadcast(&mut data, 0).expect("a broadcast");
                assert!(data.iter().all(|found| *found == call), "call {call} of {length} elements, {size} ranks");
            }
        });
    }
}

/// Roots take turns, and calls of all lengths follow each other.
#[test]
fn calls_of_all_kinds_follow_each_other() {
    on_world(TransportKind::Shm, 4, |comm| {
        for round in 0..60_usize {
            let length = [1, 9, 2_000, 8_300, 40_000][round % 5];
            let root = round % 4;
            let mut data = vec![(comm.rank() + round) as u64; length];
            comm.reduce(&mut data, ReduceOp::Sum, root).expect("a reduce");
            if comm.rank() == root {
                assert!(data.iter().all(|found| *found == (6 + 4 * round) as u64), "round {round}");
            }
            let mut all = vec![0; 4 * length];
            comm.gather(&vec![comm.rank() as u64; length], if comm.rank() == root { &mut all } else { &mut [] }, root)
                .expect("a gather");
            let mut own = vec![0; length];
            comm.scatter(if comm.rank() == root { &all } else { &[] }, &mut own, root).expect("a scatter");
            assert!(own.iter().all(|found| *found == comm.rank() as u64), "round {round}");
        }
    });
}

/// Calls whose chunks are of one block of the stage, of some, and of as many as there can be, so that they begin everywhere.
#[test]
fn chunks_of_all_sizes_follow_each_other() {
    for size in [2, 3] {
        on_world(TransportKind::Shm, size, |comm| {
            for round in 0..200_usize {
                let length = [6_000, 40_000, 20_000, 9_001, 130_001][round % 5];
                let value = |index: usize| (index * 1_000 + round) as u64;
                let mut data: Vec<u64> =
                    (0..length).map(|index| if comm.rank() == 0 { value(index) } else { 0 }).collect();
                comm.broadcast(&mut data, 0).expect("a broadcast");
                assert!((0..).zip(&data).all(|(index, found)| *found == value(index)), "round {round}, {size} ranks");
                comm.allreduce(&mut data, ReduceOp::Sum).expect("an allreduce");
                let all = |index: usize| size as u64 * value(index);
                assert!((0..).zip(&data).all(|(index, found)| *found == all(index)), "round {round}, {size} ranks");
            }
        });
    }
}

/// What is in flight at once is kept apart, whichever ends first.
#[test]
fn short_calls_beside_long_ones() {
    on_world(TransportKind::Shm, 3, |comm| {
        for round in 0..20_u64 {
            let long: Vec<_> = (0..3)
                .map(|number| comm.start_allreduce(vec![round + number; 100_000], ReduceOp::Sum).expect("a start"))
                .collect();
            for number in 0..5 {
                let mut short = [round, number];
                comm.allreduce(&mut short, ReduceOp::Max).expect("an allreduce");
                assert_eq!(short, [round, number]);
            }
            for (number, pending) in (0..).zip(long) {
                let sum = pending.wait().expect("an allreduce");
                assert!(sum.iter().all(|found| *found == 3 * (round + number)), "round {round}");
            }
        }
    });
}

/// More communicators than boards have parts, made and dropped: those without a part go the ordinary way.
#[test]
fn communicators_come_and_go() {
    on_world(TransportKind::Shm, 3, |comm| {
        let mut kept = Vec::new();
        for round in 0..12_u64 {
            let group = comm.split(Some(0), -(comm.rank() as i64)).expect("a split").expect("a colour");
            let mut data = [round, group.rank() as u64];
            group.allreduce(&mut data, ReduceOp::Sum).expect("an allreduce");
            assert_eq!(data, [3 * round, 3]);
            if round % 3 == 0 {
                kept.push(group);
            }
        }
        for group in kept.into_iter().rev() {
            let mut data = vec![1_i32; 20_000];
            group.allreduce(&mut data, ReduceOp::Sum).expect("an allreduce");
            assert!(data.iter().all(|found| *found == 3));
        }
    });
}

/// A communicator's first call may be given up before it is known which way its calls go; they go on all the same.
#[test]
fn a_first_call_that_is_given_up_leaves_no_trace() {
    for kind in TRANSPORTS {
        for round in 0..5 {
            on_world(kind, 3, |comm| {
                let group = comm.subgroup(&[0, 1, 2]).expect("a list").expect("a member");
                if comm.rank() == 0 {
                    let call = Call::allreduce(DataType::U8, 4, ReduceOp::Sum).in_place(true);
                    let mut data = [1_u8; 4];
                    // SAFETY: the call is given up before the memory goes.
                    let handle =
                        unsafe { group.submit(&call, std::ptr::null(), data.as_mut_ptr(), None) }.expect("a start");
                    (0..round * 20).for_each(|_| drop(handle.poll()));
                    handle.give_up("enough");
                    assert!(handle.wait().is_err());
                }
                comm.barrier().expect("the world is well");
                if comm.rank() != 0 {
                    assert!(group.allreduce(&mut [1_u8; 4], ReduceOp::Sum).is_err(), "{kind}");
                }
                comm.barrier().expect("the world is well");
                for _ in 0..3 {
                    let mut data = [1_u8; 4];
                    group.allreduce(&mut data, ReduceOp::Sum).expect("the group goes on");
                    assert_eq!(data, [3; 4], "{kind}");
                    comm.allreduce(&mut data, ReduceOp::Max).expect("the world is well");
                }
            });
        }
    }
}
