//! Collective communication for data-parallel training.
//!
//! A [`Communicator`] is a group of ranks; its methods are the collectives. [`init`] makes the communicator of all
//! ranks from what the launcher left in the environment, be it `phalanx run`, `mpirun`, `mpiexec`, `srun` or `torchrun`.
//!
//! ```
//! use phalanx::ReduceOp;
//!
//! # fn main() -> phalanx::Result<()> {
//! let comm = phalanx::init()?;
//! let mut gradients = vec![1.0f32; 1000];
//! comm.allreduce(&mut gradients, ReduceOp::Average)?;
//! # Ok(())
//! # }
//! ```
//!
//! # The rooms
//!
//! Lowest first. A room imports only rooms above it in this list; a test over the sources holds that. The first four
//! do no I/O, read no clock and start no thread.

pub mod types;

pub mod schedule;

pub mod reduce;

pub mod wire;

pub mod membership;

pub mod sys;

pub mod transport;

pub mod bootstrap;

#[cfg(feature = "cuda")]
pub mod device;

pub mod executor;

pub mod comm;

pub mod elastic;

pub mod observe;

pub mod launch;

#[cfg(test)]
mod sim;

#[doc(hidden)]
pub mod testing;

// The public interface.
pub use bootstrap::Config;
pub use comm::{
    Buffer, Call, Communicator, Handle, Pending, Scope, ScopedHandle, Settings, Statistics, init, thread_world,
};
#[cfg(feature = "cuda")]
pub use comm::{DeviceCarrier, DeviceHandle, DevicePending};
pub use types::{Algorithm, DataType, Element, Error, Fault, ReduceOp, Reduction, Result, TransportKind};

#[cfg(feature = "python")]
pub mod python;
