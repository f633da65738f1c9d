//! Libraries that Phalanx, or a program beside it, finds at run time. The names are tried in order and listed once, here.

use std::ffi::{CStr, c_char, c_int};

use libloading::os::unix;
use serde::Serialize;

use super::files::Files;
use super::{Finding, State};

/// A library to look for.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// What it is.
    pub purpose: &'static str,
    /// The names it may have, best first.
    pub names: &'static [&'static str],
    /// How it tells its version.
    version: Version,
    /// What is without it, in words.
    without: &'static str,
}

/// How a library tells its version.
#[derive(Clone, Copy, Debug)]
enum Version {
    /// It does not.
    None,
    /// `int f(int *version)`, and how the number is to be read.
    Number(&'static CStr, fn(c_int) -> String),
    /// `int f(int *major, int *minor)`.
    Pair(&'static CStr),
    /// `int f(char *text, int *length)`, with a buffer that is large enough by the library's standard.
    Buffer(&'static CStr),
    /// `const char *f(void)`.
    Text(&'static CStr),
}

/// Everything that is looked for.
pub const CANDIDATES: &[Candidate] = &[
    Candidate {
        purpose: "CUDA driver",
        names: &["libcuda.so.1", "libcuda.so"],
        version: Version::Number(c"cuDriverGetVersion", |number| format!("{}.{}", number / 1000, number % 1000 / 10)),
        without: "no NVIDIA GPU can be used",
    },
    Candidate {
        purpose: "CUDA NVRTC",
        names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"],
        version: Version::Pair(c"nvrtcVersion"),
        without: "kernels are not compiled at run time",
    },
    Candidate {
        purpose: "NCCL",
        names: &["libnccl.so.2", "libnccl.so"],
        version: Version::Number(c"ncclGetVersion", |number| {
            format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
        }),
        without: "GPUs do not talk through NCCL",
    },
    Candidate {
        purpose: "RDMA verbs",
        names: &["libibverbs.so.1", "libibverbs.so"],
        version: Version::None,
        without: "no RDMA",
    },
    Candidate {
        purpose: "RDMA connection manager",
        names: &["librdmacm.so.1", "librdmacm.so"],
        version: Version::None,
        without: "no RDMA connections by address",
    },
    Candidate {
        purpose: "MPI",
        names: &["libmpi.so.40", "libmpich.so.12", "libmpi.so.12", "libmpi.so"],
        version: Version::Buffer(c"MPI_Get_library_version"),
        without: "no MPI transport; being started by mpirun needs no library",
    },
    Candidate {
        purpose: "PMIx",
        names: &["libpmix.so.2", "libpmix.so"],
        version: Version::Text(c"PMIx_Get_version"),
        without: "under mpirun on several hosts, PHALANX_RENDEZVOUS must be given",
    },
    Candidate {
        purpose: "PMI",
        names: &["libpmi2.so.0", "libpmi.so.0", "libpmi.so"],
        version: Version::None,
        without: "MPICH's and Slurm's PMI are spoken without a library where they can be",
    },
];

/// What became of one search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// What it is.
    pub purpose: &'static str,
    /// The names that were tried.
    pub looked_for: &'static [&'static str],
    /// The name under which it was found.
    pub found: Option<&'static str>,
    /// The file that was loaded.
    pub path: Option<String>,
    /// What it says about its version.
    pub version: Option<String>,
    /// Why one that is there could not be loaded.
    pub error: Option<String>,
}

pub(super) fn look() -> Vec<Library> {
    CANDIDATES.iter().map(find).collect()
}

fn find(candidate: &Candidate) -> Library {
    let mut error = None;
    for &name in candidate.names {
        // SAFETY: loading runs the initialisers of a system library that programs of this machine load in the same way.
        match unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY | unix::RTLD_LOCAL) } {
            Ok(library) => {
                let version = ask(&library, candidate.version);
                let path = loaded_path(name);
                // Some of them do not survive being unloaded.
                std::mem::forget(library);
                return Library {
                    purpose: candidate.purpose,
                    looked_for: candidate.names,
                    found: Some(name),
                    path,
                    version,
                    error: None,
                };
            }
            Err(failure) => {
                let text = std::error::Error::source(&failure).map_or(failure.to_string(), ToString::to_string);
                // Not being there is no error; being there and not loading is.
                if !text.contains("No such file") {
                    error.get_or_insert(text);
                }
            }
        }
    }
    Library { purpose: candidate.purpose, looked_for: candidate.names, found: None, path: None, version: None, error }
}

