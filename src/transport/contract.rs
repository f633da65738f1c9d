//! The types of the contract in `mod.rs`.

use std::sync::Arc;

use super::board::Neighbour;
use crate::types::{Finish, Order, Reduction, Signature, Tag, TransportKind};

/// Names a posted request in its completion event. Chosen by the caller; opaque to the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// Pairs it with its receive.
    pub tag: Tag,
    /// The call it belongs to.
    pub signature: Signature,
    /// The bytes. May be null when `bytes` is 0.
    pub source: *const u8,
    /// How many.
    pub bytes: usize,
    /// Comes back in [`Event::Sent`].
    pub token: Token,
}

/// How received elements are combined with those in the target.
#[derive(Clone, Debug)]
pub struct Accumulate {
    /// The element type.
    pub dtype: crate::types::DataType,
    /// The operation (scales in it are ignored here).
    pub reduction: Arc<Reduction>,
    /// Which operand stands on the left.
    pub order: Order,
    /// What is done to each element after combining.
    pub finish: Finish,
}

/// What a receive does with what arrives.
#[derive(Clone, Debug)]
pub enum Receive {
    /// Overwrites the target.
    Store,
    /// Combines into the target. The request's `bytes` are a whole number of elements.
    Reduce(Accumulate),
}

/// A message to receive.
#[derive(Clone, Debug)]
pub struct RecvRequest {
    /// Pairs it with its send.
    pub tag: Tag,
    /// The call it belongs to.
    pub signature: Signature,
    /// Where the bytes go. May be null when `bytes` is 0.
    pub target: *mut u8,
    /// How many.
    pub bytes: usize,
    /// What is done with them.
    pub mode: Receive,
    /// Comes back in [`Event::Received`].
    pub token: Token,
}

/// A control message between the executors of two members, small, opaque to the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(pub Arc<[u8]>);

impl Notice {
    /// The most bytes a notice may have. A longer one from a peer is a protocol violation.
    pub const MAX_BYTES: usize = 4096;
}

/// What happened on an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The send's memory is free again.
    Sent(Token),
    /// The message is in its target.
    Received(Token),
    /// The first message for this tag came before any receive for it was posted here.
    Early {
        /// Its tag.
        tag: Tag,
        /// The peer's call.
        signature: Signature,
    },
    /// The peer's message for this tag belongs to another call than the receive or send posted here.
    Mismatch {
        /// Its tag.
        tag: Tag,
        /// The peer's call.
        theirs: Signature,
    },
    /// The peer's executor says something.
    Notice(Notice),
    /// The peer said goodbye: it will send nothing more, and its closing is not a failure.
    Goodbye,
    /// The peer is gone or broke the protocol. The text says how that was noticed.
    Failed(Arc<str>),
}

/// One member's end of a link to one peer. See the contract in this room's `mod.rs`.
pub trait Endpoint: Send {
    /// Which carrier this is.
    fn kind(&self) -> TransportKind;

    /// The link in words, for errors and logs, such as `tcp 10.0.0.2:41000`.
    fn link(&self) -> Arc<str>;

    /// Posts a message.
    ///
    /// # Safety
    ///
    /// `source .. source + bytes` must stay readable and unwritten until clause 2 gives it back.
    unsafe fn post_send(&mut self, request: SendRequest);

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// `target .. target + bytes` must stay writable, and be read or written by nobody else, until clause 2 gives it
    /// back.
    unsafe fn post_recv(&mut self, request: RecvRequest);

    /// Queues a notice.
    fn notify(&mut self, notice: Notice);

    /// Gives up everything posted under `tag` (clause 9).
    fn cancel(&mut self, tag: Tag);

    /// Moves what can be moved without blocking, and appends what happened to `events`. Returns whether anything
    /// moved.
    fn progress(&mut self, events: &mut Vec<Event>) -> bool;

    /// Hands to the carrier, of what is posted, as much as it takes now. What that brings about is told by `progress`.
    fn push(&mut self) {}

    /// Whether nothing is under way here, so that only what the peer does unasked can move it. `progress` is due then
    /// only now and then.
    fn is_idle(&self) -> bool {
        false
    }

    /// Prepares for sleep (clause 13).
    fn prepare_sleep(&mut self) -> bool;

    /// Queues goodbye (clause 12).
    fn say_goodbye(&mut self);

    /// Whether everything posted, goodbye and notices included, has been handed to the carrier.
    fn is_drained(&self) -> bool;

    /// Whether nothing that was handed to the carrier waits for `progress` to get away from here.
    fn is_flushed(&self) -> bool {
        true
    }

    /// What the peer shows in shared memory, where there is any.
    fn neighbour(&self) -> Option<&Neighbour> {
        None
    }
}
