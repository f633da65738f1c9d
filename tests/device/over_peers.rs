//! Collectives over memory of peers: the kernels on the CPU, launched through the driver's stand-in, by ranks that are
//! threads with a device each, and by processes that share one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use phalanx::device::{Device, DeviceBuffer, Stream};
use phalanx::types::Element;
use phalanx::{Call, Communicator, DeviceCarrier, Error, ReduceOp, Reduction, TransportKind};

use crate::harness::{StandIn, buffer, on_devices, soon, start_with_kernels, text};
use crate::matrix::all_calls;
use crate::memory::{Random, elements};

const WISH: &str = "PHALANX_DEVICE_COLLECTIVES";

/// What a scenario of this file does.
pub fn inside(scenario: &str) {
    match scenario {
        "peer-matrix" => matrix(),
        "peer-collectives" => collectives(),
        "peer-shots" => shots(),
        "peer-mismatch" => mismatch(),
        "peer-failure" => failure(),
        "peer-stall" => stall(),
        "peer-absent" => absent(),
        "peer-unusable" => unusable(),
        "peer-process" => process(),
        "peer-death" => death(),
        other => panic!("there is no scenario {other}"),
    }
}

fn run(scenario: &str, variables: &[(&str, &str)]) {
    let all = [&[(WISH, "peer"), ("PHALANX_TEST_DEVICES", "4")], variables].concat();
    if let Some(output) = start_with_kernels(scenario, &all) {
        assert!(output.status.success(), "{variables:?}: {}", text(&output));
    }
}

/// Runs `body` on ranks with a device each.
fn on_ranks<R: Send>(size: usize, body: impl Fn(Communicator, Stream) -> R + Sync) -> Vec<R> {
    on_devices(TransportKind::Shm, size, 4, body)
}

fn nothing_is_left() {
    assert_eq!(StandIn::open().live(), 0, "something of the device was left over");
}

#[test]
fn allreduces_over_peers_give_the_bits_of_host_allreduces() {
    run("peer-matrix", &[]);
}

fn matrix() {
    for size in [2, 3, 4] {
        on_ranks(size, |comm, stream| {
            // In rank order, as kernels add.
            let host = comm.with_deterministic(true);
            let sums = [
                Reduction::new(ReduceOp::Sum),
                Reduction::new(ReduceOp::Average),
                Reduction::new(ReduceOp::Sum).prescale(0.3).postscale(-2.5),
            ];
            let most = Reduction::new(ReduceOp::Max);
            for count in [0, 1, 7, 1023, 70_001] {
                for reduction in sums.iter().chain([&most]) {
                    one::<f32>(&comm, &host, &stream, reduction, count);
                }
            }
            for count in [5, 140_001] {
                one::<f16>(&comm, &host, &stream, &sums[2], count);
                one::<bf16>(&comm, &host, &stream, &sums[1], count);
                one::<f64>(&comm, &host, &stream, &sums[1], count);
            }
            one::<i32>(&comm, &host, &stream, &sums[1], 333);
            one::<i8>(&comm, &host, &stream, &Reduction::new(ReduceOp::Product), 333);
            one::<u64>(&comm, &host, &stream, &Reduction::new(ReduceOp::BitXor), 333);
            one::<bool>(&comm, &host, &stream, &Reduction::new(ReduceOp::Sum), 333);
            // More than goes at once.
            if size == 3 {
                one::<f64>(&comm, &host, &stream, &sums[0], 2_500_003);
            }
        });
        nothing_is_left();
    }
}

