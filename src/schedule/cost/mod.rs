//! What plans cost: a model of links and arithmetic, a simulation of all ranks, and formulas quick enough to choose by.
//!
//! The model is that of Hockney with the overhead of LogGP: a message of b bytes occupies a sending and a receiving
//! port for `overhead + b * seconds_per_byte`, and arrives `latency` later. Within a host, each rank has a port of its
//! own each way; all ranks of a host share the two ports of its link to other hosts. Ports each way are independent.
//!
//! R. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994; A. Alexandrov, M. Ionescu,
//! K. Schauser and C. Scheiman, "LogGP", JPDC 44(1), 1997.

mod basis;
mod boards;
mod crowd;
mod formula;
mod network;
mod select;
mod simulate;
mod table;
pub mod tune;

pub use basis::{Basis, ChoiceMode, Figures, Told, agree};
pub use boards::{BoardModel, MOST_RANKS_OF_BOARDS};
pub use crowd::{Affinity, Crowd, crowd};
pub use formula::{Estimate, estimate};
pub use network::NetworkModel;
pub use select::{Choice, Selection, select, select_by};
pub(super) use select::{micros, width_on_the_wire};
pub(super) use simulate::paced;
pub use simulate::{Prediction, Transfer, simulate};
pub use table::AlgorithmTable;

use serde::{Deserialize, Serialize};

/// What a message costs over one kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkModel {
    /// Seconds from the first byte leaving to its arriving, and from an empty message's posting to its end.
    pub latency: f64,
    /// Seconds that a port is occupied by a message of whatever length.
    pub overhead: f64,
    /// Seconds that a port is occupied by each byte: one over the bandwidth.
    pub seconds_per_byte: f64,
}

/// What everything costs. Must be the same on all ranks wherever a choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Between ranks of one host.
    pub in_host: LinkModel,
    /// Between hosts.
    pub between_hosts: LinkModel,
    /// Seconds for each byte of each operand of a reduction.
    pub reduce_seconds_per_byte: f64,
    /// Seconds for each byte copied.
    pub copy_seconds_per_byte: f64,
    /// Over the boards of ranks on one host.
    pub boards: BoardModel,
    /// What the ranks of a host share. Nothing, if not given: then each has a processor of its own, which sends and
    /// receives at the same time.
    pub host: Option<HostModel>,
    /// What is known of the network between hosts. If nothing, a host has one port each way, and steps are rounds.
    pub network: Option<NetworkModel>,
}

/// What the ranks of a host share.
///
/// Within a host it is a processor that moves the bytes: a rank either sends or receives, and ranks that share processors
/// take turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostModel {
    /// How many ranks can be at work at once: the processors that they have together. A fraction where hosts are
    /// parts of one machine that has fewer processors than hosts.
    pub processors: f64,
    /// Seconds until a rank has a processor again, for each rank that shares it.
    pub turn: f64,
    /// Seconds for each further rank that sleeps until its message in a step comes, where some only send and others only
    /// receive; and this for each pair of ranks that share a processor with it.
    pub wake: f64,
    /// Seconds more for each message where ranks share processors.
    pub switch: f64,
    /// Which part more the bytes cost where ranks share processors and each has one message in a step; less where it has
    /// more.
    pub idling: f64,
    /// The part of a message's cost that its sender bears; where all send and receive alike it makes no difference.
    pub one_way: f64,
    /// Seconds that an operation costs beside its messages.
    pub operation: f64,
    /// Seconds of a processor for a message between hosts, at both ends, where ranks share processors.
    pub far_switch: f64,
    /// Seconds until a rank has a processor again that waits for another host, for each rank that shares it.
    pub far_turn: f64,
}

impl HostModel {
    /// Ranks that move bytes through shared memory.
    pub const SHARED_MEMORY: HostModel = HostModel {
        processors: f64::INFINITY,
        turn: 2e-6,
        wake: 0.3e-6,
        switch: 0.4e-6,
        idling: 0.0,
        one_way: 0.7,
        operation: 0.5e-6,
        far_switch: 48e-6,
        far_turn: 20e-6,
    };

