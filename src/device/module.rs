//! Kernels on a device: compiled at first use, loaded, launched.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;

use super::cache::Cache;
use super::compiler::Compiler;
use super::context::Device;
use super::stream::Stream;
use crate::types::{Error, Result};

/// Blocks and threads of a launch, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// A set of kernels on a device, unloaded when dropped.
pub struct Kernels {
    device: Device,
    module: sys::CUmodule,
    found: Mutex<HashMap<String, Kernel>>,
}

/// A kernel of a set. Of use while the set lives.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    function: sys::CUfunction,
}

// SAFETY: the driver's calls may be made from any thread; the handle is a name, not memory.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}
// SAFETY: as above.
unsafe impl Send for Kernel {}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Kernels {
    /// Compiles `source` for the device, or takes what `cache` has of an earlier run. Seconds the first time.
    ///
    /// # Errors
    ///
    /// When there is no compiler, the source does not compile, or the device does not take the result.
    pub fn compile(device: &Device, source: &str, headers: &[(&str, &str)], cache: &Cache) -> Result<Self> {
        let (major, minor) = device.compute_capability()?;
        let architecture = major * 10 + minor;
        let compiler = Compiler::load()?;
        let options = ["--std=c++17", "--device-as-default-execution-space"].map(str::to_owned);
        let (version, target) = (compiler.version(), format!("sm_{architecture}"));
        let mut ingredients: Vec<&[u8]> = vec![version.as_bytes(), target.as_bytes(), source.as_bytes()];
        ingredients.extend(options.iter().map(|option| option.as_bytes()));
        ingredients.extend(headers.iter().flat_map(|(name, content)| [name.as_bytes(), content.as_bytes()]));
        let binary = cache.get(&ingredients, || compiler.compile(source, headers, architecture, &options))?;
        Self::load(device, &binary)
    }

    /// Loads a compiled set: a cubin or fatbin.
    ///
    /// # Errors
    ///
    /// When it has no code for this device, or is none.
    pub fn load(device: &Device, binary: &[u8]) -> Result<Self> {
        // The driver reads the length from the content, which has to be whole: a content that is cut short would let
        // it read on. Both forms begin with a word that tells them.
        const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
        if !(binary.starts_with(b"\x7fELF") || binary.starts_with(&FATBIN)) {
            return Err(Error::environment(
                format_args!("{} bytes given as compiled kernels are neither a cubin nor a fatbin", binary.len()),
                "build the kernels again",
            ));
        }
        let _entered = device.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written, the second to a whole content.
        let code = unsafe { (device.driver().calls().cuModuleLoadData)(&mut module, binary.as_ptr().cast::<c_void>()) };
        device.check("cuModuleLoadData", code)?;
        Ok(Self { device: device.clone(), module, found: Mutex::new(HashMap::new()) })
    }

    /// The kernel of this name.
    ///
    /// # Errors
    ///
    /// When the set has none.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&kernel) = found.get(name) {
            return Ok(kernel);
        }
        let text = CString::new(name).map_err(|_| Error::invalid("the name of a kernel with a zero byte"))?;
        let _entered = self.device.enter()?;
        let mut function = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written, the last to a text that ends with a zero byte.
        let code =
            unsafe { (self.device.driver().calls().cuModuleGetFunction)(&mut function, self.module, text.as_ptr()) };
        self.device.driver().check("cuModuleGetFunction", code, || format!("kernel {name}"))?;
        let kernel = Kernel { function };
        found.insert(name.to_owned(), kernel);
        Ok(kernel)
    }

    /// Puts a launch on a stream. Does not wait.
    ///
    /// # Errors
    ///
    /// When the driver refuses. What goes wrong while it runs is told by later calls.
    ///
    /// # Safety
    ///
    /// `kernel` must be of this set and take one parameter of the type `P`, laid out as in C; the memory that it names
    /// must be valid until the launch is done.
    pub unsafe fn launch<P: Copy>(
        &self,
        kernel: Kernel,
        shape: LaunchShape,
        parameter: &P,
        stream: &Stream,
    ) -> Result<()> {
        let _entered = self.device.enter()?;
        let mut parameters = [ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise. The driver copies the parameter before it returns.
        let code = unsafe {
            (self.device.driver().calls().cuLaunchKernel)(
                kernel.function,
                shape.blocks,
                1,
                1,
                shape.threads,
                1,
                1,
                0,
                stream.handle(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.device.check("cuLaunchKernel", code)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: loaded by `load`, and not used again.
            unsafe { (self.device.driver().calls().cuModuleUnload)(self.module) };
        }
    }
}
