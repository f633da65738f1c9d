//! Device calls that are given up, and a world that ends while there are some.

use std::sync::Barrier;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use phalanx::device::{DeviceBuffer, Stream};
use phalanx::{Call, Communicator, DataType, DeviceHandle, Error, ReduceOp, TransportKind};

use crate::harness::{StandIn, buffer, on_world, run, soon};

const COUNT: usize = 5000;

/// What a scenario of this file does.
pub fn inside(scenario: &str) {
    match scenario {
        "give-up" => gives_up(),
        "give-up-waiting" => waiting(),
        "give-up-queued" => queued(),
        "shutdown-waits" => shutdown_waits(),
        "shutdown-gives-up" => shutdown_gives_up(),
        other => panic!("there is no scenario {other}"),
    }
}

/// Starts an allreduce of a buffer, which the caller keeps until it has ended.
fn start(comm: &Communicator, stream: &Stream, data: &mut DeviceBuffer<f32>) -> DeviceHandle {
    let call = Call::allreduce(DataType::F32, data.len(), ReduceOp::Sum).in_place(true);
    // SAFETY: the buffer has as many elements, and the scenarios keep it until the call has ended.
    unsafe { comm.submit_device(&call, 0, data.pointer(), stream, None) }.expect("a call")
}

fn values(data: &DeviceBuffer<f32>, stream: &Stream) -> Vec<f32> {
    data.to_vec(stream, soon()).expect("a copy")
}

#[test]
fn a_call_that_is_given_up_ends_on_every_rank_and_writes_no_more() {
    run("give-up");
}

fn gives_up() {
    let (stand_in, given_up) = (StandIn::open(), Barrier::new(2));
    let errors = on_world(TransportKind::Shm, 2, |comm, stream| {
        let since = Instant::now();
        let mut data = buffer(&stream, &[1.0f32; COUNT]);
        if comm.rank() == 0 {
            // Its device does not come to the call.
            stand_in.stop(&stream);
        }
        let handle = start(&comm, &stream, &mut data);
        if comm.rank() == 0 {
            handle.give_up("enough of it");
            assert!(handle.is_done(), "a call given up is still pending");
            given_up.wait();
            stand_in.release();
        } else {
            given_up.wait();
        }
        let error = handle.wait(&stream).expect_err("a call that was given up");
        assert!(since.elapsed() < Duration::from_secs(30), "rank {} waited for the deadline", comm.rank());
        assert_eq!(values(&data, &stream), [1.0; COUNT], "the memory was written");
        assert_eq!(comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("the same"), error);
        error.to_string()
    });
    assert!(errors.iter().all(|text| text.contains("enough of it")), "{errors:?}");
    assert_eq!(stand_in.live(), 0, "something of the device was left over");
}

#[test]
fn a_call_that_is_with_the_network_is_given_up_too() {
    run("give-up-waiting");
}

fn waiting() {
    let given_up = Barrier::new(2);
    let errors = on_world(TransportKind::Shm, 2, |comm, stream| {
        let since = Instant::now();
        let mut data = buffer(&stream, &[1.0f32; COUNT]);
        comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
        if comm.rank() == 0 {
            // The other rank does not make this call before it was given up.
            let handle = start(&comm, &stream, &mut data);
            assert!(handle.wait_for(Duration::from_millis(100), &stream).is_none());
            handle.give_up("enough of it");
            assert!(handle.is_done());
        }
        given_up.wait();
        let error = comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("calls are over");
        assert!(since.elapsed() < Duration::from_secs(30), "rank {} waited for the deadline", comm.rank());
        assert_eq!(values(&data, &stream), [2.0; COUNT]);
        error.to_string()
    });
    assert!(errors.iter().all(|text| text.contains("enough of it")), "{errors:?}");
}

#[test]
fn a_call_whose_turn_has_not_come_is_given_up_at_once_and_the_ones_before_go_on() {
    run("give-up-queued");
}

fn queued() {
    let (stand_in, given_up) = (StandIn::open(), Barrier::new(2));
    let errors = on_world(TransportKind::Shm, 2, |comm, stream| {
        let mut data = [1.0f32, 1.0].map(|value| buffer(&stream, &[value; COUNT]));
        let [first, second] = &mut data;
        given_up.wait();
        stand_in.stop(&stream);
        let (one, two) = (start(&comm, &stream, first), start(&comm, &stream, second));
        if comm.rank() == 0 {
            two.give_up("enough of it");
            assert!(two.is_done() && !one.is_done());
        }
        given_up.wait();
        stand_in.release();
        one.wait(&stream).expect("a call that nobody gave up");
        let error = two.wait(&stream).expect_err("a call that was given up");
        assert_eq!(values(&data[0], &stream), [2.0; COUNT]);
        assert_eq!(values(&data[1], &stream), [1.0; COUNT], "the memory was written");
        // To give up what has ended is nothing.
        one.give_up("too late");
        assert_eq!(one.wait(&stream), Ok(()));
        error.to_string()
    });
    assert!(errors.iter().all(|text| text.contains("enough of it")), "{errors:?}");
    // What others may still read is kept after a failure.
    let by_peers = std::env::var("PHALANX_DEVICE_COLLECTIVES").is_ok_and(|wish| wish == "peer");
    assert!(by_peers || stand_in.live() == 0, "something of the device was left over");
}

#[test]
fn shutdown_waits_for_device_calls_that_have_nothing_with_the_network() {
    run("shutdown-waits");
}

fn shutdown_waits() {
    let (stand_in, begun) = (StandIn::open(), Barrier::new(2));
    on_world(TransportKind::Shm, 2, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; COUNT]);
        comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
        begun.wait();
        stand_in.stop(&stream);
        let handle = start(&comm, &stream, &mut data);
        begun.wait();
        let (ended, is_ended) = channel::<()>();
        std::thread::scope(|scope| {
            let comm = &comm;
            scope.spawn(move || {
                comm.shutdown();
                drop(ended);
            });
            // It waits: the call has not come to its first piece.
            assert_eq!(is_ended.recv_timeout(Duration::from_millis(500)), Err(RecvTimeoutError::Timeout));
            begun.wait();
            stand_in.release();
        });
        assert!(handle.is_done(), "memory may be in use after shutdown");
        handle.wait(&stream).expect("a result");
        assert_eq!(values(&data, &stream), [4.0; COUNT]);
    });
}

#[test]
fn shutdown_gives_up_device_calls_that_do_not_end() {
    run("shutdown-gives-up");
}

fn shutdown_gives_up() {
    let (stand_in, ended) = (StandIn::open(), Barrier::new(2));
    on_world(TransportKind::Shm, 2, |comm, stream| {
        let mut data = buffer(&stream, &[1.0f32; COUNT]);
        ended.wait();
        stand_in.stop(&stream);
        let handles = [start(&comm, &stream, &mut data), start(&comm, &stream, &mut data)];
        comm.shutdown();
        assert!(handles.iter().all(DeviceHandle::is_done), "memory may be in use after shutdown");
        ended.wait();
        stand_in.release();
        for handle in handles {
            let error = handle.wait(&stream).expect_err("a call given up");
            // Whoever was first told the other one.
            assert!(matches!(error, Error::Closed { .. } | Error::PeerFailed { .. }), "{error}");
        }
        assert_eq!(values(&data, &stream), [1.0; COUNT], "the memory was written");
    });
    assert_eq!(stand_in.live(), 0, "something of the device was left over");
}
