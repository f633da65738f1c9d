//! Collectives over buffers that the ranks of one host read where they are.

use phalanx::types::DataType;
use phalanx::{Buffer, Call, Communicator, ReduceOp, TransportKind};

use super::support::{TRANSPORTS, on_world};

/// Lengths in elements of eight bytes: short ones, and long ones of several chunks that come out even or not.
const LENGTHS: [usize; 6] = [1, 2_000, 2_049, 16_384, 40_003, 150_001];

fn filled(comm: &Communicator, count: usize, value: impl Fn(usize) -> u64) -> Buffer<u64> {
    let mut buffer = comm.alloc(count).expect("memory");
    assert!(buffer.iter().all(|found| *found == 0), "memory that was used before is not zero");
    buffer.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
    buffer
}

fn expect(found: &[u64], answer: impl Fn(usize) -> u64, what: &str) {
    for (index, found) in found.iter().enumerate() {
        assert_eq!(*found, answer(index), "element {index} of {what}");
    }
}

/// Every collective, of all ranks or with some ranks whose memory is any memory, over every carrier.
#[test]
fn every_collective_is_right() {
    for (kind, size) in
        [(TransportKind::Shm, 2), (TransportKind::Shm, 3), (TransportKind::Shm, 5), (TransportKind::Tcp, 2)]
    {
        on_world(kind, size, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            for (round, length) in LENGTHS.into_iter().enumerate() {
                for mixed in [false, true] {
                    let what = format!("{length} elements on rank {rank} of {size}, mixed: {mixed}");
                    let other =
                        |value: &dyn Fn(usize) -> u64, count: usize| (0..count).map(value).collect::<Vec<u64>>();
                    let own = |index: usize| (rank * 1_000_000 + index + round) as u64;
                    let all = |index: usize| (size * (size - 1) / 2 * 1_000_000 + size * (index + round)) as u64;
                    let root = round % size;
                    // One rank's memory is its own, in the mixed rounds.
                    let any = mixed && rank == size - 1;

                    let mut data = filled(&comm, length, own);
                    if any {
                        let mut data = other(&own, length);
                        comm.allreduce(&mut data, ReduceOp::Sum).expect("an allreduce");
                        expect(&data, all, &what);
                    } else {
                        comm.allreduce(&mut data, ReduceOp::Sum).expect("an allreduce");
                        expect(&data, all, &what);
                    }
                    let (input, mut output) = (filled(&comm, length, own), filled(&comm, length, |_| 7));
                    comm.allreduce_into(&input, &mut output, ReduceOp::Sum).expect("an allreduce");
                    expect(&output, all, &what);
                    expect(&input, own, &what);
                    // What was there a moment ago is not what the others are to see.
                    output.fill(u64::MAX);

                    comm.reduce_into(&input, if rank == root { &mut output } else { &mut [] }, ReduceOp::Sum, root)
                        .expect("a reduce");
                    if rank == root {
                        expect(&output, all, &what);
                    }
                    let mut data = filled(&comm, length, |index| if rank == root { own(index) } else { 3 });
                    comm.broadcast(&mut data, root).expect("a broadcast");
                    expect(&data, |index| (root * 1_000_000 + index + round) as u64, &what);
                    data.fill(0);

                    let block = |index: usize| ((index / length) * 1_000_000 + index % length + round) as u64;
                    let mut blocks = filled(&comm, length * size, |_| 9);
                    comm.allgather(&input, &mut blocks).expect("an allgather");
                    expect(&blocks, block, &what);
                    blocks.fill(1);
                    blocks[rank * length..][..length].copy_from_slice(&input);
                    comm.allgather_in_place(&mut blocks).expect("an allgather");
                    expect(&blocks, block, &what);

                    let mut part = filled(&comm, length, |_| 2);
                    comm.reduce_scatter(&blocks, &mut part, ReduceOp::Sum).expect("a reduce_scatter");
                    expect(&part, |index| block(rank * length + index) * size as u64, &what);
                    comm.reduce_scatter_in_place(&mut blocks, ReduceOp::Max).expect("a reduce_scatter");
                    expect(&blocks[rank * length..][..length], |index| block(rank * length + index), &what);

                    let send = filled(&comm, length * size, |index| (rank * 10_000_000 + index) as u64);
                    let mut received = filled(&comm, length * size, |_| 4);
                    let sent = |index: usize| ((index / length) * 10_000_000 + rank * length + index % length) as u64;
                    comm.alltoall(&send, &mut received).expect("an alltoall");
                    expect(&received, sent, &what);
                    received.copy_from_slice(&send);
                    comm.alltoall_in_place(&mut received).expect("an alltoall");
                    expect(&received, sent, &what);

                    comm.gather(&input, if rank == root { &mut received } else { &mut [] }, root).expect("a gather");
                    if rank == root {
                        expect(&received, block, &what);
                    }
                    part.fill(5);
                    comm.scatter(if rank == root { &received } else { &[] }, &mut part, root).expect("a scatter");
                    expect(&part, own, &what);
                }
            }
        });
    }
}

