//! How many ranks share how many processors, by what each told when they met.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Told;

/// Processors that a rank may run on, a bit each: as many as Linux tells without being asked for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity([u64; 16]);

impl Affinity {
    fn with(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    fn len(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

impl FromIterator<usize> for Affinity {
    fn from_iter<I: IntoIterator<Item = usize>>(processors: I) -> Self {
        let mut bits = Self::default();
        for processor in processors {
            if let Some(word) = bits.0.get_mut(processor / 64) {
                *word |= 1 << (processor % 64);
            }
        }
        bits
    }
}

/// Ranks of one machine, and the processors that they may run on together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// How many ranks; at least one.
    pub ranks: usize,
    /// How many processors; at least one.
    pub processors: usize,
}

/// The ranks of each machine. A container has a host's identity of its own and may use so much of the machine; together
/// they cannot use more than there is.
fn crowds(told: &[Told], hosts: &[usize]) -> BTreeMap<u64, Crowd> {
    #[derive(Default)]
    struct Place {
        ranks: usize,
        affinity: Affinity,
        limit: Option<usize>,
    }
    let mut machines: BTreeMap<u64, BTreeMap<usize, Place>> = BTreeMap::new();
    for (one, host) in told.iter().zip(hosts) {
        let place = machines.entry(one.machine).or_default().entry(*host).or_default();
        place.ranks += 1;
        place.affinity = place.affinity.with(one.affinity);
        place.limit = Some(place.limit.map_or(one.host_processors, |limit| limit.min(one.host_processors)));
    }
    let crowd = |places: BTreeMap<usize, Place>| {
        let all = places.values().fold(Affinity::default(), |all, place| all.with(place.affinity)).len();
        let allowed = |place: &Place| place.affinity.len().min(place.limit.unwrap_or(usize::MAX));
        let allowed = places.values().map(allowed).fold(0, usize::saturating_add);
        Crowd { ranks: places.values().map(|place| place.ranks).sum(), processors: all.min(allowed).max(1) }
    };
    machines.into_iter().map(|(machine, places)| (machine, crowd(places))).collect()
}

/// The ranks of rank `own`'s machine. `told` and `hosts` are in rank order.
pub fn crowd(told: &[Told], hosts: &[usize], own: usize) -> Crowd {
    let mine = told.get(own).and_then(|mine| crowds(told, hosts).remove(&mine.machine));
    mine.unwrap_or(Crowd { ranks: 1, processors: 1 })
}

/// How many ranks of the largest host can be at work at once: its ranks by the number that share a processor of the most
/// crowded machine.
pub(super) fn processors(told: &[Told], hosts: &[usize]) -> f64 {
    let mut by_host: BTreeMap<usize, usize> = BTreeMap::new();
    for host in hosts {
        *by_host.entry(*host).or_default() += 1;
    }
    let most = by_host.into_values().max().unwrap_or(1) as f64;
    let crowds = crowds(told, hosts).into_values();
    most / crowds.map(|crowd| crowd.ranks as f64 / crowd.processors as f64).fold(1.0, f64::max)
}

/// As [`processors`], where each host is a machine of its own.
pub(super) fn processors_of_hosts(told: &[Told], hosts: &[usize]) -> f64 {
    let apart: Vec<Told> = told.iter().zip(hosts).map(|(one, host)| Told { machine: *host as u64, ..*one }).collect();
    processors(&apart, hosts)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::ChoiceMode;
    use super::*;

    /// A rank of a machine with two processors that knows nothing else.
    pub fn told() -> Told {
        Told {
            affinity: [0, 1].into_iter().collect(),
            host_processors: 2,
            machine: 0,
            shares_memory: false,
            choice: ChoiceMode::Measured,
            table: 0,
            tuning: false,
            figures: None,
        }
    }

    /// A rank that may run on `processors`, of which its host may use `limit`.
    fn rank(processors: &[usize], limit: usize) -> Told {
        Told { affinity: processors.iter().copied().collect(), host_processors: limit, ..told() }
    }

    #[test]
    fn processors_are_counted_over_all_ranks_of_a_machine() {
        let count = |told: &[Told], hosts: &[usize]| {
            let Crowd { ranks, processors } = crowd(told, hosts, 0);
            (ranks, processors)
        };
        assert_eq!(count(&[rank(&[0], 8), rank(&[1], 8)], &[0, 0]), (2, 2), "each bound to its own");
        assert_eq!(count(&[rank(&[0], 8), rank(&[0], 8)], &[0, 0]), (2, 1), "both bound to the same");
        assert_eq!(count(&[rank(&[1, 2, 1000], 8), rank(&[0, 1], 8)], &[0, 0]), (2, 4));
        assert_eq!(
            count(&[rank(&[0, 1, 2, 3], 2), rank(&[0, 1, 2, 3], 8)], &[0, 0]),
            (2, 2),
            "a control group's limit"
        );
        // Containers of one machine, with limits of their own.
        let pods = [rank(&[0, 1, 2, 3], 1); 3];
        assert_eq!(count(&pods, &[0, 1, 2]), (3, 3));
        assert_eq!(count(&[rank(&[0, 1], 2); 3], &[0, 1, 2]), (3, 2), "not more than there is");
        let far = Told { machine: 1, ..rank(&[0], 8) };
        assert_eq!(count(&[rank(&[0], 8), far], &[0, 1]), (1, 1));
        assert_eq!(count(&[rank(&[], 0)], &[0]), (1, 1), "nothing was told");
        assert_eq!(count(&[], &[]), (1, 1));
    }

    #[test]
    fn processors_are_those_of_the_most_crowded_host() {
        let free = rank(&[0, 1], 2);
        let bound: Vec<Told> = (0..4).map(|own| rank(&[own], 64)).collect();
        assert_eq!(processors(&bound, &[0; 4]), 4.0);
        assert_eq!(processors(&[free; 8], &[0; 8]), 2.0);
        let elsewhere = Told { machine: 1, ..rank(&[0], 64) };
        assert_eq!(processors(&[free, free, free, elsewhere], &[0, 0, 0, 1]), 2.0);
        // Two hosts of two ranks are one machine of two processors: a host has one of them.
        assert_eq!(processors(&[free; 4], &[0, 0, 1, 1]), 1.0);
        assert_eq!(processors(&[free; 4], &[0, 1, 2, 3]), 0.5);
        assert_eq!(processors(&[], &[]), 1.0);
        assert_eq!(processors_of_hosts(&[free; 4], &[0, 0, 1, 1]), 2.0);
        assert_eq!(processors_of_hosts(&[free; 8], &[0, 0, 0, 0, 1, 1, 1, 1]), 2.0);
    }
}
