//! What Phalanx asks of Linux: thin safe wrappers, and the home of `unsafe`.
//!
//! Memory that two processes share ([`Segment`], [`Mapping`], [`RingMapping`]) is anonymous: a memfd has no name in any
//! file system, so no size limit of a container's `/dev/shm` applies to it and nothing is left over after a crash.
//! Sleeping is done on a word of such memory ([`futex`]) or on descriptors ([`Epoll`], [`EventFd`]). Descriptors
//! travel over Unix sockets in the abstract namespace ([`unix`]), which have no file either. [`process`] tells how
//! many processors this process may use and holds other processes by pidfd; [`siblings`] tries whether processes may read each
//! other; [`network`] lists interfaces and [`socket`] has the calls of TCP; a child made by `fork` does not keep what is
//! [`Uninherited`]; [`library`] loads what is found at run time, as `verbs` (feature `rdma`) does; [`host`] says which
//! members share a host; [`points`] is where tests have a process fail.

mod epoll;
mod fork;
pub mod futex;
pub mod host;
pub mod library;
mod memory;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod network;
pub mod points;
pub mod process;
pub mod siblings;
pub mod socket;
pub mod unix;
#[cfg(feature = "rdma")]
pub mod verbs;

pub use epoll::{Epoll, EventFd, Interest, Readiness};
pub use fork::Uninherited;
pub use host::HostIdentity;
pub use memory::{Mapping, RingMapping, Segment, memory_bytes, page_bytes};
