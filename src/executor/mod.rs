//! Runs schedules over endpoints.
//!
//! One [`Engine`] a process. It holds the endpoints to all peers, which come into being on first use, and the
//! operations in flight. An operation is a schedule with its memory; the engine posts the messages of its current step,
//! does the local work, and moves to the next step when all of them are complete. Several operations run side by side.
//!
//! **Who moves things.** Whoever waits: one waiting thread at a time is the *leader* and drives all endpoints; the
//! others sleep until their operation is complete or the leader leaves. When operations are pending and nobody waits,
//! the thread `phalanx-progress` leads. The leader spins for a bounded time, then sleeps until a peer does something; the
//! thread spins only between the pieces that in-host peers send.
//!
//! **How an operation ends early.** A mismatch, a deadline, a lost peer: the rank that notices gives the operation up,
//! and tells every peer it is connected to; each of them does the same, once. So all ranks of the communicator end the
//! operation with the same cause, also those that never heard from the culprit. A rank that had already finished the
//! operation reports the cause at its next call on that communicator, or at the one that it is in.
//!
//! **Who is named when time is up.** Not simply who is waited for, which may wait for another: see `waits`.

mod channel;
mod completion;
mod core;
mod engine;
mod in_host;
mod operation;
mod scratch;
mod waits;

#[cfg(test)]
mod simulation;

pub use self::core::{Lost, Now};
pub use completion::Completion;
pub use engine::{Dial, Engine, EngineConfig, Sleep};
pub use in_host::{Extent, Layout, MOST_RANKS};
pub use operation::Work;