/// An allreduce on the device and on the host: apart, in place, and where no vector begins.
fn one<T: Element + PartialEq>(
    comm: &Communicator,
    host: &Communicator,
    stream: &Stream,
    reduction: &Reduction,
    count: usize,
) {
    let dtype = T::DATA_TYPE;
    let bytes = elements(dtype, count + 1, &mut Random(comm.rank() as u64 * 1000 + count as u64));
    let width = dtype.size();
    let call = Call::allreduce(dtype, count, reduction.clone());
    let mut expected = vec![0u8; count * width];
    // SAFETY: both have `count` elements.
    unsafe { host.run(&call, bytes.as_ptr(), expected.as_mut_ptr()).expect("a host call") };
    let given = &bytes[..count * width];
    for (lead, is_in_place) in [(0, false), (0, true), (width, true), (1, false)] {
        let padded = [&vec![0xa5; lead][..], given, &[0xa5; 16]].concat();
        let input = buffer(stream, &padded);
        let output = buffer(stream, &[&vec![0xa5; lead][..], &vec![0x77; given.len()], &[0xa5; 16]].concat());
        let at = |buffer: &DeviceBuffer<u8>| buffer.pointer() + lead as u64;
        let (from, to) = if is_in_place { (0, at(&input)) } else { (at(&input), at(&output)) };
        let call = call.clone().in_place(is_in_place);
        // SAFETY: both buffers have `count` elements from there on, and live until the call has ended.
        let handle = unsafe { comm.submit_device(&call, from, to, stream, None) }.expect("a call");
        handle.wait(stream).expect("a result");
        let result = if is_in_place { &input } else { &output }.to_vec(stream, soon()).expect("a copy");
        let (before, rest) = result.split_at(lead);
        let (result, after) = rest.split_at(given.len());
        assert!(result == expected, "{reduction:?} of {count} {dtype} on rank {} of {}", comm.rank(), comm.size());
        assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "written beside the memory");
        if !is_in_place {
            assert!(input.to_vec(stream, soon()).expect("a copy") == padded, "the input was written");
        }
    }
}

#[test]
fn every_collective_goes_over_peers_with_the_bits_of_a_host_call() {
    run("peer-collectives", &[]);
}

fn collectives() {
    for size in [2, 3, 4] {
        on_ranks(size, |comm, stream| {
            let comm = comm.with_deterministic(true);
            for count in [0, 1, 1023] {
                all_calls::<f32>(&comm, &stream, count, |value| value as f32 * 0.37);
            }
            all_calls::<f16>(&comm, &stream, 501, |value| f16::from_f32(value as f32 * 0.37));
            all_calls::<i8>(&comm, &stream, 335, |value| value as i8);
            // Blocks that together are more than goes at once.
            if size == 3 {
                all_calls::<f64>(&comm, &stream, 700_003, |value| value as f64 * 0.37);
            }
        });
        nothing_is_left();
    }
    on_ranks(3, |comm, stream| {
        let counts = [5, 0, 9];
        let dtype = phalanx::DataType::F32;
        for (call, carrier) in [
            (Call::reduce(dtype, 9, ReduceOp::Sum, 1), DeviceCarrier::Peers),
            (Call::broadcast(dtype, 9, 1), DeviceCarrier::Peers),
            (Call::allgather(dtype, 9), DeviceCarrier::Peers),
            (Call::allgatherv(dtype, &counts), DeviceCarrier::Peers),
            (Call::reduce_scatter(dtype, 9, ReduceOp::Max), DeviceCarrier::Peers),
            (Call::reduce_scatterv(dtype, &counts, ReduceOp::Sum), DeviceCarrier::Peers),
            (Call::alltoall(dtype, 9), DeviceCarrier::Peers),
            (Call::gather(dtype, 9, 1), DeviceCarrier::Peers),
            (Call::gatherv(dtype, &counts, 1), DeviceCarrier::Peers),
            (Call::scatter(dtype, 9, 1), DeviceCarrier::Peers),
            (Call::scatterv(dtype, &counts, 1), DeviceCarrier::Peers),
            // Only the two ranks of an exchange know its length.
            (Call::alltoallv(dtype, &[9; 3], &[9; 3]), DeviceCarrier::Staged),
        ] {
            let (inputs, outputs) = call.counts(comm.rank(), 3).expect("a call");
            let (input, mut output) = (buffer(&stream, &vec![1.0f32; inputs]), buffer(&stream, &vec![0.0f32; outputs]));
            comm.call_device(&call, &input, &mut output, &stream).expect("a device call");
            assert_eq!(comm.device_carrier(), Some(carrier), "{call:?}");
        }
    });
}

