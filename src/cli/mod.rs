//! The commands.
pub mod bench;
pub mod demo;
mod workers;
