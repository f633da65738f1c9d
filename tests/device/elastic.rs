//! Device calls of an elastic job over the stand-in of NCCL: a member falls, the others go on, another comes.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use phalanx::device::{Device, Stream};
use phalanx::elastic::Elastic;
use phalanx::membership::registry::RegistryConfig;
use phalanx::{Communicator, DeviceCarrier, Error, ReduceOp, testing};

use crate::harness::{buffer, soon};
use crate::job::{Counter, Job};
use crate::over_nccl::{Nccl, run_with, sum_is_right};

/// Where the member falls.
const IDLE: &str = "PHALANX_TEST_IDLE";

/// What of NCCL's functions is expected to be called how often, as `FUNCTION=COUNT ...`.
const EXPECTED: &str = "PHALANX_TEST_EXPECTED";

#[test]
fn a_job_whose_member_falls_in_a_call_goes_on_over_nccl_and_takes_in_another() {
    const HANG: (&str, &str) = ("PHALANX_TEST_NCCL_HANG", "3:2");
    let version = |version| ("PHALANX_TEST_NCCL_VERSION", version);
    let expected = |expected| (EXPECTED, expected);
    // Three make one, two shrink it, and with a third one grow it again.
    let made_of_it = "ncclCommInitRankConfig=3 ncclCommRevoke=2 ncclCommShrink=2 ncclCommGetUniqueId=1 ncclCommGrow=3";
    run_with("nccl-elastic", &[HANG, version("22900"), expected(made_of_it)]);
    // A library that cannot stop a call without an abort, but shrink one that is idle.
    run_with("nccl-elastic", &[HANG, version("22703"), expected("ncclCommInitRankConfig=8 ncclCommShrink=0")]);
    let idle = "ncclCommInitRankConfig=6 ncclCommRevoke=0 ncclCommShrink=2";
    run_with("nccl-elastic", &[(IDLE, "1"), version("22703"), expected(idle)]);
    // NCCL hears of it before the host does, or as late as that.
    run_with("nccl-elastic", &[HANG, version("22900"), ("PHALANX_TEST_NCCL_NOTICES", "1")]);
    // What cannot be made of the old one on one rank is made of nothing on all.
    for (wish, told) in [
        ("ncclCommShrink:1:3:1", "ncclCommInitRankConfig=5 ncclCommGrow=3"),
        ("ncclCommGetUniqueId:1:3:0", "ncclCommInitRankConfig=6 ncclCommShrink=2 ncclCommGrow=0"),
        ("ncclCommGrow:1:3:2", "ncclCommInitRankConfig=6 ncclCommShrink=2 ncclCommGrow=3"),
        ("ncclCommRevoke:1:3:0", "ncclCommInitRankConfig=5 ncclCommShrink=0"),
    ] {
        run_with("nccl-elastic", &[HANG, version("22900"), ("PHALANX_TEST_NCCL_FAIL", wish), expected(told)]);
    }
}

/// The present view's communicator and a stream, when the view has so many members.
fn view(elastic: &Elastic, device: usize, size: usize) -> (Communicator, Stream) {
    let comm = elastic.communicator().expect("a view").with_timeout(Duration::from_secs(60));
    assert_eq!(comm.size(), size);
    (comm, Stream::new(&Device::open(device).expect("a device")).expect("a stream"))
}

fn two_calls((comm, stream): &(Communicator, Stream)) {
    for count in [100, 3000] {
        sum_is_right(comm, stream, count);
        assert_eq!(comm.device_carrier(), Some(DeviceCarrier::Nccl));
    }
}

pub fn inside() {
    let nccl = Nccl::open();
    let falls_idle = std::env::var_os(IDLE).is_some();
    let job = Job::new(RegistryConfig { max_np: 3, ..RegistryConfig::new(3) });
    let (is_first, is_over) = (Barrier::new(3), Barrier::new(3));
    thread::scope(|scope| {
        for rank in 0..3 {
            let (job, nccl, is_first, is_over) = (&job, &nccl, &is_first, &is_over);
            scope.spawn(move || {
                let elastic = job.join(Some(rank));
                elastic.sync(&mut Counter::default()).expect("a sync");
                let first = view(&elastic, rank, 3);
                two_calls(&first);
                let (comm, stream) = &first;
                // Nobody falls before all have these results.
                is_first.wait();
                if rank == 2 {
                    let data = buffer(stream, &[1.0f32; 5000]);
                    let call = (!falls_idle)
                        .then(|| comm.start_allreduce_device(data, ReduceOp::Sum, stream).expect("a call"));
                    while !falls_idle && nccl.calls("ncclAllReduce") < 9 {
                        thread::yield_now();
                    }
                    testing::vanish_elastic(&elastic);
                    if let Some(call) = call {
                        call.wait(stream).expect_err("it is gone");
                    }
                    return;
                }
                let mut data = buffer(stream, &[1.0f32; 5000]);
                let error = comm.allreduce_device(&mut data, ReduceOp::Sum, stream).expect_err("one is gone");
                let text = error.to_string();
                assert!(matches!(error, Error::ViewChanged { .. }), "{text}");
                assert!(text.contains("rank 2") || text.contains("slot 2"), "{text}");
                assert!(stream.synchronize(soon()).expect("a sound device"), "the device is not free");
                two_calls(&view(&elastic, rank, 2));
                // Later calls in the old view fail, and take nothing from the new one.
                comm.allreduce_device(&mut data, ReduceOp::Sum, stream).expect_err("the view is over");
                drop((data, first));
                two_calls(&view(&elastic, rank, 2));
                while !elastic.step(|_| Ok(())).expect("a step").joined {}
                elastic.sync(&mut Counter::default()).expect("a sync");
                two_calls(&view(&elastic, rank, 3));
                is_over.wait();
                elastic.shutdown();
            });
        }
        scope.spawn(|| {
            job.wait_for_members(&[0, 1]);
            let elastic = job.join(None);
            elastic.sync(&mut Counter::default()).expect("a sync");
            two_calls(&view(&elastic, 3, 3));
            is_over.wait();
            elastic.shutdown();
        });
    });
    for expected in std::env::var(EXPECTED).unwrap_or_default().split_whitespace() {
        let (function, count) = expected.split_once('=').expect("a function and a count");
        assert_eq!(nccl.calls(function).to_string(), count, "{function}");
    }
    nccl.is_clean();
}
