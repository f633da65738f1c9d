//! Worlds too large to be run: what a collective would take on a network that is only described.
//!
//! A [`Fabric`] says what there is: hosts with ranks, cores and network cards, racks of hosts, and how much the links
//! above the racks are oversubscribed (`presets`, `text`). [`forecast`] takes the real plans of the ranks, packs them
//! so that steps which repeat are kept once (`program`), and runs them event by event over the links (`engine`). Where
//! every rack does the same as the next, one rack stands for all (`predict`).
//!
//! # The model
//!
//! A message goes through a row of *servers*: the sender's core, its network card, the uplink of its rack, the downlink
//! of the receiver's rack, the receiver's network card, the receiver's core. Within a host only the two cores; within a
//! rack, no uplink. Each server handles one message after the other, in the order in which their heads come in, for
//! `overhead + bytes / rate` each. The head moves on to the next server `latency` after its turn began, so a message
//! streams through all of its servers at the pace of the slowest; it ends when the last byte is through the last one.
//! That is LogGP (a core is busy for o, the network takes L, bytes cost G each) with gaps for every shared link instead
//! of one for each end, and first come, first served on each.
//!
//! First come, first served, rather than shares that are equal at every moment (max-min, as fluid simulators have it):
//! both serve a link's bytes in the same time, so the last message of a crowd ends at the same moment, and it is the
//! last that a collective waits for. It costs O(log n) for each message and link, where fair shares cost O(crowd)
//! whenever a message comes or goes, and it needs no arithmetic whose rounding would depend on the order of sums: times
//! are whole picoseconds, so that two runs that should be equal are.
//!
//! A message up to the eager limit sets out when it is sent. A longer one waits until word has come that its receive is
//! posted, as in `transport`. Local work of a step takes its turn at the rank's core.
//!
//! # What it neglects
//!
//! Losses, retransmissions, switch buffers and congestion control; collisions of flows on the parallel links above a
//! rack, which count as one link of their sum; the ends of a long message at a core are served at once rather than
//! spread over the time it takes on the wire; the caches and the memory bandwidth that cores of a host share; noise.
//!
//! A. Alexandrov, M. Ionescu, K. Schauser and C. Scheiman, "LogGP", JPDC 44(1), 1997; for the fluid alternative, H.
//! Casanova, A. Giersch, A. Legrand, M. Quinson and F. Suter, "Versatile, scalable, and accurate simulation of
//! distributed applications and platforms", JPDC 74(10), 2014; for the oversubscribed Clos, M. Al-Fares, A. Loukissas
//! and A. Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008.

mod engine;
mod predict;
mod presets;
mod program;
#[cfg(test)]
mod tests;
mod text;

pub use engine::LinkKind;
pub use predict::{Forecast, Question, choice, forecast};
pub use presets::{PRESETS, preset};
pub use text::FabricError;

use super::cost::{CostModel, HostModel, LinkModel, NetworkModel};

/// What a core pays for a message, at each end, and how long the message is under way besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Port {
    /// Seconds from the first byte leaving to its arriving, network hops not counted.
    pub latency: f64,
    /// Seconds that each end's core is busy with a message of whatever length.
    pub overhead: f64,
    /// Bytes a second at which a core sends, or receives.
    pub rate: f64,
}

/// A machine or a network of machines. Ranks fill hosts one after the other, and hosts fill racks.
///
/// Written and read as text by `Display` and `FromStr`: one `key = value` a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// What it is called.
    pub name: String,
    /// Ranks of each host; the last one may have fewer.
    pub ranks_per_host: usize,
    /// Cores of each host; where there are fewer than ranks, ranks take turns.
    pub cores_per_host: usize,
    /// Whether all hosts are one machine in truth (network namespaces), whose `cores_per_host` cores they share.
    pub one_machine: bool,
    /// The longest message in bytes that is sent before its receive is known to be posted.
    pub eager_bytes: usize,
    /// Messages within a host.
    pub memory: Port,
    /// Messages between hosts.
    pub network: Port,
    /// Network cards of a host, which its ranks use in turn.
    pub nics: usize,
    /// Bytes a second of a network card, each way.
    pub nic_rate: f64,
    /// Seconds that a network card is busy with a message of whatever length.
    pub nic_overhead: f64,
    /// Hosts on one leaf switch; 0 if one switch connects all hosts at full rate.
    pub hosts_per_rack: usize,
    /// Rate of a rack's network cards over that of its links to the spine.
    pub oversubscription: f64,
    /// Seconds for each cable and the switch behind it: two within a rack, four between racks.
    pub hop_latency: f64,
    /// Bytes a second of each operand of a reduction.
    pub reduce_rate: f64,
    /// Bytes a second copied within a rank.
    pub copy_rate: f64,
}

impl Fabric {
    /// Ranks below one leaf switch.
    pub fn ranks_per_rack(&self) -> Option<usize> {
        (self.hosts_per_rack > 0).then(|| self.hosts_per_rack.saturating_mul(self.ranks_per_host))
    }

    /// The host of each of `ranks` ranks, as [`PlanRequest::hosts`](super::PlanRequest::hosts).
    pub fn hosts(&self, ranks: usize) -> Vec<usize> {
        (0..ranks).map(|rank| rank / self.ranks_per_host).collect()
    }

    /// The same as the cost model sees it.
    pub fn cost_model(&self) -> CostModel {
        let processors = self.cores_per_host.min(self.ranks_per_host) as f64;
        let uplinks = self.hosts_per_rack.max(1) as f64 * self.nics as f64 * self.nic_rate / self.oversubscription;
        CostModel {
            in_host: LinkModel {
                latency: self.memory.latency,
                overhead: self.memory.overhead,
                seconds_per_byte: 1.0 / self.memory.rate,
            },
            between_hosts: LinkModel {
                latency: self.network.latency + 2.0 * self.hop_latency,
                overhead: self.network.overhead,
                seconds_per_byte: 1.0 / (self.nics as f64 * self.nic_rate),
            },
            reduce_seconds_per_byte: 1.0 / self.reduce_rate,
            copy_seconds_per_byte: 1.0 / self.copy_rate,
            host: Some(HostModel::sharing_nothing_but(processors)),
            network: Some(NetworkModel {
                end_seconds_per_byte: 1.0 / self.network.rate,
                cards: self.nics,
                card_overhead: self.nic_overhead,
                card_seconds_per_byte: 1.0 / self.nic_rate,
                hosts_per_rack: self.hosts_per_rack,
                rack_seconds_per_byte: 1.0 / uplinks,
                between_racks: 2.0 * self.hop_latency,
                early_bytes: self.eager_bytes as f64,
            }),
            // The plans that are simulated are of messages.
            ..CostModel::default()
        }
    }
}
