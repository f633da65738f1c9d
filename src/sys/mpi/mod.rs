//! What is asked of an MPI library, in safe words: the process's part in a running MPI, and messages that do not block.
//!
//! A process has one MPI, whoever started it, and so this is the one place of the library with a memory of its own: whether
//! MPI was started here, and the duplicate of `MPI_COMM_WORLD` on which everything of Phalanx's travels (`process`).
//! A message's bytes belong to its [`Transfer`] until MPI is done with them, so that nothing that is given up leaves MPI with memory of
//! somebody else (`transfer`).

mod process;
mod transfer;

use std::ffi::{CStr, c_int};
use std::fmt;

use ::mpi::ffi;

pub use process::{InUse, Level, Meeting, Session, library_version, try_level};
pub use transfer::{Arrival, Channel, Transfer};

/// An MPI call that did not succeed, and what the library says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiError {
    call: &'static str,
    text: String,
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call, self.text)
    }
}

/// The outcome of the call named `call`.
fn check(call: &'static str, code: c_int) -> Result<(), MpiError> {
    // `MPI_SUCCESS` is 0 by the standard.
    if code == 0 {
        return Ok(());
    }
    let text = read_text(|text, length| {
        // SAFETY: the buffer is longer than any library's longest text.
        unsafe { ffi::MPI_Error_string(code, text, length) }
    });
    Err(MpiError { call, text: text.unwrap_or_else(|| format!("error {code}")) })
}

/// More than `MPI_MAX_LIBRARY_VERSION_STRING` and `MPI_MAX_ERROR_STRING` of any library.
const TEXT_BYTES: usize = 16 << 10;

/// The text that a call writes to a buffer.
fn read_text(call: impl FnOnce(*mut std::ffi::c_char, *mut c_int) -> c_int) -> Option<String> {
    let mut text = vec![0u8; TEXT_BYTES];
    let mut length = 0;
    if call(text.as_mut_ptr().cast(), &mut length) != 0 {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy();
    Some(text.trim().to_owned())
}
