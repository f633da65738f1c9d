//! Memory of another rank, mapped here.

use std::sync::OnceLock;

use cudarc::driver::sys;

use super::arena::Arena;
use crate::device::buffer::DeviceBuffer;
use crate::device::context::Device;
use crate::types::{Error, Result};

/// Bytes of a handle.
const HANDLE_BYTES: usize = 64;

/// Reaching the other device is enabled when its memory is opened.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

/// Says that one device reached the other before.
const ALREADY_ENABLED: u32 = sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32;

/// What tells this process from all others: its number may be another one's in another container.
fn process() -> [u8; 16] {
    static PROCESS: OnceLock<[u8; 16]> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let mut id = [0; 16];
        if getrandom::fill(&mut id).is_err() {
            // Unlike everybody else's on this host but for other containers.
            id[..4].copy_from_slice(&std::process::id().to_le_bytes());
        }
        id
    })
}

/// What others need to know of a rank's memory to map it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exported {
    /// The process it is in.
    pub process: [u8; 16],
    /// The device's number in that process.
    pub ordinal: u32,
    base: u64,
    /// Where its flags are.
    flags_at: u64,
    handle: [u8; HANDLE_BYTES],
}

impl Exported {
    /// Bytes of an encoded one.
    pub const BYTES: usize = 16 + 4 + 8 + 8 + HANDLE_BYTES;

    /// Of memory that is an allocation of its own.
    pub(super) fn of(memory: &DeviceBuffer<u8>, flags_at: u64) -> Result<Self> {
        let device = memory.device();
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        let _entered = device.enter()?;
        // SAFETY: the first argument points to a handle to be written, the second is an allocation.
        let code = unsafe { (device.driver().calls().cuIpcGetMemHandle)(&mut handle, memory.pointer()) };
        device.check("cuIpcGetMemHandle", code)?;
        Ok(Self {
            process: process(),
            ordinal: u32::try_from(device.ordinal()).unwrap_or(u32::MAX),
            base: memory.pointer(),
            flags_at,
            // The sign of a character is the processor's business.
            handle: handle.reserved.map(|byte| byte.to_ne_bytes()[0]),
        })
    }

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.process);
        bytes[16..20].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.base.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.flags_at.to_le_bytes());
        bytes[36..].copy_from_slice(&self.handle);
        bytes
    }

    /// Reads one.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let part = |from: usize| -> [u8; 8] { std::array::from_fn(|at| bytes[from + at]) };
        Self {
            process: std::array::from_fn(|at| bytes[at]),
            ordinal: u32::from_le_bytes(std::array::from_fn(|at| bytes[16 + at])),
            base: u64::from_le_bytes(part(20)),
            flags_at: u64::from_le_bytes(part(28)),
            handle: std::array::from_fn(|at| bytes[36 + at]),
        }
    }
}

/// Another rank's memory as this process names it; let go of when dropped.
#[derive(Debug)]
pub(crate) struct Mapped {
    device: Device,
    base: u64,
    flags_at: u64,
    is_opened: bool,
    /// In the same process: the device that has it.
    owner: Option<Device>,
}

impl Mapped {
    /// Maps it.
    ///
    /// # Errors
    ///
    /// When the device does not reach that one, or the system does not let processes share device memory.
    pub fn open(device: &Device, exported: &Exported) -> Result<Self> {
        // Kernels look there.
        if !Arena::is_row(exported.flags_at) {
            return Err(Error::internal("a rank told of flags where none can be"));
        }
        if exported.process == process() { Self::own(device, exported) } else { Self::of_process(device, exported) }
    }

    /// Memory of this process, under its own name.
    fn own(device: &Device, exported: &Exported) -> Result<Self> {
        let owner = Device::of(device.driver(), exported.ordinal as usize)?;
        if owner != *device {
            device.reach(&owner)?;
        }
        Ok(Self {
            device: device.clone(),
            base: exported.base,
            flags_at: exported.flags_at,
            is_opened: false,
            owner: Some(owner),
        })
    }

    fn of_process(device: &Device, exported: &Exported) -> Result<Self> {
        let handle = sys::CUipcMemHandle { reserved: exported.handle.map(|byte| byte as std::ffi::c_char) };
        let mut base = 0;
        let _entered = device.enter()?;
        // SAFETY: the first argument points to an address to be written. A handle that is none is refused by the
        // driver.
        let code =
            unsafe { (device.driver().calls().cuIpcOpenMemHandle_v2)(&mut base, handle, LAZY_ENABLE_PEER_ACCESS) };
        device.check("cuIpcOpenMemHandle_v2", code)?;
        Ok(Self { device: device.clone(), base, flags_at: exported.flags_at, is_opened: true, owner: None })
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn flags_at(&self) -> u64 {
        self.flags_at
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.is_opened
            && let Ok(_entered) = self.device.enter()
        {
            // SAFETY: opened by `of_process`, and not used again: what was launched with it is done.
            unsafe { (self.device.driver().calls().cuIpcCloseMemHandle)(self.base) };
        }
        self.owner = None;
    }
}

impl Device {
    /// Lets kernels of this device use memory of another one of this process.
    fn reach(&self, other: &Self) -> Result<()> {
        let mut reaches = 0;
        // SAFETY: the first argument points to a number to be written, the others are devices of this driver.
        let code =
            unsafe { (self.driver().calls().cuDeviceCanAccessPeer)(&mut reaches, self.handle(), other.handle()) };
        self.check("cuDeviceCanAccessPeer", code)?;
        if reaches == 0 {
            return Err(Error::environment(
                format_args!("device {} does not reach the memory of device {}", self.ordinal(), other.ordinal()),
                "see nvidia-smi topo -m",
            ));
        }
        let _entered = self.enter()?;
        // SAFETY: the context is held by `other`; no flag is defined.
        let code = unsafe { (self.driver().calls().cuCtxEnablePeerAccess)(other.context(), 0) };
        if code == ALREADY_ENABLED { Ok(()) } else { self.check("cuCtxEnablePeerAccess", code) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_memory_survives_the_way() {
        let exported = Exported {
            process: process(),
            ordinal: 7,
            base: 0x7f00_1234_5678_9abc,
            flags_at: 77,
            handle: std::array::from_fn(|at| at as u8 ^ 0x5a),
        };
        assert_eq!(Exported::decode(&exported.encode()), exported);
        assert_eq!(process(), process());
    }
}
