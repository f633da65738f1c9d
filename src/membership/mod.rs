//! Who is in the world.
//!
//! Pure state machines: a message and the time go in, messages and a deadline come out. [`Gathering`] is the first
//! chapter: members that know nothing of each other come together, and each gets the [`Roster`] of all, or the same
//! reason why not. Views that follow the first, liveness and verdicts build on it.

mod gathering;
pub mod member;
pub mod registry;
mod roster;

pub use gathering::{Gathering, Outcome, Tell};
pub use roster::{Member, Roster};
