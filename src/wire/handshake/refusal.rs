//! Why a handshake ends badly.

use std::fmt;

/// Why one side will not go on. The values are the same whichever side tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sides speak different versions of this protocol.
    Version {
        /// What the initiator speaks.
        initiator: u16,
        /// What the responder speaks.
        responder: u16,
    },
    /// The responder belongs to another job.
    WrongJob,
    /// The other side does not know the job's key.
    WrongKey,
    /// The responder serves another generation.
    WrongGeneration {
        /// What the initiator asked for.
        asked: u64,
        /// What the responder serves.
        serving: u64,
    },
    /// The responder is another rank, or the initiator no other.
    WrongRank {
        /// Whom the initiator asked for.
        asked: u32,
        /// Who the responder is.
        serving: u32,
    },
    /// The responder knows no such rank as the initiator says to be.
    UnknownRank {
        /// The initiator's.
        rank: u32,
    },
    /// The responder is connecting or connected to the initiator already: wait for that.
    Busy,
    /// The responder was told not to use this transport.
    Transport,
    /// What came is no handshake. Never sent.
    Malformed(&'static str),
}

impl Refusal {
    /// Its code and two values on the wire.
    pub(super) fn to_wire(self) -> (u8, u64, u64) {
        match self {
            Refusal::Version { initiator, responder } => (1, initiator.into(), responder.into()),
            Refusal::WrongJob => (2, 0, 0),
            Refusal::WrongKey => (3, 0, 0),
            Refusal::WrongGeneration { asked, serving } => (4, asked, serving),
            Refusal::WrongRank { asked, serving } => (5, asked.into(), serving.into()),
            Refusal::Busy => (6, 0, 0),
            Refusal::Transport => (7, 0, 0),
            Refusal::Malformed(_) => (8, 0, 0),
            Refusal::UnknownRank { rank } => (9, rank.into(), 0),
        }
    }

    pub(super) fn from_wire(code: u8, first: u64, second: u64) -> Option<Self> {
        Some(match code {
            1 => Refusal::Version { initiator: first.try_into().ok()?, responder: second.try_into().ok()? },
            2 => Refusal::WrongJob,
            3 => Refusal::WrongKey,
            4 => Refusal::WrongGeneration { asked: first, serving: second },
            5 => Refusal::WrongRank { asked: first.try_into().ok()?, serving: second.try_into().ok()? },
            6 => Refusal::Busy,
            7 => Refusal::Transport,
            8 => Refusal::Malformed("the peer could make nothing of it"),
            9 => Refusal::UnknownRank { rank: first.try_into().ok()? },
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Version { initiator, responder } => write!(
                f,
                "protocol versions differ: {initiator} dialled {responder}; install the same version of Phalanx everywhere"
            ),
            Refusal::WrongJob => write!(f, "the address belongs to another job, or the job keys differ"),
            Refusal::WrongKey => write!(f, "the job keys differ"),
            Refusal::WrongGeneration { asked, serving } => {
                write!(f, "generation {asked} was asked for; the other side serves generation {serving}")
            }
            Refusal::WrongRank { asked, serving } => {
                write!(f, "rank {asked} was asked for; rank {serving} answered")
            }
            Refusal::UnknownRank { rank } => {
                write!(f, "the other side's world has no rank {rank}")
            }
            Refusal::Busy => write!(f, "the peer is already connecting to this rank"),
            Refusal::Transport => write!(f, "the peer was told not to use this transport"),
            Refusal::Malformed(what) => write!(f, "this is no handshake of Phalanx: {what}"),
        }
    }
}

/// How a handshake ended badly, and who said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeError {
    /// Why.
    pub refusal: Refusal,
    /// Whether the peer refused, or else this side did.
    pub by_peer: bool,
}

impl HandshakeError {
    pub(super) fn found(refusal: Refusal) -> Self {
        Self { refusal, by_peer: false }
    }

    pub(super) fn told(refusal: Refusal) -> Self {
        Self { refusal, by_peer: true }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.refusal, if self.by_peer { "said the peer" } else { "found on this side" })
    }
}

impl std::error::Error for HandshakeError {}
