//! Looking at Phalanx and at the machine under it.
//!
//! [`doctor`] says what is on this machine, what Phalanx would use, and what stands in its way.

pub mod doctor;
