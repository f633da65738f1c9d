//! A rank that waits for others leaves the processor to those that have something to do.

use std::time::{Duration, Instant};

use phalanx::TransportKind;
use rustix::time::{ClockId, clock_gettime};

use super::support::on_world;

/// How much processor time this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// Under one hundredth of a processor after ten milliseconds.
#[test]
fn who_waits_long_uses_next_to_no_processor_time() {
    // The wait itself is what is looked at: nothing else ends it.
    const WAIT: Duration = Duration::from_secs(2);
    for kind in [TransportKind::Shm, TransportKind::Tcp] {
        let used = on_world(kind, 2, |comm| {
            comm.barrier().expect("a barrier");
            if comm.rank() == 1 {
                std::thread::sleep(WAIT);
            }
            let (began, before) = (Instant::now(), processor_time());
            comm.barrier().expect("a barrier");
            (began.elapsed(), processor_time() - before)
        });
        let (waited, used) = used[0];
        let allowed = Duration::from_millis(10) + waited / 100;
        assert!(used <= allowed, "{kind}: {used:?} of processor time in a wait of {waited:?}");
    }
}
