//! What is remembered of each message under way.

use smallvec::SmallVec;

use crate::transport::{Receive, Token};
use crate::types::Tag;
use crate::wire::frame::RawSignature;

/// The memory of a send.
#[derive(Clone, Copy)]
pub(super) struct Source(pub *const u8);

// SAFETY: whoever posts promises that the memory stays readable and unwritten until it is given back, whichever
// thread drives the endpoint meanwhile.
unsafe impl Send for Source {}

/// The memory of a receive.
#[derive(Clone, Copy)]
pub(super) struct Target(pub *mut u8);

// SAFETY: whoever posts promises that the memory is the endpoint's alone until it is given back, whichever thread
// drives the endpoint meanwhile.
unsafe impl Send for Target {}

/// A message to the peer.
pub(super) struct SendState {
    pub tag: Tag,
    /// The place of the tag.
    pub place: u32,
    pub signature: RawSignature,
    pub source: Source,
    pub bytes: usize,
    pub token: Token,
    /// Longer than what may travel without having been asked for.
    pub long: bool,
    /// The announcement is written, or in the batch being written.
    pub announced: bool,
    /// What its segments must name, once the peer has said it.
    pub target: Option<u64>,
    /// How many segments were begun.
    pub cut: usize,
    /// How many segments are not wholly written.
    pub left: usize,
}

/// A message from the peer.
pub(super) struct RecvState {
    pub tag: Tag,
    /// The place of the tag.
    pub place: u32,
    pub signature: RawSignature,
    pub target: Target,
    pub bytes: usize,
    pub mode: Receive,
    pub token: Token,
    /// The peer was told that it is ready.
    pub offered: bool,
    /// Its message has come, or was announced.
    pub met: bool,
    /// How many pieces have not arrived.
    pub left: usize,
    /// Which segments have begun to arrive, a bit each.
    pub seen: SmallVec<[u64; 4]>,
}

/// A message from the peer that no receive has met.
pub(super) struct Arrival {
    pub signature: RawSignature,
    pub body: ArrivalBody,
}

/// What there is of it.
pub(super) enum ArrivalBody {
    /// All, and what it was charged.
    Whole {
        /// The message.
        bytes: EarlyBytes,
        /// What the sender was charged for it.
        cost: usize,
    },
    /// It waits at the sender; its bytes.
    Announced(u64),
}

/// An early message. Short ones need no memory of their own.
pub(super) type EarlyBytes = SmallVec<[u8; 64]>;

/// A receive of the peer that no send has met.
pub(super) struct Offer {
    pub signature: RawSignature,
    pub total: u64,
    pub target: u64,
}

/// How many segments a message has: one at least.
pub(super) fn segments(bytes: usize, segment_bytes: usize) -> usize {
    bytes.div_ceil(segment_bytes).max(1)
}
