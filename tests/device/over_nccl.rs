//! Device calls that NCCL carries, against a stand-in of it (`nccl.cpp`) on the stand-in of the driver.

use std::ffi::{CString, OsStr, c_char, c_long};
use std::process::Output;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use half::bf16;
use phalanx::device::{Device, DeviceBuffer, Stream};
use phalanx::sys::library::Library;
use phalanx::{Call, Communicator, DataType, Error, ReduceOp, Reduction, TransportKind};

use crate::harness::{StandIn, buffer, folder, library, on_devices, soon, stand_in, start, text};
use crate::matrix;

const WISH: &str = "PHALANX_DEVICE_COLLECTIVES";

/// What a scenario of this file does.
pub fn inside(scenario: &str) {
    match scenario {
        "nccl-matrix" => matrix(),
        "nccl-rounding" => rounding(),
        "nccl-mismatch" => mismatch(),
        "nccl-absent" => absent(),
        "nccl-hang" => hang(),
        "nccl-failure" => failure(),
        "nccl-staged" => staged(),
        "nccl-refused" => refused(),
        "nccl-lacking" => lacking(),
        "nccl-mixed" => mixed(),
        "nccl-device" => one_device(),
        other => panic!("there is no scenario {other}"),
    }
}

/// The folders with both stand-ins, as a list for `PHALANX_LIBRARIES`.
pub fn folders() -> Option<&'static str> {
    static FOLDERS: OnceLock<Option<String>> = OnceLock::new();
    let build = || {
        let driver = folder()?.to_str().expect("a path in UTF-8");
        let at = format!("-Wl,-z,defs,-rpath,{driver}");
        let more = ["-L".as_ref(), OsStr::new(driver), "-l:libcuda.so.1".as_ref(), OsStr::new(&at)];
        let nccl = stand_in("stand-in-nccl", "nccl.cpp", "libnccl.so.2", &more)?;
        Some(format!("{}:{driver}", nccl.to_str().expect("a path in UTF-8")))
    };
    FOLDERS.get_or_init(build).as_deref()
}

/// Starts a scenario with as many devices as any has ranks.
fn start_with(scenario: &str, variables: &[(&str, &str)]) -> Option<Output> {
    let mut all = vec![("PHALANX_LIBRARIES", folders()?), ("PHALANX_TEST_DEVICES", "4")];
    all.extend(variables);
    start(scenario, &all)
}

pub fn run_with(scenario: &str, variables: &[(&str, &str)]) {
    if let Some(output) = start_with(scenario, variables) {
        assert!(output.status.success(), "{variables:?}: {}", text(&output));
    }
}

/// The stand-in's own functions.
pub struct Nccl(Library);

impl Nccl {
    pub fn open() -> Self {
        Self(library("libnccl.so.2"))
    }

    pub fn calls(&self, function: &str) -> i64 {
        let name = CString::new(function).expect("a name");
        type Count = unsafe extern "C" fn(*const c_char) -> c_long;
        // SAFETY: the stand-in gives the function this type.
        let calls = unsafe { self.0.function::<Count>("phx_nccl_calls\0") };
        // SAFETY: as above; the name ends with a zero byte.
        unsafe { calls.expect("phx_nccl_calls")(name.as_ptr()) }
    }

    /// That nothing is left of NCCL and of the device.
    pub fn is_clean(&self) {
        // SAFETY: the stand-in gives the function this type.
        let live = unsafe { self.0.function::<unsafe extern "C" fn() -> c_long>("phx_nccl_live\0") };
        // SAFETY: as above.
        assert_eq!(unsafe { live.expect("phx_nccl_live")() }, 0, "communicators of NCCL were left over");
        assert_eq!(StandIn::open().live(), 0, "something of the device was left over");
    }
}

/// Runs `body` on ranks with a device each.
pub fn on_ranks<R: Send>(size: usize, body: impl Fn(Communicator, Stream) -> R + Sync) -> Vec<R> {
    on_devices(TransportKind::Shm, size, 4, body)
}

/// An allreduce of `count` floats whose sum is known.
pub fn sum_is_right(comm: &Communicator, stream: &Stream, count: usize) {
    let mut data = buffer(stream, &vec![comm.rank() as f32 + 1.0; count]);
    comm.allreduce_device(&mut data, ReduceOp::Sum, stream).expect("a call");
    let sum = (comm.size() * (comm.size() + 1) / 2) as f32;
    assert!(data.to_vec(stream, soon()).expect("a copy").iter().all(|value| *value == sum));
}

