//! What happens when: decided by the seed, in optimiser steps.

use super::super::random::Random;

/// Keeps these numbers apart from those of weights and images.
const STREAM: u64 = 7;

/// Something that is done to a rank, or that comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process with this rank in the view of the moment, modulo its size, is killed.
    Kill(usize),
    /// It is stopped, and goes on once the others have gone on without it.
    Stop(usize),
    /// A process is started that joins.
    Start,
}

/// The faults of a run, each with the optimiser step after which it comes, in order.
pub fn plan(seed: u64, steps: u64) -> Vec<(u64, Fault)> {
    let mut random = Random::new(seed, STREAM);
    // Parts of the run in percent: far enough apart that each is dealt with, and the last newcomers take part for long.
    let mut at = |from: u64, to: u64| steps * (100 * from + random.below(100 * (to - from) as usize) as u64) / 10_000;
    let times = [at(10, 18), at(22, 26), at(30, 38), at(46, 50), at(52, 54), at(60, 66), at(70, 74)];
    let mut whom = || random.below(64);
    let faults = [
        Fault::Kill(whom()),
        Fault::Start,
        Fault::Stop(whom()),
        Fault::Start,
        Fault::Start,
        Fault::Kill(whom()),
        Fault::Start,
    ];
    times.into_iter().zip(faults).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_and_faults_come_in_order() {
        for seed in 0..100 {
            let plan = plan(seed, 660);
            assert_eq!(plan, super::plan(seed, 660));
            assert!(plan.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{plan:?}");
            assert!(plan[0].0 >= 60 && plan[6].0 < 500);
        }
        assert_ne!(plan(1, 660), plan(2, 660));
    }
}
