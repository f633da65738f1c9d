//! What messages between hosts cost where the network itself is known: cards, racks, and when a message waits for its
//! receive.
//!
//! A step of messages is as slow as the busiest of what they go through: a rank's core, which handles one end of a message
//! after the other; a host's cards; the links above a rack. A message that is not early waits until word has come that its
//! receive is posted. Without such a model a host has one port each way (see `formula`).
//!
//! Algorithms whose steps are no rounds have formulas of their own here. *Around a ring* what goes on depends on the rank
//! before and on oneself alone, so a slow link does not hold up every step, unless messages wait for their receives: the
//! pace is the larger of what the busiest rank has to do in a step and of the mean time of a hop, since the longest chain
//! of events either stays at a rank or goes around. *A double tree* is filled along its longest path, a level a message for
//! each of two children; then each segment is a step in which every member serves all its edges, both ways.

use super::formula::{Tally, ceil_log2};
use crate::schedule::algorithms::double_tree;

/// A network between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// Seconds that a core takes for each byte of a message between hosts, at each end.
    pub end_seconds_per_byte: f64,
    /// Network cards of a host.
    pub cards: usize,
    /// Seconds that a card takes for a message of whatever length.
    pub card_overhead: f64,
    /// Seconds that a card takes for each byte.
    pub card_seconds_per_byte: f64,
    /// Hosts of a rack; 0 if one switch connects all.
    pub hosts_per_rack: usize,
    /// Seconds for each byte between a rack and all others.
    pub rack_seconds_per_byte: f64,
    /// Seconds more of latency between racks.
    pub between_racks: f64,
    /// The longest message in bytes that does not wait for its receive.
    pub early_bytes: f64,
}

/// The most messages of a pattern that leave any one host, and any one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Leaving {
    pub(super) host: usize,
    pub(super) rack: usize,
    /// All that go from host to host.
    pub(super) all: usize,
}

/// What each rank, card and rack has to do with messages of one length.
#[derive(Clone, Copy, Default)]
struct Load {
    /// Messages that a rank sends within its host, and receives.
    near: f64,
    /// The same to other hosts.
    far: f64,
    leaving: Leaving,
    /// Whether some only send and others only receive.
    one_way: bool,
}

