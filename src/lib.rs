//! Collective communication for data-parallel training.
//!
//! The rooms, lowest first; a room imports only rooms above it in this list (`tests/tidy.rs` holds that):

pub mod types;

pub mod schedule;

pub mod reduce;

pub mod wire;

pub mod transport;

pub mod executor;

pub mod comm;

#[cfg(feature = "python")]
pub mod python;