#[test]
fn collectives_over_nccl_give_the_bits_of_host_collectives() {
    run_with("nccl-matrix", &[]);
}

fn matrix() {
    let nccl = Nccl::open();
    for size in [4, 3, 1] {
        on_ranks(size, |comm, stream| matrix::all(&comm, &stream));
    }
    for function in ["ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter", "ncclSend"] {
        assert!(nccl.calls(function) > 0, "{function} was never called");
    }
    nccl.is_clean();
}

#[test]
fn what_was_right_without_nccl_is_right_with_it() {
    for scenario in ["order", "endless", "owning", "mismatch", "arguments", "give-up", "give-up-queued"] {
        run_with(scenario, &[("PHALANX_TEST_DEVICES", "2")]);
    }
    run_with("nowhere", &[("PHALANX_TEST_DEVICES", "2"), (WISH, "nccl")]);
}

#[test]
fn what_nccl_rounds_otherwise_it_carries_only_where_that_was_asked_for() {
    run_with("nccl-rounding", &[(WISH, "auto")]);
    run_with("nccl-rounding", &[(WISH, "nccl")]);
}

fn rounding() {
    let nccl = Nccl::open();
    let insists = std::env::var(WISH).is_ok_and(|wish| wish == "nccl");
    on_ranks(3, |comm, stream| {
        let mut averages = buffer(&stream, &[0.1f32 * comm.rank() as f32; 5]);
        comm.allreduce_device(&mut averages, ReduceOp::Average, &stream).expect("a call");
        // As each defines it: the sum divided, or each multiplied by the rounded reciprocal and then added.
        let each = [0.0f32, 0.1, 0.1 * 2.0];
        let divided = (each[0] + each[1] + each[2]) / 3.0;
        let multiplied = each.iter().map(|value| value * (1.0f32 / 3.0)).sum::<f32>();
        let expected = if insists { multiplied } else { divided };
        assert_eq!(averages.to_vec(&stream, soon()).expect("a copy"), [expected; 5]);
        // 256, 1 and 1 in eight bits: rounded after every step the ones are lost.
        let value = if comm.rank() == 0 { 256.0 } else { 1.0 };
        let mut halves = buffer(&stream, &[bf16::from_f32(value); 5]);
        comm.allreduce_device(&mut halves, ReduceOp::Sum, &stream).expect("a call");
        let expected = bf16::from_f32(if insists { 256.0 } else { 258.0 });
        assert_eq!(halves.to_vec(&stream, soon()).expect("a copy"), [expected; 5]);
        let mut least = buffer(&stream, &[comm.rank() as f32; 5]);
        comm.allreduce_device(&mut least, ReduceOp::Min, &stream).expect("a call");
        assert_eq!(least.to_vec(&stream, soon()).expect("a copy"), [0.0; 5]);
        // Integers it carries either way, and factors neither way.
        let mut integers = buffer(&stream, &[comm.rank() as i32; 5]);
        comm.allreduce_device(&mut integers, ReduceOp::Max, &stream).expect("a call");
        assert_eq!(integers.to_vec(&stream, soon()).expect("a copy"), [2; 5]);
        let mut scaled = buffer(&stream, &[1.0f32; 5]);
        comm.allreduce_device(&mut scaled, Reduction::new(ReduceOp::Sum).postscale(0.5), &stream).expect("a call");
        assert_eq!(scaled.to_vec(&stream, soon()).expect("a copy"), [1.5; 5]);
        // In the order of the ranks, whatever carries it.
        let ordered = comm.with_deterministic(true);
        let mut sum = buffer(&stream, &[each[comm.rank()]; 5]);
        ordered.allreduce_device(&mut sum, ReduceOp::Sum, &stream).expect("a call");
        assert_eq!(sum.to_vec(&stream, soon()).expect("a copy"), [each[0] + each[1] + each[2]; 5]);
    });
    assert_eq!(nccl.calls("ncclAllReduce"), if insists { 4 * 3 } else { 3 });
    nccl.is_clean();
}