impl Tally<'_> {
    /// The rack of a host.
    fn rack(&self, host: usize) -> usize {
        self.model.network.map_or(0, |network| host.checked_div(network.hosts_per_rack).unwrap_or(0))
    }

    /// How many racks there are.
    fn racks(&self) -> usize {
        self.rack(self.hosts.count() - 1) + 1
    }

    /// How many hops around a ring go from rack to rack.
    pub(super) fn racks_to_cross(&self) -> usize {
        if self.racks() > 1 { self.racks() } else { 0 }
    }

    /// Ranks of a full rack.
    pub(super) fn ranks_of_a_rack(&self) -> usize {
        let rack = self.model.network.map_or(0, |network| network.hosts_per_rack);
        (rack * self.hosts.most()).min(self.hosts.size())
    }

    /// Counts messages, given as sender and receiver, that leave hosts and racks.
    pub(super) fn leaving(&self, messages: impl Iterator<Item = (usize, usize)>) -> Leaving {
        if self.hosts.count() == 1 {
            return Leaving::default();
        }
        let (mut hosts, mut racks, mut all) = (vec![0; self.hosts.count()], vec![0; self.racks()], 0);
        for (from, to) in messages {
            let (from, to) = (self.hosts.host_of(from), self.hosts.host_of(to));
            if from != to {
                hosts[from] += 1;
                racks[self.rack(from)] += usize::from(self.rack(from) != self.rack(to));
                all += 1;
            }
        }
        let most = |counts: Vec<usize>| counts.into_iter().max().unwrap_or(0);
        Leaving { host: most(hosts), rack: most(racks), all }
    }

    /// Where each of some ranks sends to all others: `each` of every host.
    pub(super) fn leaving_to_all(&self, each: usize) -> Leaving {
        let (hosts, n) = (self.hosts, self.hosts.size());
        let rack = self.ranks_of_a_rack();
        let senders = each * rack / hosts.most().max(1);
        let host = each * (n - hosts.most());
        Leaving { host, rack: if self.racks() > 1 { senders * (n - rack) } else { 0 }, all: host * hosts.count() }
    }

    /// Where one rank sends to all others, or receives from them.
    pub(super) fn leaving_one(&self) -> Leaving {
        let n = self.hosts.size();
        let rack = if self.racks() > 1 { n - self.ranks_of_a_rack() } else { 0 };
        let host = n - self.hosts.most();
        Leaving { host, rack, all: host }
    }

    /// Where `each` ranks of every host send to a host whose number differs from theirs by the bit `distance`.
    pub(super) fn leaving_column(&self, each: usize, distance: usize) -> Leaving {
        let in_rack = self.model.network.map_or(0, |network| network.hosts_per_rack);
        let rack = if self.racks() > 1 && distance >= in_rack { each * in_rack } else { 0 };
        Leaving { host: each, rack, all: each * self.hosts.count() }
    }

    /// Seconds that a rank's core takes for one end of a message of `bytes`, within and between hosts.
    fn ends(&self, network: &NetworkModel, bytes: f64) -> (f64, f64) {
        let share = self.model.sharing(self.hosts.most());
        let far = self.model.between_hosts.overhead + bytes * network.end_seconds_per_byte;
        (share * self.model.in_host.occupied(bytes), share * far)
    }

    /// Seconds until the head of a message is there, within a host or between hosts or racks.
    fn heads(&self, network: &NetworkModel, across: bool) -> (f64, f64) {
        let (near, far) = (&self.model.in_host, &self.model.between_hosts);
        let further = if across { network.between_racks } else { 0.0 };
        (near.overhead + near.latency, far.overhead + far.latency + further)
    }

    /// Seconds of a step of which a core has these ends each way, and how many of them are spared where many such steps
    /// follow each other.
    fn step_of_ends(&self, network: &NetworkModel, load: Load, bytes: f64) -> (f64, f64) {
        let (near, far) = self.ends(network, bytes);
        let (near_head, far_head) = self.heads(network, load.leaving.rack > 0);
        let ends = load.near * near + load.far * far;
        let is_far = load.leaving.host > 0;
        let head = if is_far { far_head } else { near_head };
        let word = if bytes > network.early_bytes { head } else { 0.0 };
        let cores = if load.one_way { ends + head } else { ends.max(head) + ends };
        if !is_far {
            return (word + cores, 0.0);
        }
        let per_card = (load.leaving.host as f64 / network.cards as f64).ceil();
        let message = network.card_overhead + bytes * network.card_seconds_per_byte;
        let rack = load.leaving.rack as f64 * bytes * network.rack_seconds_per_byte;
        let (crowd, last) = ((per_card * message).max(rack), self.model.between_hosts.overhead);
        let whole = cores.max(head + crowd + last);
        // Who was served first is the first to come again, while others still wait.
        let in_turn = cores.max(head + message + last).max(crowd);
        (word + whole, if load.one_way { 0.0 } else { whole - in_turn })
    }

    /// Adds a step in which every rank has `near` messages within its host each way, or a few ranks one way.
    pub(super) fn network_step(
        &mut self,
        network: &NetworkModel,
        (near, one_way): (usize, bool),
        leaving: Leaving,
        bytes: f64,
    ) {
        let each = if one_way { leaving.host as f64 } else { leaving.host as f64 / self.hosts.most() as f64 };
        let far = if leaving.host > 0 { each.max(1.0) } else { 0.0 };
        // A rank whose only message leaves its host has none within it.
        let near = if near == 1 && far >= 1.0 { 0.0 } else { near as f64 };
        let (seconds, spared) = self.step_of_ends(network, Load { near, far, leaving, one_way }, bytes);
        // Where messages of a step crowd a card or a rack, ranks wait once, and are apart in the steps that follow.
        let waited = spared.max(self.waited);
        self.total.seconds += seconds - spared + (waited - self.waited);
        self.waited = waited;
    }

    /// Seconds of `times` steps around a ring; `near` hops of it within hosts, the others between them, of which `across`
    /// between racks. Each host has `streams` of them.
    pub(super) fn network_ring(
        &self,
        network: &NetworkModel,
        times: usize,
        (near, far, across): (usize, usize, usize),
        streams: usize,
        bytes: f64,
        reduces: bool,
    ) -> f64 {
        let (near_end, far_end) = self.ends(network, bytes);
        let combining = if reduces { bytes * self.model.reduce_seconds_per_byte } else { 0.0 };
        let per_card = (streams as f64 / network.cards as f64).ceil();
        let card =
            if far > 0 { per_card * (network.card_overhead + bytes * network.card_seconds_per_byte) } else { 0.0 };
        let hop = |end: f64, head: f64, card: f64| (end.max(head) + end).max(head + card) + combining;
        let near_hop = hop(near_end, self.heads(network, false).0, 0.0);
        let (far_hop, across_hop) =
            (hop(far_end, self.heads(network, false).1, card), hop(far_end, self.heads(network, true).1, card));
        let hops = (near + far) as f64;
        let mean = (near as f64 * near_hop + (far - across) as f64 * far_hop + across as f64 * across_hop) / hops;
        // Who is at the border of a host receives from one kind of link and sends to the other.
        let busiest = match (near > 0, far > 0) {
            (true, true) => near_end + near_end.max(far_end),
            (true, false) => 2.0 * near_end,
            _ => 2.0 * far_end,
        } + combining;
        let rack = if across > 0 { streams as f64 * bytes * network.rack_seconds_per_byte } else { 0.0 };
        let mut pace = mean.max(busiest).max(card).max(rack);
        if bytes > network.early_bytes {
            // Word of each receive goes back over the slowest link, before what goes forth over it.
            let (slowest, head) = match (across > 0, far > 0) {
                (true, _) => (across_hop, self.heads(network, true).1),
                (_, true) => (far_hop, self.heads(network, false).1),
                _ => (near_hop, self.heads(network, false).0),
            };
            pace = pace.max(slowest + head).max(head + card.max(rack) + far_end.min(card));
        }
        times as f64 * pace
    }

    /// Seconds of a double tree, and the bytes of the segment for which they are least.
    pub(super) fn network_double_tree(&self, network: &NetworkModel, bytes: f64) -> (f64, f64) {
        let n = self.hosts.size();
        let edges = double_tree::edges(n);
        let both_ways = edges.iter().flat_map(|&(child, parent)| [(child, parent), (parent, child)]);
        let leaving = self.leaving(both_ways);
        // Edges of each rank, within its host and to others.
        let mut of_rank = vec![(0u32, 0u32); n];
        for &(child, parent) in &edges {
            let is_far = self.hosts.host_of(child) != self.hosts.host_of(parent);
            for rank in [child, parent] {
                let (near, far) = &mut of_rank[rank];
                *if is_far { far } else { near } += 1;
            }
        }
        let mut kinds = of_rank;
        kinds.sort_unstable();
        kinds.dedup();
        let host = self.hosts.most();
        let rack = if self.racks() > 1 { self.ranks_of_a_rack() } else { usize::MAX };
        let time = |segments: f64| {
            let segment = bytes / 2.0 / segments;
            let (near, far) = self.ends(network, segment);
            let combining = segment * self.model.reduce_seconds_per_byte;
            let mut filling = 0.0;
            for bit in 1..=ceil_log2(n) {
                let level = 1usize << bit;
                // The children of a place are half as far, one of them beyond the end of its host or rack.
                let (end, head) = if level < host || self.hosts.count() == 1 {
                    (near, self.heads(network, false).0)
                } else {
                    // Both children's messages go through the cards of one host.
                    let card = network.card_overhead + segment * network.card_seconds_per_byte;
                    (far.max(card), self.heads(network, level >= rack).1)
                };
                let word = if segment > network.early_bytes { head } else { 0.0 };
                filling += 2.0 * (word + head + 2.0 * end) + 2.0 * combining;
            }
            let steady = kinds.iter().map(|&(near, far)| {
                let load = Load { near: f64::from(near), far: f64::from(far), leaving, one_way: false };
                self.step_of_ends(network, load, segment).0
            });
            filling + (segments - 1.0) * (steady.fold(0.0, f64::max) + 2.0 * combining)
        };
        // Halves of powers of two are near enough to the best.
        let most = (bytes / 2.0 / 4096.0).clamp(1.0, 4096.0);
        let candidates =
            (0..=24).map(|half| 2f64.powf(f64::from(half) / 2.0).round()).filter(|segments| *segments <= most);
        let best = candidates.map(|segments| (time(segments), segments)).min_by(|a, b| a.0.total_cmp(&b.0));
        let (seconds, segments) = best.unwrap_or((time(1.0), 1.0));
        (seconds, segments)
    }
}
