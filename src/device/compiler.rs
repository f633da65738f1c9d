//! NVRTC: from the source of kernels to what a device runs.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::ptr;

use super::libraries::{self, calls};
use super::sources::{self, Part};
use crate::sys::library::Library;
use crate::types::{Error, Result};

/// A program of NVRTC's.
type Program = *mut std::ffi::c_void;

/// The longest part of the compiler's words that an error shows.
const MOST_WORDS: usize = 2000;

calls! {
    /// What is called of NVRTC.
    struct Calls, "NVRTC";
    required {
        nvrtcVersion(*mut c_int, *mut c_int) -> c_int;
        nvrtcCreateProgram(
            *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        ) -> c_int;
        nvrtcDestroyProgram(*mut Program) -> c_int;
        nvrtcCompileProgram(Program, c_int, *const *const c_char) -> c_int;
        nvrtcGetProgramLogSize(Program, *mut usize) -> c_int;
        nvrtcGetProgramLog(Program, *mut c_char) -> c_int;
        nvrtcGetCUBINSize(Program, *mut usize) -> c_int;
        nvrtcGetCUBIN(Program, *mut c_char) -> c_int;
        nvrtcGetNumSupportedArchs(*mut c_int) -> c_int;
        nvrtcGetSupportedArchs(*mut c_int) -> c_int;
    }
    optional {}
}

/// What came of a source.
#[derive(Debug)]
pub struct Compiled {
    /// A cubin.
    pub binary: Vec<u8>,
    /// The compiler's warnings; empty if it had none.
    pub words: String,
}

/// The compiler, loaded.
pub struct Compiler {
    calls: Calls,
    library: Library,
    version: (c_int, c_int),
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("library", &self.library.name).field("version", &self.version()).finish()
    }
}

impl Compiler {
    /// Loads the compiler.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when there is none, or it lacks a call that is needed.
    pub fn load() -> Result<Self> {
        let library = libraries::open(&libraries::COMPILER)?;
        let calls = Calls::find(&library)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the arguments point to numbers to be written.
        let code = unsafe { (calls.nvrtcVersion)(&mut major, &mut minor) };
        let compiler = Self { calls, library, version: (major, minor) };
        compiler.check("nvrtcVersion", code, "")?;
        Ok(compiler)
    }

    /// The file or name that was loaded.
    pub fn library(&self) -> &str {
        &self.library.name
    }