/// Whether a library that was found has a function.
pub(super) fn has(name: &str, function: &CStr) -> bool {
    // SAFETY: it is loaded already, by `find`, so that no initialiser runs; the symbol is looked up and not called.
    unsafe {
        unix::Library::open(Some(name), unix::RTLD_LAZY | unix::RTLD_LOCAL)
            .is_ok_and(|library| library.get::<unsafe extern "C" fn()>(function.to_bytes_with_nul()).is_ok())
    }
}

/// Asks a library for its version.
fn ask(library: &unix::Library, version: Version) -> Option<String> {
    match version {
        Version::None => None,
        Version::Number(name, read) => {
            // SAFETY: the library's documentation gives the function this type.
            let function: unix::Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> =
                unsafe { library.get(name.to_bytes_with_nul()) }.ok()?;
            let mut number = 0;
            // SAFETY: the argument points to an integer to be written; the function needs no initialisation before.
            (unsafe { function(&mut number) } == 0).then(|| read(number))
        }
        Version::Pair(name) => {
            // SAFETY: the library's documentation gives the function this type.
            let function: unix::Symbol<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
                unsafe { library.get(name.to_bytes_with_nul()) }.ok()?;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: the arguments point to integers to be written; the function needs no initialisation before.
            (unsafe { function(&mut major, &mut minor) } == 0).then(|| format!("{major}.{minor}"))
        }
        Version::Buffer(name) => {
            // SAFETY: the MPI standard gives the function this type.
            let function: unix::Symbol<unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int> =
                unsafe { library.get(name.to_bytes_with_nul()) }.ok()?;
            // No implementation's MPI_MAX_LIBRARY_VERSION_STRING is above 8192.
            let mut buffer: Vec<u8> = vec![0; 1 << 14];
            let mut length = 0;
            // SAFETY: the buffer has room for the longest text; the standard lets this be called before MPI_Init.
            if unsafe { function(buffer.as_mut_ptr().cast(), &mut length) } != 0 {
                return None;
            }
            Some(first_words(&CStr::from_bytes_until_nul(&buffer).ok()?.to_string_lossy()))
        }
        Version::Text(name) => {
            // SAFETY: the library's documentation gives the function this type.
            let function: unix::Symbol<unsafe extern "C" fn() -> *const c_char> =
                unsafe { library.get(name.to_bytes_with_nul()) }.ok()?;
            // SAFETY: the function needs no initialisation before, and returns null or a text that lives as long as the
            // library, which is not unloaded.
            let text = unsafe {
                let text = function();
                if text.is_null() {
                    return None;
                }
                CStr::from_ptr(text)
            };
            Some(first_words(&text.to_string_lossy()))
        }
    }
}

/// What comes before the details of who built a library, and how.
fn first_words(text: &str) -> String {
    text.split([',', '(', '\n']).next().unwrap_or(text).trim().to_owned()
}

/// The file that stands behind a loaded name, from the list of this process's mappings.
fn loaded_path(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let stem = name.split(".so").next().unwrap_or(name);
    let start = format!("/{stem}.so");
    maps.lines()
        .filter_map(|line| line.find('/').and_then(|at| line.get(at..)))
        .find(|path| path.contains(&start))
        .map(str::to_owned)
}