/// A rank may write to its buffer as soon as its call has ended, however far the others are.
#[test]
fn what_others_still_read_stays() {
    for (size, length) in [(2, 70_000), (3, 30_000), (4, 5_000)] {
        on_world(TransportKind::Shm, size, |comm| {
            let mut random = comm.rank() as u32;
            let mut data = filled(&comm, length, |_| 0);
            for round in 0..200_u64 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (0..random >> 27).for_each(|_| std::thread::yield_now());
                data.fill(round);
                if round % 2 == 0 {
                    comm.allreduce(&mut data, ReduceOp::Sum).expect("an allreduce");
                    assert!(data.iter().all(|found| *found == round * size as u64), "round {round}");
                } else {
                    let root = round as usize % size;
                    data.fill(if comm.rank() == root { round } else { 0 });
                    comm.broadcast(&mut data, root).expect("a broadcast");
                    assert!(data.iter().all(|found| *found == round), "round {round}");
                }
                data.fill(u64::MAX);
            }
        });
    }
}

/// A rank gives a call up in the middle, and its memory is its own again at once. The others get an error or the result,
/// never a mixture.
#[test]
fn nobody_believes_what_was_read_of_a_call_given_up() {
    const LENGTH: usize = 400_000;
    on_world(TransportKind::Shm, 3, |comm| {
        let mut given_up = 0;
        for round in 0..40_u32 {
            let group = comm.subgroup(&[0, 1, 2]).expect("a list").expect("a member");
            let mut small = [1_u64; 4];
            group.allreduce(&mut small, ReduceOp::Sum).expect("an allreduce");
            let mut data = filled(&group, LENGTH, |_| 1);
            if comm.rank() == 0 {
                let call = Call::allreduce(DataType::U64, LENGTH, ReduceOp::Sum).in_place(true);
                // SAFETY: nobody touches the memory before the call has ended.
                let handle =
                    unsafe { group.submit(&call, std::ptr::null(), data.as_mut_ptr().cast(), None) }.expect("a start");
                (0..round * 10).for_each(|_| drop(handle.poll()));
                handle.give_up("enough");
                let outcome = handle.wait();
                given_up += u32::from(outcome.is_err());
                if outcome.is_ok() {
                    assert!(data.iter().all(|found| *found == 3), "round {round}");
                }
                data.fill(1_000);
            } else if group.allreduce(&mut data, ReduceOp::Sum).is_ok() {
                assert!(data.iter().all(|found| *found == 3), "round {round}: a result of no call");
            }
            comm.barrier().expect("the world is well");
        }
        if comm.rank() == 0 {
            assert!(given_up > 0, "not one call was given up in the middle");
        }
    });
}

/// Buffers are taken and given back in any order, and are no different over carriers that cannot read them.
#[test]
fn buffers_come_and_go() {
    for kind in TRANSPORTS {
        on_world(kind, 2, |comm| {
            let mut kept = Vec::new();
            for round in 0..30_usize {
                kept.push(filled(&comm, 1 + round * 3_000 % 17_001, |index| (index * round) as u64));
                if round % 3 == 2 {
                    drop(kept.swap_remove(round % kept.len()));
                }
            }
            let empty: Buffer<u64> = comm.alloc(0).expect("no memory is needed");
            assert!(empty.is_empty());
            let error = comm.alloc::<u64>(usize::MAX / 16).expect_err("more than any machine has");
            assert!(error.to_string().contains("no memory for a buffer"), "{error}");
            let last = kept.last_mut().expect("a buffer");
            let before = last.to_vec();
            comm.allreduce(last, ReduceOp::Sum).expect("an allreduce");
            expect(last, |index| 2 * before[index], &format!("{} elements over {kind}", before.len()));
        });
    }
}

/// Bytes for a type that is known only at run time; and a buffer is memory as any other when its world is gone.
#[test]
fn a_buffer_outlives_its_world() {
    const LENGTH: usize = 30_001;
    for kind in TRANSPORTS {
        let buffers = on_world(kind, 2, |comm| {
            for dtype in DataType::ALL {
                let bytes = comm.alloc_bytes(dtype, LENGTH).expect("memory");
                assert_eq!(bytes.len(), LENGTH * dtype.size());
                assert!(bytes.iter().all(|byte| *byte == 0), "memory that was used before is not zero");
            }
            let error = comm.alloc_bytes(DataType::F64, usize::MAX / 4).expect_err("more than can be counted");
            assert!(error.to_string().contains("elements of f64"), "{error}");
            let mut buffer = filled(&comm, LENGTH, |index| index as u64);
            comm.allreduce(&mut buffer, ReduceOp::Sum).expect("an allreduce");
            buffer
        });
        for mut buffer in buffers {
            expect(&buffer, |index| 2 * index as u64, "a buffer without its world");
            buffer.fill(7);
            assert!(buffer.iter().all(|element| *element == 7));
        }
    }
}
