//! Which ranks share a host, and in which order a ring visits them.

/// The ranks of each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    members: Vec<Vec<usize>>,
    host_of: Vec<usize>,
}

impl Hosts {
    /// `hosts` names the host of each rank; empty when all `size` ranks share one. The names mean nothing beyond
    /// being equal or not. Hosts are numbered in the order in which ranks first name them. A list of another length
    /// says nothing, and counts as empty.
    pub fn new(hosts: &[usize], size: usize) -> Self {
        if hosts.len() != size {
            return Self { members: vec![(0..size).collect()], host_of: vec![0; size] };
        }
        let mut numbers = std::collections::HashMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let host_of = hosts
            .iter()
            .enumerate()
            .map(|(rank, name)| {
                let number = *numbers.entry(name).or_insert(members.len());
                if number == members.len() {
                    members.push(Vec::new());
                }
                members[number].push(rank);
                number
            })
            .collect();
        Self { members, host_of }
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.host_of.len()
    }

    /// The number of hosts.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The ranks of one host, ascending.
    pub fn members(&self, host: usize) -> &[usize] {
        &self.members[host]
    }

    /// The number of the host of a rank.
    pub fn host_of(&self, rank: usize) -> usize {
        self.host_of[rank]
    }

    /// A rank's place among the ranks of its host.
    pub fn local_rank(&self, rank: usize) -> usize {
        self.members[self.host_of[rank]].partition_point(|&member| member < rank)
    }

    /// The fewest ranks any host has.
    pub fn fewest(&self) -> usize {
        self.members.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// The most ranks any host has.
    pub fn most(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The most of these messages, given as sender and receiver, that leave any one host.
    pub fn crossing(&self, messages: impl Iterator<Item = (usize, usize)>) -> usize {
        if self.count() == 1 {
            return 0;
        }
        let mut leaving = vec![0; self.count()];
        for (from, to) in messages {
            leaving[self.host_of[from]] += usize::from(self.host_of[from] != self.host_of[to]);
        }
        leaving.into_iter().max().unwrap_or(0)
    }

    /// All ranks, host after host: around this ring each host is entered once and left once.
    pub fn ring_order(&self) -> Vec<usize> {
        self.members.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_need_not_be_neighbours() {
        let hosts = Hosts::new(&[7, 3, 7, 3, 7], 5);
        assert_eq!(hosts.count(), 2);
        assert_eq!(hosts.members(0), [0, 2, 4]);
        assert_eq!(hosts.members(1), [1, 3]);
        assert_eq!((hosts.host_of(3), hosts.local_rank(3), hosts.local_rank(4)), (1, 1, 2));
        assert_eq!((hosts.fewest(), hosts.most()), (2, 3));
        assert_eq!(hosts.ring_order(), [0, 2, 4, 1, 3]);
        assert_eq!(hosts.crossing([(0, 1), (1, 2), (2, 0), (4, 1)].into_iter()), 2);
        assert_eq!(Hosts::new(&[], 3).ring_order(), [0, 1, 2]);
    }
}
