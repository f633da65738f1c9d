//! Device calls that fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use phalanx::device::{Device, DeviceBuffer, Stream};
use phalanx::{Call, DataType, Error, ReduceOp, Result, TransportKind, testing};

use crate::harness::{StandIn, buffer, on_world, run, soon, start, text};

#[test]
fn calls_that_differ_are_a_mismatch_on_both_sides_and_the_last() {
    run("mismatch");
}

pub fn mismatch() {
    for counts in [[5000, 5001], [3_000_000, 3_000_001]] {
        let errors = on_world(TransportKind::Shm, 2, |comm, stream| {
            let count = counts[comm.rank()];
            let mut data = DeviceBuffer::<f32>::new(stream.device(), count).expect("device memory");
            let error = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("a mismatch");
            let again = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("the same");
            assert_eq!(error, again);
            error
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch { .. }), "{text}");
            assert!(counts.iter().all(|count| text.contains(&format!("count {count}"))), "{text}");
        }
    }
    assert_eq!(StandIn::open().live(), 0, "something of the device was left over");
}

#[test]
fn memory_that_is_not_the_devices_is_refused() {
    run("arguments");
}

pub fn arguments() {
    on_world(TransportKind::Shm, 2, |comm, stream| {
        let call = Call::allreduce(DataType::F32, 4, ReduceOp::Sum).in_place(true);
        let host = [0.0f32; 4];
        // SAFETY: refused before it is touched.
        let refused = |pointer: u64| unsafe { comm.submit_device(&call, 0, pointer, &stream, None) };
        let text = refused(host.as_ptr().expose_provenance() as u64).expect_err("host memory").to_string();
        assert!(text.contains("output of allreduce") && text.contains("not device memory"), "{text}");
        let other = Device::open(1 - comm.rank()).expect("a device");
        let elsewhere = DeviceBuffer::<f32>::new(&other, 4).expect("device memory");
        let text = refused(elsewhere.pointer()).expect_err("another device's memory").to_string();
        assert!(text.contains("memory of device"), "{text}");
        let text = Device::open(7).expect_err("no such device").to_string();
        assert!(text.contains("device 7 given, but this process sees 2"), "{text}");
        // Nothing was sent: the communicator is unharmed.
        let mut data = buffer(&stream, &[1.0f32; 4]);
        comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
        assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), [2.0; 4]);
    });
}

#[test]
fn bytes_that_are_no_bool_are_not_read_as_one() {
    run("elements");
}

pub fn elements() {
    let stream = Stream::new(&Device::open(0).expect("a device")).expect("a stream");
    let flags = DeviceBuffer::<bool>::new(stream.device(), 3).expect("device memory");
    let put = |bytes: [u8; 3]| {
        let source = buffer(&stream, &bytes);
        // SAFETY: both have three bytes, and the copy is waited for.
        unsafe { stream.copy(flags.pointer(), source.pointer(), 3) }.expect("a copy");
        assert!(stream.synchronize(soon()).expect("a copy"));
    };
    put([1, 0, 1]);
    assert_eq!(flags.to_vec(&stream, soon()), Ok(vec![true, false, true]));
    put([1, 2, 0xa5]);
    let mut elements = [true; 3];
    for _ in 0..2 {
        let error = flags.read(&stream, &mut elements, soon()).expect_err("what is no bool");
        assert!(error.to_string().contains("element 1 of a device buffer of bool is 2"), "{error}");
    }
    assert_eq!(elements, [true; 3], "elements were read");
}

/// The calls of the driver that can fail; those that give back cannot do anything about it.
const FUNCTIONS: [&str; 19] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuPointerGetAttribute",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    // Not made here: a kernel's.
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
];

/// Every call of the driver that a collective makes fails once, at its first, second, middle and last time.
#[test]
fn each_call_of_the_driver_that_fails_is_told_by_name_and_nothing_leaks_or_hangs() {
    let Some(output) = start("calls", &[]) else { return };
    assert!(output.status.success(), "{}", text(&output));
    let printed = text(&output);
    let made = |function: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(&format!("calls {function} ")));
        line.and_then(|count| count.parse::<i64>().ok()).expect("a count")
    };
    let mut tried = 0;
    for function in FUNCTIONS {
        let count = made(function);
        let mut times = vec![1, 2, count / 2, count];
        if matches!(function, "cuEventQuery" | "cuCtxPushCurrent_v2") {
            // How often an event is asked for, in a context that is entered for that, differs from run to run.
            times.truncate(2);
        }
        times.retain(|&time| 0 < time && time <= count);
        times.sort_unstable();
        times.dedup();
        for time in times {
            let wish = format!("{function}:{time}:700");
            let output = start("calls", &[("PHALANX_TEST_FAIL", &wish)]).expect("a compiler, as before");
            let printed = text(&output);
            assert!(output.status.success(), "{wish}: {printed}");
            let told = printed.contains(&format!("{function} failed with CUDA_ERROR_ILLEGAL_ADDRESS, code 700"));
            // A call may come at another time in another run, and the last of them not at all.
            let came = printed.contains("failures 0") && time == count;
            assert!(told || came, "{wish}: {printed}");
            tried += 1;
        }
    }
    assert!(tried > 40, "only {tried} failures were tried");
}

/// Two ranks make a call of several pieces. Whatever fails, the others hear, nothing is left over, and what succeeds is
/// right.
pub fn calls() {
    let stand_in = StandIn::open();
    let failures = AtomicUsize::new(0);
    let world = testing::local_world(TransportKind::Shm, &[0, 0]).expect("a world of threads");
    std::thread::scope(|scope| {
        for comm in world {
            let failures = &failures;
            scope.spawn(move || {
                let comm = comm.with_timeout(Duration::from_secs(10));
                let one_rank = || -> Result<()> {
                    let device = Device::open(0)?;
                    let stream = Stream::new(&device)?;
                    let mut data = DeviceBuffer::from_slice(&stream, &vec![1.0f32; 3_000_000], soon())?;
                    comm.allreduce_device(&mut data, ReduceOp::Sum, &stream)?;
                    let result = data.to_vec(&stream, soon())?;
                    assert!(result.iter().all(|value| *value == 2.0), "a wrong result");
                    comm.allreduce_device(&mut data, ReduceOp::Sum, &stream)
                };
                if let Err(error) = one_rank() {
                    println!("rank {}: {error}", comm.rank());
                    failures.fetch_add(1, Ordering::Relaxed);
                    // As a program does that ends with an error: the other rank hears of it.
                    testing::vanish(&comm);
                }
            });
        }
    });
    println!("failures {}", failures.load(Ordering::Relaxed));
    for function in FUNCTIONS {
        println!("calls {function} {}", stand_in.calls(function));
    }
    // What gives something back cannot enter the context then.
    let may_leak = std::env::var("PHALANX_TEST_FAIL").is_ok_and(|wish| wish.starts_with("cuCtxPushCurrent_v2"));
    assert!(stand_in.live() == 0 || may_leak, "{} things of the device were left over", stand_in.live());
}
