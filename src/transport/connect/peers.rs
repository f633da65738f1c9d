//! What stands between this member and each other one, and how simultaneous attempts are settled.
//!
//! ```text
//!            dial                     all lanes up
//!   Idle ------------> Dialling ------------------> Connected
//!    | ^                |  |  ^ again                    ^
//!    | |  hopeless      |  |  +--------- Pausing         |
//!    | +----------------+  |  Busy, or closed: |         |
//!    |                     +-------------------+         |
//!    |  a proved hello (also while dialling, from a      |
//!    +---- lower rank; also while pausing) -> Accepting -+
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connection::{Connection, Lost, Stage};
use super::driver::{Driver, End, random};
use super::{NextView, PeerAddress, TransportPolicy, require_rdma, require_shm};
use crate::sys::{socket, unix};
use crate::transport::board::Neighbour;
use crate::transport::lane::Lane;
use crate::transport::shm::{Pair, ShmLane};
use crate::transport::tcp::TcpLane;
use crate::types::{Error, Generation, Result};
use crate::wire::handshake::{HandshakeError, Hello, Initiator, MAX_LANES, Purpose, Refusal};

/// How long after a connection was closed on us it is tried again: at first, and at most. The peer may be under a
/// flood of strangers, or end at this moment; then the next attempt is refused, which settles it.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// How long a peer of another generation is given to hear of the change, or this one.
const GENERATION_PAUSE: Duration = Duration::from_millis(5);

/// How long a peer is tried in an elastic job when the network says that there is no way to its host. A network that was
/// cut, and is whole again, says so for some seconds more.
const WAYLESS_PATIENCE: Duration = Duration::from_secs(10);

/// How long after `Busy` the peer's own attempt is given before ours is repeated.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Connections that belong together.
pub(super) struct Attempt {
    id: u64,
    /// The generation that both sides say in their handshakes. Either may hear of the next view before the other has its
    /// end of the link: the link is of this generation all the same, at both ends.
    generation: Generation,
    deadline: Instant,
    /// Each lane's connection, as far as it exists.
    lanes: Vec<Option<u64>>,
}

/// What an attempt is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Shm,
    Rdma,
    Tcp,
}

pub(super) enum State {
    Idle,
    Dialling(Attempt),
    /// Waits for the peer, or for a better moment.
    Pausing {
        until: Instant,
    },
    Accepting(Attempt),
    Connected,
}

pub(super) struct Peer {
    address: PeerAddress,
    /// The generation with which the link was to be made anew. Earlier attempts are not for it.
    since: Generation,
    state: State,
    /// Since when and until when this side wants it; `None` unless it was dialled.
    wanted: Option<(Instant, Instant)>,
    /// Which of its TCP addresses is tried.
    next_address: usize,
    /// Sharing memory with it has failed.
    no_shm: bool,
    /// RDMA with it has failed.
    no_rdma: bool,
    pause: Duration,
    /// What went wrong last, for the error when time is up.
    last_trouble: String,
}

impl Peer {
    pub(super) fn new(address: PeerAddress) -> Self {
        Self {
            address,
            since: Generation(0),
            state: State::Idle,
            wanted: None,
            next_address: 0,
            no_shm: false,
            no_rdma: false,
            pause: FIRST_PAUSE,
            last_trouble: String::new(),
        }
    }

    /// When something is to be done about it if nothing happens.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let wanted = self.wanted.map(|(_, until)| until);
        match &self.state {
            State::Idle | State::Connected => None,
            State::Dialling(_) => wanted,
            State::Pausing { until } => wanted.into_iter().chain([*until]).min(),
            State::Accepting(attempt) => wanted.into_iter().chain([attempt.deadline]).min(),
        }
    }
}

impl Driver {
    // Dialling.

