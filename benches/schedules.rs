//! Planning and choosing: what the first call of each kind and size pays, before its plan is kept.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use phalanx::schedule::cost::{CostModel, Selection, select};
use phalanx::schedule::{PlanRequest, Shape, algorithms_for, plan};
use phalanx::types::{Collective, DataType};
use std::hint::black_box;
use std::time::Duration;

const SIZES: [usize; 3] = [2, 8, 64];

/// Elements of the whole buffer: so many that algorithms with segments have many of them.
const ELEMENTS: usize = 1 << 22;

/// Two ranks to a host.
fn hosts(size: usize) -> Vec<usize> {
    (0..size).map(|rank| rank / 2).collect()
}

fn schedules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan allreduce");
    for size in SIZES {
        let hosts = hosts(size);
        for &algorithm in algorithms_for(Collective::Allreduce) {
            let request = PlanRequest {
                collective: Collective::Allreduce,
                algorithm,
                rank: size - 1,
                size,
                root: 0,
                shape: Shape::Whole(ELEMENTS),
                in_place: false,
                hosts: &hosts,
                segment: ELEMENTS / 16,
                deterministic: false,
            };
            // Not every algorithm can serve every world.
            if plan(&request).is_ok() {
                let id = BenchmarkId::new(algorithm.to_string(), size);
                group.bench_function(id, |bencher| bencher.iter(|| plan(black_box(&request))));
            }
        }
    }
    group.finish();

    let mut group = criterion.benchmark_group("choose");
    let model = CostModel::default();
    for collective in [Collective::Allreduce, Collective::Alltoall] {
        for size in SIZES {
            let hosts = hosts(size);
            let selection = Selection {
                collective,
                elements: ELEMENTS,
                dtype: DataType::F32,
                size,
                hosts: &hosts,
                equal: true,
                deterministic: false,
                forced: None,
                boards: false,
                inexact: true,
            };
            let id = BenchmarkId::new(collective.name(), size);
            group.bench_function(id, |bencher| bencher.iter(|| select(black_box(&selection), black_box(&model))));
        }
    }
    group.finish();
}

/// Short: changes are looked for by comparing, and `--measurement-time` makes it longer.
fn short() -> Criterion {
    let (warm_up, measurement) = (Duration::from_millis(100), Duration::from_millis(500));
    Criterion::default().warm_up_time(warm_up).measurement_time(measurement).sample_size(20)
}

criterion_group! {
    name = benches;
    config = short();
    targets = schedules
}
criterion_main!(benches);
