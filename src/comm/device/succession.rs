//! A view's communicator of NCCL, made of the one before.
//!
//! When a view ends, what its ranks have of NCCL stays with the process, if nothing is in flight there any more. With the
//! first device call of the next view each rank tells what it has (`agreement`), and all decide alike what can be made of
//! that: a communicator without those who are gone, or with newcomers. Otherwise it is aborted, and a new one made of
//! nothing.

use std::sync::{PoisonError, TryLockError};

use super::agreement::{Agreed, Heir};
use super::over_nccl::{NcclPlace, OverNccl};
use super::waiting::wait_until;
use super::worker::{Failure, Job, late};
use crate::device::nccl::{Abilities, Change, Way};
use crate::types::Generation;

/// What of a library's abilities matters here, as it is told.
pub(super) fn told(abilities: Abilities) -> u8 {
    u8::from(abilities.shrinks) | u8::from(abilities.grows) << 1
}

/// What this rank has of an earlier view, when it is the job's turn to take it over.
pub(super) fn heir(job: &Job, place: &NcclPlace) -> Result<Option<Heir>, Failure> {
    // A call of the view before may still be on its way to its end: its view is over.
    let ask = |_| {
        let held = match place.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        Ok(Some(held).filter(|held| !held.as_ref().is_some_and(OverNccl::is_in_flight)))
    };
    let mut place = wait_until(job, ask, || late(job))?;
    // What cannot be used goes at once.
    let fitting = place.take().and_then(|old| old.for_another_view(&job.device));
    let heir = fitting.as_ref().map(OverNccl::heir);
    *place = fitting;
    Ok(heir)
}

/// How the communicator comes about, as all ranks find from the same that they were told.
pub(super) fn descend(agreed: &Agreed, job: &Job) -> (Way, Change) {
    let (rank, size) = (job.communicator.rank(), job.communicator.size());
    let (way, lost, joined) = decide(&agreed.heirs, agreed.abilities);
    (way, Change { generation: job.communicator.view().generation, rank, size, lost, joined })
}

fn decide(heirs: &[Option<Heir>], abilities: u8) -> (Way, Vec<usize>, usize) {
    let anew = (Way::Anew, Vec::new(), 0);
    let have: Vec<Heir> = heirs.iter().map_while(|heir| *heir).collect();
    let Some(first) = have.first() else { return anew };
    // Those who stay come first, in the order that they had.
    let is_one = have.iter().all(|heir| (heir.lineage, heir.size) == (first.lineage, first.size));
    let is_ordered = have.windows(2).all(|pair| pair[0].rank < pair[1].rank);
    let are_within = have.iter().all(|heir| heir.rank < heir.size);
    if !is_one || !is_ordered || !are_within || heirs[have.len()..].iter().any(Option::is_some) {
        return anew;
    }
    // In order and within, so that no more have one than it has ranks. Whoever had one and lost it looks like a newcomer;
    // then somebody seems to be gone as well, and it is made anew.
    let lost: Vec<usize> =
        (0..first.size).filter(|rank| !have.iter().any(|heir| heir.rank == *rank)).map(|rank| rank as usize).collect();
    let abilities = Abilities { shrinks: abilities & 1 != 0, grows: abilities & 2 != 0, revokes: false };
    let joined = heirs.len() - have.len();
    let change = Change { generation: Generation::default(), rank: 0, size: heirs.len(), lost, joined };
    (change.way(abilities, true), change.lost, joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u8 = 3;

    fn heirs(ranks: &[Option<u32>], size: u32) -> Vec<Option<Heir>> {
        ranks.iter().map(|rank| rank.map(|rank| Heir { lineage: 5, rank, size })).collect()
    }

    fn way(ranks: &[Option<u32>], size: u32, abilities: u8) -> (Way, Vec<usize>, usize) {
        decide(&heirs(ranks, size), abilities)
    }

    #[test]
    fn those_who_stay_make_theirs_of_the_one_before() {
        let three = [Some(0), Some(2), Some(3)];
        assert_eq!(way(&three, 5, ALL), (Way::Shrink, vec![1, 4], 0));
        assert_eq!(way(&three, 5, 2).0, Way::Anew, "a library that cannot");
        let more = [Some(0), Some(1), None, None];
        assert_eq!(way(&more, 2, ALL), (Way::Grow, vec![], 2));
        assert_eq!(way(&more, 2, 1).0, Way::Anew, "a library that cannot");
    }

    #[test]
    fn where_not_all_have_the_same_one_it_is_made_anew() {
        assert_eq!(way(&[None, None], 2, ALL).0, Way::Anew, "nobody has one");
        assert_eq!(way(&[Some(0), Some(1)], 2, ALL).0, Way::Anew, "nothing has changed");
        assert_eq!(way(&[Some(0), None, Some(2)], 3, ALL).0, Way::Anew, "one of those that stay lost its own");
        assert_eq!(way(&[Some(0), Some(1), None], 3, ALL).0, Way::Anew, "one lost its own, or is gone and one is new");
        assert_eq!(way(&[None, Some(0)], 1, ALL).0, Way::Anew, "the newcomer is first");
        assert_eq!(way(&[Some(1), Some(0)], 3, ALL).0, Way::Anew, "the order is another");
        assert_eq!(way(&[Some(1), Some(1)], 3, ALL).0, Way::Anew, "two have the same place");
        assert_eq!(way(&[Some(0), Some(7)], 3, ALL).0, Way::Anew, "a place that does not exist");
        let mut two = heirs(&[Some(0), Some(1)], 3);
        two[1].as_mut().unwrap().lineage = 6;
        assert_eq!(decide(&two, ALL).0, Way::Anew, "of two communicators");
    }
}
