//! Trying algorithms while the program runs: a state machine that every rank runs alike.
//!
//! Calls fall into *classes*: those for which the same would be chosen. After some calls of a class its best predicted
//! algorithms take turns for a while, each rank timing its own calls; then the ranks agree on the largest of their times
//! for each, and all keep the one for which that is least. Which algorithm a call uses follows from the number of calls
//! and from what was agreed, never from what one rank measured: so no two ranks can come apart.

use crate::types::Algorithm;

/// How many calls of a class come before its algorithms are tried: connections are made by then.
pub const BEFORE: u64 = 20;
/// How many calls each algorithm has.
pub const TRIES: u64 = 10;
/// The most algorithms that are tried.
pub const MOST_TRIED: usize = 3;

/// What a call of a class is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Go as usual.
    Usual,
    /// Use this one, and say how long it took.
    Try(Algorithm),
    /// Agree with the other ranks first on the largest of [`Class::times`], and ask again.
    Agree,
    /// Use this one, which was agreed on.
    Keep(Algorithm),
}

/// One class of calls.
#[derive(Clone, Debug)]
pub struct Class {
    candidates: Vec<Algorithm>,
    calls: u64,
    /// What this rank measured of each candidate, in nanoseconds.
    measured: Vec<Vec<u64>>,
    kept: Option<Algorithm>,
}

impl Class {
    /// A class whose best predicted algorithms are these, the same on all ranks.
    pub fn new(candidates: &[Algorithm]) -> Self {
        let candidates = candidates[..candidates.len().min(MOST_TRIED)].to_vec();
        Self { measured: vec![Vec::new(); candidates.len()], candidates, calls: 0, kept: None }
    }

    /// What the next call is to do. Counts it, unless the ranks are to agree first.
    pub fn turn(&mut self) -> Turn {
        if let Some(kept) = self.kept {
            return Turn::Keep(kept);
        }
        if self.candidates.len() < 2 || self.calls < BEFORE {
            self.calls += 1;
            return Turn::Usual;
        }
        let tried = self.calls - BEFORE;
        if tried >= TRIES * self.candidates.len() as u64 {
            return Turn::Agree;
        }
        self.calls += 1;
        Turn::Try(self.candidates[(tried % self.candidates.len() as u64) as usize])
    }

    /// What was agreed on, if it was.
    pub fn kept(&self) -> Option<Algorithm> {
        self.kept
    }

    /// A call that was to try `algorithm` took so long here.
    pub fn took(&mut self, algorithm: Algorithm, nanoseconds: u64) {
        if let Some(at) = self.candidates.iter().position(|one| *one == algorithm) {
            self.measured[at].push(nanoseconds);
        }
    }

    /// This rank's median of each candidate; 0 where it timed none.
    pub fn times(&self) -> Vec<u64> {
        let median = |times: &Vec<u64>| {
            let mut times = times.clone();
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or(0)
        };
        self.measured.iter().map(median).collect()
    }

    /// The ranks have agreed: the largest of their times for each candidate. Candidates that nobody timed are out; with
    /// none left, the first stays.
    pub fn agreed(&mut self, largest: &[u64]) {
        let timed = self.candidates.iter().zip(largest).filter(|(_, time)| **time > 0);
        let best = timed.min_by_key(|(_, time)| **time).map(|(algorithm, _)| *algorithm);
        self.kept = best.or(self.candidates.first().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CANDIDATES: [Algorithm; 4] = [Algorithm::TwoShot, Algorithm::OneShot, Algorithm::Ring, Algorithm::Bruck];

    /// Runs a class on several ranks, which time their calls as `time` says, and checks that they stay together. Returns
    /// what they kept.
    fn run(ranks: usize, candidates: &[Algorithm], mut time: impl FnMut(usize, Algorithm) -> Option<u64>) -> Turn {
        let mut classes = vec![Class::new(candidates); ranks];
        let mut last = Turn::Usual;
        for _ in 0..BEFORE + TRIES * MOST_TRIED as u64 + 3 {
            let mut turns: Vec<Turn> = classes.iter_mut().map(Class::turn).collect();
            if turns.contains(&Turn::Agree) {
                assert!(turns.iter().all(|turn| *turn == Turn::Agree), "{turns:?}");
                let mut largest = classes[0].times();
                for class in &classes {
                    largest.iter_mut().zip(class.times()).for_each(|(most, one)| *most = (*most).max(one));
                }
                classes.iter_mut().for_each(|class| class.agreed(&largest));
                turns = classes.iter_mut().map(Class::turn).collect();
            }
            assert!(turns.iter().all(|turn| *turn == turns[0]), "{turns:?}");
            if let Turn::Try(algorithm) = turns[0] {
                for (rank, class) in classes.iter_mut().enumerate() {
                    if let Some(time) = time(rank, algorithm) {
                        class.took(algorithm, time);
                    }
                }
            }
            last = turns[0];
        }
        last
    }

    #[test]
    fn the_one_whose_slowest_rank_is_fastest_is_kept() {
        // One-shot is fastest on rank 0 and slowest on rank 1.
        let time = |rank: usize, algorithm| {
            Some(match (algorithm, rank) {
                (Algorithm::OneShot, 0) => 10,
                (Algorithm::OneShot, _) => 90,
                (Algorithm::TwoShot, _) => 50,
                _ => 60,
            })
        };
        assert_eq!(run(2, &CANDIDATES, time), Turn::Keep(Algorithm::TwoShot));
    }

    #[test]
    fn where_there_is_nothing_to_try_or_nothing_was_timed_all_stays() {
        assert_eq!(run(3, &CANDIDATES[..1], |_, _| Some(1)), Turn::Usual);
        assert_eq!(run(3, &CANDIDATES, |_, _| None), Turn::Keep(Algorithm::TwoShot));
    }

    proptest! {
        #[test]
        fn ranks_stay_together_whatever_each_measures(
            ranks in 1..9usize,
            candidates in 2..=4usize,
            times in prop::collection::vec(prop::option::of(any::<u64>()), 1..500),
        ) {
            let mut at = 0;
            let kept = run(ranks, &CANDIDATES[..candidates], |_, _| {
                at += 1;
                times[at % times.len()]
            });
            prop_assert!(matches!(kept, Turn::Keep(_)));
        }
    }
}
