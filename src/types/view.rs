//! Who is in the world, and the numbers that keep one operation's messages from another's.

use std::fmt;

/// The number of a membership view. Every connection and every message belongs to one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl Generation {
    /// The first view of a job.
    pub const FIRST: Generation = Generation(1);
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// Which communicator a message belongs to; the same number on each of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommunicatorId(pub u64);

impl CommunicatorId {
    /// The communicator of all members.
    pub const WORLD: CommunicatorId = CommunicatorId(0);
}

/// The key that pairs sends with receives: an operation of a communicator. Messages of one tag between two ranks
/// match in the order in which they were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The communicator.
    pub communicator: CommunicatorId,
    /// The operation's number within the communicator.
    pub sequence: u64,
}

/// A generation with its ordered members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The number of this view.
    pub generation: Generation,
    /// For each rank, which host it is on: equal numbers share a host. Hosts are numbered by first appearance.
    pub hosts: Vec<usize>,
}

impl View {
    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks on the same host as `rank`, in order.
    pub fn local_ranks(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        let host = self.hosts[rank];
        self.hosts.iter().enumerate().filter(move |(_, other)| **other == host).map(|(rank, _)| rank)
    }

    /// `rank`'s number among the ranks of its host, and how many those are.
    pub fn local(&self, rank: usize) -> (usize, usize) {
        let local_rank = self.local_ranks(rank).take_while(|&other| other < rank).count();
        (local_rank, self.local_ranks(rank).count())
    }

    /// `rank`'s number among the ranks with the same local rank, one a host, and how many those are.
    pub fn cross(&self, rank: usize) -> (usize, usize) {
        let (local_rank, _) = self.local(rank);
        let peers: Vec<_> = (0..self.size()).filter(|&other| self.local(other).0 == local_rank).collect();
        (peers.iter().take_while(|&&other| other < rank).count(), peers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_and_cross_ranks_on_uneven_hosts() {
        let view = View { generation: Generation::FIRST, hosts: vec![0, 0, 0, 1, 1, 2] };
        let local: Vec<_> = (0..6).map(|rank| view.local(rank)).collect();
        assert_eq!(local, [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1)]);
        let cross: Vec<_> = (0..6).map(|rank| view.cross(rank)).collect();
        assert_eq!(cross, [(0, 3), (0, 2), (0, 1), (1, 3), (1, 2), (2, 3)]);
    }
}
