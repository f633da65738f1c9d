//! Calls that run while the program computes: owned and borrowed buffers, deadlines, dropping, many at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use phalanx::types::{DataType, Error, ReduceOp, Reduction};

use crate::support::{TRANSPORTS, on_world};

#[test]
fn many_in_flight_complete_in_any_order_of_waiting() {
    for kind in TRANSPORTS {
        on_world(kind, 3, |comm| {
            let sizes = [1usize, 70_000, 3, 250_000, 0, 1000, 9];
            let mut pending: Vec<_> = sizes
                .iter()
                .map(|&count| {
                    comm.start_allreduce(vec![comm.rank() as u32 + 1; count], ReduceOp::Sum).expect("started")
                })
                .collect();
            if comm.rank() == 1 {
                pending.reverse();
            }
            for pending in pending {
                assert!(pending.wait().expect("a sum").iter().all(|&element| element == 6), "{kind}");
            }
        });
    }
}

#[test]
fn a_scope_sends_and_receives_at_once_around_a_circle() {
    for kind in TRANSPORTS {
        // Long enough that no send can end before its receive has begun: one after the other they would wait for ever.
        for count in [1usize, 300_000] {
            on_world(kind, 3, |comm| {
                let (rank, size) = (comm.rank(), comm.size());
                let (sent, mut received) = (vec![rank as u32; count], vec![9; count]);
                comm.scope(|scope| {
                    scope.send(&sent, (rank + 1) % size, 5)?;
                    scope.recv(&mut received, (rank + size - 1) % size, 5)?;
                    Ok(())
                })
                .expect("a circle");
                assert_eq!(received, vec![((rank + size - 1) % size) as u32; count], "{kind}");
            });
        }
    }
}

#[test]
fn every_owned_collective() {
    on_world(TRANSPORTS[0], 3, |comm| {
        let rank = comm.rank() as i32;
        let reduced = comm.start_reduce(vec![rank; 4], ReduceOp::Sum, 1).expect("started").wait().expect("a sum");
        assert!(comm.rank() != 1 || reduced == [3; 4]);
        assert_eq!(comm.start_broadcast(vec![rank; 2], 2).expect("started").wait(), Ok(vec![2, 2]));
        assert_eq!(comm.start_allgather(vec![rank]).expect("started").wait(), Ok(vec![0, 1, 2]));
        let scattered = comm.start_reduce_scatter(vec![1, 2, 3], ReduceOp::Sum).expect("started").wait();
        assert_eq!(scattered, Ok(vec![3 * (rank + 1)]));
        let exchanged = comm.start_alltoall(vec![rank * 10, rank * 10 + 1, rank * 10 + 2]).expect("started").wait();
        assert_eq!(exchanged, Ok(vec![rank, 10 + rank, 20 + rank]));
        comm.start_barrier().expect("started").wait().expect("a barrier");
    });
}

/// Rank r has r + 1 elements of each kind of block, so that no two lengths are alike.
#[test]
fn every_owned_collective_with_counts_and_a_root() {
    for kind in TRANSPORTS {
        on_world(kind, 3, |comm| {
            let rank = comm.rank();
            let mine = vec![rank as i32; rank + 1];
            let all = vec![0, 1, 1, 2, 2, 2];
            let is_root = rank == 1;
            let at_root = |result: &[i32]| if is_root { result.to_vec() } else { Vec::new() };
            let counts = [1, 2, 3];

            assert_eq!(comm.start_allgatherv(mine.clone(), &counts).expect("started").wait(), Ok(all.clone()));
            let scattered = comm.start_reduce_scatterv(all.clone(), &counts, ReduceOp::Sum).expect("started").wait();
            assert_eq!(scattered, Ok(vec![3 * rank as i32; rank + 1]));
            // To rank i go i + 1 elements, the sender's rank each.
            let sent = vec![rank as i32; 6];
            let exchanged = comm.start_alltoallv(sent, &counts, &[rank + 1; 3]).expect("started").wait();
            assert_eq!(exchanged, Ok((0..3).flat_map(|from| vec![from; rank + 1]).collect::<Vec<i32>>()));
            let gathered = comm.start_gather(vec![rank as i32; 2], 1).expect("started").wait();
            assert_eq!(gathered, Ok(at_root(&[0, 0, 1, 1, 2, 2])));
            assert_eq!(comm.start_gatherv(mine.clone(), &counts, 1).expect("started").wait(), Ok(at_root(&all)));
            let scattered = comm.start_scatter(at_root(&[0, 0, 1, 1, 2, 2]), 2, 1).expect("started").wait();
            assert_eq!(scattered, Ok(vec![rank as i32; 2]));
            assert_eq!(comm.start_scatterv(at_root(&all), &counts, 1).expect("started").wait(), Ok(mine));
        });
    }
}

