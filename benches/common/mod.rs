//! What all benchmarks of parts share.

use std::time::Duration;

use criterion::Criterion;

/// Short: changes are looked for by comparing, and `--measurement-time` makes it longer.
pub fn short() -> Criterion {
    let (warm_up, measurement) = (Duration::from_millis(100), Duration::from_millis(500));
    Criterion::default().warm_up_time(warm_up).measurement_time(measurement).sample_size(20)
}