#[test]
fn a_call_is_as_many_launches_as_its_shot_has_and_nothing_goes_through_the_host() {
    run("peer-shots", &[]);
}

fn shots() {
    let stand_in = StandIn::open();
    let launches = |body: &(dyn Fn(&Communicator, &Stream) + Sync)| {
        let before = stand_in.calls("cuLaunchKernel");
        on_ranks(3, |comm, stream| body(&comm, &stream));
        (stand_in.calls("cuLaunchKernel") - before) / 3
    };
    let sum = |comm: &Communicator, stream: &Stream, count: usize, op: ReduceOp| {
        let mut data = DeviceBuffer::<f32>::new(stream.device(), count).expect("device memory");
        comm.allreduce_device(&mut data, op, stream).expect("a call");
    };
    assert_eq!(launches(&|comm, stream| sum(comm, stream, 0, ReduceOp::Sum)), 0);
    assert_eq!(launches(&|comm, stream| sum(comm, stream, 100, ReduceOp::Sum)), 2);
    assert_eq!(launches(&|comm, stream| sum(comm, stream, 100_000, ReduceOp::Average)), 2);
    assert_eq!(launches(&|comm, stream| sum(comm, stream, 5_000_000, ReduceOp::Sum)), 4, "two pieces");
    assert_eq!(launches(&|comm, stream| sum(comm, stream, 100, ReduceOp::Min)), 4, "two meetings");
    // The blocks of a short call go into the arena at once.
    let alltoall = |comm: &Communicator, stream: &Stream| {
        let [input, mut output] =
            [(); 2].map(|()| DeviceBuffer::<i32>::new(stream.device(), 300).expect("device memory"));
        comm.alltoall_device(&input, &mut output, stream).expect("a call");
    };
    assert_eq!(launches(&alltoall), 3);
    assert_eq!(stand_in.calls("cuMemcpyDtoHAsync_v2"), 0);
    nothing_is_left();
}

#[test]
fn what_was_right_by_the_host_is_right_over_peers() {
    for scenario in ["order", "endless", "owning", "mismatch", "arguments", "give-up", "give-up-queued", "nowhere"] {
        run(scenario, &[("PHALANX_TEST_DEVICES", "2")]);
    }
    run("peer-mismatch", &[]);
}

/// A call that differs from the others', after one that was alike.
fn mismatch() {
    let errors = on_ranks(3, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
        let op = if comm.rank() == 1 { ReduceOp::Max } else { ReduceOp::Sum };
        let error = comm.allreduce_device(&mut data, op, &stream).expect_err("a mismatch");
        let again = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("the same");
        assert_eq!(error, again);
        assert_eq!(StandIn::open().calls("cuLaunchKernel"), 6, "a kernel was launched for a call that differs");
        error.to_string()
    });
    assert!(errors.iter().all(|text| text.contains("sum") && text.contains("max")), "{errors:?}");
}

#[test]
fn a_launch_that_fails_ends_the_kernels_that_wait_for_it() {
    // The first calls are one copy and one kernel on each of three ranks; the last of them may be any rank's.
    for launch in ["6", "9", "12"] {
        run("peer-failure", &[("PHALANX_TEST_FAIL", &format!("cuLaunchKernel:{launch}:719"))]);
    }
}

