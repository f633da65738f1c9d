//! Headers of frames, to bytes and back: what every message pays.

mod common;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use phalanx::types::{Algorithm, Collective, CommunicatorId, DataType, Generation, ReduceOp, Signature, Tag};
use phalanx::wire::frame::{Frame, Header};
use std::hint::black_box;

fn headers() -> [Header; 4] {
    let tag = Tag { communicator: CommunicatorId::WORLD, sequence: 7 };
    let signature = Signature {
        collective: Collective::Allreduce,
        dtype: DataType::F32,
        op: Some(ReduceOp::Sum),
        algorithm: Algorithm::Ring,
        root: None,
        count: 1 << 20,
        digest: 0,
    };
    let (signature, total) = ((&signature).into(), 4 << 20);
    [
        (8, Frame::Eager { tag, signature }),
        (0, Frame::Ready { tag, signature, total, target: 3, answer: false }),
        (64 << 10, Frame::Segment { target: 3, offset: 1 << 20 }),
        (0, Frame::Credit),
    ]
    .map(|(length, frame)| Header { generation: Generation::FIRST, credit: 1, length, frame })
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    for header in headers() {
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        group.bench_function(BenchmarkId::new("encode", header.frame.name()), |bencher| {
            bencher.iter(|| black_box(&header).encode());
        });
        group.bench_function(BenchmarkId::new("decode", header.frame.name()), |bencher| {
            bencher.iter(|| Header::decode(black_box(&bytes)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::short();
    targets = frames
}
criterion_main!(benches);
