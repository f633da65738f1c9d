//! Host memory that the system does not page out, so that a device copies to and from it on its own.

use std::any::Any;
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
    /// What owns the bytes where the driver does not.
    owner: Option<Box<dyn Any + Send>>,
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
        Ok(Self { device: device.clone(), start, bytes, owner: None })
    }

    /// Pins memory that `owner` owns, for as long as this lives; `owner` is dropped after that.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when the system does not let it be pinned. `owner` is dropped then.
    ///
    /// # Safety
    ///
    /// The `bytes` from `start` on must be readable, writable and nobody else's until `owner` is dropped, and no copy may
    /// be under way with them when this is.
    pub unsafe fn pin(device: &Device, start: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send>) -> Result<Self> {
        let _entered = device.enter()?;
        // SAFETY: the memory is there, by the caller's promise.
        let code =
            unsafe { (device.driver().calls().cuMemHostRegister_v2)(start.as_ptr().cast::<c_void>(), bytes, PORTABLE) };
        device.driver().check("cuMemHostRegister_v2", code, || format!("{bytes} bytes of host memory"))?;
        Ok(Self { device: device.clone(), start, bytes, owner: Some(owner) })
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
        let (calls, start) = (self.device.driver().calls(), self.start.as_ptr().cast::<c_void>());
        match (self.device.enter(), self.owner.take()) {
            // SAFETY: allocated by `new`. The driver waits for copies that use it.
            (Ok(_entered), None) => _ = unsafe { (calls.cuMemFreeHost)(start) },
            // SAFETY: pinned by `pin`, whose caller answers for copies. The owner is dropped after that.
            (Ok(_entered), Some(_owner)) => _ = unsafe { (calls.cuMemHostUnregister)(start) },
            // Memory that stays pinned must not become another's.
            (Err(_), owner) => std::mem::forget(owner),
        }
    }
}