#[test]
fn calls_that_differ_never_reach_nccl() {
    run_with("nccl-mismatch", &[]);
}

fn mismatch() {
    let nccl = Nccl::open();
    // The second is carried by NCCL on one rank and by the host on the other.
    for (ops, counts) in [([ReduceOp::Sum, ReduceOp::Sum], [5000, 5001]), ([ReduceOp::Sum, ReduceOp::Min], [7, 7])] {
        for calls_before in [0, 2] {
            let before = nccl.calls("ncclAllReduce");
            let errors = on_ranks(2, |comm, stream| {
                (0..calls_before).for_each(|_| sum_is_right(&comm, &stream, 100));
                let mut data = DeviceBuffer::<f32>::new(stream.device(), counts[comm.rank()]).expect("device memory");
                let error = comm.allreduce_device(&mut data, ops[comm.rank()], &stream).expect_err("a mismatch");
                let again = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("the same");
                assert_eq!(error, again);
                error
            });
            for error in errors {
                let text = error.to_string();
                assert!(matches!(error, Error::Mismatch { .. }), "{text}");
                let calls = (0..2).map(|rank| format!("allreduce(count {}, f32, {}", counts[rank], ops[rank]));
                assert!(calls.into_iter().all(|call| text.contains(&call)), "{text}");
            }
            assert_eq!(nccl.calls("ncclAllReduce") - before, 2 * calls_before, "NCCL saw a call that differs");
        }
    }
    nccl.is_clean();
}

#[test]
fn a_rank_that_does_not_come_is_a_timeout_that_all_tell_alike() {
    run_with("nccl-absent", &[]);
}

fn absent() {
    for calls_before in [0, 2] {
        let barrier = Barrier::new(3);
        let outcomes = on_ranks(3, |comm, stream| {
            (0..calls_before).for_each(|_| sum_is_right(&comm, &stream, 100));
            let comm = comm.with_timeout(Duration::from_millis(300 + 20_000 * comm.rank() as u64));
            let mut data = buffer(&stream, &[1.0f32; 5000]);
            let since = Instant::now();
            if comm.rank() == 2 {
                // Comes when the others have given up.
                barrier.wait();
                return comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("it is over");
            }
            let error = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("a timeout");
            assert!(since.elapsed() < Duration::from_secs(19), "rank {} waited for its own deadline", comm.rank());
            barrier.wait();
            error
        });
        for error in &outcomes {
            let Error::Timeout { operation, waiting_for, .. } = error else { panic!("{error}") };
            assert!(operation.starts_with("allreduce(count 5000, f32, sum"), "{error}");
            // What would carry it is known from the first call on.
            assert_eq!(operation.contains("nccl"), calls_before > 0, "{error}");
            assert!(waiting_for.contains(&2), "{error}");
        }
    }
    Nccl::open().is_clean();
}

#[test]
fn a_call_that_hangs_on_the_device_is_aborted_at_the_deadline_on_all_ranks() {
    run_with("nccl-hang", &[("PHALANX_TEST_NCCL_HANG", "2:1")]);
}

fn hang() {
    let outcomes = on_ranks(3, |comm, stream| {
        sum_is_right(&comm, &stream, 100);
        let comm = comm.with_timeout(Duration::from_millis(300 + 20_000 * comm.rank() as u64));
        let data = buffer(&stream, &[1.0f32; 5000]);
        let since = Instant::now();
        let error = comm.start_allreduce_device(data, ReduceOp::Sum, &stream).expect("a call").wait(&stream);
        assert!(since.elapsed() < Duration::from_secs(19), "rank {} waited for its own deadline", comm.rank());
        // The device is free again: what is put on it now is done.
        assert!(stream.synchronize(soon()).expect("a sound device"));
        error.expect_err("a timeout")
    });
    for error in &outcomes {
        let text = error.to_string();
        let Error::Timeout { waiting_for, .. } = error else { panic!("{text}") };
        assert_eq!(*waiting_for, [1, 2], "what rank 0 says");
        assert!(text.contains("allreduce(count 5000, f32, sum, nccl)") && text.contains("over NCCL"), "{text}");
    }
    Nccl::open().is_clean();
}

