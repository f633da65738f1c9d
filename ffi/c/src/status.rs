//! What functions return, and where errors and panics end.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx::{Error, Fault};

/// What a function returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum PhxStatus {
    /// The operation has not ended yet. Only phx_wait_for and phx_poll return this; it is no error.
    PHX_PENDING = -1,
    /// Done.
    PHX_OK = 0,
    /// The caller's fault: an argument that cannot be. Nothing was sent.
    PHX_ERROR_ARGUMENT = 1,
    /// The caller's fault: two ranks made different calls.
    PHX_ERROR_MISMATCH = 2,
    /// A peer's fault: a rank that the operation needs is gone, or did what no sound peer does.
    PHX_ERROR_PEER = 3,
    /// A peer's fault: the deadline passed. The same call may succeed when tried again.
    PHX_ERROR_TIMEOUT = 4,
    /// The caller's fault: the communicator was shut down.
    PHX_ERROR_CLOSED = 5,
    /// The environment's fault: the machine, the network, the launcher, a variable.
    PHX_ERROR_ENVIRONMENT = 6,
    /// A defect of Phalanx. Please report it.
    PHX_ERROR_INTERNAL = 7,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// What went wrong in the last call on this thread that returned an error: whose fault, which values, what to do. Empty
/// if there was none. Valid until the next call on this thread that returns an error; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn phx_last_error() -> *const c_char {
    // The text stays where it is until the next error replaces it, which happens on this thread alone.
    let text = LAST_ERROR.try_with(|last| last.try_borrow().ok().map(|text| text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The name of a status, as in "PHX_ERROR_PEER"; "PHX_UNKNOWN" for numbers that are none. Never NULL; needs not be
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn phx_status_name(status: i32) -> *const c_char {
    let name: &CStr = match status {
        -1 => c"PHX_PENDING",
        0 => c"PHX_OK",
        1 => c"PHX_ERROR_ARGUMENT",
        2 => c"PHX_ERROR_MISMATCH",
        3 => c"PHX_ERROR_PEER",
        4 => c"PHX_ERROR_TIMEOUT",
        5 => c"PHX_ERROR_CLOSED",
        6 => c"PHX_ERROR_ENVIRONMENT",
        7 => c"PHX_ERROR_INTERNAL",
        _ => c"PHX_UNKNOWN",
    };
    name.as_ptr()
}

/// The version of the library, as in "0.1.0". Never NULL; needs not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn phx_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Runs the body of a function of the interface: an error becomes a status and this thread's last error, and a panic
/// becomes an internal error.
pub(crate) fn guarded(body: impl FnOnce() -> Result<PhxStatus, Error>) -> PhxStatus {
    guarded_or(body, |status| status)
}

/// As [`guarded`], for functions that do not return a status: `failed` makes their value from it.
pub(crate) fn guarded_or<T>(body: impl FnOnce() -> Result<T, Error>, failed: impl FnOnce(PhxStatus) -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(report(&error)),
        Err(panic) => failed(report(&Error::internal(message_of(panic.as_ref())))),
    }
}

/// The status of an operation that has ended.
pub(crate) fn status_of(outcome: Result<(), Error>) -> PhxStatus {
    match outcome {
        Ok(()) => PhxStatus::PHX_OK,
        Err(error) => report(&error),
    }
}

/// Keeps the error's text for this thread.
fn report(error: &Error) -> PhxStatus {
    let mut text = error.to_string();
    text.retain(|character| character != '\0');
    // Without a zero inside it is a C string. A thread that is ending has nowhere to keep it.
    if let Ok(text) = CString::new(text) {
        let _ = LAST_ERROR.try_with(|last| last.replace(text));
    }
    match error {
        Error::InvalidArgument { .. } => PhxStatus::PHX_ERROR_ARGUMENT,
        Error::Mismatch { .. } => PhxStatus::PHX_ERROR_MISMATCH,
        Error::PeerFailed { .. } => PhxStatus::PHX_ERROR_PEER,
        Error::Timeout { .. } => PhxStatus::PHX_ERROR_TIMEOUT,
        Error::ViewChanged { .. } | Error::Evicted { .. } => PhxStatus::PHX_ERROR_PEER,
        Error::StateDiffers { .. } => PhxStatus::PHX_ERROR_ARGUMENT,
        Error::Closed { .. } => PhxStatus::PHX_ERROR_CLOSED,
        Error::Environment { .. } => PhxStatus::PHX_ERROR_ENVIRONMENT,
        Error::Internal { .. } => PhxStatus::PHX_ERROR_INTERNAL,
        other => match other.fault() {
            Fault::Caller => PhxStatus::PHX_ERROR_ARGUMENT,
            Fault::Peer => PhxStatus::PHX_ERROR_PEER,
            Fault::Environment => PhxStatus::PHX_ERROR_ENVIRONMENT,
            Fault::Bug => PhxStatus::PHX_ERROR_INTERNAL,
        },
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("a panic: {}", text.unwrap_or_else(|| "without words".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the text is a C string, and is copied before anything can replace it.
        unsafe { CStr::from_ptr(phx_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_words() {
        let status = guarded(|| panic!("number {}", 7));
        assert_eq!(status, PhxStatus::PHX_ERROR_INTERNAL);
        assert!(last_error().contains("number 7"), "{}", last_error());
    }

    #[test]
    fn an_error_stays_on_its_thread_until_the_next() {
        assert_eq!(guarded(|| Err(Error::invalid("one\0 more"))), PhxStatus::PHX_ERROR_ARGUMENT);
        assert!(last_error().starts_with("one more"));
        assert_eq!(guarded(|| Ok(PhxStatus::PHX_OK)), PhxStatus::PHX_OK);
        assert!(last_error().starts_with("one more"));
        let other = std::thread::spawn(last_error).join();
        assert_eq!(other.ok().as_deref(), Some(""));
    }

    #[test]
    fn every_status_has_its_name() {
        for status in -1..=7 {
            // SAFETY: names are C strings.
            let name = unsafe { CStr::from_ptr(phx_status_name(status)) }.to_string_lossy();
            assert!(crate::HEADER.contains(&format!("{name} = {status},")), "{name} = {status}");
        }
    }
}