pub(super) fn judge(libraries: &[Library], files: &Files) -> Vec<Finding> {
    let mut findings: Vec<_> = libraries
        .iter()
        .map(|library| {
            let without = CANDIDATES.iter().find(|candidate| candidate.purpose == library.purpose);
            let without = without.map_or("", |candidate| candidate.without);
            match (&library.found, &library.error) {
                (Some(found), _) => {
                    let version = library.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
                    let path = library.path.as_deref().unwrap_or(found);
                    Finding::ok("libraries", library.purpose, format!("found{version} ({path})"))
                }
                (None, Some(error)) => {
                    let advice = "install what it misses, or correct LD_LIBRARY_PATH";
                    Finding::note("libraries", library.purpose, format!("there, but cannot be loaded: {error}"), advice)
                }
                (None, None) => {
                    let text = format!("not found ({}): {without}", library.looked_for.join(", "));
                    Finding::ok("libraries", library.purpose, text)
                }
            }
        })
        .collect();
    let gpus = files.names("/proc/driver/nvidia/gpus");
    if !gpus.is_empty() {
        let models: Vec<_> = gpus
            .iter()
            .map(|gpu| {
                let file = format!("/proc/driver/nvidia/gpus/{gpu}/information");
                files.field(file, "Model").unwrap_or_else(|| gpu.clone())
            })
            .collect();
        findings.push(Finding::ok("libraries", "GPUs", models.join(", ")));
        if libraries.iter().any(|library| library.purpose == "CUDA driver" && library.found.is_none()) {
            let advice = "install the driver's user libraries; in a container: docker run --gpus all";
            findings.push(Finding::note("libraries", "GPU access", "a GPU without the CUDA driver library", advice));
        }
    } else {
        findings.push(Finding::new("libraries", "GPUs", State::Ok, "no NVIDIA GPU is listed by a driver"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_there_is_found_and_one_that_is_not_is_listed() {
        let candidate =
            Candidate { purpose: "C", names: &["libnone.so.9", "libc.so.6"], version: Version::None, without: "" };
        let found = find(&candidate);
        assert_eq!(found.found, Some("libc.so.6"));
        assert!(found.path.is_some_and(|path| path.contains("/libc.so")));
        let text = ask(
            // SAFETY: the C library is loaded already.
            &unsafe { unix::Library::open(Some("libc.so.6"), unix::RTLD_LAZY) }.unwrap(),
            Version::Text(c"gnu_get_libc_version"),
        );
        assert!(text.is_some_and(|text| text.starts_with("2.")));
        let missing = find(&Candidate { names: &["libnone.so.9"], ..candidate });
        assert_eq!((missing.found, missing.error), (None, None));
    }

    #[test]
    fn numbers_are_read_as_their_makers_do() {
        let read = |purpose: &str, number| {
            let candidate = CANDIDATES.iter().find(|candidate| candidate.purpose == purpose);
            match candidate.map(|candidate| candidate.version) {
                Some(Version::Number(_, read)) => read(number),
                _ => String::new(),
            }
        };
        assert_eq!(read("CUDA driver", 12_040), "12.4");
        assert_eq!(read("NCCL", 22_105), "2.21.5");
    }

    #[test]
    fn what_is_there_and_does_not_load_is_noted() {
        let library = Library {
            purpose: "NCCL",
            looked_for: &["libnccl.so.2"],
            found: None,
            path: None,
            version: None,
            error: Some("libcudart.so: undefined".into()),
        };
        let dir = tempfile::tempdir().unwrap();
        let findings = judge(std::slice::from_ref(&library), &Files::under(dir.path()));
        assert_eq!(findings[0].state, State::Note);
        let findings = judge(&[Library { error: None, ..library }], &Files::under(dir.path()));
        assert_eq!(findings[0].state, State::Ok);
        assert!(findings[0].text.contains("libnccl.so.2"));
    }
}
