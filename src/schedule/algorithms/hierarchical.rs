//! Hierarchical algorithms: within hosts, between hosts, within hosts.
//!
//! Links between hosts are slower than memory and shared by all ranks of a host, so as little as possible should cross
//! them. Hosts may have different numbers of ranks, and the ranks of one host need not be neighbours. Let G be the
//! fewest ranks that any host has. On each host the first G ranks are *owners*, and the g-th owners of all hosts form
//! *column* g. With equal hosts everyone is an owner; with a host of one rank, each host has one owner, its leader.
//!
//! *Allreduce.* The buffer is cut into G shards. (1) On each host, everyone sends shard g to owner g, which reduces what
//! it got in rank order: one step. (2) The G columns reduce their shards between hosts, side by side: recursive doubling
//! for short shards, two-shot for few hosts, otherwise a ring. (3) On each host, owners send their finished shards to
//! everyone: one step. With H hosts, a host sends 2 N (H - 1)/H elements over its link, the fewest possible, where a
//! flat two-shot sends about 2 L times as many in small messages, L being the ranks of a host.
//!
//! *Broadcast, reduce.* Each host has a leader, the root on its own host and the first rank elsewhere. Leaders form a
//! binomial tree; within a host the leader sends to, or reduces from, everyone directly. N ceil(log2 H) elements leave
//! (or enter) the root's host.
//!
//! *Allgather.* (1) Ranks that are not owners hand their block to an owner of their host, in turn. (2) Each column
//! passes the blocks it has been given between hosts, directly for few hosts, otherwise around a ring. (3) Owners send
//! all that their column holds to everyone on the host. Each block crosses each link once.
//!
//! The idea is as old as clusters of multiprocessors; see N. T. Karonis and others, "Exploiting hierarchy in parallel
//! computer networks to optimize collective operation performance", IPDPS 2000; with shards in parallel, A. Mamidala
//! and others, "MPI collectives on modern multicore clusters", CCGrid 2008, and the hierarchical allreduce of Horovod.

use super::{binomial, direct, doubling, linear, ring};
use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group, join_neighbours, split_evenly};
use crate::schedule::topology::Hosts;

/// The most hosts whose columns exchange directly.
pub(in crate::schedule) const MOST_DIRECT_HOSTS: usize = 8;

/// The longest shard, in elements, for which columns use recursive doubling, where steps count for more than bytes.
pub(in crate::schedule) const LONGEST_DOUBLED_SHARD: usize = 1024;

/// Every rank ends with the reduction of all `source`s in its `target`, which may be the same span.
pub(in crate::schedule) fn allreduce(
    builder: &mut Builder,
    hosts: &Hosts,
    rank: usize,
    source: Span,
    target: Span,
    finish: bool,
) {
    let place = Place::new(hosts, rank);
    let (sources, targets) = (split_evenly(source, place.owners), split_evenly(target, place.owners));
    builder.step();
    let contributions: Vec<Span> = match sources.get(place.local) {
        None => Vec::new(),
        Some(&own) => {
            let slot = |local| if local == place.local { own } else { builder.reserve(own.count) };
            (0..place.host.len()).map(slot).collect()
        }
    };
    for (to, from) in place.others() {
        if to < place.owners {
            builder.send(place.host[to], sources[to]);
        }
        if place.is_owner() {
            builder.recv(place.host[from], contributions[from]);
        }
    }
    if place.is_owner() {
        let shard = targets[place.local];
        builder.step();
        builder.reduce(contributions, shard, finish && hosts.count() == 1);
        if hosts.count() > 1 {
            let column = place.column();
            let group = Group { ranks: &column, me: hosts.host_of(rank) };
            if shard.count <= LONGEST_DOUBLED_SHARD {
                doubling::allreduce(builder, group, shard, shard, finish);
            } else if hosts.count() <= MOST_DIRECT_HOSTS {
                direct::two_shot(builder, group, shard, shard, finish, usize::MAX);
            } else {
                ring::allreduce(builder, group, shard, shard, finish);
            }
        }
    }
    builder.step();
    for (to, from) in place.others() {
        if place.is_owner() {
            builder.send(place.host[to], targets[place.local]);
        }
        if from < place.owners {
            builder.recv(place.host[from], targets[from]);
        }
    }
}

/// The root's `source` goes to everyone's `target`. `source` matters at the root only.
pub(in crate::schedule) fn broadcast(
    builder: &mut Builder,
    hosts: &Hosts,
    rank: usize,
    root: usize,
    source: Span,
    target: Span,
) {
    let (leaders, members, leader) = leaders(hosts, rank, root);
    if rank == leaders[hosts.host_of(rank)] {
        let group = Group { ranks: &leaders, me: hosts.host_of(rank) };
        binomial::broadcast(builder, group, hosts.host_of(root), source, target);
    }
    linear::broadcast(builder, members, leader, target, target);
}

/// The root ends with the reduction of all `source`s in `target`, which may be its own source and matters at the root
/// only.
pub(in crate::schedule) fn reduce(
    builder: &mut Builder,
    hosts: &Hosts,
    rank: usize,
    root: usize,
    source: Span,
    target: Span,
    finish: bool,
) {
    let (leaders, members, leader) = leaders(hosts, rank, root);
    let is_leader = rank == leaders[hosts.host_of(rank)];
    let alone = members.len() == 1 && hosts.count() > 1;
    let sum = match (rank == root, is_leader) {
        // A host of one rank has nothing to add up first.
        (_, true) if alone => source,
        (true, _) => target,
        (false, true) => builder.reserve(source.count),
        (false, false) => source,
    };
    if !alone {
        linear::reduce(builder, members, leader, source, sum, finish && hosts.count() == 1);
    }
    if is_leader && hosts.count() > 1 {
        let group = Group { ranks: &leaders, me: hosts.host_of(rank) };
        binomial::reduce(builder, group, hosts.host_of(root), sum, target, finish);
    }
}

