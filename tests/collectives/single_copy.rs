//! Collectives whose bytes the kernel copies from one rank's memory to another's.

use std::ops::Range;

use phalanx::TransportKind;
use phalanx::testing::local_world_with;

use super::support::on_ranks;

/// Lengths of a block in elements of eight bytes: too short for it, just long enough, of several chunks.
const LENGTHS: [usize; 5] = [8_191, 8_192, 8_193, 20_011, 150_001];

fn filled(range: Range<usize>, value: impl Fn(usize) -> u64) -> Vec<u64> {
    range.map(value).collect()
}

/// With it and without it, all the same.
#[test]
fn what_is_only_copied_is_right() {
    for (single_copy, size) in [(true, 2), (false, 2), (true, 3), (true, 5)] {
        on_ranks(
            local_world_with(TransportKind::Shm, &vec![0; size], single_copy).expect("a world of threads"),
            |comm| {
                let (rank, size) = (comm.rank(), comm.size());
                for (round, length) in LENGTHS.into_iter().enumerate() {
                    let what = format!("{length} elements on rank {rank} of {size}");
                    // Element `index` of what `from` has for `to`.
                    let value = |from: usize, to: usize, index: usize| {
                        (from * 100 + to) as u64 + (index * 10_000 + round) as u64
                    };
                    let sent = filled(0..length * size, |index| value(rank, index / length, index % length));

                    let mut received = vec![u64::MAX; length * size];
                    comm.alltoall(&sent, &mut received).expect("an alltoall");
                    let answer = filled(0..length * size, |index| value(index / length, rank, index % length));
                    assert!(received == answer, "an alltoall of {what}");

                    let root = round % size;
                    let mut part = vec![u64::MAX; length];
                    comm.scatter(if rank == root { &sent } else { &[] }, &mut part, root).expect("a scatter");
                    assert!(part == filled(0..length, |index| value(root, rank, index)), "a scatter of {what}");

                    received.fill(u64::MAX);
                    comm.allgather(&sent[..length], &mut received).expect("an allgather");
                    let answer = filled(0..length * size, |index| value(index / length, 0, index % length));
                    assert!(received == answer, "an allgather of {what}");
                    received.fill(u64::MAX);
                    received[rank * length..][..length].copy_from_slice(&sent[..length]);
                    comm.allgather_in_place(&mut received).expect("an allgather");
                    assert!(received == answer, "an allgather in place of {what}");
                }
            },
        );
    }
}
