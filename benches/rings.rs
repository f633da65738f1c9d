//! Bytes through a ring between two ends: by one thread, which is what the counters and copies cost, and back and forth
//! between two, where cache lines travel.

mod common;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use phalanx::transport::inproc::{self, InprocLane};
use phalanx::transport::{Lane, MIN_WINDOW};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A header alone, with a short payload, and half of a ring.
const BYTES: [usize; 3] = [80, MIN_WINDOW, 64 << 10];

fn lanes() -> (InprocLane, InprocLane) {
    inproc::pair(Arc::new(|| ()), Arc::new(|| ()))
}

/// All of `data`, however often the ring is full. False when `stop` is set before.
fn write(lane: &mut InprocLane, data: &[u8], stop: &AtomicBool) -> bool {
    let mut written = 0;
    while written < data.len() {
        written += lane.write(&[], &data[written..]).expect("the other end is there");
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
    true
}

/// As many bytes as fit into `data`.
fn read(lane: &mut InprocLane, data: &mut [u8], stop: &AtomicBool) -> bool {
    let mut taken = 0;
    while taken < data.len() {
        let rest = &mut data[taken..];
        // SAFETY: the rest of a slice that is borrowed for this alone.
        taken += unsafe { lane.read_into(rest.as_mut_ptr(), rest.len()) }.expect("the other end is there");
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
    true
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    for bytes in BYTES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let (source, mut target) = (vec![7_u8; bytes], vec![0_u8; bytes]);
        group.bench_function(BenchmarkId::new("one thread", bytes), |bencher| {
            let ((mut a, mut b), stop) = (lanes(), &AtomicBool::new(false));
            bencher.iter(|| write(&mut a, &source, stop) && read(&mut b, &mut target, stop));
            assert_eq!(source, target);
        });
        group.bench_function(BenchmarkId::new("there and back", bytes), |bencher| {
            // Criterion calls this several times: each has an end of its own.
            let ((mut a, mut b), stop) = (lanes(), &AtomicBool::new(false));
            target.fill(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut data = vec![0; bytes];
                    while read(&mut b, &mut data, stop) && write(&mut b, &data, stop) {}
                });
                bencher.iter(|| write(&mut a, &source, stop) && read(&mut a, &mut target, stop));
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(source, target);
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::short();
    targets = rings
}
criterion_main!(benches);
