//! From times to figures, in the units of nccl-tests.

use phalanx::types::Collective;

/// The smallest time that is not exceeded by `percent` of all of them, from times in ascending order. Zero when there
/// are none.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0)
}

/// What algbw is multiplied by to be comparable with the speed of the hardware for any number of ranks.
pub fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    use Collective::*;
    let others = (ranks.max(1) - 1) as f64 / ranks.max(1) as f64;
    match collective {
        Allreduce => 2.0 * others,
        Allgather | ReduceScatter | Alltoall | Gather | Scatter => others,
        Reduce | Broadcast | Barrier | SendRecv => 1.0,
    }
}

/// Bytes in a number of nanoseconds, in GB/s (10^9 bytes a second).
pub fn bandwidth_gbs(bytes: usize, nanoseconds: u64) -> f64 {
    if nanoseconds == 0 { 0.0 } else { bytes as f64 / nanoseconds as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&times, 50), 100);
        assert_eq!(percentile(&times, 99), 198);
        assert_eq!(percentile(&times, 100), 200);
        assert_eq!(percentile(&times[..20], 99), 20);
        assert_eq!(percentile(&[1, 9, 10], 50), 9);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[7], 0), 7);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(Collective::Allreduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::ReduceScatter, 4), 0.75);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
        assert_eq!(bus_factor(Collective::Allreduce, 1), 0.0);
        assert_eq!(bandwidth_gbs(1_000_000_000, 1_000_000_000), 1.0);
        assert_eq!(bandwidth_gbs(8, 0), 0.0);
    }
}
