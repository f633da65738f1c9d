//! What travels between two members, as bytes: encoded and decoded here, sent and received elsewhere.
//!
//! [`frame`] is the language that an endpoint over byte streams speaks once a connection stands; [`notice`] is what
//! executors tell each other inside it; [`handshake`] is how both ends prove the job's key first. Everything here is
//! pure: bytes in, values out, and every field checked before anybody else sees it. `docs/wire.md` has the layouts. [`rendezvous`] is what members and the rendezvous
//! server say to each other at the start, [`registry`] what members and the registry of an elastic job say all along.

pub(crate) mod fields;
pub mod frame;
pub mod handshake;
pub mod notice;
pub mod registry;
pub mod rendezvous;
