//! The thread's loop: accepts, moves each connection through its stages, keeps time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::connection::{Connection, Lost, Stage};
use super::exchange::{self, ShmMessage};
use super::peers::Peer;
use super::{Command, ConnectorConfig, DeliverLanes, Shared};
use crate::sys::process::PidFd;
use crate::sys::{Epoll, Interest, Readiness, socket, unix};
use crate::transport::board::Neighbour;
use crate::transport::doorbell::Doorbell;
use crate::transport::listen::Listeners;
use crate::transport::rdma;
use crate::transport::shm::{self, Pair, ShmParts, Side};
use crate::transport::sleep::Sleeper;
use crate::wire::handshake::{HandshakeError, Hello, Identity, Purpose, Refusal, Responder};

const WAKE: u64 = 0;
const TCP: u64 = 1;
const UNIX: u64 = 2;
const FIRST_CONNECTION: u64 = 16;

pub(super) const LISTENS: Interest = Interest { readable: true, writable: false, edge: false };
const PAUSES: Interest = Interest { readable: false, writable: false, edge: false };

/// How many connections are accepted before others are served.
const ACCEPTS_AT_ONCE: usize = 64;

/// How long nothing is accepted when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a refused peer may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// What is wrong when they are not what was agreed: the kernel hands over as many as the process may still have.
const DESCRIPTORS: &str = "descriptors than agreed, or more than may be open here (ulimit -n)";

/// Why a connection ends before it is a lane.
pub(super) enum End {
    Lost(Lost),
    Handshake(HandshakeError),
    /// Memory could not be shared. The text says why.
    Shm(String),
    /// RDMA could not be had. The text says why.
    Rdma(String),
}

impl From<Lost> for End {
    fn from(lost: Lost) -> Self {
        End::Lost(lost)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Lost(Lost::Io(error))
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Lost(lost) => lost.fmt(f),
            End::Handshake(error) => error.fmt(f),
            End::Shm(what) | End::Rdma(what) => f.write_str(what),
        }
    }
}

/// What becomes of a connection that was moved on.
enum Next {
    Keep,
    Close,
    /// It is a shared memory link now.
    Shm(Box<(Pair, Neighbour)>),
}

/// Fresh random bytes.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

pub(super) struct Driver {
    pub(super) config: ConnectorConfig,
    pub(super) listeners: Listeners,
    pub(super) sleeper: Arc<Sleeper>,
    pub(super) deliver: DeliverLanes,
    pub(super) shared: Arc<Shared>,
    pub(super) identity: Identity,
    pub(super) epoll: Epoll,
    /// In the order of their age.
    pub(super) connections: BTreeMap<u64, Connection>,
    next_key: u64,
    pub(super) peers: BTreeMap<usize, Peer>,
    accept_again_at: Option<Instant>,
    /// Whether it was said that there is no RDMA with a peer.
    pub(super) said_no_rdma: bool,
}

