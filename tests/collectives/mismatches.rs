//! Different calls at the same place: an error on every rank that shows both calls, and a communicator that goes on.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use phalanx::types::{Algorithm, DataType, Error, ReduceOp, Reduction, Result};
use phalanx::{Call, Communicator, TransportKind};

use crate::support::{TRANSPORTS, on_world};

/// Makes a call on memory that is large enough for any of the calls here.
fn make(comm: &Communicator, call: &Call) -> Result<()> {
    let (input, mut output) = (vec![0u8; 1 << 22], vec![0u8; 1 << 22]);
    let source =
        if call.collective() == phalanx::types::Collective::Broadcast { std::ptr::null() } else { input.as_ptr() };
    // SAFETY: both buffers outlive the call and are larger than any call of these tests needs.
    unsafe { comm.run(call, source, output.as_mut_ptr()) }
}

/// Rank 1 makes another call than the others; all must learn of it, at that call or at the next, and then go on.
fn expect_mismatch(what: &str, usual: &Call, odd: &Call) {
    expect_mismatch_over(&TRANSPORTS, what, usual, odd);
}

fn expect_mismatch_over(transports: &[TransportKind], what: &str, usual: &Call, odd: &Call) {
    for &kind in transports {
        for size in [2, 3, 4] {
            let errors = on_world(kind, size, |comm| {
                let first = make(&comm, if comm.rank() == 1 { odd } else { usual });
                let mut told = first.err();
                // A rank that was done before the mismatch showed reports it at a later call.
                for _ in 0..4 {
                    let next = comm.allreduce(&mut [1u32; 4], ReduceOp::Sum);
                    told = told.or(next.err());
                }
                let mut sum = [1u32; 4];
                let went_on = comm.allreduce(&mut sum, ReduceOp::Sum).map(|()| sum);
                (told, went_on)
            });
            for (rank, (told, went_on)) in errors.into_iter().enumerate() {
                let place = format!("{what}, {kind}, rank {rank} of {size}");
                let Some(Error::Mismatch { sequence, ours, theirs }) = &told else {
                    panic!("{place}: not told of the mismatch but {told:?}");
                };
                assert_eq!(*sequence, 0, "{place}: another operation's number: {told:?}");
                assert!(ours.0 == 1 || theirs.0 == 1, "{place}: does not name rank 1: {told:?}");
                assert_ne!(ours.1, theirs.1, "{place}");
                assert_eq!(went_on, Ok([size as u32; 4]), "{place}: does not go on");
            }
        }
    }
}

fn sum(dtype: DataType, count: usize) -> Call {
    Call::allreduce(dtype, count, ReduceOp::Sum)
}

#[test]
#[cfg(feature = "rdma")]
#[ignore = "needs an RDMA device"]
fn over_rdma() {
    let kinds = [TransportKind::Rdma];
    expect_mismatch_over(&kinds, "type", &sum(DataType::F32, 100), &sum(DataType::I32, 100));
    expect_mismatch_over(&kinds, "count", &sum(DataType::F32, 100_000), &sum(DataType::F32, 7));
}

#[test]
fn types() {
    expect_mismatch("type", &sum(DataType::F32, 100), &sum(DataType::I32, 100));
}

#[test]
fn counts_small_and_large() {
    expect_mismatch("count", &sum(DataType::F32, 100), &sum(DataType::F32, 101));
    expect_mismatch("large count", &sum(DataType::F32, 1 << 19), &sum(DataType::F32, (1 << 19) + 1));
    expect_mismatch("small for large", &sum(DataType::F32, 1 << 19), &sum(DataType::F32, 1));
}

#[test]
fn operations_and_scales() {
    expect_mismatch("op", &sum(DataType::F32, 9), &Call::allreduce(DataType::F32, 9, ReduceOp::Max));
    let scaled = Reduction::new(ReduceOp::Sum).prescale(0.5);
    expect_mismatch("scale", &sum(DataType::F32, 9), &Call::allreduce(DataType::F32, 9, scaled));
}

#[test]
fn roots() {
    let broadcast = |root| Call::broadcast(DataType::F32, 64, root);
    expect_mismatch("root of broadcast", &broadcast(0), &broadcast(1));
    let large = |root| Call::broadcast(DataType::F32, 1 << 18, root);
    expect_mismatch("root of large broadcast", &large(0), &large(1));
    let reduce = |root| Call::reduce(DataType::F32, 64, ReduceOp::Sum, root);
    expect_mismatch("root of reduce", &reduce(0), &reduce(1));
}

