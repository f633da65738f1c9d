//! Closed formulas for the cost of every algorithm, for choosing: `docs/algorithms.md` has them as a table.
//!
//! An algorithm is a sequence of patterns, each with a cost of its own: everyone to everyone, everyone to its
//! neighbour, everyone to a partner at some distance, one to one. How many messages of a pattern cross a host's link at
//! once follows from which rank is on which host.

mod allreduce;

use super::network::Leaving;
use super::{CostModel, LinkModel};
use crate::schedule::Hosts;
use crate::schedule::algorithms::hierarchical::MOST_DIRECT_HOSTS;
use crate::schedule::algorithms::ordered::MOST_COLLECTED;
use crate::types::{Algorithm, Collective};

/// The most ranks for which the messages of every pairwise step are counted, at O(size^2).
const MOST_COUNTED: usize = 1024;

/// What is collected before it is combined, and is longer than this, is no longer in a cache by then.
const CACHED_BYTES: f64 = (2 << 20) as f64;

/// Which part more the bytes of a host's link cost where several messages share it: streams do not share evenly, and a
/// step ends with the slowest.
const INCAST: f64 = 0.05;

/// What an algorithm costs by formula.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Predicted seconds until the last rank is through.
    pub seconds: f64,
    /// Steps with messages in them, of the rank that has most.
    pub steps: usize,
    /// Bytes sent by the rank that sends most.
    pub bytes: f64,
    /// Bytes of a segment, for pipelined algorithms; otherwise 0.
    pub segment: f64,
}

/// Estimates `collective` by `algorithm`.
///
/// `elements` are those of the whole buffer: for collectives of blocks, of all blocks together; for alltoall, of all
/// that one rank sends. `width` is the bytes of an element as it travels. Costs O(size) for each step, and O(1024^2) at
/// most.
pub fn estimate(
    collective: Collective,
    algorithm: Algorithm,
    (elements, width): (usize, usize),
    hosts: &Hosts,
    deterministic: bool,
    model: &CostModel,
) -> Estimate {
    let n = hosts.size();
    let bytes = elements as f64 * width as f64;
    let mut tally = Tally { hosts, model, width: width as f64, total: Estimate::default(), waited: 0.0 };
    tally.total.seconds = model.host.map_or(0.0, |host| host.operation);
    if n <= 1 {
        tally.local(bytes, model.copy_seconds_per_byte);
        return tally.total;
    }
    let reduces = matches!(collective, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter);
    if deterministic && reduces && !matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Linear) {
        tally.ordered(collective, algorithm, bytes);
        return tally.total;
    }
    match collective {
        Collective::Allreduce => tally.allreduce(algorithm, bytes),
        Collective::Reduce => tally.reduce(algorithm, bytes),
        Collective::Broadcast => tally.broadcast(algorithm, bytes),
        Collective::Allgather => tally.allgather(algorithm, bytes),
        Collective::ReduceScatter => tally.reduce_scatter(algorithm, bytes),
        Collective::Alltoall => tally.alltoall(algorithm, bytes),
        Collective::Scatter => tally.rooted_blocks(algorithm, bytes),
        Collective::Gather => {
            tally.rooted_blocks(algorithm, bytes);
            // Here it is the root that receives it all; the busiest sender is a child of the root.
            let largest = |bit: u32| (1usize << bit).min(n - (1 << bit));
            let blocks =
                if algorithm == Algorithm::Linear { 1 } else { (0..ceil_log2(n)).map(largest).max().unwrap_or(0) };
            tally.total.bytes = blocks as f64 * bytes / n as f64;
        }
        Collective::Barrier => tally.doubling(|_| 0.0),
        Collective::SendRecv => tally.level(1, bytes),
    }
    tally.total
}

/// Adds patterns up.
pub(super) struct Tally<'a> {
    pub(super) hosts: &'a Hosts,
    pub(super) model: &'a CostModel,
    /// Bytes of an element.
    width: f64,
    pub(super) total: Estimate,
    /// The longest that ranks waited for each other at a card or a rack so far.
    pub(super) waited: f64,
}