fn failure() {
    let since = Instant::now();
    let causes = on_ranks(3, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        let mut call = || comm.allreduce_device(&mut data, ReduceOp::Sum, &stream);
        let error = (0..3).find_map(|_| call().err()).expect("a launch that fails");
        assert_eq!(call().expect_err("the same"), error);
        error.to_string()
    });
    assert!(since.elapsed() < Duration::from_secs(40), "somebody waited for a deadline");
    let told = |text: &&String| text.contains("cuLaunchKernel failed with CUDA_ERROR_LAUNCH_FAILED");
    assert_eq!(causes.iter().filter(told).count(), 3, "{causes:?}");
    // What was kept of a communicator that failed serves the next one, however many there are.
    let mut left = BTreeSet::new();
    for _ in 0..3 {
        on_ranks(3, |comm, stream| {
            for round in 1..4 {
                let mut data = buffer(&stream, &[round as f32; 5000]);
                comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
                assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), [3.0 * round as f32; 5000]);
            }
        });
        left.insert(StandIn::open().live());
    }
    assert_eq!(left, BTreeSet::from([0]), "something of the device was left over");
}

#[test]
fn a_kernel_that_waits_beyond_the_deadline_is_told_to_give_up() {
    // Of two ranks, each with a copy and a kernel: the last launch is one of the kernels.
    run("peer-stall", &[("PHALANX_TEST_STALL", "4")]);
}

fn stall() {
    let stand_in = StandIn::open();
    let errors = on_ranks(2, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        let comm = comm.with_timeout(Duration::from_secs(2 + 40 * comm.rank() as u64));
        let since = Instant::now();
        let error = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("a timeout");
        assert!(since.elapsed() < Duration::from_secs(30), "rank {} waited for its own deadline", comm.rank());
        // To free memory waits for the device.
        (error, data)
    });
    stand_in.release();
    let (errors, _data): (Vec<_>, Vec<_>) = errors.into_iter().unzip();
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    // Rank 0's deadline, of which the other one is told.
    let is_timeout = |error: &Error| matches!(error, Error::Timeout { waiting_for, .. } if waiting_for[..] == [1]);
    assert!(errors.iter().all(is_timeout), "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("allreduce(count 5000, f32, sum, peers)")), "{texts:?}");
    assert!(
        texts.iter().all(|text| text.contains("over memory of peers; its kernel was told to give up")),
        "{texts:?}"
    );
}

#[test]
fn no_kernel_waits_for_a_rank_that_does_not_come() {
    run("peer-absent", &[]);
}

fn absent() {
    let launches = || StandIn::open().calls("cuLaunchKernel");
    let outcomes = on_ranks(3, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
        if comm.rank() == 2 {
            return None;
        }
        let comm = comm.with_timeout(Duration::from_secs(2));
        Some(comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("a timeout"))
    });
    let is_named = |error: &Error| matches!(error, Error::Timeout { waiting_for, .. } if waiting_for.contains(&2));
    assert!(outcomes.iter().flatten().any(is_named), "{outcomes:?}");
    assert_eq!(outcomes.iter().flatten().count(), 2);
    assert_eq!(launches(), 6);
}

#[test]
fn where_it_cannot_be_used_all_ranks_hear_why_or_go_by_the_host() {
    for wish in ["peer", "auto"] {
        // No way between the devices; two ranks of a process with one device; no kernels.
        for (variable, value, why) in [
            ("PHALANX_TEST_APART", "1", "does not reach the memory of device"),
            ("PHALANX_TEST_DEVICES", "2", "are one process with one device"),
            ("PHALANX_KERNELS", "/nowhere", "PHALANX_KERNELS=/nowhere"),
            ("PHALANX_TEST_FAIL", "cuIpcGetMemHandle:1:801", "cuIpcGetMemHandle failed"),
        ] {
            run("peer-unusable", &[(WISH, wish), (variable, value), ("PHALANX_TEST_WHY", why)]);
        }
    }
}