#[test]
fn an_owned_call_whose_buffer_does_not_fit_is_refused_before_anything_is_sent() {
    on_world(TRANSPORTS[0], 2, |comm| {
        let refused = comm.start_allgatherv(vec![1i32; 5], &[1, 1]).expect_err("five elements for a block of one");
        assert!(matches!(&refused, Error::InvalidArgument { .. }), "{refused}");
        assert!(refused.to_string().contains("input of 5 elements given, 1 expected"), "{refused}");
        let refused = comm.start_scatter(vec![1i32; 5], 1, 0).expect_err("five elements are not wanted anywhere");
        assert!(refused.to_string().contains("input of 5 elements given"), "{refused}");
        comm.barrier().expect("nothing was sent");
    });
}

#[test]
fn every_collective_of_a_scope() {
    on_world(TRANSPORTS[1], 3, |comm| {
        let rank = comm.rank() as i32;
        let is_root = rank == 2;
        let (one, three) = ([rank], [10 * rank, 10 * rank + 1, 10 * rank + 2]);
        let (mut summed, mut reduced, mut scattered, mut received) = ([0], [0; 1], [0], [0]);
        let (mut all, mut exchanged, mut gathered) = ([0; 3], [0; 3], [0; 3]);
        let reduced = if is_root { &mut reduced[..] } else { &mut [] };
        let gathered = if is_root { &mut gathered[..] } else { &mut [] };
        let spread = if is_root { &[7, 8, 9][..] } else { &[] };
        comm.scope(|scope| {
            scope.allreduce_into(&one, &mut summed, ReduceOp::Sum)?;
            scope.reduce_into(&one, reduced, ReduceOp::Sum, 2)?;
            scope.allgather(&one, &mut all)?;
            scope.reduce_scatter(&three, &mut scattered, ReduceOp::Sum)?;
            scope.alltoall(&three, &mut exchanged)?;
            scope.gather(&one, gathered, 2)?;
            scope.scatter(spread, &mut received, 2)?;
            scope.barrier()?.wait()
        })
        .expect("a scope");
        assert_eq!((summed, all, exchanged), ([3], [0, 1, 2], [rank, 10 + rank, 20 + rank]));
        assert_eq!((scattered, received), ([30 + 3 * rank], [7 + rank]));
        assert!(!is_root || (reduced == [3] && gathered == [0, 1, 2]), "{reduced:?} {gathered:?}");
    });
}

#[test]
fn a_dropped_handle_leaves_the_operation_to_the_others() {
    for kind in TRANSPORTS {
        on_world(kind, 2, |comm| {
            for turn in 0..10 {
                let pending = comm.start_allreduce(vec![1f32; 100_000], ReduceOp::Sum).expect("started");
                if (turn + comm.rank()) % 2 == 0 {
                    drop(pending);
                } else {
                    assert!(pending.wait().expect("a sum").iter().all(|&element| element == 2.0));
                }
            }
            comm.barrier().expect("all handles are done with");
        });
    }
}

#[test]
fn a_wait_with_a_limit_ends_and_the_operation_goes_on() {
    for kind in TRANSPORTS {
        let seen = Barrier::new(2);
        on_world(kind, 2, |comm| {
            if comm.rank() == 1 {
                seen.wait();
                comm.allreduce(&mut [2i32; 5], ReduceOp::Sum).expect("a sum");
                return;
            }
            let pending = comm.start_allreduce(vec![1i32; 5], ReduceOp::Sum).expect("started");
            assert!(!pending.wait_for(Duration::from_millis(20)));
            assert!(!pending.is_finished());
            seen.wait();
            assert_eq!(pending.wait(), Ok(vec![3; 5]));
        });
    }
}

