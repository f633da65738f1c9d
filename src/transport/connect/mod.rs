//! From addresses to lanes: one thread that dials, accepts and authenticates for any number of peers at once.
//!
//! Connections are made when either side first needs them. Both sides prove knowledge of the job's key
//! ([`crate::wire::handshake`]) before anything else is believed; whoever cannot, or stays silent, is dropped, and the
//! number of those that have not proved themselves is bounded, the oldest giving way to the newest.
//!
//! # Who dials whom
//!
//! Either side may dial. When both do at once, the connection that the lower rank dialled stands: the lower rank answers
//! `Busy`, and the higher one drops its own attempt when the lower one's arrives. An attempt over TCP has several
//! connections (lanes), which belong together by a random number; its peer is delivered when all are up.
//!
//! # RDMA
//!
//! A peer of another host that has published RDMA is dialled over TCP for it. After the handshake the dialler offers its
//! queue pair, the other answers with its own, a packet goes each way between the adapters, the dialler commits
//! (`over_rdma`), and the connection becomes the one that tells the end of the lane. If that fails, the dialler warns and
//! dials for TCP, unless RDMA was demanded.
//!
//! # Shared memory
//!
//! A peer of the same host is dialled over its Unix socket. After the handshake the dialler offers a segment and its
//! doorbell, the other answers with its doorbell, the dialler commits (`exchange`). If the memory cannot be had, the
//! dialler warns and dials TCP, unless shared memory was demanded.

mod connection;
mod driver;
mod exchange;
mod over_rdma;
mod peers;

#[cfg(all(test, not(loom)))]
mod process_tests;
#[cfg(all(test, not(loom), feature = "rdma"))]
mod rdma_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::contract::Endpoint;
use super::lane::Lane;
use super::listen::{ListenAddresses, Listeners};
use super::rdma::{self, RdmaSettings, RdmaUse};
use super::shm;
use super::sleep::Sleeper;
use super::stream::{StreamConfig, StreamEndpoint};
use crate::sys::EventFd;
use crate::types::{Error, Generation, Result, TransportKind};
use crate::wire::handshake::{JobKey, MAX_LANES};

/// Which carriers may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportPolicy {
    /// Shared memory within a host if it can be had, RDMA between hosts that have it, TCP otherwise. A fallback is said
    /// with a warning.
    #[default]
    Auto,
    /// Shared memory, or an error.
    Shm,
    /// TCP, also within a host.
    Tcp,
    /// RDMA, also within a host, or an error.
    Rdma,
}

impl TransportPolicy {
    /// Whether members of one host may share memory.
    pub fn shares_memory(self) -> bool {
        matches!(self, Self::Auto | Self::Shm)
    }

    /// Whether RDMA devices are looked for, and used as `settings` says.
    pub fn rdma(self, settings: &RdmaSettings) -> RdmaUse {
        match self {
            // A build without it needs no word about that.
            Self::Auto if rdma::BUILT_IN => RdmaUse::IfThere(settings.clone()),
            Self::Rdma => RdmaUse::Demanded(settings.clone()),
            Self::Auto | Self::Shm | Self::Tcp => RdmaUse::No,
        }
    }
}

/// Where a peer can be reached.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    /// Its rank.
    pub rank: usize,
    /// What it published.
    pub addresses: ListenAddresses,
}

/// How long things may take. These bound what no operation waits for; an operation that waits for a connection ends at
/// its own deadline, which may be earlier.
#[derive(Clone, Copy, Debug)]
pub struct ConnectTimeouts {
    /// From `dial` until the peer is delivered or its error is. 30 s: as long as a busy machine may take to start the
    /// peer's thread, all listeners being bound already.
    pub dial: Duration,
    /// From accepting a connection until it has proved itself and its siblings are up. 10 s: a member needs a
    /// millisecond, a member on an overloaded machine perhaps a second; a silent stranger is dropped.
    pub handshake: Duration,
}

impl Default for ConnectTimeouts {
    fn default() -> Self {
        Self { dial: Duration::from_secs(30), handshake: Duration::from_secs(10) }
    }
}