    /// Its version, such as `12.8`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The architectures that it knows, such as 90 for compute capability 9.0.
    ///
    /// # Errors
    ///
    /// When it cannot say.
    pub fn architectures(&self) -> Result<Vec<u32>> {
        let mut count = 0;
        // SAFETY: the argument points to a number to be written.
        let code = unsafe { (self.calls.nvrtcGetNumSupportedArchs)(&mut count) };
        self.check("nvrtcGetNumSupportedArchs", code, "")?;
        let mut architectures: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or_default()];
        if !architectures.is_empty() {
            // SAFETY: the argument points to as many numbers as the library has just said.
            let code = unsafe { (self.calls.nvrtcGetSupportedArchs)(architectures.as_mut_ptr()) };
            self.check("nvrtcGetSupportedArchs", code, "")?;
        }
        Ok(architectures.into_iter().filter_map(|number| u32::try_from(number).ok()).collect())
    }

    /// Whether it compiles for an architecture.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when it does not, or cannot say.
    pub fn check_architecture(&self, architecture: u32) -> Result<()> {
        let known = self.architectures()?;
        if known.contains(&architecture) {
            return Ok(());
        }
        let newest = known.iter().max().copied().unwrap_or_default();
        Err(Error::environment(
            format_args!(
                "NVRTC {} ({}) does not compile for sm_{architecture}; its newest is sm_{newest}",
                self.version(),
                self.library.name
            ),
            "install an NVRTC that knows this device, and name its folder in PHALANX_LIBRARIES",
        ))
    }

    /// Compiles a part of this library's kernels for one architecture, such as 90. Takes up to a minute for reductions,
    /// seconds for the others.
    ///
    /// # Errors
    ///
    /// As [`compile`](Self::compile).
    pub fn compile_kernels(&self, part: Part, architecture: u32) -> Result<Compiled> {
        let options: Vec<&str> = sources::OPTIONS.into_iter().chain([part.option()]).collect();
        let compiled = self.compile(sources::SOURCE, &sources::HEADERS, architecture, &options)?;
        if !compiled.words.is_empty() {
            tracing::warn!("NVRTC {} on the kernels: {}", self.version(), compiled.words);
        }
        Ok(compiled)
    }

    /// Compiles `source` to a binary for one architecture. `headers` are the files it includes, by name.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when the compiler does not know the architecture or the source does not compile; the
    /// error has the compiler's own words.
    pub fn compile(
        &self,
        source: &str,
        headers: &[(&str, &str)],
        architecture: u32,
        options: &[&str],
    ) -> Result<Compiled> {
        self.check_architecture(architecture)?;
        let text = |text: &str| {
            CString::new(text).map_err(|_| Error::internal("a source or option of a kernel with a zero byte"))
        };
        let (source, name) = (text(source)?, text("phalanx.cu")?);
        let mut contents = Vec::new();
        let mut names = Vec::new();
        for (name, content) in headers {
            names.push(text(name)?);
            contents.push(text(content)?);
        }
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (content_starts, name_starts) = (pointers(&contents), pointers(&names));
        let mut program = Running { calls: &self.calls, program: ptr::null_mut() };
        // SAFETY: all texts end with a zero byte and live to the end of this function; the lists have as many entries
        // as is said.
        let code = unsafe {
            (self.calls.nvrtcCreateProgram)(
                &mut program.program,
                source.as_ptr(),
                name.as_ptr(),
                c_int::try_from(headers.len()).unwrap_or_default(),
                content_starts.as_ptr(),
                name_starts.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code, "")?;
        let mut options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>>>()?;
        options.push(text(&format!("--gpu-architecture=sm_{architecture}"))?);
        let option_starts = pointers(&options);
        // SAFETY: as above.
        let code = unsafe {
            let count = c_int::try_from(option_starts.len()).unwrap_or_default();
            (self.calls.nvrtcCompileProgram)(program.program, count, option_starts.as_ptr())
        };
        if code != 0 {
            return Err(self.error("nvrtcCompileProgram", code, &self.words(program.program)));
        }
        let mut bytes = 0;
        // SAFETY: the argument points to a number to be written.
        let code = unsafe { (self.calls.nvrtcGetCUBINSize)(program.program, &mut bytes) };
        self.check("nvrtcGetCUBINSize", code, "")?;
        let mut binary = vec![0u8; bytes];
        // SAFETY: the buffer has as many bytes as the library has just said.
        let code = unsafe { (self.calls.nvrtcGetCUBIN)(program.program, binary.as_mut_ptr().cast()) };
        self.check("nvrtcGetCUBIN", code, "")?;
        Ok(Compiled { binary, words: self.words(program.program) })
    }

    /// What the compiler said of a program.
    fn words(&self, program: Program) -> String {
        let mut bytes = 0;
        // SAFETY: the program lives; the argument points to a number to be written.
        if unsafe { (self.calls.nvrtcGetProgramLogSize)(program, &mut bytes) } != 0 {
            return String::new();
        }
        let mut words = vec![0u8; bytes];
        // SAFETY: the buffer has as many bytes as the library has just said.
        if unsafe { (self.calls.nvrtcGetProgramLog)(program, words.as_mut_ptr().cast()) } != 0 {
            return String::new();
        }
        let words = String::from_utf8_lossy(&words);
        words.trim_end_matches('\0').trim().chars().take(MOST_WORDS).collect()
    }

    fn check(&self, call: &'static str, code: c_int, about: &str) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code, about)) }
    }

    fn error(&self, call: &'static str, code: c_int, about: &str) -> Error {
        let (name, hint) = RESULTS
            .iter()
            .find(|(known, ..)| *known == code)
            .map_or(("an unknown code", "see NVIDIA's list of NVRTC's result codes"), |(_, name, hint)| (*name, *hint));
        let about = if about.is_empty() { String::new() } else { format!(": {about}") };
        Error::environment(format_args!("{call} of NVRTC {} failed with {name}{about}", self.version()), hint)
    }
}

/// NVRTC's result codes, and what to do.
const RESULTS: &[(c_int, &str, &str)] = &[
    (1, "NVRTC_ERROR_OUT_OF_MEMORY", "free host memory"),
    (2, "NVRTC_ERROR_PROGRAM_CREATION_FAILURE", "free host memory"),
    (3, "NVRTC_ERROR_INVALID_INPUT", "please report this with the version of NVRTC"),
    (4, "NVRTC_ERROR_INVALID_PROGRAM", "please report this with the version of NVRTC"),
    (5, "NVRTC_ERROR_INVALID_OPTION", "this NVRTC does not know an option that is used: install a newer one"),
    (6, "NVRTC_ERROR_COMPILATION", "please report this with the version of NVRTC"),
    (7, "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", "libnvrtc-builtins of the same version must lie beside libnvrtc"),
    (11, "NVRTC_ERROR_INTERNAL_ERROR", "please report this with the version of NVRTC"),
];

/// A program, destroyed when dropped.
struct Running<'a> {
    calls: &'a Calls,
    program: Program,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created by `compile`, and not used again.
            unsafe { (self.calls.nvrtcDestroyProgram)(&mut self.program) };
        }
    }
}
