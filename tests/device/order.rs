//! Device calls and the user's stream.

use std::time::{Duration, Instant};

use phalanx::device::DeviceBuffer;
use phalanx::{Error, ReduceOp, TransportKind};

use crate::harness::{StandIn, buffer, on_world, run, soon};

#[test]
fn a_call_returns_at_once_and_comes_after_what_is_on_the_stream() {
    run("order");
}

pub fn asynchronous() {
    let stand_in = StandIn::open();
    let barrier = std::sync::Barrier::new(2);
    on_world(TransportKind::Shm, 2, |comm, stream| {
        let data = buffer(&stream, &[1.0f32; 5000]);
        // While all streams stand still, calls start and do not end.
        barrier.wait();
        stand_in.stop(&stream);
        let first = comm.start_allreduce_device(data, ReduceOp::Sum, &stream).expect("a call");
        let other = buffer_behind(&stream, 3000);
        let second = comm.start_allreduce_device(other, ReduceOp::Sum, &stream).expect("a call");
        barrier.wait();
        assert!(!first.is_done() && !second.is_done());
        // Host calls of the same communicator go on meanwhile.
        let mut host = [comm.rank() as i32 + 1];
        comm.allreduce(&mut host, ReduceOp::Sum).expect("a host call");
        assert_eq!(host, [3]);
        barrier.wait();
        if comm.rank() == 0 {
            stand_in.release();
        }
        let first = first.wait(&stream).expect("the first result");
        let second = second.wait(&stream).expect("the second result");
        assert_eq!(first.to_vec(&stream, soon()).expect("a copy"), [2.0f32; 5000]);
        assert_eq!(second.len(), 3000);
    });
    assert_eq!(stand_in.live(), 0, "something of the device was left over");
}

fn buffer_behind(stream: &phalanx::device::Stream, count: usize) -> DeviceBuffer<f32> {
    DeviceBuffer::new(stream.device(), count).expect("device memory")
}

#[test]
fn work_that_does_not_end_is_a_timeout_and_is_told_to_the_others() {
    run("endless");
}

pub fn endless() {
    let stand_in = StandIn::open();
    let outcomes = on_world(TransportKind::Shm, 2, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; 5000]);
        let comm = comm.with_timeout(Duration::from_millis(300 + 20_000 * comm.rank() as u64));
        if comm.rank() == 0 {
            stand_in.stop(&stream);
        }
        let since = Instant::now();
        let outcome = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream);
        let again = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream);
        if comm.rank() == 0 {
            stand_in.release();
        }
        assert!(since.elapsed() < Duration::from_secs(19), "rank {} waited for its own deadline", comm.rank());
        (outcome.expect_err("a timeout"), again.expect_err("the same"))
    });
    let texts: Vec<_> = outcomes.iter().map(|(error, _)| error.to_string()).collect();
    assert!(texts[0].contains("device 0 had not come to the call by its deadline"), "{}", texts[0]);
    assert!(
        matches!(outcomes[1].0, Error::PeerFailed { rank: 0, .. }) && texts[1].contains("had not come"),
        "{texts:?}"
    );
    assert!(outcomes.iter().all(|(first, again)| first == again), "{outcomes:?}");
}

#[test]
fn a_call_that_nobody_waits_for_goes_on_and_frees_its_buffer() {
    run("owning");
}

pub fn owning() {
    let stand_in = StandIn::open();
    on_world(TransportKind::Shm, 2, |comm, stream| {
        for _ in 0..3 {
            let data = buffer(&stream, &[1.0f32; 5000]);
            drop(comm.start_allreduce_device(data, ReduceOp::Sum, &stream).expect("a call"));
        }
        let mut data = buffer(&stream, &[comm.rank() as f32; 3]);
        comm.allreduce_device(&mut data, ReduceOp::Max, &stream).expect("a call");
        assert_eq!(data.to_vec(&stream, soon()).expect("a copy"), [1.0; 3]);
    });
    assert_eq!(stand_in.live(), 0, "something of the device was left over");
}