#[test]
fn kinds() {
    expect_mismatch("kind", &sum(DataType::F32, 64), &Call::allgather(DataType::F32, 64));
    expect_mismatch("barrier for allreduce", &sum(DataType::F32, 64), &Call::barrier());
}

#[test]
fn block_lengths() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 3, |comm| {
            let counts = if comm.rank() == 1 { [2, 3, 1] } else { [1, 3, 2] };
            let call = Call::allgatherv(DataType::I64, &counts);
            make(&comm, &call)
        });
        for error in errors {
            assert!(matches!(error, Err(Error::Mismatch { .. })), "{kind}: {error:?}");
        }
    }
}

/// Only the two ranks of an exchange know its length. That they differ is found between them, and told to all.
#[test]
fn lengths_of_an_exchange() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 3, |comm| {
            let send = [4, 4, 4];
            let mut recv = [4, 4, 4];
            if comm.rank() == 2 {
                recv[0] = 5;
            }
            let exchange = make(&comm, &Call::alltoallv(DataType::I16, &send, &recv));
            // A rank that was done before it heard reports it at a later call.
            exchange.and(comm.barrier()).and(comm.barrier())
        });
        for (rank, error) in errors.into_iter().enumerate() {
            assert!(matches!(error, Err(Error::Mismatch { .. })), "{kind}, rank {rank}: {error:?}");
        }
    }
}

#[test]
fn algorithms_forced_apart() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 3, |comm| {
            let algorithm = if comm.rank() == 1 { Algorithm::Ring } else { Algorithm::TwoShot };
            comm.with_algorithm(Some(algorithm)).allreduce(&mut [1f32; 50], ReduceOp::Sum)
        });
        for error in errors {
            let text = error.unwrap_err().to_string();
            assert!(text.contains("ring") && text.contains("two_shot"), "{kind}: {text}");
        }
    }
}

#[test]
fn order_of_calls() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 3, |comm| {
            let (first, second) = (sum(DataType::F32, 8), Call::allgather(DataType::F32, 8));
            let swapped = comm.rank() == 2;
            let outcomes = [
                make(&comm, if swapped { &second } else { &first }),
                make(&comm, if swapped { &first } else { &second }),
            ];
            (outcomes, comm.barrier())
        });
        for (outcomes, after) in errors {
            for outcome in outcomes {
                let text = outcome.unwrap_err().to_string();
                assert!(text.contains("allreduce(") && text.contains("allgather("), "{kind}: {text}");
            }
            assert_eq!(after, Ok(()), "{kind}");
        }
    }
}

#[test]
fn messages_of_different_lengths() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 3, |comm| match comm.rank() {
            0 => Ok(()),
            1 => comm.send(&[1u8; 100_000], 2, 7),
            _ => comm.recv(&mut [0u8; 4], 1, 7),
        });
        for error in &errors[1..] {
            let Err(Error::Mismatch { ours, theirs, .. }) = error else { panic!("{kind}: {error:?}") };
            let mut calls = [(ours.0, ours.1.count), (theirs.0, theirs.1.count)];
            calls.sort_unstable();
            assert_eq!(calls, [(1, 100_000), (2, 4)], "{kind}");
        }
    }
}

/// The ranks that found the mismatch end at once. One that comes later, and never had a connection to them, hears of it
/// all the same, and does not take their end for the cause.
#[test]
fn who_comes_when_the_others_have_gone_is_told() {
    let gather = |root| Call::gather(DataType::F32, 1 << 18, root);
    for kind in TRANSPORTS {
        // In the second pair, nobody but the late rank itself knows that it waits for rank 0.
        for [odd, usual] in [[sum(DataType::F32, 100), sum(DataType::F32, 101)], [gather(1), gather(0)]] {
            let (size, late) = (3, 2);
            let gone = Barrier::new(size);
            let errors = on_world(kind, size, |comm| {
                let call = if comm.rank() == 0 { &odd } else { &usual };
                if comm.rank() == late {
                    gone.wait();
                    return make(&comm, call);
                }
                let outcome = make(&comm, call);
                let since = Instant::now();
                comm.shutdown();
                assert!(since.elapsed() < Duration::from_secs(1), "{kind}: closing took {:?}", since.elapsed());
                gone.wait();
                outcome
            });
            for (rank, error) in errors.into_iter().enumerate() {
                let Err(Error::Mismatch { ours, theirs, .. }) = &error else {
                    panic!("{kind}, rank {rank}: {error:?}");
                };
                assert!([ours.0, theirs.0].contains(&0), "{kind}, rank {rank}: {error:?}");
            }
        }
    }
}

