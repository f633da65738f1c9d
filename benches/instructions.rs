//! Fixed work on the hot paths, to have its instructions counted: `instructions PATH TIMES`, or `--list`.
//!
//! `benches/instructions.py` runs it under valgrind, for two numbers of times: the difference is what the path costs,
//! without the start. One thread, no clock, no random number: the same count each time. SLOWER_PATH=PATH does
//! each tenth time twice, which the check must notice.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use phalanx::reduce::combine;
use phalanx::schedule::cost::{CostModel, Selection, select};
use phalanx::schedule::{PlanRequest, Shape, plan};
use phalanx::transport::stream::{StreamConfig, StreamEndpoint};
use phalanx::transport::{Accumulate, Endpoint, Event, Receive, RecvRequest, SendRequest, Token, inproc};
use phalanx::types::{
    Algorithm, Collective, CommunicatorId, DataType, Finish, Generation, Order, ReduceOp, Reduction, Signature, Tag,
    TransportKind,
};
use phalanx::wire::frame::{Frame, Header};

/// What a path does: once a call.
type Work = Box<dyn FnMut()>;

/// Each path with the function that makes its work ready.
type Path = (&'static str, fn() -> Work);

const PATHS: [Path; 10] = [
    ("frame", frame),
    ("plan-ring", || planned(Algorithm::Ring)),
    ("plan-two-shot", || planned(Algorithm::TwoShot)),
    ("choose", choose),
    ("reduce-f32", || reduced(DataType::F32)),
    ("reduce-f16", || reduced(DataType::F16)),
    ("reduce-bf16", || reduced(DataType::BF16)),
    ("message-store", || message(Receive::Store)),
    ("message-reduce", || message(reduction())),
    ("front-door", front_door),
];

/// Bytes of a message: few, so that the C library's copies, which differ by processor, do not count.
const MESSAGE: usize = 64;

/// Bytes of a reduction: two operands and the code fit into the nearest cache.
const REDUCED: usize = 4096;

const SIGNATURE: Signature = Signature {
    collective: Collective::Allreduce,
    dtype: DataType::F32,
    op: Some(ReduceOp::Sum),
    algorithm: Algorithm::Ring,
    root: None,
    count: MESSAGE as u64 / 4,
    digest: 0,
};

fn frame() -> Work {
    let tag = Tag { communicator: CommunicatorId::WORLD, sequence: 7 };
    let frame = Frame::Eager { tag, signature: (&SIGNATURE).into() };
    let header = Header { generation: Generation::FIRST, credit: 1, length: MESSAGE as u32, frame };
    Box::new(move || {
        let bytes = black_box(&header).encode();
        assert!(Header::decode(black_box(&bytes)).is_ok());
    })
}

fn planned(algorithm: Algorithm) -> Work {
    Box::new(move || {
        let request = PlanRequest {
            collective: Collective::Allreduce,
            algorithm,
            rank: 3,
            size: 8,
            root: 0,
            shape: Shape::Whole(1 << 20),
            in_place: false,
            hosts: &[],
            segment: 1 << 16,
            deterministic: false,
        };
        black_box(plan(black_box(&request)).expect("a plan for 8 ranks"));
    })
}

fn choose() -> Work {
    let (hosts, model) = ([0, 0, 0, 0, 1, 1, 1, 1], CostModel::default());
    Box::new(move || {
        let selection = Selection::new(Collective::Allreduce, 1 << 20, DataType::F32, 8, &hosts);
        black_box(select(black_box(&selection), black_box(&model)));
    })
}

fn reduced(dtype: DataType) -> Work {
    // Zeros in every type, and they stay zeros. Words, so that they are aligned alike each time.
    let (mut target, source) = (vec![0_u64; REDUCED / 8], vec![0_u64; REDUCED / 8]);
    let sum = Reduction::new(ReduceOp::Sum);
    Box::new(move || {
        let (to, from) = (target.as_mut_ptr().cast(), source.as_ptr().cast());
        // SAFETY: both hold as many bytes, and are apart.
        unsafe { combine(&sum, dtype, to, from, REDUCED / dtype.size(), Order::HereFirst, Finish::NONE) }
    })
}

fn reduction() -> Receive {
    Receive::Reduce(Accumulate {
        dtype: DataType::F32,
        reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
        order: Order::HereFirst,
        finish: Finish::NONE,
    })
}

/// A short message from one endpoint to the other, over a ring.
fn message(mode: Receive) -> Work {
    let (a, b) = inproc::pair(Arc::new(|| ()), Arc::new(|| ()));
    let config = StreamConfig::for_kind(TransportKind::Inproc);
    let endpoint = |lane| StreamEndpoint::new(vec![Box::new(lane)], Generation::FIRST, config);
    let (mut a, mut b) = (endpoint(a), endpoint(b));
    let (source, mut target) = (vec![0_u8; MESSAGE], vec![0_u8; MESSAGE]);
    let (mut sequence, mut events) = (0, Vec::new());
    Box::new(move || {
        sequence += 1;
        let tag = Tag { communicator: CommunicatorId::WORLD, sequence };
        let (token, signature, bytes) = (Token(sequence), SIGNATURE, MESSAGE);
        let send = SendRequest { tag, signature, source: source.as_ptr(), bytes, token };
        let recv = RecvRequest { tag, signature, target: target.as_mut_ptr(), bytes, mode: mode.clone(), token };
        // SAFETY: both buffers live as long as the endpoints, and nobody looks at them until the message is complete.
        unsafe {
            a.post_send(send);
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
    })
}

/// A call of a world of one: the checks, the key, and the plan that is known.
fn front_door() -> Work {
    let mut world = phalanx::thread_world(1).expect("a world of one");
    let comm = world.pop().expect("its rank");
    let mut data = [1_f32, 2.0];
    Box::new(move || comm.allreduce(black_box(&mut data), ReduceOp::Sum).expect("a sum of one"))
}

fn main() -> ExitCode {
    // What `cargo bench` passes on says nothing here.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match &arguments[..] {
        [only] if only == "--list" => PATHS.iter().for_each(|(name, _)| println!("{name}")),
        [] => println!("instructions are counted by: python3 benches/instructions.py"),
        [path, times] => {
            let found = PATHS.iter().find(|(name, _)| name == path);
            let (Some((_, ready)), Ok(times)) = (found, times.parse::<u64>()) else {
                eprintln!("instructions PATH TIMES: {path} {times} given; --list shows the paths");
                return ExitCode::FAILURE;
            };
            let slower = std::env::var("SLOWER_PATH").is_ok_and(|slower| slower == *path);
            let mut work = ready();
            for number in 0..times {
                work();
                if slower && number % 10 == 0 {
                    work();
                }
            }
        }
        _ => {
            eprintln!("instructions PATH TIMES, or --list");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
