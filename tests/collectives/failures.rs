//! Ranks that are gone, silent, late or done: every rank gets an error that names them, in time.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use phalanx::testing;
use phalanx::types::{Algorithm, Error, ReduceOp};

use crate::support::{TRANSPORTS, on_world};

/// Large enough for several segments, small enough to be quick.
const COUNTS: [usize; 2] = [3, 400_000];

#[test]
fn a_rank_that_vanishes_is_named_by_all_others_at_once() {
    for kind in TRANSPORTS {
        for size in [2, 4, 5] {
            for count in COUNTS {
                let victim = size - 1;
                let over = Barrier::new(size);
                let outcomes = on_world(kind, size, |comm| {
                    let mut data = vec![1f32; count];
                    comm.allreduce(&mut data, ReduceOp::Sum).expect("all are there");
                    over.wait();
                    if comm.rank() == victim {
                        testing::vanish(&comm);
                        return None;
                    }
                    let since = Instant::now();
                    let outcome = comm.allreduce(&mut data, ReduceOp::Sum);
                    let again = comm.barrier();
                    Some((outcome, again, since.elapsed()))
                });
                for (rank, outcome) in outcomes.into_iter().enumerate().take(victim) {
                    let (outcome, again, took) = outcome.expect("a survivor");
                    for outcome in [outcome, again] {
                        let Err(Error::PeerFailed { rank: named, .. }) = &outcome else {
                            panic!("{kind}, rank {rank} of {size}: {outcome:?}");
                        };
                        assert_eq!(*named, victim, "{kind}, rank {rank} of {size}: {outcome:?}");
                    }
                    assert!(took < Duration::from_secs(1), "{kind}, rank {rank} of {size}: took {took:?}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_vanished_before_the_first_message_is_named() {
    for kind in TRANSPORTS {
        let gone = Barrier::new(3);
        let outcomes = on_world(kind, 3, |comm| {
            if comm.rank() == 1 {
                testing::vanish(&comm);
            }
            gone.wait();
            if comm.rank() == 1 { Ok(()) } else { comm.barrier() }
        });
        for rank in [0, 2] {
            let outcome = &outcomes[rank];
            assert!(matches!(outcome, Err(Error::PeerFailed { rank: 1, .. })), "{kind}, rank {rank}: {outcome:?}");
        }
    }
}

#[test]
fn a_message_names_the_rank_at_its_other_end() {
    for kind in TRANSPORTS {
        let gone = Barrier::new(4);
        let outcomes = on_world(kind, 4, |comm| {
            comm.barrier().expect("all are there");
            let is_receiver = comm.rank() == 3;
            let hurried = comm.with_timeout(Duration::from_millis(50));
            let silent = is_receiver.then(|| hurried.recv(&mut [0u8; 4], 2, 1).unwrap_err());
            gone.wait();
            if comm.rank() == 2 {
                testing::vanish(&comm);
                return None;
            }
            let lost = is_receiver.then(|| comm.recv(&mut [0u8; 4], 2, 2).unwrap_err());
            // In a group the lost rank has another number.
            let group = comm.subgroup(&[3, 2]).expect("a valid list").filter(|_| is_receiver)?;
            Some((silent?, lost?, group.recv(&mut [0u8; 4], 1, 3).unwrap_err()))
        });
        let Some((silent, lost, in_group)) = &outcomes[3] else { panic!("{kind}: the receiver returned nothing") };
        assert!(matches!(silent, Error::Timeout { waiting_for, .. } if waiting_for[..] == [2]), "{kind}: {silent:?}");
        assert!(matches!(lost, Error::PeerFailed { rank: 2, .. }), "{kind}: {lost:?}");
        assert!(matches!(in_group, Error::PeerFailed { rank: 1, .. }), "{kind}: {in_group:?}");
    }
}

#[test]
fn a_silent_rank_is_named_at_the_deadline_and_learns_of_it() {
    for kind in TRANSPORTS {
        for count in COUNTS {
            let over = Barrier::new(4);
            let outcomes = on_world(kind, 4, |comm| {
                let mut data = vec![1f32; count];
                comm.allreduce(&mut data, ReduceOp::Sum).expect("all are there");
                let comm = comm.with_timeout(Duration::from_millis(300));
                let since = Instant::now();
                if comm.rank() == 2 {
                    over.wait();
                    // What the others gave up, the late rank gives up too, at once.
                    let late = comm.allreduce(&mut data, ReduceOp::Sum);
                    return (late, since.elapsed(), comm.barrier());
                }
                let outcome = comm.allreduce(&mut data, ReduceOp::Sum);
                let took = since.elapsed();
                over.wait();
                (outcome, took, comm.barrier())
            });
            for (rank, (outcome, took, after)) in outcomes.into_iter().enumerate() {
                let Err(Error::Timeout { waiting_for, operation, .. }) = &outcome else {
                    panic!("{kind}, rank {rank}, {count} elements: {outcome:?}");
                };
                assert!(waiting_for.contains(&2), "{kind}, rank {rank}: {outcome:?}");
                assert!(operation.contains("allreduce"), "{outcome:?}");
                assert!(took < Duration::from_millis(1300), "{kind}, rank {rank}: took {took:?}");
                assert_eq!(after, Ok(()), "{kind}, rank {rank}: does not go on");
            }
        }
    }
}

#[test]
fn a_rank_that_said_goodbye_has_not_failed_but_cannot_take_part() {
    for kind in TRANSPORTS {
        let outcomes = on_world(kind, 3, |comm| {
            comm.allreduce(&mut [1u8; 3], ReduceOp::Max).expect("all are there");
            if comm.rank() == 0 {
                comm.shutdown();
                return comm.barrier();
            }
            // Ranks 1 and 2 have all they need from each other.
            let pair = comm.subgroup(&[1, 2]).expect("a valid list").expect("a member");
            pair.allreduce(&mut [1u8; 3], ReduceOp::Max).expect("rank 0 is not needed");
            comm.barrier()
        });
        assert!(matches!(outcomes[0], Err(Error::Closed { .. })), "{kind}: {:?}", outcomes[0]);
        for outcome in &outcomes[1..] {
            let text = outcome.as_ref().unwrap_err().to_string();
            assert!(matches!(outcome, Err(Error::PeerFailed { rank: 0, .. })), "{kind}: {text}");
            assert!(text.contains("shut"), "{kind}: {text}");
        }
    }
}

#[test]
fn a_group_without_the_lost_rank_goes_on() {
    for kind in TRANSPORTS {
        let (met, gone) = (Barrier::new(4), Barrier::new(4));
        on_world(kind, 4, |comm| {
            let half = comm.split(Some(comm.rank() as u64 / 2), 0).expect("a split").expect("a colour");
            comm.barrier().expect("all are there");
            met.wait();
            if comm.rank() == 3 {
                testing::vanish(&comm);
                gone.wait();
                return;
            }
            gone.wait();
            assert!(comm.barrier().is_err(), "{kind}: the world has lost a rank");
            let outcome = half.allreduce(&mut [1i64; 9], ReduceOp::Sum);
            if comm.rank() < 2 {
                assert_eq!(outcome, Ok(()), "{kind}: a whole group");
            } else {
                let Err(Error::PeerFailed { rank: 1, detail, .. }) = &outcome else { panic!("{kind}: {outcome:?}") };
                assert!(detail.contains("rank 3 of the world"), "{kind}: {detail}");
            }
        });
    }
}

/// Errors of messages name the ranks as the caller knows them, not as sender and receiver.
#[test]
fn the_other_end_of_a_message_is_named() {
    for kind in TRANSPORTS {
        let (met, gone) = (Barrier::new(4), Barrier::new(4));
        let outcomes = on_world(kind, 4, |comm| {
            comm.barrier().expect("all are there");
            met.wait();
            if comm.rank() == 2 {
                testing::vanish(&comm);
                gone.wait();
                return Ok(());
            }
            gone.wait();
            match comm.rank() {
                0 => comm.send(&[1u8; 1 << 20], 2, 5),
                1 => comm.recv(&mut [0u8; 9], 2, 5),
                _ => comm.with_timeout(Duration::from_millis(100)).recv(&mut [0u8; 9], 1, 6),
            }
        });
        for rank in [0, 1] {
            let outcome = &outcomes[rank];
            assert!(matches!(outcome, Err(Error::PeerFailed { rank: 2, .. })), "{kind}, rank {rank}: {outcome:?}");
        }
        let Err(Error::Timeout { waiting_for, .. }) = &outcomes[3] else { panic!("{kind}: {:?}", outcomes[3]) };
        assert_eq!(*waiting_for, [1], "{kind}");
    }
}

/// A message that one side has given up is not waited for by the other, whichever comes first.
#[test]
fn the_late_end_of_a_message_that_was_given_up_is_told() {
    for kind in TRANSPORTS {
        for late_sends in [false, true] {
            let given_up = Barrier::new(2);
            let outcomes = on_world(kind, 2, |comm| {
                comm.barrier().expect("both are there");
                let message = |comm: &phalanx::Communicator, sends: bool| {
                    let mut data = vec![1u8; 1 << 20];
                    if sends { comm.send(&data, 1 - comm.rank(), 5) } else { comm.recv(&mut data, 1 - comm.rank(), 5) }
                };
                if comm.rank() == 0 {
                    let outcome = message(&comm.with_timeout(Duration::from_millis(50)), !late_sends);
                    given_up.wait();
                    // The notice travels with whatever comes next.
                    comm.barrier().expect("both go on");
                    return (outcome, Duration::ZERO);
                }
                given_up.wait();
                comm.barrier().expect("both go on");
                let since = Instant::now();
                (message(&comm, late_sends), since.elapsed())
            });
            for (outcome, took) in outcomes {
                assert!(matches!(outcome, Err(Error::Timeout { .. })), "{kind}, {late_sends}: {outcome:?}");
                assert!(took < Duration::from_secs(1), "{kind}: waited for {took:?}");
            }
        }
    }
}

/// In a ring most ranks wait for one that waits itself. The silent one is named all the same.
#[test]
fn a_silent_rank_is_named_also_by_those_that_wait_for_others() {
    for kind in TRANSPORTS {
        for algorithm in [Algorithm::Ring, Algorithm::DoubleTree] {
            let (size, silent) = (6, 2);
            let over = Barrier::new(size);
            let outcomes = on_world(kind, size, |comm| {
                let comm = comm.with_algorithm(Some(algorithm));
                let mut data = vec![1f32; 400_000];
                comm.allreduce(&mut data, ReduceOp::Sum).expect("all are there");
                let comm = comm.with_timeout(Duration::from_millis(800));
                let outcome = if comm.rank() == silent { Ok(()) } else { comm.allreduce(&mut data, ReduceOp::Sum) };
                over.wait();
                outcome
            });
            for (rank, outcome) in outcomes.into_iter().enumerate().filter(|(rank, _)| *rank != silent) {
                let Err(Error::Timeout { waiting_for, .. }) = &outcome else {
                    panic!("{kind}, {algorithm}, rank {rank}: {outcome:?}");
                };
                assert_eq!(*waiting_for, [silent], "{kind}, {algorithm}, rank {rank}: {outcome:?}");
            }
        }
    }
}

#[test]
fn what_was_given_up_half_way_does_not_hold_up_the_end() {
    for kind in TRANSPORTS {
        // Some of these cut a message in the middle. `on_world` watches how long the ranks take to close.
        for milliseconds in 1..=6 {
            let outcomes = on_world(kind, 5, |comm| {
                comm.barrier().expect("all are there");
                let patience = Duration::from_millis(if comm.rank() == 0 { milliseconds } else { 30_000 });
                comm.with_timeout(patience).allreduce(&mut vec![1f32; 400_000], ReduceOp::Sum)
            });
            for (rank, outcome) in outcomes.iter().enumerate() {
                assert!(matches!(outcome, Ok(()) | Err(Error::Timeout { .. })), "{kind}, rank {rank}: {outcome:?}");
            }
        }
    }
}

/// Those who noticed that a rank died end, and one that comes later hears of the dead rank, not of them.
#[test]
fn who_comes_when_the_survivors_have_gone_hears_of_the_dead() {
    for kind in TRANSPORTS {
        let gone = Barrier::new(4);
        let outcomes = on_world(kind, 4, |comm| {
            match comm.rank() {
                0 => testing::vanish(&comm),
                3 => {}
                _ => {
                    let outcome = comm.allreduce(&mut [1u8; 3], ReduceOp::Max);
                    comm.shutdown();
                    gone.wait();
                    return outcome;
                }
            }
            gone.wait();
            if comm.rank() == 3 { comm.allreduce(&mut [1u8; 3], ReduceOp::Max) } else { Ok(()) }
        });
        for (rank, outcome) in outcomes.iter().enumerate().skip(1) {
            assert!(matches!(outcome, Err(Error::PeerFailed { rank: 0, .. })), "{kind}, rank {rank}: {outcome:?}");
        }
    }
}
