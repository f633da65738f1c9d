//! What there is of devices, for `doctor`.

use cudarc::driver::sys::CUdevice_attribute;
use serde::Serialize;

use super::compiler::Compiler;
use super::context;
use super::driver::Driver;
use super::module;
use crate::types::Result;

/// One device.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct DeviceSeen {
    /// Its number in this process.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: (u32, u32),
    /// Its memory in bytes.
    pub memory: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Whether it shares the host's memory and has none of its own.
    pub integrated: bool,
    /// The devices whose memory it reaches directly.
    pub peers: Vec<usize>,
    /// Whether a network card can be given its memory (dma-buf).
    pub dma_buf: bool,
    /// Where its kernels would come from, in words; or why there would be none.
    pub kernels: std::result::Result<String, String>,
}

/// Everything about devices on this machine.
#[derive(Clone, Debug, Serialize, Default)]
pub struct DevicesSeen {
    /// The driver's library, and the version of CUDA it supports.
    pub driver: Option<(String, String)>,
    /// The devices that this process sees.
    pub devices: Vec<DeviceSeen>,
    /// Why there is no driver, or why the devices cannot be told.
    pub error: Option<String>,
    /// NVRTC's library and version.
    pub compiler: Option<(String, String)>,
    /// Why there is no compiler.
    pub compiler_error: Option<String>,
    /// NCCL's library and version.
    pub nccl: Option<(String, String)>,
    /// Why there is no NCCL, or why it cannot be used.
    pub nccl_error: Option<String>,
}

/// Looks at the devices. Makes no context on them; takes some tens of milliseconds, more where the driver has to wake
/// the devices first.
pub fn examine() -> DevicesSeen {
    let mut seen = DevicesSeen::default();
    match Driver::load() {
        Ok(driver) => {
            seen.driver = Some((driver.library().to_owned(), driver.version()));
            match devices(&driver) {
                Ok(devices) => seen.devices = devices,
                Err(error) => seen.error = Some(error.to_string()),
            }
        }
        Err(error) => seen.error = Some(error.to_string()),
    }
    match Compiler::load() {
        Ok(compiler) => seen.compiler = Some((compiler.library().to_owned(), compiler.version())),
        Err(error) => seen.compiler_error = Some(error.to_string()),
    }
    #[cfg(feature = "nccl")]
    match super::nccl::Library::load() {
        Ok(library) => seen.nccl = Some((library.library().to_owned(), library.version().to_string())),
        Err(error) => seen.nccl_error = Some(error.to_string()),
    }
    #[cfg(not(feature = "nccl"))]
    {
        seen.nccl_error = Some("not built in: build with the feature nccl".into());
    }
    seen
}

fn devices(driver: &Driver) -> Result<Vec<DeviceSeen>> {
    let count = driver.device_count()?;
    (0..count).map(|ordinal| device(driver, ordinal, count)).collect()
}

fn device(driver: &Driver, ordinal: usize, count: usize) -> Result<DeviceSeen> {
    let handle = context::handle(driver, ordinal)?;
    let mut memory = 0usize;
    // SAFETY: the first argument points to a number to be written.
    let code = unsafe { (driver.calls().cuDeviceTotalMem_v2)(&mut memory, handle) };
    driver.check("cuDeviceTotalMem_v2", code, || format!("device {ordinal}"))?;
    let mut peers = Vec::new();
    for other in (0..count).filter(|&other| other != ordinal) {
        let mut reaches = 0;
        // SAFETY: the first argument points to a number to be written, the others are devices of this driver.
        let code =
            unsafe { (driver.calls().cuDeviceCanAccessPeer)(&mut reaches, handle, context::handle(driver, other)?) };
        driver.check("cuDeviceCanAccessPeer", code, || format!("devices {ordinal} and {other}"))?;
        if reaches != 0 {
            peers.push(other);
        }
    }
    // What an older driver does not know, it does not have.
    let has = |which| context::attribute(driver, handle, which).is_ok_and(|value| value != 0);
    let compute_capability = context::compute_capability(driver, handle)?;
    Ok(DeviceSeen {
        ordinal,
        name: context::name(driver, handle)?,
        compute_capability,
        memory: memory as u64,
        multiprocessors: context::attribute(
            driver,
            handle,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )?,
        integrated: has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
        peers,
        dma_buf: has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
        kernels: module::look(compute_capability)
            .map(|origins| origins.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
            .map_err(|error| error.to_string()),
    })
}
