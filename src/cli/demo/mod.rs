//! `phalanx demo`: ranks train a small network on real images.

pub mod digest;
mod digits;
mod network;
mod random;
mod report;
mod stand_in;
mod training;

use stand_in::Communicator;
