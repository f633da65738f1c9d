//! From environment variables to the table of all members.
//!
//! 1. [`environment`](launch) reads what the launcher says: rank, size and how to meet ([`Launch`]); `settings` reads
//!    the rest ([`Settings`]). Both are pure functions of [`Variables`]; every variable of Phalanx stands once in
//!    [`variables()`]. A [`Config`] holds both, and can be filled in code.
//! 2. [`join()`] meets the others: it finds the rendezvous server or starts it (on rank 0), proves the job's key, tells
//!    where this member listens, and returns the [`Roster`](crate::membership::Roster) of all members.
//! 3. [`RendezvousServer`] is the other side, in the launcher or in rank 0: one thread that feeds a pure
//!    [`Gathering`](crate::membership::Gathering).

mod client;
mod config;
pub(crate) mod control;
mod environment;
mod file;
mod join;
mod key;
mod launchers;
mod local;
mod pmi;
mod pmix;
mod publication;
mod route;
mod server;
mod settings;
mod stream;
mod variables;
mod wire_key;

pub use config::Config;
pub use environment::{Launch, MAX_SIZE, Rendezvous, launch};
pub(crate) use join::host_name;
pub use join::{Introduction, join};
pub(crate) use key::given as given_key;
pub use key::new_key;
pub(crate) use key::{given, random};
pub use launchers::{Launcher, foreign_variables};
pub use route::listen_address;
pub use server::{Bind, RendezvousServer};
pub use settings::{DeviceCollectives, FiguresFile, KeySource, Settings, settings};
#[cfg(feature = "cuda")]
pub(crate) use variables::{DEVICE_COLLECTIVES, KERNELS, LIBRARIES};
pub use variables::{
    Variable, Variables, unknown_in_words, unknown_variables, variables, variables_as_help, variables_as_markdown,
};