/// What a connector is told.
#[derive(Clone, Debug)]
pub struct ConnectorConfig {
    /// This member's rank.
    pub rank: usize,
    /// The generation of the view. A peer of another one is refused.
    pub generation: Generation,
    /// The job's key.
    pub key: JobKey,
    /// The other members; an entry for this one is ignored.
    pub peers: Vec<PeerAddress>,
    /// Which carriers may be used. The side that dials decides.
    pub transport: TransportPolicy,
    /// How many TCP connections to a peer on another host, 1 to 16.
    ///
    /// 2 by default: two flows can take two paths through a network that spreads flows, a lost packet stalls only one of
    /// them, and short messages need not stand behind a long one. More give little on one link and cost a call each. To
    /// a peer on the same host there is always one: nothing is lost or spread there.
    pub sockets_per_peer: u8,
    /// The size of each of the two rings of a shared memory link: see [`shm`].
    pub ring_bytes: usize,
    /// Whether the members of this host may read this process's memory where it is, and this one theirs, where the machine
    /// allows it.
    pub single_copy: bool,
    /// How many connections that have not proved themselves are held. 256 by default: more than a large job's ranks
    /// that dial this one in the same millisecond, and few enough descriptors.
    pub max_pending: usize,
    /// How long things may take.
    pub timeouts: ConnectTimeouts,
    /// Whether views change while this connector lives: see [`Connector::install`]. A peer of another generation is
    /// then one that has heard of a change earlier or later, and is tried again.
    pub elastic: bool,
}

impl ConnectorConfig {
    /// With the defaults for everything that has one.
    pub fn new(rank: usize, generation: Generation, key: JobKey, peers: Vec<PeerAddress>) -> Self {
        Self {
            rank,
            generation,
            key,
            peers,
            transport: TransportPolicy::Auto,
            sockets_per_peer: 2,
            ring_bytes: shm::DEFAULT_RING_BYTES,
            single_copy: true,
            max_pending: 256,
            timeouts: ConnectTimeouts::default(),
            elastic: false,
        }
    }

    fn check(&self, own: &ListenAddresses) -> Result<()> {
        let largest = self.peers.iter().map(|peer| peer.rank).chain([self.rank]).max().unwrap_or(0);
        if u32::try_from(largest).is_err() {
            return Err(Error::invalid(format!("rank {largest} is beyond 32 bits")));
        }
        if !(1..=MAX_LANES).contains(&self.sockets_per_peer) {
            return Err(Error::invalid(format!("{} sockets a peer; expected 1 to {MAX_LANES}", self.sockets_per_peer)));
        }
        if !shm::is_ring_size(self.ring_bytes) {
            return Err(Error::invalid(format!(
                "a ring of {} bytes; expected a power of two from {} to {}",
                self.ring_bytes,
                shm::MIN_RING_BYTES,
                shm::MAX_RING_BYTES
            )));
        }
        if self.max_pending == 0 {
            return Err(Error::invalid("at least one connection must be allowed to prove itself"));
        }
        if self.transport == TransportPolicy::Shm {
            for peer in self.peers.iter().filter(|peer| peer.rank != self.rank) {
                require_shm(own, peer)?;
            }
        }
        if self.transport == TransportPolicy::Rdma {
            for peer in self.peers.iter().filter(|peer| peer.rank != self.rank) {
                require_rdma(own, peer)?;
            }
        }
        Ok(())
    }
}

/// Whether two members can use RDMA; why not, as an error.
fn require_rdma(own: &ListenAddresses, peer: &PeerAddress) -> Result<()> {
    let rank = peer.rank;
    let what = match (own.rdma, peer.addresses.rdma) {
        (Some(ours), Some(theirs)) if ours.ethernet == theirs.ethernet => return Ok(()),
        (Some(ours), Some(_)) => {
            let (ours, theirs) = if ours.ethernet { ("Ethernet", "InfiniBand") } else { ("InfiniBand", "Ethernet") };
            format!("RDMA was demanded, but this rank has it over {ours}, rank {rank} over {theirs}")
        }
        (Some(_), None) => format!("RDMA was demanded, but rank {rank} has none"),
        (None, _) => "RDMA was demanded, but this rank has none".into(),
    };
    Err(Error::environment(what, "`phalanx doctor` on both hosts tells what is there; allow TCP to go without"))
}

/// Whether two members can share memory; why not, as an error.
fn require_shm(own: &ListenAddresses, peer: &PeerAddress) -> Result<()> {
    let rank = peer.rank;
    let what = if peer.addresses.host.boot != own.host.boot {
        format!("shared memory was demanded, but rank {rank} is on another machine")
    } else if peer.addresses.host.network != own.host.network {
        format!("shared memory was demanded, but rank {rank} is in another network namespace (another container?)")
    } else if peer.addresses.host.user != own.host.user {
        format!("shared memory was demanded, but rank {rank} runs as another user")
    } else if peer.addresses.unix.is_none() || own.unix.is_none() {
        format!("shared memory was demanded, but rank {rank} or this one has no Unix socket")
    } else {
        return Ok(());
    };
    Err(Error::environment(what, "run all ranks on one host as one user, or allow TCP"))
}

