//! The kernels as a library for the CPU.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

/// How a result is finished, as kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    pub divisor: u64,
    pub factor: f64,
}

pub const MOST_SOURCES: usize = 16;

#[repr(C)]
pub struct ReduceParameters {
    pub target: *mut c_void,
    pub sources: [*const c_void; MOST_SOURCES],
    pub count: u64,
    pub finish: Finish,
    pub sources_used: u32,
}

#[repr(C)]
pub struct ScaleParameters {
    pub target: *mut c_void,
    pub source: *const c_void,
    pub count: u64,
    pub finish: Finish,
}

#[repr(C)]
pub struct CastParameters {
    pub target: *mut c_void,
    pub source: *const c_void,
    pub count: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    pub tensor: *mut c_void,
    pub offset: u64,
    pub bytes: u64,
}

#[repr(C)]
pub struct PackParameters {
    pub buffer: *mut c_void,
    pub pieces: *const Piece,
    pub count: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Products {
    pub both: f64,
    pub left: f64,
    pub right: f64,
}

#[repr(C)]
pub struct AdasumParameters {
    pub target: *mut c_void,
    pub left: *const c_void,
    pub right: *const c_void,
    pub count: u64,
    pub products: *mut Products,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RunScale {
    pub least: f32,
    pub step: f32,
}

#[repr(C)]
pub struct QuantizeParameters {
    pub codes: *mut u8,
    pub scales: *mut RunScale,
    pub source: *const c_void,
    pub error: *mut f32,
    pub count: u64,
}

#[repr(C)]
pub struct DequantizeParameters {
    pub target: *mut c_void,
    pub codes: *const u8,
    pub scales: *const RunScale,
    pub count: u64,
    pub adds: u32,
}

#[repr(C)]
pub struct PeerParameters {
    pub target: *mut c_void,
    pub inputs: [*const c_void; MOST_SOURCES],
    pub stages: [*mut c_void; MOST_SOURCES],
    pub flags: [*mut u32; MOST_SOURCES],
    pub abort: *const u32,
    pub status: *mut u32,
    pub count: u64,
    pub finish: Finish,
    pub rank: u32,
    pub ranks: u32,
    pub meetings: u32,
}

#[repr(C)]
pub struct FillParameters {
    pub scale: ScaleParameters,
    pub status: *const u32,
}

#[repr(C)]
pub struct CheckParameters {
    pub result: *const c_void,
    pub expected: *const c_void,
    pub count: u64,
    pub wrong: *mut u64,
}

/// Threads of a block of a kernel whose threads meet.
pub const THREADS: usize = 256;

/// Grids that differ in how much of an array a thread gets.
pub const GRIDS: [(u32, u32); 3] = [(1, 1), (3, 7), (2, 256)];

fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libphalanx_kernels_cpu.so");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let arguments = "-std=c++17 -O2 -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off -shared -fPIC";
    let output = Command::new(&compiler)
        .args(arguments.split(' '))
        .args(std::env::var("PHALANX_TEST_CXXFLAGS").unwrap_or_default().split_whitespace())
        .arg("-o")
        .arg(&target)
        .arg(root.join("kernels/shim/cpu.cpp"))
        .output()
        .map_err(|error| format!("there is no C++ compiler {}: {error}", compiler.display()))?;
    assert!(output.status.success(), "the kernels do not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(target)
}

/// The library, built once; `None`, with the reason printed, where there is no compiler.
pub fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let path = build()?;
        // SAFETY: the library has no code that runs when it is loaded.
        Ok(unsafe { Library::new(path) }.expect("what was just built can be loaded"))
    });
    match library {
        Ok(library) => Some(library),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

/// Runs a kernel over a grid.
///
/// # Safety
///
/// `parameters` must be those of the kernel of this name, and what they point to as it wants it.
pub unsafe fn launch<P>(library: &Library, name: &str, parameters: &P, (blocks, threads): (u32, u32)) {
    // SAFETY: every kernel is a function of this form, of its own parameters, for which the caller answers.
    unsafe {
        let kernel: libloading::Symbol<unsafe extern "C" fn(*const P, u32, u32)> =
            library.get(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        kernel(parameters, blocks, threads);
    }
}
