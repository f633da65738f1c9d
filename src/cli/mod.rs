//! The commands.
pub mod bench;
pub mod demo;
