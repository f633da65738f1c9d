//! What travels: encoders and parsers, without I/O.

pub mod handshake;
pub mod notice;
pub mod rendezvous;
