//! The front door: communicators, their collectives, handles and groups.
//!
//! [`Communicator`] is what a program holds: a group of ranks with its own operation numbers. Clones are cheap and may
//! carry other settings. Its typed methods (`collectives`, `point_to_point`) check the arguments and build a [`Call`];
//! the untyped [`Communicator::submit`] is what the Python and C interfaces use. A call becomes a plan (`plans` keeps
//! those made before), and the plan goes to the engine. `group` makes communicators of fewer ranks, `pending` and
//! `scope` let calls run while the program computes.

mod buffer;
mod call;
mod collectives;
mod communicator;
mod connect;
#[cfg(feature = "cuda")]
mod device;
mod figures_file;
mod group;
mod handle;
#[cfg(feature = "mpi")]
mod over_mpi;
mod pending;
mod plans;
mod point_to_point;
mod probe;
mod scope;
mod threads;
pub(crate) mod told;
mod tuning;
mod views;
mod world;

pub use buffer::Buffer;
pub use call::Call;
pub use communicator::{Communicator, Settings};
pub use connect::init;
pub(crate) use connect::{among, member, policy, within_process};
#[cfg(feature = "cuda")]
pub use device::{DeviceCarrier, DeviceHandle, DevicePending};
pub use handle::Handle;
pub use pending::Pending;
pub use scope::{Scope, ScopedHandle};
pub use threads::thread_world;
pub(crate) use threads::thread_world_on;
pub(crate) use views::{Members, Views};
pub use world::Statistics;
