//! A device, and its primary context.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute, CUpointer_attribute};

use super::driver::Driver;
use crate::types::{Error, Result};

/// A device of this process, with its primary context: the one that PyTorch and the CUDA runtime use too, so that
/// pointers and streams of theirs can be given. Cheap to clone. The context is let go of with the last clone.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    ordinal: usize,
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's calls may be made from any thread; the handle and the context are names, not memory.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.inner.ordinal).finish_non_exhaustive()
    }
}

/// By what a device is known outside of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Its PCI domain, bus and device on its host.
    pub place: [u32; 3],
    /// Its id in the world; zeros where the driver is older than such ids (CUDA 11.4).
    pub uuid: [u8; 16],
}

/// Two are equal when they are the same device of this process.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.inner.ordinal == other.inner.ordinal
    }
}

impl Device {
    /// Opens the device with this number, counted within `CUDA_VISIBLE_DEVICES`. Loads the driver. The first in a
    /// process makes the context, which takes up to a second.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when there is no such number; [`Error::Environment`] when there is no driver, or the
    /// context cannot be made.
    pub fn open(ordinal: usize) -> Result<Self> {
        Self::of(&Driver::load()?, ordinal)
    }

    /// As [`open`](Self::open), with a driver that is loaded.
    ///
    /// # Errors
    ///
    /// As `open`.
    pub fn of(driver: &Driver, ordinal: usize) -> Result<Self> {
        let handle = handle(driver, ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written, the second is a device of this driver.
        let code = unsafe { (driver.calls().cuDevicePrimaryCtxRetain)(&mut context, handle) };
        driver.check("cuDevicePrimaryCtxRetain", code, || format!("device {ordinal}"))?;
        Ok(Self { inner: Arc::new(Inner { driver: driver.clone(), ordinal, handle, context }) })
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> sys::CUdevice {
        self.inner.handle
    }

    /// The primary context, held while this lives.
    pub(super) fn context(&self) -> sys::CUcontext {
        self.inner.context
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    /// The driver it was opened with.
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Its name, such as `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    ///
    /// When the driver cannot say.
    pub fn name(&self) -> Result<String> {
        name(self.driver(), self.inner.handle)
    }

    /// Its compute capability, such as `(9, 0)`.
    ///
    /// # Errors
    ///
    /// When the driver cannot say.
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        compute_capability(self.driver(), self.inner.handle)
    }

    /// How many multiprocessors it has.
    ///
    /// # Errors
    ///
    /// When the driver cannot say.
    pub fn multiprocessors(&self) -> Result<u32> {
        attribute(self.driver(), self.inner.handle, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// By what other processes know it.
    ///
    /// # Errors
    ///
    /// When the driver cannot say.
    pub fn identity(&self) -> Result<DeviceIdentity> {
        let number = |which| attribute(self.driver(), self.inner.handle, which);
        let place = [
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ];
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        if let Some(get) = self.driver().calls().cuDeviceGetUuid_v2 {
            // SAFETY: the first argument points to an id to be written, the second is a device of this driver.
            let code = unsafe { get(&mut uuid, self.inner.handle) };
            self.check("cuDeviceGetUuid_v2", code)?;
        }
        Ok(DeviceIdentity { place, uuid: uuid.bytes.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())) })
    }

    /// Checks that an address is memory of this device.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when it is host memory, another device's, or none that the driver knows.
    pub fn check_pointer(&self, what: &str, pointer: u64) -> Result<()> {
        let _entered = self.enter()?;
        let mut kind: c_uint = 0;
        // SAFETY: the attribute is a number of four bytes, which the first argument points to.
        let code = unsafe {
            (self.driver().calls().cuPointerGetAttribute)(
                (&raw mut kind).cast::<c_void>(),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint,
                pointer,
            )
        };
        let is_device = kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
        if code == sys::CUresult::CUDA_ERROR_INVALID_VALUE as c_uint || (code == 0 && !is_device) {
            return Err(Error::invalid(format_args!(
                "the {what} at {pointer:#x} is not device memory, which device {} expected",
                self.ordinal()
            )));
        }
        self.check("cuPointerGetAttribute", code)?;
        let mut owner: c_int = -1;
        // SAFETY: as above.
        let code = unsafe {
            (self.driver().calls().cuPointerGetAttribute)(
                (&raw mut owner).cast::<c_void>(),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint,
                pointer,
            )
        };
        self.check("cuPointerGetAttribute", code)?;
        if usize::try_from(owner) != Ok(self.ordinal()) {
            return Err(Error::invalid(format_args!(
                "the {what} is memory of device {owner}, but the stream is of device {}",
                self.ordinal()
            )));
        }
        Ok(())
    }

    /// Makes the context the calling thread's own until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        // SAFETY: the context is held by `inner`.
        let code = unsafe { (self.driver().calls().cuCtxPushCurrent_v2)(self.inner.context) };
        self.check("cuCtxPushCurrent_v2", code)?;
        Ok(Entered { device: self, thread: PhantomData })
    }

    /// Turns a result code into an error that names the call, the code and the device.
    pub(super) fn check(&self, call: &'static str, code: c_uint) -> Result<()> {
        self.driver().check(call, code, || format!("device {}", self.ordinal()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once for this value. What it returns can be of no use here.
        unsafe { (self.driver.calls().cuDevicePrimaryCtxRelease_v2)(self.handle) };
    }
}

/// While this lives, the device's context is the thread's.
pub(super) struct Entered<'a> {
    device: &'a Device,
    /// The context is a thread's.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: the argument points to a handle to be written. Nothing can be done if it fails.
        unsafe { (self.device.driver().calls().cuCtxPopCurrent_v2)(&mut left) };
    }
}

/// The driver's handle of a device.
pub(super) fn handle(driver: &Driver, ordinal: usize) -> Result<sys::CUdevice> {
    let count = driver.device_count()?;
    let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let number = number.ok_or_else(|| {
        Error::invalid(format_args!("device {ordinal} given, but this process sees {count} (CUDA_VISIBLE_DEVICES)"))
    })?;
    let mut handle = 0;
    // SAFETY: the first argument points to a handle to be written.
    let code = unsafe { (driver.calls().cuDeviceGet)(&mut handle, number) };
    driver.check("cuDeviceGet", code, || format!("device {ordinal}"))?;
    Ok(handle)
}

pub(super) fn name(driver: &Driver, handle: sys::CUdevice) -> Result<String> {
    let mut text: [std::ffi::c_char; 256] = [0; 256];
    // SAFETY: the first argument points to as many bytes as the second says.
    let code = unsafe { (driver.calls().cuDeviceGetName)(text.as_mut_ptr(), text.len() as c_int - 1, handle) };
    driver.check("cuDeviceGetName", code, String::new)?;
    // SAFETY: the last byte is zero, whatever was written before it.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

pub(super) fn attribute(driver: &Driver, handle: sys::CUdevice, which: CUdevice_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the first argument points to a number to be written.
    let code = unsafe { (driver.calls().cuDeviceGetAttribute)(&mut value, which as c_uint, handle) };
    driver.check("cuDeviceGetAttribute", code, || format!("{which:?}"))?;
    Ok(u32::try_from(value).unwrap_or_default())
}

pub(super) fn compute_capability(driver: &Driver, handle: sys::CUdevice) -> Result<(u32, u32)> {
    Ok((
        attribute(driver, handle, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(driver, handle, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}
