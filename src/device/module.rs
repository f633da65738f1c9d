//! Kernels on a device: found or compiled at first use, loaded, launched.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_void};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys;

use super::cache::Cache;
use super::compiler::Compiler;
use super::context::Device;
use super::image;
use super::sources::{self, Part, THREADS};
use super::stream::Stream;
use crate::bootstrap::{KERNELS, Variables};
use crate::types::{Error, Result};

/// Blocks that fill a multiprocessor: the most threads that any has are 2048.
const FULL: u32 = 2048 / THREADS;

/// Blocks and threads of a launch, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// The kernels on a device, unloaded when dropped.
pub struct Kernels {
    device: Device,
    multiprocessors: u32,
    found: Found,
    modules: Mutex<HashMap<Part, sys::CUmodule>>,
    known: Mutex<HashMap<String, Kernel>>,
}

/// A kernel. Of use while the set lives.
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

/// Where kernels come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelsFrom {
    /// The file in `PHALANX_KERNELS`.
    File(PathBuf),
    /// A file that an earlier run has left.
    Cache(PathBuf),
    /// The compiler, in this library and version.
    Compiler(String),
}

impl fmt::Display for KernelsFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "the file {} (PHALANX_KERNELS)", file.display()),
            Self::Cache(file) => write!(f, "compiled by an earlier run ({})", file.display()),
            Self::Compiler(compiler) => write!(f, "NVRTC {compiler}, at first use"),
        }
    }
}

/// What there is to take kernels from.
enum Found {
    File(PathBuf, Vec<u8>),
    Compiler { compiler: Compiler, cache: Cache, architecture: u32 },
}

impl Found {
    /// Looks for what is used on devices of an architecture such as 90.
    fn look(architecture: u32) -> Result<Self> {
        if let Some(file) = Variables::of_process().get(KERNELS.name).map(PathBuf::from) {
            let about = |error: &dyn fmt::Display| {
                Error::environment(
                    format_args!("{}={}: {error}", KERNELS.name, file.display()),
                    "name a fatbin that kernels/build.py has written, or unset it: then NVRTC compiles them",
                )
            };
            let content = fs::read(&file).map_err(|error| about(&error))?;
            image::check(&content).map_err(|error| about(&error))?;
            return Ok(Self::File(file, content));
        }
        let compiler = Compiler::load()?;
        compiler.check_architecture(architecture)?;
        Ok(Self::Compiler { compiler, cache: Cache::of_user()?, architecture })
    }

    /// Where a part comes from.
    fn origin(&self, part: Part) -> KernelsFrom {
        match self {
            Self::File(file, _) => KernelsFrom::File(file.clone()),
            Self::Compiler { compiler, cache, architecture } => {
                match with_ingredients(compiler, *architecture, part, |ingredients| cache.find(ingredients)) {
                    Some(file) => KernelsFrom::Cache(file),
                    None => KernelsFrom::Compiler(format!("{} ({})", compiler.version(), compiler.library())),
                }
            }
        }
    }

    /// A part, compiled.
    fn content(&self, part: Part) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::File(_, content) => Ok(Cow::Borrowed(content)),
            Self::Compiler { compiler, cache, architecture } => {
                let make = || Ok(compiler.compile_kernels(part, *architecture)?.binary);
                let get = |ingredients: &[&[u8]]| cache.get(ingredients, make);
                with_ingredients(compiler, *architecture, part, get).map(Cow::Owned)
            }
        }
    }
}

/// Hands over what the compiled form depends on.
fn with_ingredients<T>(compiler: &Compiler, architecture: u32, part: Part, then: impl FnOnce(&[&[u8]]) -> T) -> T {
    let (version, target) = (compiler.version(), format!("sm_{architecture}"));
    let mut ingredients: Vec<&[u8]> = vec![version.as_bytes(), target.as_bytes(), part.option().as_bytes()];
    ingredients.extend(sources::OPTIONS.iter().map(|option| option.as_bytes()));
    ingredients.push(sources::SOURCE.as_bytes());
    ingredients.extend(sources::HEADERS.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]));
    then(&ingredients)
}

/// Where kernels for devices of an architecture would come from, part by part. Compiles nothing.
///
/// # Errors
///
/// Why there would be none.
pub(super) fn look((major, minor): (u32, u32)) -> Result<Vec<KernelsFrom>> {
    let found = Found::look(major * 10 + minor)?;
    let mut origins: Vec<_> = [Part::Reductions, Part::Others].map(|part| found.origin(part)).into();
    origins.dedup();
    Ok(origins)
}

