//! Planning and choosing: what the first call of each kind and size pays, before its plan is kept.

mod common;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use phalanx::schedule::cost::{CostModel, Selection, select};
use phalanx::schedule::{PlanRequest, Shape, algorithms_for, plan};
use phalanx::types::{Collective, DataType};
use std::hint::black_box;

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
            let selection = Selection::new(collective, ELEMENTS, DataType::F32, size, &hosts);
            let id = BenchmarkId::new(collective.name(), size);
            group.bench_function(id, |bencher| bencher.iter(|| select(black_box(&selection), black_box(&model))));
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::short();
    targets = schedules
}
criterion_main!(benches);