#[test]
fn a_call_of_nccl_that_fails_on_one_rank_ends_device_calls_on_all() {
    for (wish, told) in [
        ("ncclAllReduce:2:3:1", "ncclInternalError, code 3"),
        ("ncclCommGetAsyncError:30:6:2", "ncclRemoteError, code 6"),
    ] {
        let Some(output) = start_with("nccl-failure", &[("PHALANX_TEST_NCCL_FAIL", wish)]) else { return };
        let printed = text(&output);
        assert!(output.status.success(), "{wish}: {printed}");
        let lines: Vec<_> = printed.lines().filter(|line| line.starts_with("rank ")).collect();
        assert_eq!(lines.len(), 3, "{wish}: {printed}");
        assert!(lines.iter().all(|line| line.contains(told) && line.contains("the stand-in was asked")), "{printed}");
    }
}

fn failure() {
    on_ranks(3, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        let mut call = || comm.allreduce_device(&mut data, ReduceOp::Sum, &stream);
        let error = (0..100).find_map(|_| call().err()).expect("a failure");
        assert_eq!(call().expect_err("the same"), error);
        println!("rank {}: {error}", comm.rank());
    });
    Nccl::open().is_clean();
}

#[test]
fn where_nccl_cannot_start_the_way_is_by_the_host_unless_that_is_forbidden() {
    for (wish, told) in [
        ("ncclGetUniqueId:1:2:0", "ncclGetUniqueId failed with ncclSystemError"),
        ("ncclCommInitRankConfig:1:1:1", "ncclCommInitRankConfig failed with ncclUnhandledCudaError"),
        ("ncclCommGetAsyncError:3:5:2", "ncclCommInitRankConfig failed with ncclInvalidUsage"),
    ] {
        run_with("nccl-staged", &[("PHALANX_TEST_NCCL_FAIL", wish)]);
        let variables = [("PHALANX_TEST_NCCL_FAIL", wish), (WISH, "nccl")];
        let Some(output) = start_with("nccl-refused", &variables) else { return };
        let printed = text(&output);
        let lines: Vec<_> = printed.lines().filter(|line| line.starts_with("rank ")).collect();
        assert!(output.status.success() && lines.len() == 3, "{wish}: {printed}");
        assert!(lines.iter().all(|line| line.contains(told)), "{wish}: {printed}");
    }
    // And what keeps it away from the outset.
    for (variable, told) in [
        (("PHALANX_TEST_NCCL_VERSION", "21701"), "ranks 0, 1, 2 cannot: NCCL 2.17.1"),
        (("PHALANX_TEST_SHARED", "1"), "ranks 0 and 2 have the same device"),
    ] {
        run_with("nccl-staged", &[variable]);
        let Some(output) = start_with("nccl-refused", &[variable, (WISH, "nccl")]) else { return };
        let printed = text(&output);
        let is_told = |line: &&str| line.starts_with("rank ") && line.contains(told) && line.contains(WISH);
        assert_eq!(printed.lines().filter(is_told).count(), 3, "{printed}");
    }
    run_with("nccl-staged", &[(WISH, "staged")]);
}

/// Two devices for three ranks, where that is wished.
fn on_three<R: Send>(body: impl Fn(Communicator, Stream) -> R + Sync) -> Vec<R> {
    let devices = if std::env::var_os("PHALANX_TEST_SHARED").is_some() { 2 } else { 4 };
    on_devices(TransportKind::Shm, 3, devices, body)
}

fn staged() {
    let nccl = Nccl::open();
    on_three(|comm, stream| {
        (0..3).for_each(|_| sum_is_right(&comm, &stream, 3000));
    });
    assert_eq!(nccl.calls("ncclAllReduce"), 0);
    nccl.is_clean();
}

fn refused() {
    on_three(|comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        let error = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("no NCCL");
        println!("rank {}: {error}", comm.rank());
    });
    Nccl::open().is_clean();
}

