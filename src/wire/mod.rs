//! What travels: encoders and parsers, without I/O.

pub mod notice;
