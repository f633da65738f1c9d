use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::transport::conformance::{Carrier, Pair, Side};
use crate::transport::inproc::{self, Wake};

/// Wakes a thread that waits, or the next that will.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration) {
        let rung = self.rung.lock().unwrap();
        let (mut rung, _) = self.changed.wait_timeout_while(rung, limit, |rung| !*rung).unwrap();
        *rung = false;
    }
}

fn bell() -> (Wake, impl FnMut(Duration) + Send + 'static) {
    let bell = Arc::new(Bell::default());
    let waiter = bell.clone();
    (Arc::new(move || bell.ring()), move |limit| waiter.wait(limit))
}

fn pair(lanes: usize, config: StreamConfig) -> Pair {
    let ((wake_a, sleep_a), (wake_b, sleep_b)) = (bell(), bell());
    let (mut a, mut b): (Vec<Box<dyn Lane>>, Vec<Box<dyn Lane>>) = (Vec::new(), Vec::new());
    for _ in 0..lanes {
        let (lane_a, lane_b) = inproc::pair(wake_a.clone(), wake_b.clone());
        a.push(Box::new(lane_a));
        b.push(Box::new(lane_b));
    }
    let endpoint = |lanes| Box::new(StreamEndpoint::new(lanes, Generation::FIRST, config));
    Pair { a: Side::new(endpoint(a), sleep_a), b: Side::new(endpoint(b), sleep_b) }
}

mod one_lane {
    use super::*;

    fn carrier() -> Carrier {
        let config = StreamConfig::for_kind(TransportKind::Inproc);
        Carrier { pair: Box::new(move || pair(1, config)), eager_limit: config.eager_limit }
    }

    crate::transport::conformance::suite!(carrier());
}