#[test]
fn where_one_process_lacks_nccl_none_uses_it() {
    let job = format!("lacking-{}", std::process::id());
    for (wish, is_error) in [("auto", false), ("nccl", true)] {
        let outputs = std::thread::scope(|scope| {
            let rank = |rank: &'static str| {
                let job = format!("{job}-{wish}");
                scope.spawn(move || {
                    let places = [("PHALANX_RANK", rank), ("PHALANX_SIZE", "2"), ("PHALANX_RENDEZVOUS", "local")];
                    let mut variables = vec![("PHALANX_JOB", job.as_str()), (WISH, wish)];
                    variables.extend(places);
                    if rank == "1" {
                        variables.push(("PHALANX_LIBRARIES", folder()?.to_str().expect("a path in UTF-8")));
                    }
                    start_with("nccl-lacking", &variables)
                })
            };
            ["0", "1"].map(rank).map(|rank| rank.join().expect("no panic"))
        });
        for output in outputs.into_iter().flatten() {
            let printed = text(&output);
            assert!(output.status.success(), "{wish}: {printed}");
            let told = "PHALANX_DEVICE_COLLECTIVES is nccl on ranks 0, 1, but NCCL cannot be used: rank ";
            assert_eq!(printed.contains(told), is_error, "{wish}: {printed}");
        }
    }
}

fn lacking() {
    let comm = phalanx::init().expect("two processes");
    let device = Device::open(comm.rank()).expect("a device");
    let stream = Stream::new(&device).expect("a stream");
    let mut data = buffer(&stream, &[comm.rank() as f32 + 1.0; 5000]);
    match comm.allreduce_device(&mut data, ReduceOp::Sum, &stream) {
        Ok(()) => assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), [3.0; 5000]),
        Err(error) => println!("rank {}: {error}", comm.rank()),
    }
}

#[test]
fn calls_of_both_kinds_keep_their_order_and_what_they_keep_is_freed() {
    run_with("nccl-mixed", &[]);
}

fn mixed() {
    let nccl = Nccl::open();
    on_ranks(4, |comm, stream| {
        let pending: Vec<_> = (0..40)
            .map(|number| {
                let data = buffer(&stream, &vec![(comm.rank() + number) as f32; 1000 + number]);
                // Every third goes by the host, and some are waited for by nobody.
                let op = if number % 3 == 0 { ReduceOp::Max } else { ReduceOp::Sum };
                let call = comm.start_allreduce_device(data, op, &stream).expect("a call");
                (number % 5 != 4).then_some((number, call))
            })
            .collect();
        let mut host = [comm.rank() as i64];
        comm.allreduce(&mut host, ReduceOp::Sum).expect("a host call");
        assert_eq!(host, [6]);
        for (number, call) in pending.into_iter().flatten() {
            let data = call.wait(&stream).expect("a result");
            let expected = if number % 3 == 0 { number + 3 } else { 4 * number + 6 };
            let result = data.to_vec(&stream, soon()).expect("a copy");
            assert!(result.len() == 1000 + number && result.iter().all(|value| *value == expected as f32));
        }
        // In place, from one buffer to many.
        let call = Call::alltoall(DataType::I32, 3).in_place(true);
        let own: Vec<i32> = (0..12).map(|index| 100 * comm.rank() as i32 + index).collect();
        let mut data = buffer(&stream, &own);
        let nothing = DeviceBuffer::<i32>::new(stream.device(), 0).expect("device memory");
        comm.call_device(&call, &nothing, &mut data, &stream).expect("a call");
        let expected: Vec<i32> = (0..4)
            .flat_map(|rank| (0..3).map(move |index| (rank, index)))
            .map(|(rank, index)| 100 * rank + 3 * comm.rank() as i32 + index)
            .collect();
        assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), expected);
    });
    assert!(nccl.calls("ncclAllReduce") > 0 && nccl.calls("ncclSend") > 0);
    nccl.is_clean();
}

#[test]
fn a_communicators_device_calls_are_on_one_device() {
    run_with("nccl-device", &[]);
}

fn one_device() {
    on_ranks(2, |comm, stream| {
        sum_is_right(&comm, &stream, 100);
        let other = Device::open(3 - comm.rank()).expect("a device");
        let elsewhere = Stream::new(&other).expect("a stream");
        let mut data = buffer(&elsewhere, &[1.0f32; 4]);
        let text = comm.allreduce_device(&mut data, ReduceOp::Sum, &elsewhere).expect_err("refused").to_string();
        assert!(text.contains("the calls of this communicator are on device"), "{text}");
        sum_is_right(&comm, &stream, 100);
        // A group's are on a device of their own.
        let group = comm.subgroup(&[0, 1]).expect("a group").expect("a member");
        sum_is_right(&group, &elsewhere, 100);
    });
    Nccl::open().is_clean();
}
