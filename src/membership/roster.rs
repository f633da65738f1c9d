//! The table of all members, as each of them gets it.

use crate::types::{Generation, View};
use crate::wire::handshake::JobKey;
use crate::wire::rendezvous::MemberRecord;

/// One member of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub rank: usize,
    /// Its host: equal numbers share one. Hosts are numbered by first appearance.
    pub host: usize,
    /// Its host's name, for messages.
    pub host_name: String,
    /// Its process on its host, for messages.
    pub pid: u32,
    /// Where it listens, as it told.
    pub addresses: Vec<u8>,
}

/// Who is in the world, and the key that they share.
#[derive(Clone, Debug)]
pub struct Roster {
    /// This process's rank.
    pub rank: usize,
    /// The number of members.
    pub size: usize,
    /// The key that every connection between members proves.
    pub key: JobKey,
    /// The number of the view.
    pub generation: Generation,
    /// All members, by rank.
    pub members: Vec<Member>,
    /// Which ranks share a host.
    pub view: View,
}

impl Roster {
    /// The roster that the table of a rendezvous stands for. `records` are in the order of ranks.
    ///
    /// # Errors
    ///
    /// What is wrong with the table: not `size` members, or not in order.
    pub fn from_records(
        rank: usize,
        size: usize,
        key: JobKey,
        generation: Generation,
        records: Vec<MemberRecord>,
    ) -> Result<Self, String> {
        if records.len() != size || rank >= size {
            return Err(format!("a table of {} members for rank {rank} of {size}", records.len()));
        }
        let mut identities: Vec<Vec<u8>> = Vec::new();
        let mut members = Vec::with_capacity(size);
        for (expected, record) in records.into_iter().enumerate() {
            if record.rank != expected {
                return Err(format!("a table with rank {} at place {expected}", record.rank));
            }
            let host = identities.iter().position(|known| *known == record.host).unwrap_or_else(|| {
                identities.push(record.host);
                identities.len() - 1
            });
            members.push(Member {
                rank: expected,
                host,
                host_name: record.host_name,
                pid: record.pid,
                addresses: record.addresses,
            });
        }
        let view = View { generation, hosts: members.iter().map(|member| member.host).collect() };
        Ok(Roster { rank, size, key, generation, members, view })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rank: usize, host: &str) -> MemberRecord {
        MemberRecord { rank, pid: 1, host: host.into(), host_name: host.into(), addresses: vec![rank as u8] }
    }

    fn key() -> JobKey {
        JobKey::from_bytes([7; 32])
    }

    #[test]
    fn hosts_are_numbered_by_first_appearance() {
        let records = vec![record(0, "b"), record(1, "a"), record(2, "b"), record(3, "c")];
        let roster = Roster::from_records(2, 4, key(), Generation::FIRST, records).unwrap();
        assert_eq!(roster.view.hosts, [0, 1, 0, 2]);
        assert_eq!(roster.members[3].addresses, [3]);
    }

    #[test]
    fn a_table_that_is_no_table_of_this_world_is_refused() {
        let roster = |records| Roster::from_records(0, 2, key(), Generation::FIRST, records).map(|roster| roster.size);
        assert_eq!(roster(vec![record(0, "a"), record(1, "a")]), Ok(2));
        assert!(roster(vec![record(0, "a")]).is_err());
        assert!(roster(vec![record(1, "a"), record(0, "a")]).is_err());
        assert!(roster(vec![record(0, "a"), record(0, "a")]).is_err());
    }
}
