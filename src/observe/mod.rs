//! Looking at Phalanx and at the machine under it.
//!
//! [`doctor`] says what is on this machine, what Phalanx would use, and what stands in its way. [`log_to_stderr`] writes the
//! log.

pub mod doctor;
mod log;

pub use log::log_to_stderr;