/// What has happened at a connector so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectorCounters {
    /// Peers delivered.
    pub connected: u64,
    /// Connections accepted, whoever made them.
    pub accepted: u64,
    /// Accepted connections that were dropped because they did not prove themselves, in time or at all.
    pub strangers: u64,
    /// Of those, how many gave way to newer ones.
    pub evicted: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connected: AtomicU64,
    accepted: AtomicU64,
    strangers: AtomicU64,
    evicted: AtomicU64,
}

/// The lanes to a peer and the generation in which both shook hands, or why there are none in the one that is now.
/// Called on the connector's thread; it must not block.
pub type DeliverLanes = Box<dyn Fn(usize, Generation, Result<Vec<Box<dyn Lane>>>) + Send>;

/// The endpoint of a peer, or why there is none, with the generation as above. Called on the connector's thread; it must
/// not block.
pub type DeliverEndpoint = Box<dyn Fn(usize, Generation, Result<Box<dyn Endpoint>>) + Send>;

/// What the thread is asked to do.
#[derive(Debug)]
enum Command {
    Dial(usize),
    Install(NextView),
}

/// The members of the next view, for [`Connector::install`].
#[derive(Clone, Debug)]
pub struct NextView {
    /// Its generation.
    pub generation: Generation,
    /// Its members; an entry for this one is ignored.
    pub peers: Vec<PeerAddress>,
    /// Members whose connections are lost: they may connect and be dialled again.
    pub again: Vec<usize>,
}

/// What the handle and the thread share.
#[derive(Debug)]
struct Shared {
    commands: Mutex<Vec<Command>>,
    wake: EventFd,
    stop: AtomicBool,
    counters: Counters,
}

/// Makes the connections of one member. Dropping it ends its thread and closes whatever was not delivered.
#[derive(Debug)]
pub struct Connector {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Connector {
    /// Starts accepting, and gives each peer to `deliver` as an endpoint over its lanes: see [`Self::start_lanes`].
    ///
    /// # Errors
    ///
    /// As [`Self::start_lanes`].
    pub fn start(
        listeners: Listeners,
        config: ConnectorConfig,
        sleeper: Arc<Sleeper>,
        deliver: DeliverEndpoint,
    ) -> Result<Self> {
        let wrap = move |peer, generation, lanes: Result<Vec<Box<dyn Lane>>>| {
            let endpoint = lanes.map(|lanes| {
                let kind = lanes.first().map_or(TransportKind::Tcp, |lane| lane.kind());
                let endpoint = StreamEndpoint::new(lanes, generation, StreamConfig::for_kind(kind));
                Box::new(endpoint) as Box<dyn Endpoint>
            });
            deliver(peer, generation, endpoint);
        };
        Self::start_lanes(listeners, config, sleeper, Box::new(wrap))
    }

    /// Starts accepting, on a thread of its own named `phalanx-connect`. Each peer that connects, whoever dialled, is
    /// given to `deliver`; so is the error of a peer that was dialled and could not be reached, after which it may be
    /// dialled again. After each delivery the sleeper is kicked.
    ///
    /// # Errors
    ///
    /// A configuration that cannot work, or no descriptors or threads left.
    pub fn start_lanes(
        listeners: Listeners,
        config: ConnectorConfig,
        sleeper: Arc<Sleeper>,
        deliver: DeliverLanes,
    ) -> Result<Self> {
        config.check(listeners.addresses())?;
        let failed = |error: io::Error| {
            Error::environment(format!("cannot start connecting: {error}"), "raise the limit of open files (ulimit -n)")
        };
        let shared = Arc::new(Shared {
            commands: Mutex::new(Vec::new()),
            wake: EventFd::new().map_err(failed)?,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
        });
        let driver = driver::Driver::new(listeners, config, sleeper, deliver, shared.clone()).map_err(failed)?;
        let thread =
            std::thread::Builder::new().name("phalanx-connect".into()).spawn(move || driver.run()).map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks for a connection to `peer`. Returns at once; the outcome is delivered. Asking again before that, or for a
    /// peer that is connected, does nothing.
    pub fn dial(&self, peer: usize) {
        self.command(Command::Dial(peer));
    }

    /// Goes over to another view: serves its generation, knows its members. What is connected stays so, except to
    /// members that are not in it; attempts that are under way begin again.
    pub fn install(&self, view: NextView) {
        self.command(Command::Install(view));
    }

    fn command(&self, command: Command) {
        self.shared.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        // An event descriptor of our own cannot fail.
        let _ = self.shared.wake.signal();
    }

    /// What has happened so far.
    pub fn counters(&self) -> ConnectorCounters {
        let counters = &self.shared.counters;
        ConnectorCounters {
            connected: counters.connected.load(Ordering::Relaxed),
            accepted: counters.accepted.load(Ordering::Relaxed),
            strangers: counters.strangers.load(Ordering::Relaxed),
            evicted: counters.evicted.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.wake.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that connects panicked");
        }
    }
}
