//! What travels between members, byte for byte.

pub mod handshake;
