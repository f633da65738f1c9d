//! The contract over MPI, between two ports of one process: MPI carries messages to oneself as well. Where two processes
//! are wanted, `tests/mpi` has them.

use std::sync::Arc;
use std::time::Duration;

use super::{MpiLane, Nap, Port};
use crate::sys::mpi::{Level, Session};
use crate::transport::conformance::{Carrier, Pair, Side};
use crate::transport::stream::{StreamConfig, StreamEndpoint};
use crate::types::{Deadline, Generation, TransportKind};

/// A port under a tag that no other has. The process's MPI is a world of one.
fn port(session: Session) -> (Arc<Port>, std::ffi::c_int) {
    let meeting = session.meet(b"a test", deadline()).expect("a meeting of one");
    (Arc::new(Port::new(session, meeting.tag, meeting.in_use)), meeting.tag)
}

fn deadline() -> Deadline {
    Deadline::after(std::time::Instant::now(), Duration::from_secs(60))
}

fn carrier() -> Carrier {
    let config = StreamConfig::for_kind(TransportKind::Mpi);
    Carrier::over_streams(config, move || {
        let session = Session::begin(deadline()).expect("an MPI to be had");
        assert_eq!(session.level, Level::Multiple, "these tests run side by side");
        let ((a, tag_a), (b, tag_b)) = (port(session), port(session));
        let side = |port: Arc<Port>, theirs| {
            let nap = Nap::new(port.clone());
            let lane = MpiLane::new(port, 0, theirs);
            let endpoint = StreamEndpoint::new(vec![Box::new(lane)], Generation::FIRST, config);
            Side::new(Box::new(endpoint), move |timeout| nap.sleep(timeout))
        };
        Pair { a: side(a, tag_b), b: side(b, tag_a) }
    })
}

crate::transport::conformance::suite!(carrier());