/// The leader of each host; the group of this rank's host; the position of its leader in it.
fn leaders(hosts: &Hosts, rank: usize, root: usize) -> (Vec<usize>, Group<'_>, usize) {
    let leader = |host| if host == hosts.host_of(root) { root } else { hosts.members(host)[0] };
    let mine = hosts.host_of(rank);
    let members = Group { ranks: hosts.members(mine), me: hosts.local_rank(rank) };
    ((0..hosts.count()).map(leader).collect(), members, hosts.local_rank(leader(mine)))
}

/// Every rank ends with every rank's part in `parts`, which are indexed by rank; `own` is where its own lies at first.
pub(in crate::schedule) fn allgather(builder: &mut Builder, hosts: &Hosts, rank: usize, own: Span, parts: &[Span]) {
    let place = Place::new(hosts, rank);
    // What owner `owner` of `host` is given: its own block and those handed to it.
    let bundle = |host: usize, owner: usize| {
        let members = hosts.members(host).iter().skip(owner).step_by(place.owners);
        join_neighbours(members.map(|&member| parts[member]).collect())
    };
    let owner = place.local % place.owners;
    builder.step();
    if place.is_owner() {
        builder.copy(own, parts[rank]);
        for &member in place.host.iter().skip(place.local).step_by(place.owners).skip(1) {
            builder.recv(member, parts[member]);
        }
        let column = place.column();
        let group = Group { ranks: &column, me: hosts.host_of(rank) };
        if hosts.count() <= MOST_DIRECT_HOSTS {
            builder.step();
            for distance in 1..group.len() {
                let (to, from) = (group.after(distance), group.before(distance));
                bundle(group.me, owner).into_iter().for_each(|run| builder.send(column[to], run));
                bundle(from, owner).into_iter().for_each(|run| builder.recv(column[from], run));
            }
        } else {
            for step in 0..group.len() - 1 {
                builder.step();
                let (leaving, arriving) = (bundle(group.before(step), owner), bundle(group.before(step + 1), owner));
                leaving.into_iter().for_each(|run| builder.send(column[group.after(1)], run));
                arriving.into_iter().for_each(|run| builder.recv(column[group.before(1)], run));
            }
        }
    } else {
        builder.send(place.host[owner], own);
    }
    // All that one column holds in the end.
    let held = |owner: usize| join_neighbours((0..hosts.count()).flat_map(|host| bundle(host, owner)).collect());
    builder.step();
    for (to, from) in place.others() {
        if place.is_owner() {
            held(place.local).into_iter().for_each(|run| builder.send(place.host[to], run));
        }
        if from < place.owners {
            held(from).into_iter().for_each(|run| builder.recv(place.host[from], run));
        }
    }
}

/// Where a rank stands among hosts.
struct Place<'a> {
    hosts: &'a Hosts,
    host: &'a [usize],
    local: usize,
    owners: usize,
}

impl<'a> Place<'a> {
    fn new(hosts: &'a Hosts, rank: usize) -> Self {
        let host = hosts.members(hosts.host_of(rank));
        Self { hosts, host, local: hosts.local_rank(rank), owners: hosts.fewest() }
    }

    fn is_owner(&self) -> bool {
        self.local < self.owners
    }

    /// Whom to send to and whom to receive from on the same host, at growing distance, so that no port is crowded.
    fn others(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (local, count) = (self.local, self.host.len());
        (1..count).map(move |distance| ((local + distance) % count, (local + count - distance) % count))
    }

    /// The ranks of this owner's column, by host.
    fn column(&self) -> Vec<usize> {
        (0..self.hosts.count()).map(|host| self.hosts.members(host)[self.local]).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::{Instruction, PlanRequest, Shape, plan};
    use crate::types::{Algorithm, Collective};

    const HOSTS: [usize; 4] = [0, 0, 1, 1];

    /// Elements that the first host's ranks send to the second host in an allreduce of `count`.
    fn leaving(algorithm: Algorithm, count: usize) -> usize {
        let of_rank = |rank: usize| {
            let request = PlanRequest {
                collective: Collective::Allreduce,
                algorithm,
                rank,
                size: HOSTS.len(),
                root: 0,
                shape: Shape::Whole(count),
                in_place: false,
                hosts: &HOSTS,
                segment: count,
                deterministic: false,
            };
            let schedule = plan(&request).unwrap_or_else(|error| panic!("{error}"));
            let sent = |instruction: &Instruction| match instruction {
                Instruction::Send { peer, source } if HOSTS[*peer] == 1 => source.count,
                _ => 0,
            };
            schedule.steps.iter().flat_map(|step| &step.instructions).map(sent).sum::<usize>()
        };
        of_rank(0) + of_rank(1)
    }

    #[test]
    fn two_hosts_of_two_send_as_little_as_can_be_and_half_of_what_all_with_all_do() {
        let count = 4 << 20;
        assert_eq!(leaving(Algorithm::Hierarchical, count), count);
        assert_eq!(leaving(Algorithm::Ring, count), count * 3 / 2);
        assert_eq!(leaving(Algorithm::TwoShot, count), count * 2);
    }
}