    pub(super) fn dial(&mut self, rank: usize, now: Instant) {
        let until = now + self.config.timeouts.dial;
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        if matches!(peer.state, State::Connected) || peer.wanted.is_some() {
            return;
        }
        peer.wanted = Some((now, until));
        (peer.next_address, peer.pause) = (0, FIRST_PAUSE);
        if matches!(peer.state, State::Idle) {
            self.attempt(rank, now);
        }
    }

    /// Goes over to another view.
    pub(super) fn install(&mut self, view: NextView, now: Instant) {
        let NextView { generation, peers, again } = view;
        (self.config.generation, self.identity.generation) = (generation, generation);
        let mut before = std::mem::take(&mut self.peers);
        let own = self.config.rank;
        let mut wanted = Vec::new();
        for address in peers.into_iter().filter(|peer| peer.rank != own) {
            let rank = address.rank;
            let mut peer = before.remove(&rank).unwrap_or_else(|| Peer::new(address));
            if again.contains(&rank) {
                let state = std::mem::replace(&mut peer.state, State::Idle);
                self.abandon(state);
                (peer.wanted, peer.since) = (None, generation);
            }
            // An attempt that is under way goes on: the other side may have its end of the link already, and links outlive
            // their view. Should the other side be ahead, it says so, and the attempt is made again.
            if peer.wanted.is_some() && matches!(peer.state, State::Idle | State::Pausing { .. }) {
                wanted.push(rank);
            }
            self.peers.insert(rank, peer);
        }
        for peer in before.into_values() {
            self.abandon(peer.state);
        }
        for rank in wanted {
            self.attempt(rank, now);
        }
    }

    /// Begins an attempt over the best way that is left.
    fn attempt(&mut self, rank: usize, now: Instant) {
        if let Err((link, end)) = self.try_attempt(rank, now) {
            self.handle_dial_end(rank, &link, end, now);
        }
    }

    fn try_attempt(&mut self, rank: usize, now: Instant) -> Result<(), (String, End)> {
        let own = self.listeners.addresses().clone();
        let Some(peer) = self.peers.get_mut(&rank) else {
            return Ok(());
        };
        let can_shm = !peer.no_shm && require_shm(&own, &peer.address).is_ok();
        let can_rdma = !peer.no_rdma && require_rdma(&own, &peer.address).is_ok();
        let way = match self.config.transport {
            TransportPolicy::Tcp => Way::Tcp,
            TransportPolicy::Shm => Way::Shm,
            TransportPolicy::Rdma => Way::Rdma,
            TransportPolicy::Auto if can_shm => Way::Shm,
            TransportPolicy::Auto if can_rdma && peer.address.addresses.host.boot != own.host.boot => Way::Rdma,
            TransportPolicy::Auto => Way::Tcp,
        };
        let rails = own.rdma.into_iter().chain(peer.address.addresses.rdma).map(|rdma| rdma.rails).min();
        if way == Way::Tcp {
            self.say_if_peer_has_none(rank);
        }
        let Some(peer) = self.peers.get_mut(&rank) else {
            return Ok(());
        };
        let deadline = peer.wanted.map_or(now, |(_, until)| until);
        let id = u64::from_le_bytes(random().map_err(|error| ("random numbers".into(), error.into()))?);
        let addresses = &peer.address.addresses;
        let generation = self.identity.generation;
        let same_host = (addresses.host.boot, addresses.host.network) == (own.host.boot, own.host.network);
        let target = addresses.tcp.get(peer.next_address).copied();
        let unix = addresses.unix.clone();
        let lanes = match way {
            Way::Rdma => rails.unwrap_or(1).clamp(1, MAX_LANES),
            Way::Tcp if !same_host => self.config.sockets_per_peer,
            Way::Shm | Way::Tcp => 1,
        };
        peer.state = State::Dialling(Attempt { id, generation, deadline, lanes: vec![None; lanes.into()] });
        for lane in 0..lanes {
            let (purpose, link) = match (way, target) {
                (Way::Shm, _) => (Purpose::Shm, format!("unix socket of rank {rank}")),
                (Way::Rdma, Some(target)) => (Purpose::Rdma { lane, lanes }, format!("tcp {target}")),
                (Way::Tcp, Some(target)) => (Purpose::Tcp { lane, lanes }, format!("tcp {target}")),
                (Way::Rdma | Way::Tcp, None) => (Purpose::Tcp { lane, lanes }, "no tcp address".into()),
            };
            let begun = self.begin_lane(rank, id, purpose, unix.as_deref(), target, deadline, &link);
            let key = begun.map_err(|error| (link, error.into()))?;
            if let Some(Peer { state: State::Dialling(attempt), .. }) = self.peers.get_mut(&rank)
                && let Some(slot) = attempt.lanes.get_mut(usize::from(lane))
            {
                *slot = Some(key);
            }
        }
        Ok(())
    }

