//! The words that every other room speaks.
//!
//! Who takes part ([`Generation`], [`View`]), what moves ([`DataType`], [`Element`]), what is done with it
//! ([`Collective`], [`ReduceOp`], [`Algorithm`]), how two ranks know that they mean the same call ([`Signature`]),
//! until when ([`Deadline`]), and how it can go wrong ([`Error`]). Nothing here does I/O, reads a clock or starts a
//! thread.
//!
//! A *rank* is a plain `usize`, 0 to size - 1 in one communicator, as in MPI.

mod algorithm;
mod call;
mod datatype;
mod deadline;
mod digest;
mod error;
mod op;
mod view;

pub use algorithm::{Algorithm, TransportKind};
pub use call::{Collective, Signature};
pub use datatype::{DataType, Element};
pub use deadline::Deadline;
pub use digest::Digest;
pub use error::{Error, Fault, Result};
pub use op::{Finish, Order, ReduceOp, Reduction, UserFunction};
pub use view::{CommunicatorId, Generation, Tag, View};
