//! A message between two endpoints over streams, both driven by one thread: what the protocol costs, without a carrier
//! that anybody would wait for.

mod common;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use phalanx::transport::stream::{StreamConfig, StreamEndpoint};
use phalanx::transport::{Accumulate, Endpoint, Event, Receive, RecvRequest, SendRequest, Token, inproc};
use phalanx::types::{
    Algorithm, Collective, CommunicatorId, DataType, Finish, Generation, Order, ReduceOp, Reduction, Signature, Tag,
    TransportKind,
};
use std::sync::Arc;

/// One short enough to be copied beside its header, the longest short one, and two long ones.
const BYTES: [usize; 4] = [8, 64 << 10, 256 << 10, 8 << 20];

fn endpoints() -> (StreamEndpoint, StreamEndpoint) {
    let (a, b) = inproc::pair(Arc::new(|| ()), Arc::new(|| ()));
    let config = StreamConfig::for_kind(TransportKind::Inproc);
    let endpoint = |lane| StreamEndpoint::new(vec![Box::new(lane)], Generation::FIRST, config);
    (endpoint(a), endpoint(b))
}

fn messages(criterion: &mut Criterion) {
    let reduce = Receive::Reduce(Accumulate {
        dtype: DataType::F32,
        reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
        order: Order::HereFirst,
        finish: Finish::NONE,
    });
    let mut group = criterion.benchmark_group("message");
    for bytes in BYTES {
        let source = vec![0_u8; bytes];
        let mut target = vec![0_u8; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        for (name, mode, early) in [
            ("store", Receive::Store, false),
            ("store, early", Receive::Store, true),
            ("reduce", reduce.clone(), false),
        ] {
            let (mut a, mut b) = endpoints();
            let mut sequence = 0;
            let mut events = Vec::new();
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter_batched(
                    || mode.clone(),
                    |mode| {
                        sequence += 1;
                        let tag = Tag { communicator: CommunicatorId::WORLD, sequence };
                        let signature = Signature {
                            collective: Collective::Allreduce,
                            dtype: DataType::F32,
                            op: Some(ReduceOp::Sum),
                            algorithm: Algorithm::Ring,
                            root: None,
                            count: bytes as u64 / 4,
                            digest: 0,
                        };
                        let token = Token(sequence);
                        let send = SendRequest { tag, signature, source: source.as_ptr(), bytes, token };
                        let recv = RecvRequest { tag, signature, target: target.as_mut_ptr(), bytes, mode, token };
                        // SAFETY: both outlive the endpoints, and nobody looks at them meanwhile.
                        unsafe {
                            a.post_send(send);
                            if early {
                                a.progress(&mut events);
                                b.progress(&mut events);
                            }
                            b.post_recv(recv);
                        }
                        let mut open = 2;
                        while open > 0 {
                            a.progress(&mut events);
                            b.progress(&mut events);
                            for event in events.drain(..) {
                                open -= u32::from(matches!(event, Event::Sent(_) | Event::Received(_)));
                            }
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::short();
    targets = messages
}
criterion_main!(benches);
