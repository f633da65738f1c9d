//! Arithmetic on device memory, by the kernels, to the bits of the host's.
//!
//! [`Arithmetic`] launches kernels on a stream and does not wait. What it is given is checked before: lengths, the
//! device, and that what is written lies apart from what is read. The work comes after what is on the stream; whoever
//! uses the memory on another stream makes that one wait ([`Stream::wait_for`]). Memory may be freed at any time, since
//! the driver waits for what uses it.
//!
//! `reduce` combines and scales, `moves` casts and packs, `adasum` and `quantize` are what their names say, `count` counts
//! wrong elements. `parameters` has what the kernels take.

mod adasum;
mod count;
mod moves;
pub(super) mod parameters;
mod quantize;
mod reduce;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::context::Device;
use super::module::{Kernels, LaunchShape};
use super::slice::{DeviceSlice, DeviceSliceMut};
use super::stream::Stream;
use crate::types::{Element, Error, Result};

pub use moves::{Eighth, Pieces};
pub(super) use reduce::reduce_kernel;

/// Bytes that a thread moves at once.
const VECTOR: usize = 16;

/// What the kernels can do, on one device. Cheap to clone.
#[derive(Clone)]
pub struct Arithmetic {
    kernels: Arc<Kernels>,
}

impl fmt::Debug for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arithmetic").field("device", self.device()).finish_non_exhaustive()
    }
}

impl Arithmetic {
    /// Opens the kernels of a device, see [`Kernels::open`]. The first launch of a kind may have to wait for the
    /// compiler.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub fn open(device: &Device) -> Result<Self> {
        Ok(Self { kernels: Kernels::open(device)? })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.kernels.device()
    }

    /// Launches a kernel in the shape that is wanted for so many items.
    ///
    /// # Safety
    ///
    /// `P` must be what the kernel takes, and the memory that it names valid until the launch is done.
    unsafe fn launch<P: Copy>(&self, name: &str, items: usize, parameters: &P, stream: &Stream) -> Result<()> {
        let shape = self.kernels.shape(items as u64);
        // SAFETY: the caller's promise.
        unsafe { self.launch_shaped(name, shape, parameters, stream) }
    }

    /// Launches a kernel of which each block takes whole runs.
    ///
    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    unsafe fn launch_runs<P: Copy>(&self, name: &str, runs: usize, parameters: &P, stream: &Stream) -> Result<()> {
        let shape = self.kernels.shape(runs as u64 * u64::from(super::sources::THREADS));
        // SAFETY: the caller's promise.
        unsafe { self.launch_shaped(name, shape, parameters, stream) }
    }

    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    unsafe fn launch_shaped<P: Copy>(
        &self,
        name: &str,
        shape: LaunchShape,
        parameters: &P,
        stream: &Stream,
    ) -> Result<()> {
        let kernel = self.kernels.kernel(name)?;
        // SAFETY: the caller's promise.
        unsafe { self.kernels.launch(kernel, shape, parameters, stream) }
    }

    fn check_stream(&self, stream: &Stream) -> Result<()> {
        if stream.device() == self.device() {
            return Ok(());
        }
        Err(Error::invalid(format_args!(
            "a stream of device {} given for arithmetic on device {}",
            stream.device().ordinal(),
            self.device().ordinal()
        )))
    }

    /// Checks that memory is this device's and has so many elements.
    fn check<T: Element>(&self, what: &str, given: &impl AnySlice<T>, count: usize) -> Result<()> {
        if given.count() != count {
            return Err(Error::invalid(format_args!("{what}: {} elements given, {count} expected", given.count())));
        }
        if count > 0 && given.owner() != self.device() {
            return Err(Error::invalid(format_args!(
                "{what}: memory of device {} given for arithmetic on device {}",
                given.owner().ordinal(),
                self.device().ordinal()
            )));
        }
        Ok(())
    }
}

/// Of slices of either kind, what checks look at.
trait AnySlice<T> {
    fn count(&self) -> usize;
    fn owner(&self) -> &Device;
}

impl<T: Element> AnySlice<T> for DeviceSlice<'_, T> {
    fn count(&self) -> usize {
        self.len()
    }
    fn owner(&self) -> &Device {
        self.device()
    }
}

impl<T: Element> AnySlice<T> for DeviceSliceMut<'_, T> {
    fn count(&self) -> usize {
        self.len()
    }
    fn owner(&self) -> &Device {
        self.device()
    }
}

/// Checks that what is written lies apart from everything else, each told by name and addresses. Slices of safe code
/// cannot overlap; those of foreign memory can.
fn check_apart(written: (&str, Range<u64>), others: &[(&str, Range<u64>)]) -> Result<()> {
    let overlaps = |(_, other): &&(&str, Range<u64>)| written.1.start.max(other.start) < written.1.end.min(other.end);
    match others.iter().find(overlaps) {
        None => Ok(()),
        Some((what, _)) => Err(Error::invalid(format_args!("{} and {what} overlap, and must lie apart", written.0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_apart_and_what_shares_a_byte_is_not() {
        for (start, end, is_apart) in [(0, 10, true), (0, 11, false), (20, 30, true), (19, 30, false), (12, 14, false)]
        {
            assert_eq!(check_apart(("the target", 10..20), &[("source 0", start..end)]).is_ok(), is_apart, "{start}");
        }
        // Nothing overlaps nothing.
        check_apart(("the target", 0..0), &[("source 0", 0..0)]).unwrap();
    }
}
