//! The checks. Each runs on every rank.

use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::ffi;
use mpi::traits::*;
use phalanx::{Communicator, Config, Error, ReduceOp, TransportKind};

use crate::matrix;

/// Every check by its name.
pub const ALL: [(&str, fn()); 9] = [
    ("matrix", every_call),
    ("mismatch", a_mismatch_is_an_error),
    ("user", the_programs_own_calls),
    ("again", one_world_after_another),
    ("funneled", one_thread_may_call),
    ("serialized", nothing_moves_in_the_background),
    ("elastic", elastic_jobs_are_refused),
    ("missing", a_rank_that_does_not_come_is_told),
    ("idle", an_idle_rank_takes_little_time),
];

fn config() -> Config {
    Config::from_env().expect("a sound environment").with_transport(Some(TransportKind::Mpi))
}

fn connect() -> Communicator {
    config().connect().expect("a world over MPI")
}

/// Sockets that this process has.
fn sockets() -> Vec<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("the list of descriptors");
    let links = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let mut found: Vec<_> =
        links.map(|link| link.to_string_lossy().into_owned()).filter(|link| link.starts_with("socket:")).collect();
    found.sort();
    found
}

fn sum_of_ranks(comm: &Communicator) {
    let mut value = [comm.rank() as u64 + 1, 7];
    comm.allreduce(&mut value, ReduceOp::Sum).expect("a sum");
    let size = comm.size() as u64;
    assert_eq!(value, [size * (size + 1) / 2, 7 * size]);
}

/// The matrix among 1 to all ranks, over MPI alone: no socket is opened that was not MPI's.
fn every_call() {
    let _universe = start_mpi(Threading::Multiple);
    // MPI connects on first use. What it opens by then is its own.
    let world = mpi::topology::SimpleCommunicator::world();
    world.barrier();
    let before = sockets();
    let comm = connect();
    assert!(comm.size() >= 4, "{} ranks; at least 4 wanted", comm.size());
    for size in 1..=comm.size() {
        let ranks: Vec<_> = (0..size).collect();
        if let Some(group) = comm.subgroup(&ranks).expect("a group") {
            let calls = matrix::everything(&group);
            assert!(calls > 100, "{calls} calls");
        }
        comm.barrier().expect("all are there");
    }
    assert_eq!(comm.transport_summary(), "mpi");
    let new: Vec<_> = sockets().into_iter().filter(|socket| !before.contains(socket)).collect();
    let own = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    assert!(!own.contains("@phalanx"), "a socket of Phalanx's:\n{own}");
    assert_eq!(new, [""; 0], "sockets that were opened since");
}

fn a_mismatch_is_an_error() {
    let comm = connect();
    let began = Instant::now();
    let count = if comm.rank() == 1 { 101 } else { 100 };
    let error = comm.allreduce(&mut vec![1f32; count], ReduceOp::Sum).expect_err("calls that differ");
    let Error::Mismatch { ours, theirs, .. } = &error else { panic!("{error}") };
    let mut counts = [ours.1.count, theirs.1.count];
    counts.sort_unstable();
    assert_eq!(counts, [100, 101], "{error}");
    assert!(began.elapsed() < Duration::from_secs(60), "it was found by a deadline");
    sum_of_ranks(&comm);
    // Large ones too, whose messages are half sent.
    let count = if comm.rank() == 1 { 1_000_001 } else { 1_000_000 };
    let error = comm.allreduce(&mut vec![1f32; count], ReduceOp::Sum).expect_err("calls that differ");
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    sum_of_ranks(&comm);
}

/// Starts MPI as a program does.
fn start_mpi(level: Threading) -> mpi::environment::Universe {
    let (universe, given) = mpi::initialize_with_threading(level).expect("MPI was not started yet");
    assert!(given >= level, "{given:?}");
    universe
}

/// A ring of the program's own messages, with any tag from any rank, and a collective.
fn program_talks(world: &impl Communicator_) {
    let (rank, size) = (world.rank(), world.size());
    let next = world.process_at_rank((rank + 1) % size);
    let sent = [rank; 1000];
    mpi::request::scope(|scope| {
        let request = next.immediate_send(scope, &sent[..]);
        let (received, status) = world.any_process().receive_vec::<i32>();
        assert_eq!(status.source_rank(), (rank + size - 1) % size);
        assert_eq!(received, [status.source_rank(); 1000]);
        request.wait();
    });
    let mut sum = 0;
    world.all_reduce_into(&rank, &mut sum, mpi::collective::SystemOperation::sum());
    assert_eq!(sum, size * (size - 1) / 2);
}

use mpi::topology::Communicator as Communicator_;

/// The program's calls on `MPI_COMM_WORLD` and a communicator of its own: before, between, during and after.
fn the_programs_own_calls() {
    let universe = start_mpi(Threading::Multiple);
    let world = universe.world();
    program_talks(&world);
    let comm = connect();
    program_talks(&world);
    sum_of_ranks(&comm);
    let own = world.split_by_color(mpi::topology::Color::with_value(0)).expect("a communicator");
    let mut input = vec![1f32; 1 << 20];
    for _ in 0..10 {
        let pending = comm.start_allreduce(std::mem::take(&mut input), ReduceOp::Sum).expect("a call that starts");
        program_talks(&world);
        program_talks(&own);
        input = pending.wait().expect("a sum");
    }
    assert!(input.iter().all(|&value| value == (comm.size() as f32).powi(10)), "{}", input[0]);
    comm.shutdown();
    program_talks(&world);
    drop(comm);
    program_talks(&own);
}

