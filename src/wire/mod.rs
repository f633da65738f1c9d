//! What travels between members, byte for byte: encoders and parsers, without I/O.

pub mod handshake;
