//! Formulas of allreduce.

use super::super::network::Leaving;
use super::{Tally, ceil_log2, segments};
use crate::schedule::algorithms::hierarchical::{LONGEST_DOUBLED_SHARD, MOST_DIRECT_HOSTS};
use crate::types::Algorithm;

/// The pieces of two-shot: their parts, slots and results together fit the last cache that a core has to itself or
/// nearly so, and are long enough to make the fixed cost of a message small.
const PIECE_BYTES: f64 = (1 << 20) as f64;

impl Tally<'_> {
    pub(super) fn allreduce(&mut self, algorithm: Algorithm, bytes: f64) {
        let n = self.n() as f64;
        match algorithm {
            Algorithm::OneShot => {
                self.direct(bytes);
                self.arithmetic(n * bytes);
            }
            Algorithm::Ring => {
                self.ring(self.n() - 1, bytes / n, true);
                self.ring(self.n() - 1, bytes / n, false);
                if self.model.network.is_none() {
                    self.arithmetic((n - 1.0) / n * bytes);
                }
            }
            Algorithm::RecursiveDoubling => {
                self.folded(Some(bytes), Some(bytes), |_, _| bytes);
                self.arithmetic(2.0 * f64::from(ceil_log2(self.n())) * bytes);
            }
            Algorithm::HalvingDoubling => {
                let part = |distance: usize, count: usize| bytes * distance as f64 / count as f64;
                self.folded(Some(bytes), None, part);
                self.folded(None, Some(bytes), part);
                self.arithmetic(if self.n().is_power_of_two() { bytes } else { 2.0 * bytes });
            }
            Algorithm::DoubleTree => self.double_tree(bytes),
            Algorithm::Hierarchical => {
                let owners = self.hosts.fewest() as f64;
                self.within(bytes / owners);
                self.arithmetic(self.hosts.most() as f64 * bytes / owners);
                self.columns_allreduce(bytes / owners);
                self.within(bytes / owners);
            }
            _ => {
                self.direct(bytes / n);
                self.arithmetic(bytes);
                self.direct(bytes / n);
                // In pieces, each further one has a fixed cost and its bytes; the bytes are counted above.
                let piece = (PIECE_BYTES / self.width).ceil();
                let pieces = (bytes / self.width / piece).ceil();
                self.total.segment = piece * self.width;
                if pieces > 1.0 {
                    self.total.steps = pieces as usize + 2;
                    let link = self.slower();
                    self.total.seconds += pieces * (link.latency + 2.0 * (n - 1.0) * link.overhead);
                }
            }
        }
    }

    /// Both halves at once: in each slot, every member sends and receives four segments, two each way.
    fn double_tree(&mut self, bytes: f64) {
        if let Some(network) = &self.model.network {
            let (seconds, segments) = self.network_double_tree(network, bytes);
            self.total.seconds += seconds;
            self.total.steps = segments as usize + 3 * ceil_log2(self.n()) as usize;
            self.total.bytes += if self.n() == 2 { bytes } else { 2.0 * bytes };
            self.total.segment = bytes / 2.0 / segments;
            return;
        }
        let link = self.slower();
        let depth = 2.0 * f64::from(ceil_log2(self.n()));
        let fixed = link.latency + 4.0 * link.overhead;
        let segments = segments(bytes / 2.0, 4.0 * depth * link.seconds_per_byte, fixed);
        let segment = bytes / 2.0 / segments;
        // Where ranks of a host are neighbours, about one inner member of each tree has children elsewhere.
        let n = self.n();
        let leaving = self.hosts.crossing((0..n).map(|rank| (rank, (rank + 1) % n)));
        let (before, count) = (self.total.seconds, self.hosts.count());
        self.step(1, Leaving { host: leaving, rack: 0, all: leaving * count }, segment);
        let filling = self.total.seconds - before;
        self.step(4, Leaving { host: 4 * leaving, rack: 0, all: 4 * leaving * count }, segment);
        let steady = self.total.seconds - before - filling;
        self.total.seconds = before + depth * filling + (segments - 1.0) * steady;
        self.total.steps = segments as usize + depth as usize;
        self.total.bytes += if n == 2 { bytes } else { 2.0 * bytes };
        self.total.segment = segment;
        self.arithmetic(bytes);
    }

    /// All columns reduce shards of `bytes` between hosts.
    fn columns_allreduce(&mut self, bytes: f64) {
        let (columns, hosts) = (self.hosts.fewest(), self.hosts.count());
        let count = hosts as f64;
        if hosts == 1 {
            return;
        }
        if bytes <= LONGEST_DOUBLED_SHARD as f64 * self.width {
            for bit in 0..hosts.ilog2() + 2 * u32::from(!hosts.is_power_of_two()) {
                self.step(0, self.leaving_column(columns, 1 << bit), bytes);
                self.total.bytes += bytes;
            }
            self.arithmetic(2.0 * f64::from(ceil_log2(hosts)) * bytes);
        } else if hosts <= MOST_DIRECT_HOSTS {
            for _ in 0..2 {
                self.columns_direct(columns, bytes / count);
                self.total.bytes += (count - 1.0) * bytes / count;
            }
            self.arithmetic(bytes);
        } else {
            self.columns_ring(hosts - 1, columns, bytes / count, true);
            self.columns_ring(hosts - 1, columns, bytes / count, false);
        }
    }
}
