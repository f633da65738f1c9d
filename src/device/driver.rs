//! The driver's library and its calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;

use super::codes;
use super::context::handle;
use super::libraries::{self, calls};
use crate::sys::library::Library;
use crate::types::{Error, Result};

/// A result code of the driver. A plain number, since a newer driver may return codes that no list here has.
pub(super) type Code = c_uint;

calls! {
    /// What is called of the driver.
    pub(super) struct Calls, "the CUDA driver library";
    required {
        cuInit(c_uint) -> Code;
        cuDriverGetVersion(*mut c_int) -> Code;
        cuDeviceGetCount(*mut c_int) -> Code;
        cuDeviceGet(*mut sys::CUdevice, c_int) -> Code;
        cuDeviceGetName(*mut c_char, c_int, sys::CUdevice) -> Code;
        cuDeviceGetAttribute(*mut c_int, c_uint, sys::CUdevice) -> Code;
        cuDeviceTotalMem_v2(*mut usize, sys::CUdevice) -> Code;
        cuDeviceCanAccessPeer(*mut c_int, sys::CUdevice, sys::CUdevice) -> Code;
        cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice) -> Code;
        cuDevicePrimaryCtxRelease_v2(sys::CUdevice) -> Code;
        cuCtxPushCurrent_v2(sys::CUcontext) -> Code;
        cuCtxPopCurrent_v2(*mut sys::CUcontext) -> Code;
        cuCtxGetDevice(*mut sys::CUdevice) -> Code;
        cuMemAlloc_v2(*mut sys::CUdeviceptr, usize) -> Code;
        cuMemFree_v2(sys::CUdeviceptr) -> Code;
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> Code;
        cuMemFreeHost(*mut c_void) -> Code;
        cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> Code;
        cuMemHostUnregister(*mut c_void) -> Code;
        cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream) -> Code;
        cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream) -> Code;
        cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream) -> Code;
        cuCtxEnablePeerAccess(sys::CUcontext, c_uint) -> Code;
        cuIpcGetMemHandle(*mut sys::CUipcMemHandle, sys::CUdeviceptr) -> Code;
        cuIpcOpenMemHandle_v2(*mut sys::CUdeviceptr, sys::CUipcMemHandle, c_uint) -> Code;
        cuIpcCloseMemHandle(sys::CUdeviceptr) -> Code;
        cuStreamCreate(*mut sys::CUstream, c_uint) -> Code;
        cuStreamDestroy_v2(sys::CUstream) -> Code;
        cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint) -> Code;
        cuEventCreate(*mut sys::CUevent, c_uint) -> Code;
        cuEventDestroy_v2(sys::CUevent) -> Code;
        cuEventRecord(sys::CUevent, sys::CUstream) -> Code;
        cuEventQuery(sys::CUevent) -> Code;
        cuModuleLoadData(*mut sys::CUmodule, *const c_void) -> Code;
        cuModuleUnload(sys::CUmodule) -> Code;
        cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char) -> Code;
        cuLaunchKernel(
            sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream, *mut *mut c_void,
            *mut *mut c_void,
        ) -> Code;
        cuPointerGetAttribute(*mut c_void, c_uint, sys::CUdeviceptr) -> Code;
    }
    optional {
        cuGetErrorName(Code, *mut *const c_char) -> Code;
        cuDeviceGetUuid_v2(*mut sys::CUuuid, sys::CUdevice) -> Code;
    }
}

/// The CUDA driver of this machine, loaded. Cheap to clone; the library is loaded once by the system however often this
/// is.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

struct Inner {
    calls: Calls,
    library: Library,
    version: c_int,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("library", &self.inner.library.name).field("version", &self.version()).finish()
    }
}

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when there is none, when it lacks a call that is needed, or when it cannot be initialised:
    /// no device, no permission, a kernel module of another version.
    pub fn load() -> Result<Self> {
        let library = libraries::open(&libraries::DRIVER)?;
        let calls = Calls::find(&library)?;
        let mut driver = Self { inner: Arc::new(Inner { calls, library, version: 0 }) };
        // SAFETY: no flag is defined.
        driver.check("cuInit", unsafe { (driver.calls().cuInit)(0) }, || "initialising the driver".into())?;
        let mut version = 0;
        // SAFETY: the argument points to an integer to be written.
        let code = unsafe { (driver.calls().cuDriverGetVersion)(&mut version) };
        driver.check("cuDriverGetVersion", code, String::new)?;
        if let Some(inner) = Arc::get_mut(&mut driver.inner) {
            inner.version = version;
        }
        Ok(driver)
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.inner.calls
    }

    /// The file or name that was loaded.
    pub fn library(&self) -> &str {
        &self.inner.library.name
    }

    /// The version of CUDA that it supports, such as `12.8`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.inner.version / 1000, self.inner.version % 1000 / 10)
    }

    /// How many devices it has for this process.
    ///
    /// # Errors
    ///
    /// When the driver cannot say.
    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the argument points to an integer to be written.
        let code = unsafe { (self.calls().cuDeviceGetCount)(&mut count) };
        self.check("cuDeviceGetCount", code, String::new)?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// The number of the device that the calling thread uses; `None` when it uses none yet.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    pub fn current_device(&self) -> Result<Option<usize>> {
        let mut current: sys::CUdevice = 0;
        // SAFETY: the argument points to a device to be written.
        let code = unsafe { (self.calls().cuCtxGetDevice)(&mut current) };
        if code == sys::CUresult::CUDA_ERROR_INVALID_CONTEXT as c_uint {
            return Ok(None);
        }
        self.check("cuCtxGetDevice", code, String::new)?;
        for ordinal in 0..self.device_count()? {
            if handle(self, ordinal)? == current {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    /// The number of the device that has the memory at an address; `None` when the driver knows no such memory. Addresses
    /// are the process's, so that no context need be the thread's for it, and none is made.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    pub fn owner_of(&self, pointer: u64) -> Result<Option<usize>> {
        let mut owner: c_int = -1;
        // SAFETY: the attribute is a number of four bytes, which the first argument points to.
        let code = unsafe {
            (self.calls().cuPointerGetAttribute)(
                (&raw mut owner).cast::<c_void>(),
                sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint,
                pointer,
            )
        };
        if code == sys::CUresult::CUDA_ERROR_INVALID_VALUE as c_uint {
            return Ok(None);
        }
        self.check("cuPointerGetAttribute", code, || format!("the memory at {pointer:#x}"))?;
        Ok(usize::try_from(owner).ok())
    }

    /// Turns a result code into an error that names the call, the code and `about`.
    pub(super) fn check(&self, call: &'static str, code: Code, about: impl FnOnce() -> String) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.error(call, code, &about()))
    }

    fn error(&self, call: &'static str, code: Code, about: &str) -> Error {
        codes::driver_error(call, code, self.name_of(code).as_deref(), about)
    }

    /// What the driver itself calls a code.
    fn name_of(&self, code: Code) -> Option<String> {
        let get = self.calls().cuGetErrorName?;
        let mut name = std::ptr::null();
        // SAFETY: the argument points to a pointer to be written: null, or a text that lives as long as the library.
        unsafe {
            if get(code, &mut name) != 0 || name.is_null() {
                return None;
            }
            Some(CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }
}