fn unusable() {
    let insists = std::env::var(WISH).is_ok_and(|wish| wish == "peer");
    let why = std::env::var("PHALANX_TEST_WHY").expect("set by the test that starts this");
    let devices = if why.contains("one process") { 2 } else { 4 };
    let errors = on_devices(TransportKind::Shm, 3, devices, |comm, stream| {
        let mut data = buffer(&stream, &[comm.rank() as f32; 5000]);
        let outcome = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream);
        if insists {
            return Some(outcome.expect_err("what cannot be").to_string());
        }
        outcome.expect("a call by the host");
        comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("another one");
        assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), [9.0; 5000]);
        None
    });
    let told: BTreeSet<_> = errors.into_iter().flatten().collect();
    assert_eq!(told.len(), usize::from(insists), "ranks hear different causes: {told:?}");
    assert!(told.iter().all(|text| text.contains("memory of peers cannot be used") && text.contains(&why)), "{told:?}");
    assert_eq!(StandIn::open().calls("cuLaunchKernel"), 0);
}

/// Starts processes that are ranks of one job, and returns how each ended.
fn processes(scenario: &str, size: usize) -> Option<Vec<std::process::Output>> {
    let (job, size_text) = (format!("{scenario}-{}", std::process::id()), size.to_string());
    let rank = |rank: usize| {
        let (job, size, rank) = (job.clone(), size_text.clone(), rank.to_string());
        let scenario = scenario.to_owned();
        std::thread::spawn(move || {
            let variables = [
                (WISH, "peer"),
                ("PHALANX_TEST_DEVICES", "1"),
                ("PHALANX_JOB", &job),
                ("PHALANX_RANK", &rank),
                ("PHALANX_SIZE", &size),
                ("PHALANX_RENDEZVOUS", "local"),
            ];
            start_with_kernels(&scenario, &variables)
        })
    };
    let started: Vec<_> = (0..size).map(rank).collect();
    started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn processes_map_each_others_memory_by_ipc() {
    for output in processes("peer-process", 3).into_iter().flatten() {
        assert!(output.status.success(), "{}", text(&output));
    }
}

fn process() {
    {
        let comm = phalanx::init().expect("a world").with_timeout(Duration::from_secs(60));
        let device = Device::open(0).expect("a device");
        let stream = Stream::new(&device).expect("a stream");
        let host = comm.with_deterministic(true);
        for count in [1, 5000, 100_003] {
            one::<f32>(&comm, &host, &stream, &Reduction::new(ReduceOp::Average), count);
            one::<i32>(&comm, &host, &stream, &Reduction::new(ReduceOp::Max), count);
        }
        assert_eq!(StandIn::open().calls("cuIpcOpenMemHandle_v2"), comm.size() as i64 - 1);
    }
    nothing_is_left();
}

#[test]
fn a_process_that_dies_is_named_and_leaves_no_kernel_waiting() {
    let Some(outputs) = processes("peer-death", 3) else { return };
    for (rank, output) in outputs.iter().enumerate() {
        let printed = text(output);
        assert_eq!(output.status.success(), rank != 2, "rank {rank}: {printed}");
        assert!(rank == 2 || printed.contains("rank 2 is known to have died"), "{printed}");
    }
}

fn death() {
    let comm = phalanx::init().expect("a world").with_timeout(Duration::from_secs(60));
    let stream = Stream::new(&Device::open(0).expect("a device")).expect("a stream");
    let mut data = buffer(&stream, &[1.0f32; 5000]);
    comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
    if comm.rank() == 2 {
        // As by the kernel for want of memory: nothing is closed, nobody is told.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("a signal");
    }
    let since = Instant::now();
    let error = (0..1000).find_map(|_| comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).err());
    let error = error.expect("a call without rank 2");
    assert!(matches!(error, Error::PeerFailed { rank: 2, .. }), "{error}");
    assert!(since.elapsed() < Duration::from_secs(30), "it waited for the deadline");
    println!("rank 2 is known to have died: {error}");
}
