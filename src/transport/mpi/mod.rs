//! The carrier over a running MPI, for sites where nothing else may open connections.
//!
//! A [`Port`] is one rank's end of everything: it takes up what arrives, from whichever rank, and hands it to the
//! [`MpiLane`] of that rank. A lane is a stream of bytes that travels as MPI messages of up to [`PIECE_BYTES`], all under the one
//! tag of their world, so that MPI keeps their order. [`Nap`] is where a rank sleeps: MPI has nothing to sleep on, so it
//! looks again, after pauses that grow to some milliseconds.
//!
//! **Memory.** MPI reads and writes only memory of the carrier's own: a message that was handed to it can in general not be taken
//! back, and the contract wants cancelled memory back at once. That costs a copy on either side, some 0.1 ms for each MiB.
//!
//! **Bounds.** Short pieces are sent on their own; how many may be under way is bounded by the stream above. Long ones
//! wait for the receiver to take them up (`MPI_Issend`), and a lane has no more than [`PIECES`] of these; a receiver has as many windows.
//!
//! **The end.** MPI has no connections that close. A rank that leaves says so to every other one with an empty message,
//! which no lane sends otherwise, after everything else. A process that dies takes its job with it: MPI's launchers end
//! all ranks when one ends without `MPI_Finalize`.
//!
//! **Threads.** All calls are made by whoever drives the engine, under its lock. Where MPI lets only one thread call, others
//! move nothing: [`Port::may_call`].

mod lane;
mod nap;
mod port;
#[cfg(all(test, not(loom)))]
mod tests;

pub use lane::MpiLane;
pub use nap::Nap;
pub use port::Port;

/// The longest message. A segment of a stream with its header, and what else has gathered before it.
pub const PIECE_BYTES: usize = (64 << 10) + (4 << 10);

/// A message beyond this many bytes waits for its receiver.
pub const SHORT_BYTES: usize = 4 << 10;

/// How many long messages may be under way to one rank, and from one rank, at once: one travels, one is copied in, one is copied
/// out, one waits.
pub const PIECES: usize = 4;