    /// Says that TCP is used because a peer has no RDMA, where this side has.
    fn say_if_peer_has_none(&mut self, rank: usize) {
        let has_none = self.peers.get(&rank).is_some_and(|peer| peer.address.addresses.rdma.is_none());
        if has_none && self.listeners.rails.is_some() {
            self.say_no_rdma(rank, "it has none");
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn begin_lane(
        &mut self,
        rank: usize,
        attempt: u64,
        purpose: Purpose,
        unix: Option<&[u8]>,
        target: Option<SocketAddr>,
        deadline: Instant,
        link: &str,
    ) -> io::Result<u64> {
        let nothing = || io::Error::new(io::ErrorKind::AddrNotAvailable, "the peer published no such address");
        let hello = Hello {
            job: self.identity.job,
            generation: self.identity.generation,
            from: self.identity.rank,
            to: rank as u32,
            purpose,
            attempt,
            nonce: random()?,
        };
        let socket = match purpose {
            Purpose::Shm => unix::connect(unix.ok_or_else(nothing)?)?,
            Purpose::Tcp { .. } | Purpose::Rdma { .. } | Purpose::Rendezvous | Purpose::Registry => {
                let target = target.ok_or_else(nothing)?;
                // From the chosen interface, like what is accepted.
                let own = self.listeners.addresses().tcp.first().copied();
                let from = own.filter(|own| own.is_ipv4() == target.is_ipv4() && !own.ip().is_unspecified());
                socket::tcp_connect(&target, from)?
            }
        };
        let is_unix = purpose == Purpose::Shm;
        let machine = Initiator::new(&self.config.key, &hello);
        let mut connection = Connection::new(socket, is_unix, Stage::Connecting(machine), deadline, link.into());
        (connection.peer, connection.attempt) = (Some(rank), attempt);
        if let Purpose::Tcp { lane, .. } | Purpose::Rdma { lane, .. } = purpose {
            connection.lane = lane;
        }
        connection.for_rdma = matches!(purpose, Purpose::Rdma { .. });
        self.insert(connection)
    }

    // Accepting.

    /// Decides about a proved hello, and if it may be, makes its connection part of an attempt.
    pub(super) fn admit(
        &mut self,
        key: u64,
        hello: &Hello,
        is_unix: bool,
        (lane, lanes): (u8, u8),
        now: Instant,
    ) -> Result<Instant, Refusal> {
        let allowed = match self.config.transport {
            TransportPolicy::Auto => true,
            TransportPolicy::Shm => is_unix,
            TransportPolicy::Tcp => matches!(hello.purpose, Purpose::Tcp { .. }),
            TransportPolicy::Rdma => matches!(hello.purpose, Purpose::Rdma { .. }),
        };
        if !allowed {
            return Err(Refusal::Transport);
        }
        if matches!(hello.purpose, Purpose::Tcp { .. }) {
            self.say_if_peer_has_none(hello.from as usize);
        }
        let rank = hello.from as usize;
        let deadline = now + self.config.timeouts.handshake;
        let own_rank = self.config.rank;
        let Some(peer) = self.peers.get_mut(&rank) else {
            return Err(Refusal::UnknownRank { rank: hello.from });
        };
        if hello.generation < peer.since {
            // It was let in before this side heard that the link is broken. The other side is about to hear so.
            let (asked, serving) = (hello.generation.0, self.identity.generation.0);
            return Err(Refusal::WrongGeneration { asked, serving });
        }
        match &mut peer.state {
            State::Connected => return Err(Refusal::Busy),
            State::Dialling(_) if own_rank < rank => return Err(Refusal::Busy),
            State::Accepting(attempt) if attempt.id == hello.attempt => {
                let whole = attempt.lanes.len() == usize::from(lanes) && attempt.generation == hello.generation;
                return match attempt.lanes.get_mut(usize::from(lane)) {
                    Some(slot @ None) if whole => {
                        *slot = Some(key);
                        Ok(attempt.deadline)
                    }
                    _ => Err(Refusal::Malformed("a lane that does not belong to its attempt")),
                };
            }
            State::Idle | State::Pausing { .. } | State::Dialling(_) | State::Accepting(_) => {}
        }
        // A newer attempt takes the place of whatever there was: the peer has given its older one up, and our own
        // gives way to a lower rank's.
        let generation = hello.generation;
        let mut attempt = Attempt { id: hello.attempt, generation, deadline, lanes: vec![None; lanes.into()] };
        if let Some(slot) = attempt.lanes.get_mut(usize::from(lane)) {
            *slot = Some(key);
        }
        let before = std::mem::replace(&mut peer.state, State::Accepting(attempt));
        self.abandon(before);
        Ok(deadline)
    }

    fn abandon(&mut self, state: State) {
        if let State::Dialling(attempt) | State::Accepting(attempt) = state {
            for key in attempt.lanes.into_iter().flatten() {
                self.remove(key);
            }
        }
    }

    // Completing.

    /// Delivers a peer over TCP or RDMA when all its lanes are up.
    pub(super) fn complete(&mut self, rank: usize) {
        let Some(Peer { state: State::Dialling(attempt) | State::Accepting(attempt), .. }) = self.peers.get(&rank)
        else {
            return;
        };
        let keys: Option<Vec<u64>> = attempt.lanes.iter().copied().collect();
        let is_up = |key: &u64| {
            self.connections.get(key).is_some_and(|one| matches!(one.stage, Stage::Up(_)) && !one.has_output())
        };
        let Some(keys) = keys.filter(|keys| keys.iter().all(is_up)) else {
            return;
        };
        let connections: Vec<Connection> = keys.into_iter().filter_map(|key| self.remove(key)).collect();
        let lanes: io::Result<Vec<Box<dyn Lane>>> = connections
            .into_iter()
            .map(|connection| {
                let sleeper = self.sleeper.clone();
                if let Stage::Up(Some(connected)) = connection.stage {
                    return connected.into_lane(connection.socket, sleeper, rank);
                }
                let lane = TcpLane::new(connection.socket, connection.link.into(), sleeper)?;
                Ok(Box::new(lane) as Box<dyn Lane>)
            })
            .collect();
        self.finish(rank, lanes);
    }

    /// Delivers a peer with which memory is shared.
    pub(super) fn complete_shm(&mut self, connection: Connection, link: (Pair, Neighbour)) {
        let Some(rank) = connection.peer else { return };
        let lane = ShmLane::new(Self::shm_parts(connection, link, rank), self.sleeper.clone());
        self.finish(rank, lane.map(|lane| vec![Box::new(lane) as Box<dyn Lane>]));
    }

    fn finish(&mut self, rank: usize, lanes: io::Result<Vec<Box<dyn Lane>>>) {
        let outcome = lanes.map_err(|error| {
            Error::environment(
                format!("the connection to rank {rank} cannot be used: {error}"),
                "raise the limit of open files (ulimit -n)",
            )
        });
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        peer.wanted = None;
        let generation = match std::mem::replace(&mut peer.state, State::Connected) {
            State::Dialling(attempt) | State::Accepting(attempt) => attempt.generation,
            State::Idle | State::Pausing { .. } | State::Connected => self.identity.generation,
        };
        self.shared.counters.connected.fetch_add(1, Ordering::Relaxed);
        if let Ok(lanes) = &outcome
            && let Some(first) = lanes.first()
        {
            tracing::debug!(rank, link = %first.link(), lanes = lanes.len(), "connected");
        }
        self.tell(rank, generation, outcome);
    }

    fn tell(&mut self, rank: usize, generation: Generation, outcome: Result<Vec<Box<dyn Lane>>>) {
        (self.deliver)(rank, generation, outcome);
        self.sleeper.kick();
    }

    // Failing.

    fn fail(&mut self, rank: usize, error: Error) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.wanted = None;
            let state = std::mem::replace(&mut peer.state, State::Idle);
            self.abandon(state);
        }
        self.tell(rank, self.identity.generation, Err(error));
    }

