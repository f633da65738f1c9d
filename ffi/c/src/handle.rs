//! Pending operations.

use phalanx::{Error, Handle};

use crate::communicator::seconds;
use crate::status::{PhxStatus, guarded, guarded_or, status_of};

/// A pending operation.
pub struct PhxHandle(Handle);

impl PhxHandle {
    /// Hands a started operation to C.
    pub(crate) fn new(handle: Handle) -> *mut PhxHandle {
        Box::into_raw(Box::new(PhxHandle(handle)))
    }
}

/// Waits until the operation has ended, and returns its outcome. The operation's deadline ends it in any case. May be
/// called again, for the same outcome. The handle must still be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_wait(handle: *const PhxHandle) -> PhxStatus {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { get(handle)? }.wait()?;
        Ok(PhxStatus::PHX_OK)
    })
}

/// Waits at most so many seconds. PHX_PENDING says that the operation has not ended; it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_wait_for(handle: *const PhxHandle, limit_seconds: f64) -> PhxStatus {
    guarded(|| {
        let limit = seconds("limit_seconds", limit_seconds)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { get(handle)? }.wait_for(limit).map_or(PhxStatus::PHX_PENDING, status_of))
    })
}

/// The outcome, or PHX_PENDING if the operation has not ended. Moves it on if nobody else does, and does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_poll(handle: *const PhxHandle) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| Ok(unsafe { get(handle)? }.poll().map_or(PhxStatus::PHX_PENDING, status_of)))
}

/// Frees a handle; NULL is ignored. Waits for the operation first if it has not ended, because its memory must not be
/// reached any more when this returns; the outcome is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_handle_free(handle: *mut PhxHandle) {
    let free = || {
        if !handle.is_null() {
            // SAFETY: it comes from `new`, and the caller gives it up.
            let handle = unsafe { Box::from_raw(handle) };
            // The outcome is lost, as promised.
            let _ = handle.0.wait();
        }
        Ok(())
    };
    guarded_or(free, |_| ());
}

/// # Safety
///
/// The pointer must be null or come from this library and not be freed while the reference is used.
unsafe fn get<'a>(handle: *const PhxHandle) -> Result<&'a Handle, Error> {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() };
    handle.map(|handle| &handle.0).ok_or_else(|| Error::invalid("the handle is NULL"))
}
