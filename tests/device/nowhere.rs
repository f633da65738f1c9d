//! Calls of which a rank has no elements: its device is open.

use std::sync::Barrier;

use phalanx::device::{Device, DeviceBuffer, Stream};
use phalanx::{Call, Communicator, DataType, DeviceCarrier, Error, ReduceOp, TransportKind};

use crate::harness::{StandIn, buffer, on_world, run, soon};

/// What a scenario of this file does.
pub fn inside(scenario: &str) {
    match scenario {
        "nowhere" => nowhere(),
        "nowhere-mismatch" => mismatch(),
        other => panic!("there is no scenario {other}"),
    }
}

/// A call of bytes, of which this rank has as many as it gives.
fn call(comm: &Communicator, call: &Call, input: &[u8], outputs: usize, stream: &Stream) -> Vec<u8> {
    let (input, output) = (buffer(stream, input), buffer(stream, &vec![0; outputs]));
    // SAFETY: the caller gives as many as the call needs, and both live until it has ended.
    let handle = unsafe { comm.submit_device(call, input.pointer(), output.pointer(), stream, None) };
    handle.expect("a call").wait(stream).expect("a result");
    output.to_vec(stream, soon()).expect("a copy")
}

#[test]
fn a_call_without_elements_decides_nothing_about_devices() {
    run("nowhere");
}

/// Under NCCL as well: its ranks must each have a device of their own when they agree.
fn nowhere() {
    let (stand_in, asked) = (StandIn::open(), Barrier::new(2));
    on_world(TransportKind::Shm, 2, |comm, own| {
        // Nobody has elements; then one rank has none. Both say device 0.
        let anywhere = Stream::new(&Device::open(0).expect("a device")).expect("a stream");
        let mut nothing = DeviceBuffer::<f32>::new(anywhere.device(), 0).expect("a buffer of nothing");
        for _ in 0..2 {
            comm.allreduce_device(&mut nothing, ReduceOp::Sum, &anywhere).expect("a call");
        }
        assert_eq!(comm.device_of_calls(), None);
        let pinned = ["cuMemHostAlloc", "cuMemHostRegister_v2"].map(|function| stand_in.calls(function));
        assert_eq!(pinned, [0, 0], "a device was made ready for nothing");
        asked.wait();
        let gather = Call::gatherv(DataType::U8, &[0, 3], 0);
        let rank = comm.rank();
        let results = match rank {
            0 => call(&comm, &gather, &[], 3, &own),
            _ => call(&comm, &gather, &[7, 8, 9], 0, &own),
        };
        assert!(rank != 0 || results == [7, 8, 9], "{results:?}");
        let gather = Call::gatherv(DataType::U8, &[4, 0], 0);
        let results = match rank {
            0 => call(&comm, &gather, &[1, 2, 3, 4], 4, &own),
            _ => call(&comm, &gather, &[], 0, &anywhere),
        };
        assert!(rank != 0 || results == [1, 2, 3, 4], "{results:?}");
        assert_eq!(comm.device_of_calls(), Some(own.device()));
        let mut data = buffer(&own, &[1.0f32; 100]);
        comm.allreduce_device(&mut data, ReduceOp::Sum, &own).expect("a call");
        assert_eq!(data.to_vec(&own, soon()).expect("a copy"), [2.0; 100]);
        let by_nccl = std::env::var("PHALANX_DEVICE_COLLECTIVES").is_ok_and(|wish| wish == "nccl");
        assert_eq!(comm.device_carrier() == Some(DeviceCarrier::Nccl), by_nccl);
        // Elements are on the device of the calls; none are on any.
        let other = Stream::new(&Device::open(1 - own.device().ordinal()).expect("a device")).expect("a stream");
        let mut nothing = DeviceBuffer::<f32>::new(other.device(), 0).expect("a buffer of nothing");
        comm.allreduce_device(&mut nothing, ReduceOp::Sum, &other).expect("a call");
        let results = match rank {
            0 => call(&comm, &gather, &[5, 6, 7, 8], 4, &own),
            _ => call(&comm, &gather, &[], 0, &other),
        };
        assert!(rank != 0 || results == [5, 6, 7, 8], "{results:?}");
        let mut some = buffer(&other, &[1.0f32; 3]);
        let text = comm.allreduce_device(&mut some, ReduceOp::Sum, &other).expect_err("two devices").to_string();
        assert!(text.contains("the calls of this communicator are on device"), "{text}");
        comm.allreduce_device(&mut data, ReduceOp::Sum, &own).expect("a call");
        assert_eq!(data.to_vec(&own, soon()).expect("a copy"), [4.0; 100]);
    });
    assert_eq!(stand_in.live(), 0, "something of the device was left over");
}

#[test]
fn a_call_without_elements_that_others_make_with_some_is_a_mismatch() {
    run("nowhere-mismatch");
}

fn mismatch() {
    for is_first in [true, false] {
        let errors = on_world(TransportKind::Shm, 2, |comm, stream| {
            if !is_first {
                let mut data = buffer(&stream, &[1.0f32; 5000]);
                comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect("a call");
            }
            let mut data = buffer(&stream, &vec![1.0f32; 5000 * comm.rank()]);
            comm.allreduce_device(&mut data, ReduceOp::Sum, &stream).expect_err("a mismatch")
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch { .. }), "{text}");
            assert!(text.contains("count 0") && text.contains("count 5000"), "{text}");
        }
    }
}