impl Driver {
    pub(super) fn new(
        listeners: Listeners,
        config: ConnectorConfig,
        sleeper: Arc<Sleeper>,
        deliver: DeliverLanes,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&shared.wake, WAKE, LISTENS)?;
        epoll.add(&listeners.tcp, TCP, LISTENS)?;
        if let Some(unix) = &listeners.unix {
            epoll.add(unix, UNIX, LISTENS)?;
        }
        let identity = Identity { job: config.key.job(), generation: config.generation, rank: config.rank as u32 };
        let peers = config
            .peers
            .iter()
            .filter(|peer| peer.rank != config.rank)
            .map(|peer| (peer.rank, Peer::new(peer.clone())))
            .collect();
        Ok(Self {
            config,
            listeners,
            sleeper,
            deliver,
            shared,
            identity,
            epoll,
            connections: BTreeMap::new(),
            next_key: FIRST_CONNECTION,
            peers,
            accept_again_at: None,
            said_no_rdma: false,
        })
    }

    pub(super) fn run(mut self) {
        let mut found = Vec::new();
        while !self.shared.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let commands = std::mem::take(&mut *self.shared.commands.lock().unwrap_or_else(|error| error.into_inner()));
            for command in commands {
                match command {
                    Command::Dial(peer) => self.dial(peer, now),
                    Command::Install(view) => self.install(view, now),
                }
            }
            self.handle_timeouts(now);
            let timeout = self.next_deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
            found.clear();
            if let Err(error) = self.epoll.wait(timeout, &mut found) {
                tracing::error!(%error, "the thread that connects cannot wait any more");
                return;
            }
            let now = Instant::now();
            for ready in &found {
                match ready.key {
                    WAKE => self.shared.wake.clear(),
                    TCP | UNIX => self.accept(ready.key == UNIX, now),
                    key => self.handle_ready(key, *ready, now),
                }
            }
        }
    }

    fn count(counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// One that did not prove itself.
    fn note_stranger(&self, connection: &Connection, why: &dyn std::fmt::Display) {
        let number = Self::count(&self.shared.counters.strangers);
        let link = &connection.link;
        // The log of a flood grows with its logarithm.
        if number.is_power_of_two() {
            tracing::warn!(%link, %why, number, "dropped a connection that did not prove to belong to this job");
        } else {
            tracing::debug!(%link, %why, number, "dropped a connection that did not prove to belong to this job");
        }
    }

    /// One that was refused by what it asked for, before it had to prove anything.
    fn note_refused(&self, connection: &Connection, error: &HandshakeError) {
        if let Refusal::WrongGeneration { .. } | Refusal::UnknownRank { .. } = error.refusal {
            let link = &connection.link;
            tracing::debug!(%link, why = %error, "refused a rank whose view is another: it dials again in this one");
        } else {
            self.note_stranger(connection, error);
        }
    }

    // Accepting.

    fn accept(&mut self, is_unix: bool, now: Instant) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let accepted = match (is_unix, &self.listeners.unix) {
                (true, Some(listener)) => socket::accept(listener),
                (true, None) => return,
                (false, _) => socket::accept_tcp(&self.listeners.tcp),
            };
            match accepted {
                Ok(socket) => {
                    if let Err(error) = self.greet(socket, is_unix, now) {
                        tracing::debug!(%error, "an accepted connection was gone at once");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if socket::is_shortage(&error) {
                        tracing::warn!(%error, "cannot accept connections; raise the limit of open files (ulimit -n)");
                        self.evict();
                        self.pause_accepting(now);
                        return;
                    }
                    // Whoever waited has gone already.
                }
            }
        }
    }

    fn greet(&mut self, socket: std::os::fd::OwnedFd, is_unix: bool, now: Instant) -> io::Result<()> {
        Self::count(&self.shared.counters.accepted);
        let link = match is_unix {
            true => "unix".into(),
            false => format!("tcp {}", socket::peer_address(&socket)?),
        };
        let machine = Responder::new(&self.config.key, self.identity, random()?);
        let deadline = now + self.config.timeouts.handshake;
        let connection = Connection::new(socket, is_unix, Stage::Responding(machine), deadline, link);
        if is_unix {
            // Another user of this machine cannot belong to the job, and need not be listened to.
            let credentials = unix::peer_credentials(&connection.socket)?;
            if credentials.user != self.listeners.addresses().host.user {
                self.note_stranger(&connection, &format!("user {}", credentials.user));
                return Ok(());
            }
        }
        if self.connections.values().filter(|connection| connection.is_pending()).count() >= self.config.max_pending {
            self.evict();
        }
        self.insert(connection)?;
        Ok(())
    }

    /// Drops the oldest connection that has not proved itself.
    fn evict(&mut self) {
        let oldest = self.connections.iter().find(|(_, connection)| connection.is_pending());
        if let Some((&key, _)) = oldest
            && let Some(connection) = self.remove(key)
        {
            Self::count(&self.shared.counters.evicted);
            self.note_stranger(&connection, &"it made room for a newer one");
        }
    }

    fn pause_accepting(&mut self, now: Instant) {
        self.accept_again_at = Some(now + ACCEPT_PAUSE);
        self.set_accepting(PAUSES);
    }

    fn set_accepting(&self, interest: Interest) {
        // Both descriptors are in the set as long as `self`.
        let _ = self.epoll.modify(&self.listeners.tcp, TCP, interest);
        if let Some(unix) = &self.listeners.unix {
            let _ = self.epoll.modify(unix, UNIX, interest);
        }
    }

    /// Adds a connection; returns its key.
    pub(super) fn insert(&mut self, connection: Connection) -> io::Result<u64> {
        let key = self.next_key;
        self.next_key += 1;
        self.epoll.add(&connection, key, connection.interest)?;
        self.connections.insert(key, connection);
        Ok(key)
    }

    /// Takes a connection out. Closing it alone would not do: a child forked by the user's program may hold the socket
    /// too, and the set would then go on telling of it.
    pub(super) fn remove(&mut self, key: u64) -> Option<Connection> {
        let connection = self.connections.remove(&key)?;
        self.forget(&connection);
        Some(connection)
    }

    fn forget(&self, connection: &Connection) {
        self.end_trial(connection);
        // It is in the set from its insertion on.
        let _ = self.epoll.remove(connection);
    }

    // Moving connections on.

    fn handle_ready(&mut self, key: u64, ready: Readiness, now: Instant) {
        // It is out of the map while it moves on, and cannot be closed under its own feet.
        let Some(mut connection) = self.connections.remove(&key) else {
            return;
        };
        match self.advance(key, &mut connection, ready, now) {
            Ok(Next::Keep) => {
                let interest = connection.wanted_interest();
                if interest != connection.interest {
                    if let Err(error) = self.epoll.modify(&connection, key, interest) {
                        self.forget(&connection);
                        return self.handle_end(connection, error.into(), now);
                    }
                    connection.interest = interest;
                }
                let peer = connection.peer;
                self.connections.insert(key, connection);
                if let Some(peer) = peer {
                    self.complete(peer);
                }
            }
            Ok(Next::Close) => self.forget(&connection),
            Ok(Next::Shm(link)) => {
                self.forget(&connection);
                self.complete_shm(connection, *link);
            }
            Err(end) => {
                self.forget(&connection);
                self.handle_end(connection, end, now);
            }
        }
    }

    fn advance(&mut self, key: u64, connection: &mut Connection, ready: Readiness, now: Instant) -> Result<Next, End> {
        if let Stage::Connecting(_) = connection.stage {
            if !ready.writable {
                return Ok(Next::Keep);
            }
            socket::take_error(&connection.socket)?;
            if let Stage::Connecting(mut machine) = std::mem::replace(&mut connection.stage, Stage::Up(None)) {
                connection.queue(&machine.poll_output());
                connection.stage = Stage::Initiating(machine);
            }
        }
        self.hear_trial(connection)?;
        loop {
            connection.flush()?;
            match connection.stage {
                Stage::Up(_) if ready.hung_up => return Err(Lost::Closed.into()),
                Stage::Up(_) => return Ok(Next::Keep),
                Stage::Lingering => {
                    return Ok(if connection.discard() { Next::Close } else { Next::Keep });
                }
                _ => {}
            }
            let Some(bytes) = connection.receive()? else {
                return Ok(Next::Keep);
            };
            let next = match connection.stage {
                Stage::Initiating(_) => self.initiate(connection, &bytes)?,
                Stage::Responding(_) => self.respond(key, connection, &bytes, now)?,
                Stage::RdmaOffered(_)
                | Stage::RdmaAwaitsOffer
                | Stage::RdmaOnTrial(..)
                | Stage::RdmaAwaitsTrial(_)
                | Stage::RdmaAwaitsCommit(_) => {
                    if let Some(message) = connection.collect(&bytes) {
                        self.exchange_rdma(key, connection, rdma::Message::decode(&message), now)?;
                    }
                    Next::Keep
                }
                _ => match connection.collect(&bytes) {
                    Some(message) => self.exchange(connection, ShmMessage::decode(&message))?,
                    None => Next::Keep,
                },
            };
            if !matches!(next, Next::Keep) {
                return Ok(next);
            }
        }
    }

    fn initiate(&mut self, connection: &mut Connection, bytes: &[u8]) -> Result<Next, End> {
        let Stage::Initiating(machine) = &mut connection.stage else {
            return Ok(Next::Close);
        };
        let outcome = machine.handle_input(bytes);
        let (output, accepted) = (machine.poll_output(), machine.is_accepted());
        connection.queue(&output);
        if let Err(error) = outcome {
            // What this side found is worth telling, not worth waiting for.
            let _ = connection.flush();
            return Err(End::Handshake(error));
        }
        if accepted {
            if connection.is_unix {
                self.offer(connection)?;
            } else if connection.for_rdma {
                self.offer_rdma(connection)?;
            } else {
                connection.stage = Stage::Up(None);
            }
        }
        Ok(Next::Keep)
    }

    fn respond(&mut self, key: u64, connection: &mut Connection, bytes: &[u8], now: Instant) -> Result<Next, End> {
        let Stage::Responding(machine) = &mut connection.stage else {
            return Ok(Next::Close);
        };
        let outcome = machine.handle_input(bytes);
        let mut next_stage = None;
        if let Some(hello) = machine.to_decide() {
            match self.decide(key, connection.is_unix, &hello, now) {
                Ok(deadline) => {
                    machine.accept();
                    (connection.peer, connection.attempt) = (Some(hello.from as usize), hello.attempt);
                    connection.deadline = deadline;
                    next_stage = Some(match hello.purpose {
                        Purpose::Tcp { lane, .. } => {
                            connection.lane = lane;
                            Stage::Up(None)
                        }
                        Purpose::Rdma { lane, .. } => {
                            (connection.lane, connection.for_rdma) = (lane, true);
                            Stage::RdmaAwaitsOffer
                        }
                        // `decide` lets nobody in who wants the rendezvous or the registry.
                        Purpose::Shm | Purpose::Rendezvous | Purpose::Registry => Stage::AwaitsOffer,
                    });
                }
                Err(refusal) => {
                    machine.refuse(refusal);
                    next_stage = Some(Stage::Lingering);
                }
            }
        }
        let output = machine.poll_output();
        connection.queue(&output);
        if let Err(error) = outcome {
            if output.is_empty() {
                return Err(End::Handshake(error));
            }
            self.note_refused(connection, &error);
            next_stage = Some(Stage::Lingering);
        }
        if let Some(stage) = next_stage {
            if matches!(stage, Stage::Lingering) {
                connection.flush()?;
                socket::end_writing(&connection.socket);
                connection.deadline = now + LINGER;
            }
            connection.stage = stage;
        }
        Ok(Next::Keep)
    }

    // Sharing memory.

    /// Sends a message of the exchange with its descriptors, whole: a new socket has room for it.
    fn send_message(connection: &Connection, message: ShmMessage, descriptors: &[BorrowedFd<'_>]) -> Result<(), End> {
        match unix::send_with_descriptors(&connection.socket, &message.encode(), descriptors)? {
            exchange::MESSAGE_BYTES => Ok(()),
            _ => Err(Lost::Closed.into()),
        }
    }

    fn offer(&mut self, connection: &mut Connection) -> Result<(), End> {
        let ring_bytes = self.config.ring_bytes;
        let made = shm::create_segment(ring_bytes)
            .and_then(|segment| Pair::map(&segment, ring_bytes, Side::Maker).map(|pair| (segment, pair)));
        match made {
            Ok((segment, pair)) => {
                let message = ShmMessage::Offer { ring_bytes: ring_bytes as u64 };
                let mut descriptors = self.sleeper.descriptors();
                descriptors.insert(0, segment.as_fd());
                Self::send_message(connection, message, &descriptors)?;
                connection.stage = Stage::Offered(Box::new(pair));
                Ok(())
            }
            Err(error) => {
                // So that the other side knows before it would find the socket closed.
                let _ = Self::send_message(connection, ShmMessage::NoOffer, &[]);
                Err(End::Shm(format!("no shared memory of 2 x {ring_bytes} bytes can be had: {error}")))
            }
        }
    }

    fn exchange(&mut self, connection: &mut Connection, message: Option<ShmMessage>) -> Result<Next, End> {
        let stage = std::mem::replace(&mut connection.stage, Stage::Lingering);
        match (stage, message) {
            (Stage::Offered(pair), Some(ShmMessage::Reply)) => {
                let neighbour = Self::take_neighbour(connection)?;
                Self::send_message(connection, ShmMessage::Commit, &[])?;
                Ok(Next::Shm(Box::new((*pair, neighbour))))
            }
            (Stage::Offered(_), Some(ShmMessage::NoReply)) => {
                Err(End::Shm("the other side could not use the shared memory that it was offered".into()))
            }
            (Stage::AwaitsOffer, Some(ShmMessage::Offer { ring_bytes })) => {
                match Self::take_offer(connection, ring_bytes) {
                    Ok(link) => {
                        let descriptors = self.sleeper.descriptors();
                        Self::send_message(connection, ShmMessage::Reply, &descriptors)?;
                        connection.stage = Stage::AwaitsCommit(Box::new(link));
                        Ok(Next::Keep)
                    }
                    Err(error) => {
                        let _ = Self::send_message(connection, ShmMessage::NoReply, &[]);
                        Err(End::Shm(format!("the shared memory that was offered cannot be used: {error}")))
                    }
                }
            }
            (Stage::AwaitsOffer, Some(ShmMessage::NoOffer)) => {
                Err(End::Shm("the other side has no shared memory to offer".into()))
            }
            (Stage::AwaitsCommit(link), Some(ShmMessage::Commit)) => Ok(Next::Shm(link)),
            _ => Err(End::Shm("the other side sent something else than agreed".into())),
        }
    }

    fn take_neighbour(connection: &mut Connection) -> Result<Neighbour, End> {
        let Some(([word, event], board)) = exchange::with_board(&mut connection.descriptors) else {
            return Err(End::Shm(format!("the other side sent other {DESCRIPTORS}")));
        };
        let neighbour = Doorbell::from_peer(word, event).and_then(|doorbell| Neighbour::new(doorbell, board));
        neighbour.map_err(|error| End::Shm(format!("the other side's doorbell or board cannot be used: {error}")))
    }

    fn take_offer(connection: &mut Connection, ring_bytes: u64) -> io::Result<(Pair, Neighbour)> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let Some(([segment, word, event], board)) = exchange::with_board(&mut connection.descriptors) else {
            return Err(wrong(&format!("other {DESCRIPTORS}")));
        };
        let ring_bytes = usize::try_from(ring_bytes).map_err(|_| wrong("a ring larger than memory"))?;
        let segment = shm::accept_segment(segment, ring_bytes)?;
        let neighbour = Neighbour::new(Doorbell::from_peer(word, event)?, board)?;
        Ok((Pair::map(&segment, ring_bytes, Side::Taker)?, neighbour))
    }

    /// What a lane needs besides memory.
    pub(super) fn shm_parts(connection: Connection, link: (Pair, Neighbour), peer: usize) -> ShmParts {
        // Without its process at hand (another process-id namespace), the socket alone tells the peer's end.
        let process = unix::peer_credentials(&connection.socket)
            .ok()
            .and_then(|credentials| credentials.process)
            .and_then(|process| PidFd::open(process).ok());
        ShmParts { socket: connection.socket, process, neighbour: link.1, pair: link.0, peer }
    }

    // Ends.

    pub(super) fn handle_end(&mut self, connection: Connection, end: End, now: Instant) {
        match connection.peer {
            Some(peer) => self.handle_lane_end(peer, &connection, end, now),
            None if matches!(connection.stage, Stage::Lingering) => {}
            // A member that dialled while it was being dialled gives up its own attempt, in the middle.
            None if matches!(end, End::Lost(_)) => {
                tracing::debug!(link = %connection.link, why = %end, "a connection ended before it was proved");
            }
            None => self.note_stranger(&connection, &end),
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        if self.accept_again_at.is_some_and(|at| at <= now) {
            self.accept_again_at = None;
            self.set_accepting(LISTENS);
        }
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_pending() && connection.deadline <= now)
            .map(|(&key, _)| key)
            .collect();
        for key in late {
            if let Some(connection) = self.remove(key)
                && !matches!(connection.stage, Stage::Lingering)
            {
                self.note_stranger(&connection, &"it stayed silent");
            }
        }
        self.handle_trial_timeouts(now);
        self.handle_peer_timeouts(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let pending = self.connections.values().filter(|connection| connection.is_pending());
        let peers = self.peers.values().filter_map(Peer::next_deadline);
        let trials = self.connections.values().filter_map(Connection::trial_deadline);
        pending.map(|connection| connection.deadline).chain(trials).chain(peers).chain(self.accept_again_at).min()
    }

    /// Whether what a proved initiator wants may be; the deadline until which it must be done.
    fn decide(&mut self, key: u64, is_unix: bool, hello: &Hello, now: Instant) -> Result<Instant, Refusal> {
        let (lane, lanes) = match hello.purpose {
            Purpose::Tcp { lane, lanes } | Purpose::Rdma { lane, lanes } if !is_unix => (lane, lanes),
            Purpose::Shm if is_unix => (0, 1),
            _ => return Err(Refusal::Transport),
        };
        self.admit(key, hello, is_unix, (lane, lanes), now)
    }
}
