//! NCCL: whole collectives on device memory, carried by NVIDIA's library where it is there.
//!
//! [`Library`] loads it and says what it can; one that is too old is refused by name. [`Group`] is one NCCL communicator
//! on one rank, as a state machine: it is given the time, never waits, and makes its calls through [`Calls`], which is
//! the library or, in tests, a script.
//!
//! Only non-blocking communicators are used: a call that is not done says so, and is asked about again until a deadline;
//! then the communicator is aborted. What NCCL does not do stays ours: the unique id travels over the ranks' own
//! authenticated connections, calls are compared before NCCL sees them, and a new view gets a new communicator, made from
//! the old one where the library can (`ncclCommShrink`, `ncclCommGrow`) and anew where it cannot.

mod group;
mod library;
mod results;
#[cfg(test)]
mod tests;
mod work;

pub use group::{Calls, Change, Group, Progress, Way, Work};
pub use library::{Abilities, Communicator, Library, Opened, UniqueId, Version};
pub use results::{Code, IN_PROGRESS, SUCCESS, name};
pub use work::{CollectiveCall, CollectiveWork, Parts, Span};
