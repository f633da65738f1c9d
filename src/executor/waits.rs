//! Who waits for whom in one operation: which ranks are silent, and which only wait for others.
//!
//! In a ring every rank waits for the one before it. When one of them is silent, its neighbour waits for it, the
//! neighbour's neighbour for that one, and so on; whoever names the rank that *it* waits for at the deadline names an
//! innocent one. So a rank that has waited for long asks the ranks that it waits for. Whoever is in the operation too
//! answers with the ranks that it waits for itself, asks those, and passes on what it hears. A rank that is stopped, or
//! computes, or is gone, does not answer. At the deadline, the ranks to name are those that are waited for, by
//! however many others between, and have not answered.
//!
//! Asking comes in two rounds, so that an answer from early on says nothing about the end: the last round begins shortly
//! before the first rank's deadline. What is known from before is forgotten then, on every rank that is asked.

use std::collections::BTreeMap;

/// An answer: in which step of the operation a rank is, and for whom it waits there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub step: u32,
    pub waiting_for: Vec<usize>,
}

/// What is known about one operation, in the current round. Ranks are those of the operation's communicator.
#[derive(Default)]
pub(super) struct Waits {
    round: u32,
    answers: BTreeMap<usize, Answer>,
    /// Who asked this rank, and hears what it hears.
    askers: Vec<usize>,
}

impl Waits {
    /// The round that begins shortly before a deadline.
    pub const LAST: u32 = 1;

    /// The current round.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Moves to a later round. Returns whether it is one.
    pub fn begin(&mut self, round: u32) -> bool {
        let is_later = (self.round + 1..=Self::LAST).contains(&round);
        if is_later {
            *self = Self { round, ..Self::default() };
        }
        is_later
    }

    /// Remembers that a rank asked. Returns whether it had not before in this round. One that is in an earlier round
    /// will ask again.
    pub fn ask(&mut self, round: u32, asker: usize) -> bool {
        let is_new = round == self.round && !self.askers.contains(&asker);
        if is_new {
            self.askers.push(asker);
        }
        is_new
    }

    /// Who asked.
    pub fn askers(&self) -> &[usize] {
        &self.askers
    }

    /// Remembers an answer. Returns whether it is news.
    pub fn learn(&mut self, round: u32, rank: usize, answer: Answer) -> bool {
        let is_news = round == self.round && self.answers.get(&rank).is_none_or(|known| known.step < answer.step);
        if is_news {
            self.answers.insert(rank, answer);
        }
        is_news
    }

    /// Every answer that is known.
    pub fn answers(&self) -> impl Iterator<Item = (usize, &Answer)> {
        self.answers.iter().map(|(&rank, answer)| (rank, answer))
    }

    /// The ranks to name when `own` has waited for `direct` in vain, in ascending order: those that are waited for and
    /// silent. With each comes a rank that waits for it. When all have answered, `direct`.
    pub fn silent(&self, own: usize, direct: &[usize]) -> Vec<(usize, usize)> {
        let mut silent = BTreeMap::new();
        let mut seen = vec![own];
        let mut open: Vec<_> = direct.iter().map(|&rank| (rank, own)).collect();
        while let Some((rank, waiting)) = open.pop() {
            if seen.contains(&rank) {
                continue;
            }
            seen.push(rank);
            match self.answers.get(&rank) {
                Some(answer) => open.extend(answer.waiting_for.iter().map(|&next| (next, rank))),
                None => drop(silent.insert(rank, waiting)),
            }
        }
        if silent.is_empty() {
            silent = direct.iter().map(|&rank| (rank, own)).collect();
        }
        silent.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(answers: &[(usize, &[usize])]) -> Waits {
        let mut waits = Waits::default();
        for &(rank, waiting_for) in answers {
            assert!(waits.learn(0, rank, Answer { step: 0, waiting_for: waiting_for.to_vec() }));
        }
        waits
    }

    #[test]
    fn the_silent_one_behind_a_chain_is_named() {
        let ring = waits(&[(3, &[2]), (2, &[1])]);
        assert_eq!(ring.silent(4, &[3]), [(1, 2)]);
        let tree = waits(&[(1, &[3, 4]), (3, &[7])]);
        assert_eq!(tree.silent(0, &[1, 2]), [(2, 0), (4, 1), (7, 3)]);
    }

    #[test]
    fn without_a_silent_one_those_waited_for_are_named() {
        assert_eq!(waits(&[]).silent(0, &[2, 1]), [(1, 0), (2, 0)]);
        let circle = waits(&[(1, &[2]), (2, &[0])]);
        assert_eq!(circle.silent(0, &[1]), [(1, 0)]);
    }

    #[test]
    fn answers_belong_to_a_round_and_later_steps_count() {
        let mut waits = waits(&[(1, &[2])]);
        let answer = |step| Answer { step, waiting_for: vec![3] };
        assert!(!waits.learn(0, 1, answer(0)), "the same step");
        assert!(waits.learn(0, 1, answer(2)));
        assert!(!waits.learn(0, 1, answer(1)), "overtaken");
        assert!(waits.ask(0, 5) && !waits.ask(0, 5));
        assert!(waits.begin(1) && !waits.begin(1) && !waits.begin(2));
        assert!(!waits.ask(0, 5) && waits.ask(1, 5), "asks again in the next round");
        assert_eq!((waits.answers().count(), waits.askers()), (0, &[5][..]));
        assert!(!waits.learn(0, 1, answer(9)), "of the round before");
    }
}