/// The kernels that are open, by the device's number: all that use a device share them, and the last one unloads them.
static OPEN: Mutex<BTreeMap<usize, Weak<Kernels>>> = Mutex::new(BTreeMap::new());

impl Kernels {
    /// The kernels of this library on the device, once in a process. They come from the file in `PHALANX_KERNELS`; if
    /// that is not set, from what an earlier run has left, or else from NVRTC. Each part is compiled and loaded when
    /// the first kernel of it is wanted; what was compiled is left for later runs.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is not whole; when there is no compiler, or it does not know the device.
    pub fn open(device: &Device) -> Result<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = open.get(&device.ordinal()).and_then(Weak::upgrade) {
            return Ok(kernels);
        }
        let (major, minor) = device.compute_capability()?;
        let kernels = Arc::new(Self {
            device: device.clone(),
            multiprocessors: device.multiprocessors()?,
            found: Found::look(major * 10 + minor)?,
            modules: Mutex::default(),
            known: Mutex::default(),
        });
        open.insert(device.ordinal(), Arc::downgrade(&kernels));
        Ok(kernels)
    }

    /// The module that has a kernel, loaded, and compiled before where it has to be. Whoever comes meanwhile waits for
    /// it.
    fn module_of(&self, kernel: &str) -> Result<sys::CUmodule> {
        let part = match self.found {
            // One file has all.
            Found::File(..) => Part::Others,
            Found::Compiler { .. } => Part::of(kernel),
        };
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&module) = modules.get(&part) {
            return Ok(module);
        }
        tracing::debug!("kernels of device {}: {}", self.device.ordinal(), self.found.origin(part));
        let content = self.found.content(part)?;
        image::check(&content)?;
        let _entered = self.device.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written, the second to a whole content.
        let code =
            unsafe { (self.device.driver().calls().cuModuleLoadData)(&mut module, content.as_ptr().cast::<c_void>()) };
        self.device.check("cuModuleLoadData", code)?;
        modules.insert(part, module);
        Ok(module)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The shape in which `items` are gone through, of which a thread takes one at a time: no more blocks than there is
    /// work for, and no more than fill the device.
    pub fn shape(&self, items: u64) -> LaunchShape {
        shape_on(self.multiprocessors, items)
    }

    /// The kernel of this name. The first of a part may take up to a minute.
    ///
    /// # Errors
    ///
    /// When there is none; when its part has to be loaded and cannot be: it does not compile, is not whole, or has
    /// nothing for this device.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&kernel) = known().get(name) {
            return Ok(kernel);
        }
        let module = self.module_of(name)?;
        let text = CString::new(name).map_err(|_| Error::invalid("the name of a kernel with a zero byte"))?;
        let _entered = self.device.enter()?;
        let mut function = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written, the last to a text that ends with a zero byte.
        let code = unsafe { (self.device.driver().calls().cuModuleGetFunction)(&mut function, module, text.as_ptr()) };
        self.device.driver().check("cuModuleGetFunction", code, || format!("kernel {name}"))?;
        let kernel = Kernel { function };
        known().insert(name.to_owned(), kernel);
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
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Ok(_entered) = self.device.enter() {
            for (_, module) in modules.drain() {
                // SAFETY: loaded by `module_of`, and not used again.
                unsafe { (self.device.driver().calls().cuModuleUnload)(module) };
            }
        }
    }
}

fn shape_on(multiprocessors: u32, items: u64) -> LaunchShape {
    let most = u64::from(multiprocessors.max(1).saturating_mul(FULL));
    let blocks = items.div_ceil(u64::from(THREADS)).clamp(1, most);
    LaunchShape { blocks: u32::try_from(blocks).unwrap_or(u32::MAX), threads: THREADS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_as_many_blocks_as_there_is_work_for_and_no_more_than_fill_the_device() {
        let blocks = |items| shape_on(132, items).blocks;
        assert_eq!([0, 1, 256, 257, 1 << 40].map(blocks), [1, 1, 1, 2, 132 * 8]);
        assert_eq!(shape_on(0, 1 << 20), LaunchShape { blocks: 8, threads: 256 });
    }
}