#[test]
fn an_operation_moves_while_nobody_waits() {
    for kind in TRANSPORTS {
        on_world(kind, 2, |comm| {
            let pending = comm.start_allreduce(vec![1u64; 300_000], ReduceOp::Sum).expect("started");
            // Only the background thread moves it now: the loop looks at the flag without lending a hand.
            while !pending.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(pending.wait().expect("a sum")[299_999], 2);
        });
    }
}

#[test]
fn a_scope_lends_buffers_and_waits_for_all() {
    on_world(TRANSPORTS[1], 3, |comm| {
        let (mut a, mut b) = (vec![1.5f32; 1000], vec![comm.rank() as i64; 3]);
        let computed = comm.scope(|scope| {
            let first = scope.allreduce(&mut a, ReduceOp::Sum)?;
            scope.broadcast(&mut b, 1)?;
            first.wait()?;
            Ok(42)
        });
        assert_eq!(computed, Ok(42));
        assert!(a.iter().all(|&element| element == 4.5));
        assert_eq!(b, [1, 1, 1]);
        let refused = comm.scope(|scope| scope.allreduce(&mut a, ReduceOp::BitAnd).map(|_| ()));
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    });
}

#[test]
fn threads_of_one_rank_may_wait_at_once() {
    for kind in TRANSPORTS {
        on_world(kind, 2, |comm| {
            let groups: Vec<_> = (0..4).map(|_| comm.subgroup(&[0, 1]).expect("a list").expect("a member")).collect();
            std::thread::scope(|scope| {
                for group in &groups {
                    scope.spawn(move || {
                        for turn in 0..50u32 {
                            let mut data = [turn; 33];
                            group.allreduce(&mut data, ReduceOp::Sum).expect("a sum");
                            assert_eq!(data, [2 * turn; 33]);
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn a_users_function_reduces_and_its_panic_is_an_error() {
    on_world(TRANSPORTS[0], 3, |comm| {
        let calls = std::sync::Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        let gcd = Reduction::user("gcd", move |here, incoming, dtype| {
            assert_eq!(dtype, DataType::U32);
            counter.fetch_add(1, Ordering::Relaxed);
            for (here, incoming) in here.chunks_exact_mut(4).zip(incoming.chunks_exact(4)) {
                let read = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let (mut a, mut b) = (read(here), read(incoming));
                while b > 0 {
                    (a, b) = (b, a % b);
                }
                here.copy_from_slice(&a.to_ne_bytes());
            }
        });
        let mut data = vec![[12u32, 18, 30][comm.rank()]; 1001];
        comm.allreduce(&mut data, gcd).expect("a reduction");
        assert_eq!(data, [6; 1001]);
        assert!(calls.load(Ordering::Relaxed) > 0);
        let panics = Reduction::user("panics", |_, _, _| panic!("as the test wants"));
        let outcome = comm.allreduce(&mut data, panics);
        assert!(outcome.as_ref().is_err_and(|error| error.to_string().contains("panicked")), "{outcome:?}");
        comm.with_timeout(Duration::from_secs(5)).barrier().expect("the communicator goes on");
    });
}

#[test]
fn messages_between_two_ranks_keep_their_order_and_tags_apart() {
    for kind in TRANSPORTS {
        on_world(kind, 3, |comm| {
            if comm.rank() == 2 {
                return;
            }
            let peer = 1 - comm.rank();
            for turn in 0..20u64 {
                if comm.rank() == 0 {
                    comm.send(&[turn; 5], peer, 1).expect("sent");
                    comm.send(&vec![turn + 100; 50_000], peer, 2).expect("sent");
                    let mut back = [0u64];
                    comm.recv(&mut back, peer, 1).expect("received");
                    assert_eq!(back, [turn + 7]);
                } else {
                    let (mut small, mut large) = ([0u64; 5], vec![0u64; 50_000]);
                    if turn % 2 == 0 {
                        comm.recv(&mut small, peer, 1).expect("received");
                        comm.recv(&mut large, peer, 2).expect("received");
                    } else {
                        let pending = comm.start_recv(large, peer, 2).expect("started");
                        comm.recv(&mut small, peer, 1).expect("received");
                        large = pending.wait().expect("received");
                    }
                    assert!(small == [turn; 5] && large.iter().all(|&element| element == turn + 100));
                    comm.send(&[turn + 7], peer, 1).expect("sent");
                }
            }
            assert!(matches!(comm.send(&[0u8], comm.rank(), 0), Err(Error::InvalidArgument { .. })));
        });
    }
}
