//! Host memory that the system does not page out, so that a device copies to and from it on its own.

use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;

use super::context::Device;
use crate::types::{Error, Result};

/// Usable from every context of the process.
const PORTABLE: c_uint = 1;

/// Bytes of pinned memory, freed when dropped.
pub struct PinnedBuffer {
    device: Device,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its bytes.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    /// So many bytes, at least one, not written.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when the system does not lend so much.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1);
        let _entered = device.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the first argument points to an address to be written.
        let code = unsafe { (device.driver().calls().cuMemHostAlloc)(&mut start, bytes, PORTABLE) };
        device.driver().check("cuMemHostAlloc", code, || format!("{bytes} bytes of pinned host memory"))?;
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or_else(|| Error::internal("the driver gave pinned memory at address 0"))?;
        Ok(Self { device: device.clone(), start, bytes })
    }

    /// Its first byte.
    pub fn pointer(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: allocated by `new`. The driver waits for copies that use it.
            unsafe { (self.device.driver().calls().cuMemFreeHost)(self.start.as_ptr().cast::<c_void>()) };
        }
    }
}
