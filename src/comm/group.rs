//! Communicators of fewer ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::call::Call;
use super::communicator::Communicator;
use crate::types::{CommunicatorId, DataType, Digest, Error, Result, View};

/// Groups. Their operations are numbered apart from each other's: several may be in flight at once.
impl Communicator {
    /// Splits the communicator: ranks that give the same `colour` form one, in the order of their `key`s, equal keys in
    /// the order of their ranks. A rank without colour gets none. Every rank must call it.
    pub fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Communicator>> {
        self.split_with(colour, key, |call, mine, all| {
            // SAFETY: `split_with` lends both for the whole call, in the lengths that it needs.
            unsafe { self.run(call, mine.as_ptr().cast(), all.as_mut_ptr().cast()) }
        })
    }

    /// As [`split`](Self::split), for threads that others may want to interrupt: see [`run_while`](Self::run_while).
    pub fn split_while(
        &self,
        colour: Option<u64>,
        key: i64,
        period: Duration,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Communicator>> {
        self.split_with(colour, key, |call, mine, all| {
            // SAFETY: as in `split`.
            unsafe { self.run_while(call, mine.as_ptr().cast(), all.as_mut_ptr().cast(), period, go_on) }
        })
    }

    /// `allgather` runs the one call that the ranks make to learn each other's colours.
    fn split_with(
        &self,
        colour: Option<u64>,
        key: i64,
        allgather: impl FnOnce(&Call, &[u64], &mut [u64]) -> Result<()>,
    ) -> Result<Option<Communicator>> {
        let mine = [u64::from(colour.is_some()), colour.unwrap_or(0), key as u64];
        let mut all = vec![0u64; mine.len() * self.size()];
        allgather(&Call::allgather(DataType::U64, mine.len()), &mine, &mut all)?;
        let number = self.inner.groups.fetch_add(1, Ordering::Relaxed);
        let Some(colour) = colour else {
            return Ok(None);
        };
        let mut ranks: Vec<usize> = (0..self.size()).filter(|&rank| all[3 * rank..][..2] == [1, colour]).collect();
        // A stable sort keeps equal keys in rank order.
        ranks.sort_by_key(|&rank| all[3 * rank + 2] as i64);
        self.group(&ranks, &[1, number, colour]).map(Some)
    }

    /// The communicator of `ranks` of this one, in the given order. Every rank of the list must call it, with the same
    /// list; others may, and get none. Costs no message.
    ///
    /// # Errors
    ///
    /// When the list is empty, names a rank that does not exist, or one twice.
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Option<Communicator>> {
        let mut seen = vec![false; self.size()];
        for &rank in ranks {
            match seen.get_mut(rank) {
                None => {
                    return Err(Error::invalid(format_args!(
                        "subgroup: rank {rank} given, but ranks are 0 to {}",
                        self.size() - 1
                    )));
                }
                Some(true) => {
                    return Err(Error::invalid(format_args!("subgroup: rank {rank} given twice")));
                }
                Some(seen) => *seen = true,
            }
        }
        if ranks.is_empty() {
            return Err(Error::invalid("subgroup: an empty list of ranks given"));
        }
        if !seen[self.rank()] {
            return Ok(None);
        }
        let number = self.inner.count_subgroup(ranks);
        self.group(ranks, &[2, number]).map(Some)
    }

    /// The communicator beneath this one that carries its calls on device memory. Costs no message.
    #[cfg(feature = "cuda")]
    pub(super) fn beneath_for_devices(&self) -> Result<Communicator> {
        let all: Vec<usize> = (0..self.size()).collect();
        self.group(&all, &[3])
    }

    fn group(&self, ranks: &[usize], identity: &[u64]) -> Result<Communicator> {
        let mut digest = Digest::new();
        digest.add(&self.inner.id.0.to_le_bytes());
        identity.iter().for_each(|word| digest.add(&word.to_le_bytes()));
        let members: Arc<[usize]> = ranks.iter().map(|&rank| self.inner.members[rank]).collect();
        members.iter().for_each(|&member| digest.add(&(member as u64).to_le_bytes()));
        let id = CommunicatorId::group(self.inner.view.generation, digest.0);
        let rank = ranks.iter().position(|&rank| rank == self.rank());
        let rank = rank.ok_or_else(|| Error::internal("a rank that makes a group is not in it"))?;
        let hosts: Vec<_> = ranks.iter().map(|&rank| self.inner.view.hosts[rank]).collect();
        let view = View { generation: self.inner.view.generation, hosts: number_by_appearance(&hosts) };
        let world = self.inner.world.clone();
        Communicator::new(world, id, members, rank, view, self.inner.basis(), self.settings())
    }
}

/// Renames hosts to 0, 1, ... in the order of their first appearance.
fn number_by_appearance(hosts: &[usize]) -> Vec<usize> {
    let mut seen = Vec::new();
    let number = |host: &usize| {
        seen.iter().position(|other| other == host).unwrap_or_else(|| {
            seen.push(*host);
            seen.len() - 1
        })
    };
    hosts.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_appearance() {
        assert_eq!(number_by_appearance(&[7, 3, 7, 9, 3]), [0, 1, 0, 2, 1]);
    }
}
