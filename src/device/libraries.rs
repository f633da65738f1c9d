//! The names of NVIDIA's libraries, and what is said when one is missing.

use std::path::PathBuf;

use crate::bootstrap::{LIBRARIES, Variables};
use crate::sys::library::{Library, NotLoaded};
use crate::types::{Error, Result};

/// A library of NVIDIA's.
pub(super) struct Wanted {
    /// What it is.
    pub what: &'static str,
    /// The names it may have, best first.
    pub names: &'static [&'static str],
    /// What to do when it is not there.
    pub advice: &'static str,
}

pub(super) const DRIVER: Wanted = Wanted {
    what: "the CUDA driver library",
    names: &["libcuda.so.1", "libcuda.so"],
    advice: "install the NVIDIA driver; in a container, give it the GPUs (docker run --gpus all)",
};

pub(super) const COMPILER: Wanted = Wanted {
    what: "NVRTC, the compiler of CUDA kernels",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    advice: "install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, or name its folder in PHALANX_LIBRARIES",
};

#[cfg(feature = "nccl")]
pub(super) const NCCL: Wanted = Wanted {
    what: "NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    advice: "install NCCL or the Python package nvidia-nccl-cu13, or name its folder in PHALANX_LIBRARIES",
};

/// The folders that are looked in first.
fn folders() -> Vec<PathBuf> {
    let variables = Variables::of_process();
    let folders = variables.get(LIBRARIES.name).map(std::env::split_paths);
    folders.into_iter().flatten().filter(|folder| !folder.as_os_str().is_empty()).collect()
}

/// Loads a library.
pub(super) fn open(wanted: &Wanted) -> Result<Library> {
    Library::open(wanted.names, &folders()).map_err(|error| not_loaded(wanted, &error))
}

fn not_loaded(wanted: &Wanted, NotLoaded { tried, reason }: &NotLoaded) -> Error {
    let tried = tried.join(", ");
    match reason {
        Some(reason) => {
            let what = format_args!("{} is there, but cannot be loaded: {reason} (tried {tried})", wanted.what);
            Error::environment(what, "install what it misses, or correct PHALANX_LIBRARIES or LD_LIBRARY_PATH")
        }
        None => Error::environment(format_args!("{} was not found (tried {tried})", wanted.what), wanted.advice),
    }
}

/// A function that a library lacks.
pub(super) fn lacks(what: &str, library: &Library, function: &str) -> Error {
    let function = function.trim_end_matches('\0');
    Error::environment(
        format_args!("{what} ({}) has no function {function}: it is too old", library.name),
        "install a newer one",
    )
}

/// Declares the calls of a library: a structure of function pointers, each looked up when it is loaded. One that
/// is optional may be missing.
macro_rules! calls {
    (
        $(#[$about:meta])*
        $visibility:vis struct $name:ident, $what:expr;
        required { $( $call:ident($($argument:ty),* $(,)?) -> $result:ty; )* }
        optional { $( $maybe:ident($($maybe_argument:ty),* $(,)?) -> $maybe_result:ty; )* }
    ) => {
        $(#[$about])*
        #[expect(non_snake_case, reason = "the library's own names")]
        $visibility struct $name {
            $( pub $call: unsafe extern "C" fn($($argument),*) -> $result, )*
            $( pub $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> $maybe_result>, )*
        }

        impl $name {
            /// Looks every call up.
            fn find(library: &$crate::sys::library::Library) -> $crate::types::Result<Self> {
                Ok(Self {
                    // SAFETY: the library's documentation gives each function the type that is declared for it.
                    $( $call: unsafe { library.function(concat!(stringify!($call), "\0")) }
                        .ok_or_else(|| $crate::device::libraries::lacks($what, library, stringify!($call)))?, )*
                    // SAFETY: as above.
                    $( $maybe: unsafe { library.function(concat!(stringify!($maybe), "\0")) }, )*
                })
            }
        }
    };
}
pub(super) use calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_what_was_tried_and_what_to_do() {
        let missing = NotLoaded { tried: vec!["libcuda.so.1".into()], reason: None };
        let text = not_loaded(&DRIVER, &missing).to_string();
        assert!(text.contains("was not found (tried libcuda.so.1)") && text.contains("--gpus all"), "{text}");
        let broken = NotLoaded { reason: Some("invalid ELF header".into()), ..missing };
        let text = not_loaded(&DRIVER, &broken).to_string();
        assert!(text.contains("cannot be loaded: invalid ELF header"), "{text}");
    }
}
