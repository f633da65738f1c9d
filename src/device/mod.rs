//! NVIDIA GPUs: buffers, streams, kernels, and the steps by which a collective reaches device memory.
//!
//! Everything is found at run time. [`Driver`] loads the driver's library and looks up every call that is made of it,
//! so that a machine without one, or with an older one, gives a sentence that names what is missing. [`Device`] holds a
//! device's primary context, the one that PyTorch and other programs of the CUDA runtime use too; on it live
//! [`DeviceBuffer`], [`Stream`] and [`Event`]. [`Kernels`] has the text of the kernels (`sources`), compiles it through
//! NVRTC (`compiler`) at first use and keeps what came of it (`cache`), or takes a file that was compiled elsewhere;
//! what the driver is given was looked through before (`image`). [`Arithmetic`] launches them; `peers` has those that
//! combine what lies in the memory of several ranks.
//!
//! [`Stager`] is how any transport carries device memory: pinned slots, a stream for the way out and one for the way
//! in. Device code stands below the communicator, which drives it (`comm/device`).
//!
//! With the feature `nccl`, [`nccl`] has the communicators of NCCL, which carry a whole collective themselves.
//!
//! A failed call is an error with the call, the code's name and what to do about it (`codes`); nothing here panics.
//! Waits have deadlines: a device is asked again and again whether an event has come, since the driver's own wait has
//! none.

mod arithmetic;
mod buffer;
mod cache;
mod codes;
mod compiler;
mod context;
mod driver;
mod examine;
mod image;
mod libraries;
mod module;
#[cfg(feature = "nccl")]
pub mod nccl;
pub(crate) mod peers;
mod pinned;
mod slice;
mod sources;
mod staging;
mod stream;

pub use arithmetic::{Arithmetic, Eighth, Pieces};
pub use buffer::DeviceBuffer;
pub use cache::Cache;
pub use compiler::{Compiled, Compiler};
pub use context::{Device, DeviceIdentity};
pub use driver::Driver;
pub use examine::{DeviceSeen, DevicesSeen, examine};
pub use module::{Kernel, Kernels, KernelsFrom, LaunchShape};
pub use pinned::PinnedBuffer;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use sources::Part;
pub use staging::{Segment, Stager};
pub use stream::{Event, Stream};
