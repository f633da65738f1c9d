//! Arithmetic on host memory against a plain copy of the same bytes.
//!
//! Rates count the bytes of one operand: at a rate of 10 GB/s, `combine` reads 20 GB/s and writes 10.

mod common;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use phalanx::reduce::{cast, combine, reduce};
use phalanx::types::{DataType, Finish, Order, ReduceOp, Reduction};
use std::hint::black_box;

/// In the nearest cache, in a core's own, in a shared one, and in memory.
const BYTES: [usize; 4] = [8 << 10, 128 << 10, 2 << 20, 32 << 20];

const TYPES: [DataType; 4] = [DataType::F32, DataType::F16, DataType::BF16, DataType::I32];

const AVERAGE_OF_THREE: Finish = Finish { divisor: 3, factor: 1.0 };

fn arithmetic(criterion: &mut Criterion) {
    let sum = Reduction::new(ReduceOp::Sum);
    for bytes in BYTES {
        let mut group = criterion.benchmark_group(format!("{} KiB", bytes >> 10));
        group.throughput(Throughput::Bytes(bytes as u64));
        // One byte more, so that they can be misaligned. Zeros stay zeros, whatever is done to them.
        let sources = [(); 4].map(|()| vec![0u8; bytes + 1]);
        let mut target = vec![0u8; bytes + 1];

        group.bench_function("copy", |bencher| {
            bencher.iter(|| black_box(&mut target)[..bytes].copy_from_slice(black_box(&sources[0][..bytes])));
        });
        for dtype in TYPES {
            let count = bytes / dtype.size();
            for (name, offset, finish) in [
                ("combine", 0, Finish::NONE),
                ("combine misaligned", 1, Finish::NONE),
                ("average", 0, AVERAGE_OF_THREE),
            ] {
                group.bench_function(BenchmarkId::new(name, dtype), |bencher| {
                    let (to, from) = (target[offset..].as_mut_ptr(), sources[0][1 - offset..].as_ptr());
                    // SAFETY: both hold `count` elements, and are apart.
                    bencher.iter(|| unsafe { combine(&sum, dtype, to, from, count, Order::HereFirst, finish) });
                });
            }
            for ways in [2, 4] {
                group.bench_function(BenchmarkId::new(format!("reduce of {ways}"), dtype), |bencher| {
                    let pointers: Vec<_> = sources[..ways].iter().map(|source| source.as_ptr()).collect();
                    let to = target.as_mut_ptr();
                    // SAFETY: all hold `count` elements, and the target is apart.
                    bencher.iter(|| unsafe { reduce(&sum, dtype, to, &pointers, count, Finish::NONE) });
                });
            }
        }
        for half in [DataType::F16, DataType::BF16] {
            let count = bytes / 4;
            group.bench_function(BenchmarkId::new("narrow", half), |bencher| {
                let (from, to) = (sources[0].as_ptr(), target.as_mut_ptr());
                // SAFETY: the source holds `count` elements of four bytes, the target has more room than it needs.
                bencher.iter(|| unsafe { cast(DataType::F32, from, half, to, count) });
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = common::short();
    targets = arithmetic
}
criterion_main!(benches);
