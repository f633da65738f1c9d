//! Which rank runs on which host.

use super::hosts::Host;
use crate::bootstrap::MAX_SIZE;
use crate::types::{Error, Result};

/// Where one rank runs, and what it is called there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number in the job.
    pub rank: usize,
    /// The index of its host.
    pub host: usize,
    /// Its number among the ranks of its host.
    pub local_rank: usize,
    /// How many ranks its host has.
    pub local_size: usize,
    /// Its number among the ranks with the same local rank, one a host.
    pub cross_rank: usize,
    /// How many hosts have a rank with this local rank.
    pub cross_size: usize,
}

/// Fills the hosts in order: rank 0 and on in the first until its slots are used, then the next.
///
/// # Errors
///
/// There are more ranks than can meet, or fewer slots than ranks, and `oversubscribe` does not allow that; or no hosts or ranks. With
/// `oversubscribe`, the ranks beyond the slots are dealt out evenly.
pub fn place(hosts: &[Host], size: usize, oversubscribe: bool) -> Result<Vec<Place>> {
    if size == 0 {
        return Err(Error::invalid("a job has at least 1 rank; give -np 1 or more"));
    }
    if size > MAX_SIZE {
        return Err(Error::invalid(format!("{size} ranks asked for; a job has at most {MAX_SIZE}")));
    }
    if hosts.is_empty() {
        return Err(Error::invalid("no host is given"));
    }
    let slots = hosts.iter().fold(0_usize, |sum, host| sum.saturating_add(host.slots));
    if size > slots && !oversubscribe {
        let given: Vec<_> = hosts.iter().map(|host| format!("{}:{}", host.name, host.slots)).collect();
        return Err(Error::invalid(format!(
            "-np {size} does not fit the {slots} slot{} of {}; give more slots or hosts, or --oversubscribe",
            if slots == 1 { "" } else { "s" },
            given.join(",")
        )));
    }
    let beyond = size.saturating_sub(slots);
    let mut left = size;
    let counts: Vec<_> = hosts
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let share = beyond / hosts.len() + usize::from(index < beyond % hosts.len());
            let count = host.slots.saturating_add(share).min(left);
            left -= count;
            count
        })
        .collect();

    let mut places = Vec::with_capacity(size);
    for (host, &local_size) in counts.iter().enumerate() {
        for local_rank in 0..local_size {
            let holds = |count: &&usize| **count > local_rank;
            places.push(Place {
                rank: places.len(),
                host,
                local_rank,
                local_size,
                cross_rank: counts.iter().take(host).filter(holds).count(),
                cross_size: counts.iter().filter(holds).count(),
            });
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts(slots: &[usize]) -> Vec<Host> {
        slots.iter().enumerate().map(|(index, &slots)| Host::new(format!("h{index}"), slots)).collect()
    }

    #[test]
    fn hosts_are_filled_in_order() {
        let places = place(&hosts(&[2, 1, 2]), 5, false).unwrap();
        let numbers: Vec<_> = places
            .iter()
            .map(|place| {
                (place.rank, place.host, place.local_rank, place.local_size, place.cross_rank, place.cross_size)
            })
            .collect();
        assert_eq!(
            numbers,
            [(0, 0, 0, 2, 0, 3), (1, 0, 1, 2, 0, 2), (2, 1, 0, 1, 1, 3), (3, 2, 0, 2, 2, 3), (4, 2, 1, 2, 1, 2)]
        );
    }

    #[test]
    fn more_ranks_than_can_ever_meet_are_refused_before_they_are_placed() {
        for size in [MAX_SIZE + 1, usize::MAX] {
            let error = place(&hosts(&[usize::MAX, 5]), size, true).unwrap_err().to_string();
            assert!(error.contains("at most 65536"), "{error}");
        }
        assert_eq!(place(&hosts(&[usize::MAX, 5]), 3, false).unwrap().len(), 3);
    }

    #[test]
    fn unused_hosts_stay_empty() {
        let places = place(&hosts(&[2, 4]), 2, false).unwrap();
        assert!(places.iter().all(|place| place.host == 0 && place.cross_size == 1 && place.local_size == 2));
    }

    #[test]
    fn too_many_ranks_are_refused_with_the_numbers() {
        let error = place(&hosts(&[2, 1]), 4, false).unwrap_err().to_string();
        assert!(error.contains("-np 4 does not fit the 3 slots of h0:2,h1:1"), "{error}");
        assert!(place(&hosts(&[1]), 0, false).is_err());
        assert!(place(&[], 1, false).is_err());
    }

    #[test]
    fn ranks_beyond_the_slots_are_dealt_out() {
        let places = place(&hosts(&[1, 1]), 5, true).unwrap();
        let counts: Vec<_> = (0..2).map(|host| places.iter().filter(|place| place.host == host).count()).collect();
        assert_eq!(counts, [3, 2]);
    }

    proptest! {
        #[test]
        fn every_rank_has_one_consistent_place(
            slots in prop::collection::vec(1_usize..6, 1..6), size in 1_usize..40, oversubscribe: bool,
        ) {
            let hosts = hosts(&slots);
            match place(&hosts, size, oversubscribe) {
                Err(_) => prop_assert!(!oversubscribe && size > slots.iter().sum()),
                Ok(places) => {
                    prop_assert_eq!(places.len(), size);
                    for (index, place) in places.iter().enumerate() {
                        prop_assert_eq!(place.rank, index);
                        let local: Vec<_> = places.iter().filter(|other| other.host == place.host).collect();
                        prop_assert_eq!(local.len(), place.local_size);
                        prop_assert_eq!(local[place.local_rank].rank, place.rank);
                        let cross: Vec<_> =
                            places.iter().filter(|other| other.local_rank == place.local_rank).collect();
                        prop_assert_eq!(cross.len(), place.cross_size);
                        prop_assert_eq!(cross[place.cross_rank].rank, place.rank);
                    }
                }
            }
        }
    }
}