fn one_world_after_another() {
    for _ in 0..5 {
        let comm = connect();
        sum_of_ranks(&comm);
        // Some end without having talked to all others.
        if comm.rank() == 0 {
            comm.shutdown();
        }
    }
    let comm = connect();
    sum_of_ranks(&comm);
    drop(comm);
    let mut flag = 0;
    // SAFETY: allowed at any time.
    unsafe { ffi::MPI_Finalized(&mut flag) };
    assert_eq!(flag, 0, "MPI ends with the process, not with a world");
}

/// With `MPI_THREAD_FUNNELED` the thread that started MPI makes the calls. Others get an error.
fn one_thread_may_call() {
    let universe = start_mpi_below(Threading::Funneled);
    let comm = connect();
    sum_of_ranks(&comm);
    let pending = comm.start_allreduce(vec![1u64; 100_000], ReduceOp::Sum).expect("a call that starts");
    let error = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| comm.allreduce(&mut [1u8], ReduceOp::Sum));
        elsewhere.join().expect("no panic").expect_err("a call on another thread")
    });
    let text = error.to_string();
    assert!(matches!(error, Error::Environment { .. }) && text.contains("MPI_THREAD_MULTIPLE"), "{text}");
    let sums = pending.wait().expect("a sum");
    assert!(sums.iter().all(|&sum| sum == comm.size() as u64));
    let error = std::thread::scope(|scope| {
        scope.spawn(|| config().connect()).join().expect("no panic").expect_err("a world on another thread")
    });
    assert!(error.to_string().contains("MPI_THREAD_MULTIPLE"), "{error}");
    sum_of_ranks(&comm);
    drop(comm);
    drop(universe);
}

/// Starts MPI with exactly this level.
fn start_mpi_below(level: Threading) -> mpi::environment::Universe {
    let (universe, given) = mpi::initialize_with_threading(level).expect("MPI was not started yet");
    assert_eq!(given, level, "this MPI gives another level than was asked for");
    universe
}

fn nothing_moves_in_the_background() {
    let universe = start_mpi_below(Threading::Serialized);
    let comm = connect();
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("the threads").flatten();
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect::<String>()
    };
    assert!(!threads().contains("phalanx-progres"), "{}", threads());
    let pending = comm.start_allreduce(vec![1u64; 100_000], ReduceOp::Sum).expect("a call that starts");
    let sums = std::thread::scope(|scope| scope.spawn(|| pending.wait()).join().expect("no panic")).expect("a sum");
    assert!(sums.iter().all(|&sum| sum == comm.size() as u64));
    program_talks(&universe.world());
    drop(comm);
}

fn elastic_jobs_are_refused() {
    let mut settings = phalanx::bootstrap::Settings::default();
    settings.transport = Some(TransportKind::Mpi);
    settings.registry = Some("127.0.0.1:9".into());
    let Err(error) = phalanx::elastic::Elastic::join(&settings) else { panic!("an elastic job over MPI") };
    let text = error.to_string();
    assert!(matches!(error, Error::Environment { .. }) && text.contains("launcher ends all"), "{text}");
    sum_of_ranks(&connect());
}

/// A rank that does not come in time: all are told at the deadline, itself too when it comes, and MPI is none the worse.
fn a_rank_that_does_not_come_is_told() {
    let universe = start_mpi(Threading::Multiple);
    let world = universe.world();
    let short = config().with_start_timeout(Duration::from_secs(1));
    let is_told = || {
        let began = Instant::now();
        let error = short.connect().expect_err("a world without all ranks");
        let Error::Timeout { waiting_for, .. } = &error else { panic!("{error}") };
        let others: Vec<_> = (0..world.size() as usize).filter(|&rank| rank != world.rank() as usize).collect();
        assert_eq!(*waiting_for, others, "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        let error = short.connect().expect_err("a second try");
        assert!(error.to_string().contains("start the job again"), "{error}");
    };
    if world.rank() != 2 {
        is_told();
    }
    world.barrier();
    if world.rank() == 2 {
        is_told();
    }
    program_talks(&world);
    world.barrier();
}

/// Ranks that wait for one that does something else look a thousand times a second and take less than 1 % of a processor.
fn an_idle_rank_takes_little_time() {
    let comm = connect();
    sum_of_ranks(&comm);
    let used = || {
        let usage = std::fs::read_to_string("/proc/self/schedstat").expect("the time that was used");
        let nanoseconds = usage.split(' ').next().and_then(|first| first.parse().ok()).expect("a number");
        Duration::from_nanos(nanoseconds)
    };
    let wait = Duration::from_secs(3);
    if comm.rank() == 0 {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let _ = receiver.recv_timeout(wait);
        drop(sender);
        comm.barrier().expect("all are there");
        return;
    }
    let (before, began) = (used(), Instant::now());
    comm.barrier().expect("all are there");
    let (used, elapsed) = (used() - before, began.elapsed());
    println!("rank {}: {used:?} of processor time in {elapsed:?} of waiting", comm.rank());
    assert!(elapsed >= wait / 2, "it did not wait");
    // Not the figure, which a busy machine spoils, but what polling without pauses would miss by far.
    assert!(used < elapsed / 4, "{used:?} of {elapsed:?}");
}