/// The engine numbers the two ends of a message 0 and 1; errors have the communicator's ranks.
#[test]
fn messages_between_ranks_that_are_neither_0_nor_1() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 4, |comm| match comm.rank() {
            2 => comm.send(&[1u32; 50_000], 3, 7).err(),
            3 => comm.start_recv(vec![0f32; 50_000], 2, 7).and_then(|pending| pending.wait()).err(),
            _ => None,
        });
        for error in &errors[2..] {
            let Some(Error::Mismatch { ours, theirs, .. }) = error else { panic!("{kind}: {error:?}") };
            assert_eq!((ours.0.min(theirs.0), ours.0.max(theirs.0)), (2, 3), "{kind}: {error:?}");
        }
    }
}

/// A root that was done before the mismatch showed makes a later operation fail for it, on every rank.
#[test]
fn what_is_told_late_has_the_number_of_the_operation_that_differed() {
    for kind in TRANSPORTS {
        let errors = on_world(kind, 3, |comm| {
            comm.barrier().expect("all are there");
            let first = comm.broadcast(&mut [0u8; 2], comm.rank() % 2).err();
            let later = (0..4).filter_map(|_| comm.barrier().err());
            first.into_iter().chain(later).collect::<Vec<_>>()
        });
        for (rank, errors) in errors.iter().enumerate() {
            // Again where a late one's call fails on all, those included who knew; two of the three may be late.
            assert!((1..=3).contains(&errors.len()), "{kind}, rank {rank}: told {} times", errors.len());
            for error in errors {
                assert!(matches!(error, Error::Mismatch { sequence: 1, .. }), "{kind}, rank {rank}: {error:?}");
            }
        }
    }
}

/// A root may be done with a call, and have given up the next, before another rank begins the first. That rank hears of it
/// early, and finds the first where the others made it.
#[test]
fn a_call_before_one_that_was_given_up_ends_as_it_would_on_a_rank_that_comes_late() {
    for kind in TRANSPORTS {
        let outcomes = on_world(kind, 3, |comm| {
            // Over boards, where there are some, from the second call on.
            comm.barrier().expect("all are there");
            comm.barrier().expect("all are there");
            if comm.rank() == 2 {
                // Comes after the word that the second call was given up, over the same link.
                comm.recv(&mut [0u8; 1], 0, 7).expect("a message");
            }
            let mut data = [comm.rank() as u32 + 5; 100];
            comm.broadcast(&mut data, 0).expect("nobody gave it up");
            assert_eq!(data, [5; 100], "{kind}");
            let patience = Duration::from_millis(if comm.rank() == 2 { 60_000 } else { 100 });
            let outcome = comm.with_timeout(patience).allreduce(&mut [1u32; 10], ReduceOp::Sum);
            if comm.rank() == 0 {
                comm.send(&[0u8; 1], 2, 7).expect("a message");
            }
            // And they go on.
            comm.barrier().expect("all are there again");
            outcome
        });
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Timeout { .. }))), "{kind}: {outcomes:?}");
    }
}

/// A short message is on its way before its receiver can refuse it, so that the sender's call ends well. The sender is
/// told at the next message of the same tag, and that one fails on both sides; then they go on.
#[test]
fn short_messages_of_different_lengths() {
    for kind in TRANSPORTS {
        let told = on_world(kind, 3, |comm| {
            let message = |length: usize| match comm.rank() {
                0 => Ok(()),
                1 => comm.send(&vec![1u8; length], 2, 7),
                _ => comm.recv(&mut [0u8; 4], 1, 7),
            };
            let first = message(5);
            // The refusal travels on the same links, before this.
            comm.barrier().expect("other operations are not affected");
            (first, message(4), message(4))
        });
        let is_told = |outcome: &Result<()>| {
            let Err(Error::Mismatch { sequence: 0, ours, theirs }) = outcome else { return false };
            [(ours.0, ours.1.count), (theirs.0, theirs.1.count)].iter().all(|call| [(1, 5), (2, 4)].contains(call))
        };
        for (rank, (first, second, third)) in told.iter().enumerate().skip(1) {
            let place = format!("{kind}, rank {rank}: {first:?}, then {second:?}");
            assert!(if rank == 1 { first.is_ok() } else { is_told(first) }, "{place}");
            assert!(is_told(second), "{place}");
            assert_eq!(*third, Ok(()), "{place}");
        }
    }
}
