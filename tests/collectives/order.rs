//! The same bits: on every rank, in the next run, and in rank order when asked for.

use phalanx::TransportKind;
use phalanx::schedule::algorithms_for;
use phalanx::types::{Collective, ReduceOp};

use crate::support::{Seeded, TRANSPORTS, on_world};

/// Floats of very different sizes, so that every order of adding gives other bits.
fn wild(rank: usize, count: usize) -> Vec<f32> {
    let mut seeded = Seeded::new(rank as u64 + 1);
    let element = |_| {
        let exponent = seeded.below(60) as i32 - 30;
        (seeded.below(2_000_001) as f32 - 1e6) * 2f32.powi(exponent)
    };
    (0..count).map(element).collect()
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|element| element.to_bits()).collect()
}

#[test]
fn every_algorithm_gives_the_same_bits_on_every_rank_and_again() {
    for size in [2, 3, 5, 8] {
        for &algorithm in algorithms_for(Collective::Allreduce) {
            let mut runs = Vec::new();
            for kind in TRANSPORTS {
                let results = on_world(kind, size, |comm| {
                    let mut data = wild(comm.rank(), 4099);
                    comm.with_algorithm(Some(algorithm)).allreduce(&mut data, ReduceOp::Sum).expect("a sum");
                    bits(&data)
                });
                assert!(results.iter().all(|result| *result == results[0]), "{algorithm}, {kind}, {size} ranks");
                runs.push(results[0].clone());
            }
            assert!(runs.iter().all(|run| *run == runs[0]), "{algorithm}, {size} ranks: runs differ");
        }
    }
}

#[test]
fn deterministic_means_rank_order_whatever_the_algorithm() {
    for size in [2, 3, 5, 8] {
        let count = 2053;
        let mut expected = wild(0, count);
        for rank in 1..size {
            expected.iter_mut().zip(wild(rank, count)).for_each(|(sum, element)| *sum += element);
        }
        for &algorithm in algorithms_for(Collective::Allreduce) {
            let results = on_world(TransportKind::Inproc, size, |comm| {
                let comm = comm.with_algorithm(Some(algorithm));
                // The same call in any order first: its plan must not be taken for this one.
                comm.allreduce(&mut wild(comm.rank(), count), ReduceOp::Sum).expect("a sum");
                let mut data = wild(comm.rank(), count);
                comm.with_deterministic(true).allreduce(&mut data, ReduceOp::Sum).expect("a sum");
                bits(&data)
            });
            assert!(results.iter().all(|result| *result == bits(&expected)), "{algorithm}, {size} ranks");
        }
    }
}

/// Halves are added in `f32` and rounded once, whatever travels.
#[test]
fn halves_are_rounded_once() {
    use half::bf16;
    for size in [2, 3, 4, 7] {
        let value = |rank: usize, index: usize| bf16::from_f32(1.0 + (rank * 37 + index * 11) as f32 / 128.0);
        for &algorithm in algorithms_for(Collective::Allreduce) {
            on_world(TransportKind::Inproc, size, |comm| {
                let mut data: Vec<_> = (0..501).map(|index| value(comm.rank(), index)).collect();
                comm.with_algorithm(Some(algorithm)).allreduce(&mut data, ReduceOp::Average).expect("an average");
                for (index, element) in data.iter().enumerate() {
                    // These sums are exact in f32, so that their order does not matter.
                    let sum: f32 = (0..comm.size()).map(|rank| value(rank, index).to_f32()).sum();
                    assert_eq!(*element, bf16::from_f32(sum / comm.size() as f32), "{algorithm}, {size} ranks");
                }
            });
        }
    }
}