    /// Ranks that move bytes through sockets, where they sleep sooner.
    pub const SOCKETS: HostModel = HostModel {
        processors: f64::INFINITY,
        turn: 4.8e-6,
        wake: 1.1e-6,
        switch: 2.1e-6,
        idling: 0.18,
        one_way: 0.93,
        operation: 1.6e-6,
        far_switch: 48e-6,
        far_turn: 20e-6,
    };
}

impl HostModel {
    /// Ranks of a host that has `processors` for them, over shared memory or over sockets.
    pub const fn of(shares_memory: bool, processors: f64) -> Self {
        Self { processors, ..if shares_memory { Self::SHARED_MEMORY } else { Self::SOCKETS } }
    }

    /// Ranks to which it makes no difference that they share processors, but that these have only so much time.
    pub const fn sharing_nothing_but(processors: f64) -> Self {
        Self {
            processors,
            turn: 0.0,
            wake: 0.0,
            switch: 0.0,
            idling: 0.0,
            one_way: 1.0,
            operation: 0.0,
            far_switch: 0.0,
            far_turn: 0.0,
        }
    }
}

impl Default for HostModel {
    fn default() -> Self {
        Self::SHARED_MEMORY
    }
}

impl CostModel {
    /// Over shared memory within hosts, or over sockets. What comes through sockets is combined as it comes, while it is in
    /// the cache.
    pub fn within(shares_memory: bool) -> Self {
        match shares_memory {
            true => Self::default(),
            false => Self { in_host: LinkModel::LOOPBACK, reduce_seconds_per_byte: 1.0 / 50e9, ..Self::default() },
        }
    }

    /// Whether `ranks` ranks of a host take turns on its processors.
    pub fn shares_processors(&self, ranks: usize) -> bool {
        self.sharing(ranks) > 1.0
    }

    /// How many of `ranks` ranks of a host share a processor.
    fn sharing(&self, ranks: usize) -> f64 {
        self.host.map_or(1.0, |host| (ranks as f64 / host.processors.max(1e-3)).max(1.0))
    }

    /// Seconds more that a step takes where `ranks` ranks of a host share processors, and it wakes `sleepers` one after the
    /// other besides.
    fn waiting(&self, ranks: usize, sleepers: usize) -> f64 {
        let turns = self.sharing(ranks) - 1.0;
        self.host.map_or(0.0, |host| turns * (host.turn + turns * sleepers as f64 * host.wake))
    }
}

impl LinkModel {
    /// Shared memory of one host: the figures of a small server, 5 GB/s for a message between two ranks.
    pub const SHARED_MEMORY: LinkModel = LinkModel { latency: 0.3e-6, overhead: 0.2e-6, seconds_per_byte: 1.0 / 5e9 };

    /// TCP within one host, as measured between two cores.
    pub const LOOPBACK: LinkModel = LinkModel { latency: 0.8e-6, overhead: 2.1e-6, seconds_per_byte: 1.0 / 4.7e9 };

    /// TCP over Ethernet of the given speed, switched.
    pub const fn ethernet(gigabits_per_second: f64) -> LinkModel {
        LinkModel { latency: 25e-6, overhead: 4e-6, seconds_per_byte: 8e-9 / gigabits_per_second }
    }

    /// Seconds that a port is occupied by a message of `bytes`.
    pub fn occupied(&self, bytes: f64) -> f64 {
        self.overhead + bytes * self.seconds_per_byte
    }
}

impl Default for CostModel {
    /// Shared memory within hosts and 10 Gbit/s between them; arithmetic and copies as one core does them from memory.
    fn default() -> Self {
        Self {
            in_host: LinkModel::SHARED_MEMORY,
            between_hosts: LinkModel::ethernet(10.0),
            reduce_seconds_per_byte: 1.0 / 12e9,
            copy_seconds_per_byte: 1.0 / 12e9,
            boards: BoardModel::default(),
            host: None,
            network: None,
        }
    }
}

#[cfg(test)]
mod tests;
