//! RDMA between hosts: InfiniBand, and Ethernet with RoCE v2.
//!
//! # How bytes move
//!
//! Each side has a ring of registered memory into which the peer's adapter writes, and another one of the same size from
//! which its own adapter reads. Bytes are copied into the second, and one request (a write with an immediate word)
//! carries them to the same place of the peer's ring, where they are read as those of shared memory are. Short ones
//! travel inside the request. The word brings along what was read of the other direction.
//!
//! Long ones that lie in a buffer of `comm.alloc` are read by the adapter from there (`registrations`); their place in the
//! own ring is left empty. The memory is on loan until the adapter tells that it is done. Who wants it back before, because a
//! call was given up, waits for that, which needs nothing of the peer's process: there is room in its ring. If it takes too
//! long the queue pair is taken down, after which nothing is read.
//!
//! # Credits
//!
//! A writer knows how much room the peer's ring has and how many receives are posted there, and never exceeds either: no
//! receiver is overrun, and the adapters never have to repeat a message for want of a receive. The reader gives back by
//! quarters, with a word of its own if nothing travels that way anyhow. Receives are kept for those words: at most four
//! quarters of bytes and four of messages can be under way unseen.
//!
//! # Connecting
//!
//! The TCP connection on which both have proved who they are (`connect`) carries the numbers of queue pairs and the keys
//! to the rings, as offer, reply and commitment; a failure at any point leaves both free to use TCP. The connection then
//! stays open and silent: its end is the peer's, and is known at once, where the adapter would try again for seconds.
//!
//! # The end
//!
//! A lane that is dropped waits until the peer's adapter has what was written, says so with a last word, and only then
//! closes. The queue pair goes first, then the registrations, then the memory: nothing that is still under way can touch
//! memory that is used for something else.
//!
//! # Which device
//!
//! See `choice`. Without the feature `rdma` the names here exist, and everything says that RDMA was not built in.

#[cfg(feature = "rdma")]
mod adapter;
mod choice;
mod exchange;
#[cfg(feature = "rdma")]
mod lane;
#[cfg(feature = "rdma")]
mod rails;
#[cfg(feature = "rdma")]
mod registrations;

#[cfg(not(feature = "rdma"))]
mod absent;

use serde::{Deserialize, Serialize};

pub use choice::{Device, Gid, Place, PortSeen, choose, devices};
pub(super) use exchange::{Card, MESSAGE_BYTES, Message};

#[cfg(not(feature = "rdma"))]
pub(super) use absent::{Connected, Offered, Rails};
#[cfg(feature = "rdma")]
pub(super) use rails::{Connected, Offered, Rails};

/// Whether RDMA was built in.
pub const BUILT_IN: bool = cfg!(feature = "rdma");

/// What is done about a limit of locked memory that is too low.
#[cfg(feature = "rdma")]
const RAISE_MEMLOCK: &str = "`ulimit -l unlimited`, a line `* - memlock unlimited` in /etc/security/limits.conf, \
                             LimitMEMLOCK=infinity for a service, `docker run --ulimit memlock=-1`";

/// What can be chosen about RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaSettings {
    /// The devices by name, one rail each; the one that carries the address of this rank if there is none. `all` stands
    /// for every one that is active.
    pub devices: Vec<String>,
    /// The port of each; the first active one if none.
    pub port: Option<u8>,
    /// The place of the global identifier in the port's table.
    pub gid_index: Option<u8>,
    /// The traffic class of the packets, 0 to 255: on Ethernet, four times the DSCP.
    pub traffic_class: u8,
    /// The largest packet in bytes: 256, 512, 1024, 2048 or 4096; what the port carries if none.
    pub mtu: Option<u16>,
}

/// Whether a member looks for RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RdmaUse {
    /// It does not.
    #[default]
    No,
    /// If there is any.
    IfThere(RdmaSettings),
    /// Or it is an error.
    Demanded(RdmaSettings),
}

/// What a member publishes of its RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaAddress {
    /// How many rails it has.
    pub rails: u8,
    /// Whether they are Ethernet: RoCE reaches only RoCE.
    pub ethernet: bool,
}

#[cfg(all(test, feature = "rdma", not(loom)))]
mod tests;