    /// A connection of a known peer has ended before it was a lane.
    pub(super) fn handle_lane_end(&mut self, rank: usize, connection: &Connection, end: End, now: Instant) {
        let Some(peer) = self.peers.get(&rank) else {
            return;
        };
        match &peer.state {
            State::Dialling(attempt) if attempt.id == connection.attempt => {
                self.handle_dial_end(rank, &connection.link.clone(), end, now);
            }
            State::Accepting(attempt) if attempt.id == connection.attempt => {
                tracing::debug!(rank, link = %connection.link, %end, "a connection ended before it could be used");
                if let Some(peer) = self.peers.get_mut(&rank) {
                    peer.no_shm |= matches!(end, End::Shm(_));
                    peer.no_rdma |= matches!(end, End::Rdma(_));
                }
                if let End::Rdma(why) = &end {
                    self.say_no_rdma(rank, why);
                }
                self.give_up_accepting(rank, now);
            }
            // Of an attempt that was given up.
            _ => {}
        }
    }

    fn give_up_accepting(&mut self, rank: usize, now: Instant) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        // The peer is expected to try again; if this side wants it, it tries too, a little later.
        let after = if peer.wanted.is_some() { State::Pausing { until: now + FIRST_PAUSE } } else { State::Idle };
        let before = std::mem::replace(&mut peer.state, after);
        self.abandon(before);
    }

    /// Our attempt has failed: another way, another time, or not at all.
    fn handle_dial_end(&mut self, rank: usize, link: &str, end: End, now: Instant) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let before = std::mem::replace(&mut peer.state, State::Idle);
        peer.last_trouble = format!("{link}: {end}");
        let trouble = peer.last_trouble.clone();
        let has_other_address = peer.next_address + 1 < peer.address.addresses.tcp.len();
        self.abandon(before);
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let kind = match &end {
            End::Lost(Lost::Io(error)) => Some(error.kind()),
            _ => None,
        };
        match (end, kind) {
            (End::Handshake(HandshakeError { refusal: Refusal::Busy, .. }), _) => {
                peer.state = State::Pausing { until: now + BUSY_PAUSE };
            }
            // One of the two has heard of the next view, the other will in a moment.
            (End::Handshake(HandshakeError { refusal: Refusal::WrongGeneration { .. }, .. }), _)
                if self.config.elastic =>
            {
                peer.state = State::Pausing { until: now + GENERATION_PAUSE };
            }
            (End::Handshake(error), _) => {
                let what = format!("rank {rank} cannot be connected at {link}: {error}");
                self.fail(
                    rank,
                    Error::environment(what, "start all ranks in one launch, with one version and one job key"),
                );
            }
            (End::Shm(what), _) if self.config.transport == TransportPolicy::Shm => {
                let what = format!("shared memory was demanded, but with rank {rank} it failed: {what}");
                let hint = "allow more memory and open files (ulimit -v, -n) on both sides, or allow TCP";
                self.fail(rank, Error::environment(what, hint));
            }
            (End::Shm(what), _) => {
                tracing::warn!(rank, why = %what, "no shared memory with this rank: TCP is used, which is slower");
                peer.no_shm = true;
                self.attempt(rank, now);
            }
            (End::Rdma(what), _) if self.config.transport == TransportPolicy::Rdma => {
                let what = format!("RDMA was demanded, but with rank {rank} it failed: {what}");
                let hint = "`phalanx doctor` on both hosts tells what is there; allow TCP to go without";
                self.fail(rank, Error::environment(what, hint));
            }
            (End::Rdma(what), _) => {
                peer.no_rdma = true;
                self.say_no_rdma(rank, &what);
                self.attempt(rank, now);
            }
            (End::Lost(Lost::Closed), _)
            | (
                _,
                Some(
                    io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::WouldBlock,
                ),
            ) => {
                peer.state = State::Pausing { until: now + peer.pause };
                peer.pause = (2 * peer.pause).min(LAST_PAUSE);
            }
            (End::Lost(Lost::Io(error)), _) if socket::is_shortage(&error) => {
                let what = format!("no connection to rank {rank} can be made from here: {trouble}");
                self.fail(rank, Error::environment(what, "raise the limit of open files (ulimit -n)"));
            }
            _ if has_other_address => {
                peer.next_address += 1;
                self.attempt(rank, now);
            }
            (_, Some(io::ErrorKind::ConnectionRefused)) => {
                self.fail(
                    rank,
                    Error::PeerFailed {
                        rank,
                        operation: "connecting".into(),
                        detail: format!("{trouble}; its process has ended").into(),
                    },
                );
            }
            (
                _,
                Some(
                    io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::TimedOut,
                ),
            ) if self.config.elastic => {
                let is_new = peer.wanted.is_none_or(|(since, _)| now - since < WAYLESS_PATIENCE);
                if is_new {
                    peer.next_address = 0;
                    peer.state = State::Pausing { until: now + peer.pause };
                    peer.pause = (2 * peer.pause).min(LAST_PAUSE);
                } else {
                    // Whether that is the end of one of the two is for the registry to say.
                    let (operation, detail) = ("connecting".into(), trouble.into());
                    self.fail(rank, Error::PeerFailed { rank, operation, detail });
                }
            }
            _ => {
                let what = format!("rank {rank} cannot be reached: {trouble}");
                self.fail(rank, Error::environment(what, "check the address, the interface and the firewall"));
            }
        }
    }

    pub(super) fn handle_peer_timeouts(&mut self, now: Instant) {
        let due: Vec<usize> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.next_deadline().is_some_and(|deadline| deadline <= now))
            .map(|(&rank, _)| rank)
            .collect();
        for rank in due {
            let Some(peer) = self.peers.get_mut(&rank) else {
                continue;
            };
            match (&peer.state, peer.wanted) {
                (_, Some((since, until))) if until <= now => {
                    let detail = if peer.last_trouble.is_empty() {
                        peer.address.addresses.tcp.first().map_or_else(String::new, |address| format!("tcp {address}"))
                    } else {
                        std::mem::take(&mut peer.last_trouble)
                    };
                    let error = Error::Timeout {
                        operation: "connecting".into(),
                        waiting_for: vec![rank],
                        waited: now - since,
                        detail: detail.into(),
                    };
                    self.fail(rank, error);
                }
                (State::Pausing { .. }, Some(_)) => self.attempt(rank, now),
                (State::Pausing { .. }, None) => peer.state = State::Idle,
                (State::Accepting(_), _) => self.give_up_accepting(rank, now),
                _ => {}
            }
        }
    }
}