impl Tally<'_> {
    fn n(&self) -> usize {
        self.hosts.size()
    }

    /// Adds a step that ends when the slower of two groups of messages ends: `near` ones through one rank's port, `far`
    /// ones through one host's. All ranks of a host send and receive alike.
    fn step(&mut self, near: usize, far: Leaving, bytes: f64) {
        self.step_of(near, near * self.hosts.most(), far, bytes);
    }

    /// As [`step`](Self::step), where a host's ranks have `all` messages among them.
    fn step_of(&mut self, near: usize, all: usize, far: Leaving, bytes: f64) {
        self.total.steps += 1;
        let model = self.model;
        match &model.network {
            Some(network) => self.network_step(network, (near, near > 0 && all == near), far, bytes),
            None => self.total.seconds += self.near(near, all, bytes).max(self.far(far, bytes)),
        }
    }

    /// A step between hosts.
    fn far(&self, leaving: Leaving, bytes: f64) -> f64 {
        let (link, far) = (&self.model.between_hosts, leaving.host as f64);
        if leaving.host == 0 {
            return 0.0;
        }
        let crowded = if leaving.host > 1 { 1.0 + INCAST } else { 1.0 };
        let links = link.latency + far * link.occupied(bytes * crowded);
        let Some(host) = self.model.host else { return links };
        let share = self.model.sharing(self.hosts.most());
        if share <= 1.0 {
            return links;
        }
        // Where processors have too much to do, it is they who hold things up, and not the links.
        let message = host.far_switch + bytes * LinkModel::LOOPBACK.seconds_per_byte;
        let together = leaving.all as f64 / (host.processors * self.hosts.count() as f64);
        let part = if leaving.all == leaving.host { host.one_way } else { 1.0 };
        let processors = link.latency + host.far_turn * (share - 1.0) + (far * part).max(together) * message;
        links.max(processors)
    }

    /// A step within hosts.
    fn near(&self, near: usize, all: usize, bytes: f64) -> f64 {
        let (link, most) = (&self.model.in_host, self.hosts.most());
        if near == 0 {
            return 0.0;
        }
        let Some(host) = self.model.host else { return link.latency + near as f64 * link.occupied(bytes) };
        // Where one rank sends all there are, or receives them, it bears a part of each only.
        let busiest = if all == near { near as f64 * host.one_way } else { near as f64 };
        let together = all as f64 / host.processors.clamp(1.0, most as f64);
        let message = if self.model.sharing(most) > 1.0 {
            // Where each has few messages, some processor idles while its ranks wait for those on others.
            host.switch + link.occupied(bytes * (1.0 + host.idling / near as f64))
        } else {
            link.occupied(bytes)
        };
        let sleepers = if all < near * most { all.saturating_sub(1) } else { 0 };
        link.latency + self.model.waiting(most, sleepers) + busiest.max(together) * message
    }

    /// Local work on `bytes`, counting each operand.
    fn local(&mut self, bytes: f64, seconds_per_byte: f64) {
        self.total.seconds += bytes * seconds_per_byte;
    }

    fn arithmetic(&mut self, bytes: f64) {
        self.local(bytes, self.model.reduce_seconds_per_byte * self.model.sharing(self.hosts.most()));
    }

    /// Arithmetic of one rank of a host, while the others there have none.
    fn alone(&mut self, bytes: f64) {
        self.local(bytes, self.model.reduce_seconds_per_byte);
    }

    /// Everyone sends `bytes` to everyone.
    fn direct(&mut self, bytes: f64) {
        let (n, most) = (self.n(), self.hosts.most());
        self.step(most - 1, self.leaving_to_all(most), bytes);
        self.total.bytes += (n - 1) as f64 * bytes;
    }

    /// One rank sends `bytes` to everyone, or receives them.
    fn fan(&mut self, bytes: f64) {
        let (n, most) = (self.n(), self.hosts.most());
        self.step_of(most - 1, most - 1, self.leaving_one(), bytes);
        self.total.bytes += (n - 1) as f64 * bytes;
    }

    /// `times` steps around the ring that visits host after host.
    fn ring(&mut self, times: usize, bytes: f64, reduces: bool) {
        self.total.steps += times;
        self.total.bytes += times as f64 * bytes;
        let hosts = self.hosts.count();
        let far = if hosts > 1 { hosts } else { 0 };
        self.total.seconds += match &self.model.network {
            Some(network) => {
                let hops = (self.n() - far, far, self.racks_to_cross());
                self.network_ring(network, times, hops, 1, bytes, reduces)
            }
            None => {
                let most = self.hosts.most();
                let leaving = Leaving { host: far.min(1), rack: 0, all: far };
                times as f64 * self.near(usize::from(most > 1), most, bytes).max(self.far(leaving, bytes))
            }
        };
    }

    /// Everyone sends `bytes` to the rank `distance` away.
    fn exchange(&mut self, distance: usize, bytes: f64) {
        let n = self.n();
        self.step(1, self.leaving((0..n).map(|rank| (rank, (rank + distance) % n))), bytes);
        self.total.bytes += bytes;
    }

    /// A level of a binomial tree from rank 0: members whose number is a multiple of 2 * `distance` send `bytes` to the
    /// one `distance` away, or receive them.
    fn level(&mut self, distance: usize, bytes: f64) {
        let senders = (0..self.n() - distance).step_by(2 * distance);
        let all = senders.len().div_ceil(self.hosts.count());
        self.step_of(1, all, self.leaving(senders.map(|rank| (rank, rank + distance))), bytes);
        self.total.bytes += bytes;
    }

    /// All levels of a binomial tree; `bytes` are given the distance and what is left of the tree there.
    fn binomial(&mut self, bytes: impl Fn(usize) -> f64) {
        (0..ceil_log2(self.n()))
            .for_each(|bit| self.level(1 << bit, bytes((1usize << bit).min(self.n() - (1 << bit)))));
        // The last to be reached is not reached through all levels, unless the tree is full.
        if !self.n().is_power_of_two() {
            self.total.seconds -= self.model.in_host.latency;
        }
    }

    /// Exchanges at distance 1, 2, 4, ... for all n; `bytes` are given the distance.
    fn doubling(&mut self, bytes: impl Fn(usize) -> f64) {
        for bit in 0..ceil_log2(self.n()) {
            self.exchange(1 << bit, bytes(1 << bit));
        }
    }

    /// Exchanges in a group folded to a power of two; `bytes` are given the distance and that power. Extras first hand
    /// over `there`, and get back `back` in the end, where these are given.
    fn folded(&mut self, there: Option<f64>, back: Option<f64>, bytes: impl Fn(usize, usize) -> f64) {
        let count = 1 << self.n().ilog2();
        let extras = self.n() - count;
        let rank = |number: usize| if number < extras { 2 * number } else { number + extras };
        let fold = |tally: &mut Self, bytes: f64| {
            tally.step(1, tally.leaving((0..extras).map(|pair| (2 * pair, 2 * pair + 1))), bytes);
        };
        if let Some(there) = there.filter(|_| extras > 0) {
            fold(self, there);
        }
        for bit in 0..count.ilog2() {
            let bytes = bytes(1 << bit, count);
            let messages = (0..count).map(|number| (rank(number), rank(number ^ (1 << bit))));
            self.step(1, self.leaving(messages), bytes);
            self.total.bytes += bytes;
        }
        if let Some(back) = back.filter(|_| extras > 0) {
            fold(self, back);
            self.total.bytes += back;
        }
    }

    /// A chain in segments, of the length that balances filling it against the cost of each segment.
    fn chain(&mut self, bytes: f64) {
        let far = self.hosts.count() - 1;
        let near = self.n() - 1 - far;
        let (slow, model) = (self.slower(), *self.model);
        let links = [(near as f64, model.in_host), (far as f64, model.between_hosts)];
        let filling: f64 = links.iter().map(|(hops, link)| hops * link.seconds_per_byte).sum();
        let segments = segments(bytes, filling - slow.seconds_per_byte, slow.latency + slow.overhead);
        let segment = bytes / segments;
        let one = Leaving { host: 1, rack: 0, all: 1 };
        let hop = self.far(one, segment);
        self.total.seconds += near as f64 * self.near(1, 1, segment) + far as f64 * hop;
        // Who has both neighbours in its host receives and sends each segment: one after the other, if a processor does it.
        let both = if model.host.is_some() && self.hosts.most() > 2 { 2 } else { 1 };
        let all = (self.n() - 1).div_ceil(self.hosts.count());
        // Between hosts, a segment follows the one before at once.
        let next = (hop - slow.latency).max(if near > 0 { self.near(both, all, segment) } else { 0.0 });
        self.total.seconds += (segments - 1.0) * if far > 0 { next } else { self.near(both, all, segment) };
        self.total.steps += segments as usize + usize::from(self.n() > 2);
        self.total.bytes += bytes;
        self.total.segment = segment;
    }

    /// The link that holds up what goes through all hosts.
    fn slower(&self) -> LinkModel {
        if self.hosts.count() > 1 { self.model.between_hosts } else { self.model.in_host }
    }

    /// One rank of each host sends `bytes` to all others there, or receives them.
    fn within_fan(&mut self, bytes: f64) {
        let others = self.hosts.most() - 1;
        if others > 0 {
            self.step_of(others, others, Leaving::default(), bytes);
            self.total.bytes += others as f64 * bytes;
        }
    }

    /// Owners and all others of each host exchange shards of `bytes`.
    fn within(&mut self, bytes: f64) {
        if self.hosts.most() > 1 {
            self.step(self.hosts.most() - 1, Leaving::default(), bytes);
            self.total.bytes += (self.hosts.most() - 1) as f64 * bytes;
        }
    }

    /// Within each column, everyone sends `bytes` to everyone.
    fn columns_direct(&mut self, columns: usize, bytes: f64) {
        let others = self.hosts.count() - 1;
        let Leaving { host, rack, all } = self.leaving_column(columns, self.hosts.count());
        self.step(0, Leaving { host: host * others, rack: rack * others, all: all * others }, bytes);
    }

    /// `times` steps around the rings of all columns at once.
    fn columns_ring(&mut self, times: usize, columns: usize, bytes: f64, reduces: bool) {
        self.total.steps += times;
        self.total.bytes += times as f64 * bytes;
        self.total.seconds += match &self.model.network {
            Some(network) => {
                let hops = (0, self.hosts.count(), self.racks_to_cross());
                self.network_ring(network, times, hops, columns, bytes, reduces)
            }
            None => times as f64 * self.far(self.leaving_column(columns, 1), bytes),
        };
        if reduces && self.model.network.is_none() {
            self.arithmetic(2.0 * bytes * self.hosts.count() as f64);
        }
    }

    fn reduce(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n() as f64;
        match algorithm {
            Algorithm::Linear => {
                self.fan(bytes);
                self.alone(n * bytes);
                self.total.bytes = bytes;
            }
            Algorithm::TwoShot => {
                self.direct(bytes / n);
                self.arithmetic(bytes);
                let sent = self.total.bytes + bytes / n;
                self.fan(bytes / n);
                self.total.bytes = sent;
            }
            Algorithm::Ring => {
                self.chain(bytes);
                self.arithmetic(bytes);
            }
            Algorithm::Hierarchical => {
                self.within_fan(bytes);
                self.alone(self.hosts.most() as f64 * bytes);
                self.leaders(bytes);
                self.alone(f64::from(ceil_log2(self.hosts.count())) * bytes);
                self.total.bytes = bytes;
            }
            _ => {
                self.binomial(|_| bytes);
                self.arithmetic(f64::from(ceil_log2(self.n())) * bytes);
                self.total.bytes = bytes;
            }
        }
    }

    fn broadcast(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n() as f64;
        match algorithm {
            Algorithm::Linear => self.fan(bytes),
            Algorithm::TwoShot => {
                self.fan(bytes / n);
                self.direct(bytes / n);
            }
            Algorithm::Ring => self.chain(bytes),
            Algorithm::Hierarchical => {
                self.leaders(bytes);
                self.within_fan(bytes);
            }
            _ => self.binomial(|_| bytes),
        }
    }

    /// A binomial tree over one rank of each host.
    fn leaders(&mut self, bytes: f64) {
        let hosts = self.hosts.count();
        for bit in 0..ceil_log2(hosts) {
            self.step(0, self.leaving_column(1, 1 << bit), bytes);
            self.total.bytes += bytes;
        }
        if !hosts.is_power_of_two() {
            self.total.seconds -= self.model.between_hosts.latency;
        }
    }

    fn allgather(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n();
        let block = bytes / n as f64;
        match algorithm {
            Algorithm::Ring => self.ring(n - 1, block, false),
            Algorithm::RecursiveDoubling => {
                self.folded(Some(block), Some(bytes), |distance, count| bytes * distance as f64 / count as f64);
            }
            Algorithm::Bruck => self.doubling(|distance| distance.min(n - distance) as f64 * block),
            Algorithm::Hierarchical => self.hosts_allgather(block),
            _ => self.direct(block),
        }
    }

    fn hosts_allgather(&mut self, block: f64) {
        let (owners, hosts) = (self.hosts.fewest(), self.hosts.count());
        let given = self.hosts.most().div_ceil(owners);
        if given > 1 {
            self.step(given - 1, Leaving::default(), block);
        }
        let bundle = given as f64 * block;
        if hosts > 1 && hosts <= MOST_DIRECT_HOSTS {
            self.columns_direct(owners, bundle);
            self.total.bytes += (hosts - 1) as f64 * bundle;
        } else if hosts > MOST_DIRECT_HOSTS {
            self.columns_ring(hosts - 1, owners, bundle, false);
        }
        self.within(hosts as f64 * bundle);
    }

    fn reduce_scatter(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n() as f64;
        match algorithm {
            Algorithm::Pairwise => {
                self.pairwise(bytes / n);
                self.arithmetic(bytes);
            }
            Algorithm::Ring => {
                self.ring(self.n() - 1, bytes / n, true);
                if self.model.network.is_none() {
                    self.arithmetic(bytes);
                }
            }
            Algorithm::HalvingDoubling => {
                self.folded(Some(bytes), Some(bytes / n), |distance, count| bytes * distance as f64 / count as f64);
                self.arithmetic(if self.n().is_power_of_two() { bytes } else { 2.0 * bytes });
            }
            _ => {
                self.direct(bytes / n);
                self.arithmetic(bytes);
                // What is collected first comes from memory once more, if it is too much for a cache.
                let collected = (n - 1.0) / n * bytes;
                if collected > CACHED_BYTES && self.model.network.is_none() {
                    self.local(collected, self.model.copy_seconds_per_byte);
                }
            }
        }
    }

    fn pairwise(&mut self, block: f64) {
        let n = self.n();
        if n <= MOST_COUNTED {
            (1..n).for_each(|distance| self.exchange(distance, block));
            return;
        }
        // Nearly every message crosses where there are many hosts.
        let before = self.total;
        let each = if self.hosts.count() > 1 { self.hosts.most() } else { 0 };
        let rack = if self.racks_to_cross() > 0 { self.ranks_of_a_rack() } else { 0 };
        self.step(1, Leaving { host: each, rack, all: each * self.hosts.count() }, block);
        self.total.seconds = before.seconds + (n - 1) as f64 * (self.total.seconds - before.seconds);
        self.total.steps = before.steps + n - 1;
        self.total.bytes += (n - 1) as f64 * block;
    }

    fn alltoall(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n();
        let block = bytes / n as f64;
        match algorithm {
            Algorithm::Bruck => {
                let moving = |bit: usize| (0..n).filter(|number| number & bit != 0).count() as f64;
                self.doubling(|bit| moving(bit) * block);
                // Packed once for each step, and put in place at the end.
                self.local(self.total.bytes + bytes, self.model.copy_seconds_per_byte);
            }
            Algorithm::Pairwise => self.pairwise(block),
            _ => self.direct(block),
        }
    }

    fn rooted_blocks(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n();
        let block = bytes / n as f64;
        if algorithm == Algorithm::Linear {
            self.fan(block);
        } else {
            self.binomial(|members| members as f64 * block);
        }
    }

    /// What stands in for other algorithms where rank order is asked for.
    fn ordered(&mut self, collective: Collective, algorithm: Algorithm, bytes: f64) {
        let n = self.n() as f64;
        let short = bytes * n <= MOST_COLLECTED as f64 * self.width;
        match (collective, algorithm) {
            (Collective::Allreduce, Algorithm::RecursiveDoubling) if short => {
                self.allgather(algorithm, n * bytes);
                self.arithmetic(n * bytes);
            }
            (Collective::Reduce, Algorithm::Binomial) if short => {
                self.rooted_blocks(algorithm, n * bytes);
                self.arithmetic(n * bytes);
            }
            _ => {
                self.pairwise(bytes / n);
                self.arithmetic(bytes);
                match (collective, algorithm) {
                    (Collective::Allreduce, Algorithm::Ring | Algorithm::Hierarchical) => {
                        self.allgather(algorithm, bytes)
                    }
                    (Collective::Allreduce, Algorithm::DoubleTree) => self.allgather(Algorithm::Bruck, bytes),
                    (Collective::Allreduce, _) => self.allgather(Algorithm::RecursiveDoubling, bytes),
                    (Collective::Reduce, Algorithm::Ring) => self.rooted_blocks(Algorithm::Linear, bytes),
                    (Collective::Reduce, _) => self.rooted_blocks(Algorithm::Binomial, bytes),
                    _ => {}
                }
            }
        }
    }
}

/// The least k with 2^k >= n.
pub(super) fn ceil_log2(n: usize) -> u32 {
    n.max(1).next_power_of_two().ilog2()
}

/// Into how many segments S to cut `bytes` so that `filling * bytes / S + fixed * S` is least: `filling` is what each byte
/// of a segment costs until the pipeline is full, `fixed` what each segment costs whatever its length.
fn segments(bytes: f64, filling: f64, fixed: f64) -> f64 {
    let best = (bytes * filling.max(0.0) / fixed.max(1e-12)).sqrt();
    // Segments below a page are never worth it; more than a few thousand are work for nothing.
    best.min(bytes / 4096.0).clamp(1.0, 4096.0).round()
}
