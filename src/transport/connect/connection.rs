//! One connection on its way to becoming a lane: bytes in and out, without knowing what they are for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::exchange;
use crate::sys::{Interest, Uninherited, socket, unix};
use crate::transport::board::Neighbour;
use crate::transport::rdma::{self, Connected, Offered};
use crate::transport::shm::Pair;
use crate::wire::handshake::{Initiator, Responder};

/// How far a connection has come.
pub(super) enum Stage {
    /// Dialled; the outcome is not known yet.
    Connecting(Initiator),
    /// Dialled; proving who both are.
    Initiating(Initiator),
    /// Accepted; proving who both are.
    Responding(Responder),
    /// Dialled for shared memory: offered, waits for the reply.
    Offered(Box<Pair>),
    /// Accepted for shared memory: waits for the offer.
    AwaitsOffer,
    /// Replied to an offer: waits for the commitment.
    AwaitsCommit(Box<(Pair, Neighbour)>),
    /// Dialled for RDMA: offered, waits for the reply.
    RdmaOffered(Box<Offered>),
    /// Accepted for RDMA: waits for the offer.
    RdmaAwaitsOffer,
    /// Dialled for RDMA: a packet is on its way to the peer's adapter, and one of the peer's is waited for until then.
    RdmaOnTrial(Box<Connected>, Instant),
    /// Replied to an offer of RDMA: waits for a packet of the peer's adapter.
    RdmaAwaitsTrial(Box<Connected>),
    /// Answered the peer's packet with one of its own: waits for the commitment.
    RdmaAwaitsCommit(Box<Connected>),
    /// A lane that waits for its siblings; with the link over RDMA that it stands beside, if it does.
    Up(Option<Box<Connected>>),
    /// Refused; waits for the peer to read that and close, so that closing first does not take it back.
    Lingering,
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub(super) enum Lost {
    /// The peer closed.
    Closed,
    /// The network says why.
    Io(io::Error),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Closed => f.write_str("the other side closed the connection"),
            Lost::Io(error) => error.fmt(f),
        }
    }
}

pub(super) struct Connection {
    pub(super) socket: Uninherited<OwnedFd>,
    /// Over which listener or route: Unix, or else TCP.
    pub(super) is_unix: bool,
    pub(super) stage: Stage,
    /// The peer it was dialled for, or that proved itself; and the attempt and lane.
    pub(super) peer: Option<usize>,
    pub(super) attempt: u64,
    pub(super) lane: u8,
    /// Whether it is to stand beside a link over RDMA.
    pub(super) for_rdma: bool,
    pub(super) deadline: Instant,
    /// In words, for errors and logs.
    pub(super) link: String,
    pub(super) interest: Interest,
    output: Vec<u8>,
    input: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, is_unix: bool, stage: Stage, deadline: Instant, link: String) -> Self {
        let dialled = matches!(stage, Stage::Connecting(_));
        Self {
            socket: socket.into(),
            is_unix,
            stage,
            peer: None,
            attempt: 0,
            lane: 0,
            for_rdma: false,
            deadline,
            link,
            interest: Interest { readable: true, writable: dialled, edge: false },
            output: Vec::new(),
            input: Vec::new(),
            descriptors: Vec::new(),
        }
    }

    /// Whether whoever made it has not proved itself.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.stage, Stage::Responding(_) | Stage::Lingering)
    }

    /// The link over RDMA that is tried, if one is.
    pub(super) fn on_trial(&self) -> Option<&Connected> {
        match &self.stage {
            Stage::RdmaOnTrial(connected, _) | Stage::RdmaAwaitsTrial(connected) => Some(connected),
            _ => None,
        }
    }

    /// Until when the peer's packet is waited for, by the side that tells the other how it ended.
    pub(super) fn trial_deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::RdmaOnTrial(_, until) => Some(until),
            _ => None,
        }
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Sends what is queued, as far as it goes.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        while !self.output.is_empty() {
            match socket::send(&self.socket, &self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::Io(error)),
            }
        }
        Ok(())
    }

    /// How many bytes this stage reads next, exactly: what follows belongs to the lane.
    fn wanted(&self) -> usize {
        match &self.stage {
            Stage::Initiating(machine) => machine.wanted(),
            Stage::Responding(machine) => machine.wanted(),
            Stage::Offered(_) | Stage::AwaitsOffer | Stage::AwaitsCommit(_) => {
                exchange::MESSAGE_BYTES - self.input.len()
            }
            Stage::RdmaOffered(_)
            | Stage::RdmaAwaitsOffer
            | Stage::RdmaOnTrial(..)
            | Stage::RdmaAwaitsTrial(_)
            | Stage::RdmaAwaitsCommit(_) => rdma::MESSAGE_BYTES - self.input.len(),
            Stage::Connecting(_) | Stage::Up(_) | Stage::Lingering => 0,
        }
    }

    /// Receives up to what is wanted. `None` when nothing is there, or wanted.
    pub(super) fn receive(&mut self) -> Result<Option<Vec<u8>>, Lost> {
        let wanted = self.wanted();
        if wanted == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; wanted];
        let outcome = match self.stage {
            // With descriptors only where they are due: a stranger's are never taken in.
            Stage::Offered(_) | Stage::AwaitsOffer => {
                unix::recv_with_descriptors(&self.socket, &mut bytes, &mut self.descriptors)
            }
            _ => socket::recv(&self.socket, &mut bytes),
        };
        match outcome {
            Ok(0) => Err(Lost::Closed),
            Ok(count) => {
                bytes.truncate(count);
                Ok(Some(bytes))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(Lost::Io(error)),
        }
    }

    /// Collects a message of the exchange from its pieces.
    pub(super) fn collect(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        self.input.extend_from_slice(piece);
        (self.wanted() == 0).then(|| std::mem::take(&mut self.input))
    }

    /// Reads and forgets. Whether the peer has closed.
    pub(super) fn discard(&mut self) -> bool {
        let mut sink = [0; 4096];
        // A bounded number of times: whoever sends without end is closed at the deadline, and others are served
        // meanwhile.
        for _ in 0..4 {
            match socket::recv(&self.socket, &mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return false;
                }
                Err(_) => return true,
            }
        }
        false
    }

    /// What to be told about next.
    pub(super) fn wanted_interest(&self) -> Interest {
        match self.stage {
            Stage::Connecting(_) => Interest { readable: false, writable: true, edge: false },
            // Told once of bytes that belong to the lane, and again of its closing.
            Stage::Up(_) => Interest { readable: true, writable: self.has_output(), edge: true },
            _ => Interest { readable: true, writable: self.has_output(), edge: false },
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
