//! Who is in the world, and the numbers that keep one operation's messages from another's.

use std::fmt;

/// The number of a membership view. Every connection and every message belongs to one generation. Zero is before the
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
///
/// The top bit tells channels of point-to-point messages from communicators, the next 16 are the low bits of the
/// generation, the others tell the channels of a generation apart. So a message of a view that is over is known by its
/// tag alone, whatever link it comes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommunicatorId(pub u64);

impl CommunicatorId {
    /// The communicator of all members of a job's first view.
    pub const WORLD: CommunicatorId = CommunicatorId::world(Generation::FIRST);

    const NUMBER_BITS: u32 = 47;
    const NUMBER: u64 = (1 << Self::NUMBER_BITS) - 1;
    const POINT_TO_POINT: u64 = 1 << 63;

    /// The communicator of all members of a view.
    pub const fn world(generation: Generation) -> Self {
        Self((generation.0 & 0xffff) << Self::NUMBER_BITS)
    }

    /// A group of members of a view, told from others by `digest`.
    pub const fn group(generation: Generation, digest: u64) -> Self {
        let number = digest & Self::NUMBER;
        // Zero is the world.
        Self(Self::world(generation).0 | if number == 0 { 1 } else { number })
    }

    /// A channel of point-to-point messages in a view, told from others by `digest`.
    pub const fn point_to_point(generation: Generation, digest: u64) -> Self {
        Self(Self::group(generation, digest).0 | Self::POINT_TO_POINT)
    }

    /// Whether this is a channel of point-to-point messages.
    pub const fn is_world(self) -> bool {
        self.0 & (Self::NUMBER | Self::POINT_TO_POINT) == 0
    }

    /// Whether it is a channel of messages from one rank to another.
    pub const fn is_point_to_point(self) -> bool {
        self.0 & Self::POINT_TO_POINT != 0
    }

    /// How many generations this is ahead of `generation`; negative for one that is over. Right for less than 2^15.
    pub const fn generations_ahead(self, generation: Generation) -> i16 {
        ((self.0 >> Self::NUMBER_BITS) as u16).wrapping_sub(generation.0 as u16) as i16
    }
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
    fn a_communicator_is_of_one_generation() {
        for number in [1, 2, 0xffff, 0x1_0000, 0x12_3456] {
            let generation = Generation(number);
            let ids = [
                CommunicatorId::world(generation),
                CommunicatorId::group(generation, 0),
                CommunicatorId::group(generation, u64::MAX),
                CommunicatorId::point_to_point(generation, 0),
                CommunicatorId::point_to_point(generation, u64::MAX),
            ];
            for (place, id) in ids.into_iter().enumerate() {
                assert_eq!(id.is_point_to_point(), place > 2);
                assert_eq!(id.generations_ahead(generation), 0);
                assert_eq!(id.generations_ahead(Generation(number + 3)), -3);
                assert_eq!(id.generations_ahead(Generation(number - 1)), 1);
                assert!(ids[..place].iter().all(|other| *other != id));
            }
        }
    }

    #[test]
    fn local_and_cross_ranks_on_uneven_hosts() {
        let view = View { generation: Generation::FIRST, hosts: vec![0, 0, 0, 1, 1, 2] };
        let local: Vec<_> = (0..6).map(|rank| view.local(rank)).collect();
        assert_eq!(local, [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1)]);
        let cross: Vec<_> = (0..6).map(|rank| view.cross(rank)).collect();
        assert_eq!(cross, [(0, 3), (0, 2), (0, 1), (1, 3), (1, 2), (2, 3)]);
    }
}
