//! Moving messages between two members: one contract, many carriers.
//!
//! # The contract
//!
//! 1. **Order.** For one tag, the k-th receive posted on an endpoint gets the k-th message the peer posted. Messages
//!    of different tags are independent: none waits for another's receive.
//! 2. **Posting does not block.** `post_send` and `post_recv` return at once; memory belongs to the endpoint from then
//!    until the event with the request's token, or until `cancel` of its tag returns.
//! 3. **`Sent` means the memory is free**, not that the peer has the message.
//! 4. **Exact length.** A message is delivered only to a receive of the same signature and the same number of bytes.
//!    Another signature is [`Event::Mismatch`]; another length under the same signature is a protocol violation.
//! 5. **Zero bytes travel.** An empty message is a message.
//! 6. **Reduction on receive.** A receive may combine into its target instead of overwriting it; every element is
//!    combined exactly once, whatever the segmentation.
//! 7. **Early messages are bounded.** A message whose receive is not posted is kept only within a limit; beyond it, it
//!    stays with the sender. No peer can make this process allocate without bound.
//! 8. **Unposted messages are announced** once for each tag by [`Event::Early`], with their signature.
//! 9. **Cancel is local, immediate and idempotent.** When `cancel` returns, the endpoint will not touch the memory of
//!    that tag's requests, emits no more events for them, and drops what arrives for the tag from then on. The
//!    stream to the peer stays usable for other tags; a message that was half sent is completed from a copy. A carrier
//!    that reads from the memory by itself (`rdma`) is waited for, for two seconds at most; then the link has failed.
//! 10. **Notices overtake data** that has not begun to be written, and arrive in order among themselves.
//! 11. **Failure is final and told once.** When the peer is gone, closes without goodbye, or breaks the protocol,
//!     `progress` emits [`Event::Failed`] once, after the events of everything that arrived before. From then on posts
//!     are ignored, and nothing touches any memory.
//! 12. **Goodbye.** `say_goodbye` is sent after everything posted before it. A peer that closes after goodbye has not
//!     failed: [`Event::Goodbye`]. What it sent before can still be received.
//! 13. **Sleeping.** `prepare_sleep` returns true when nothing can be done until the peer acts; from then on whatever
//!     the peer does wakes the sleeper. False means: call `progress` again.
//! 14. **Nothing a peer sends is believed**: lengths, indices and counts are checked before use.
//! 15. **Push and idle.** `push` hands the carrier what it takes now and moves nothing else; what that brings about is
//!     told by `progress`. While `is_idle` is true, nothing that was posted waits for `progress`.

mod atomic;
pub mod board;
#[cfg(all(test, not(loom)))]
pub(crate) mod conformance;
pub mod connect;
mod contract;
mod doorbell;
pub(crate) mod foreign;
pub mod hashing;
pub mod heap;
pub mod inproc;
mod lane;
pub mod listen;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod rdma;
mod ring;
pub mod shm;
pub mod sleep;
pub mod stream;
pub mod tcp;

pub use contract::{Accumulate, Endpoint, Event, Notice, Receive, RecvRequest, SendRequest, Token};
pub use lane::{Lane, LaneError, MIN_WINDOW};
pub use sleep::Sleeper;
