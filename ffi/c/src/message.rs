//! Messages between two ranks, for both of their forms.

use std::ffi::c_void;

use phalanx::{Error, Handle};

use crate::codes::dtype;
use crate::communicator::{PhxComm, get, number};

/// Starts to send.
///
/// # Safety
///
/// `data` must be valid for reads of `count` elements until the operation has ended.
pub(crate) unsafe fn send(
    comm: *const PhxComm,
    data: *const c_void,
    count: u64,
    code: i32,
    to: u64,
    tag: u32,
) -> Result<Handle, Error> {
    let (count, to) = (checked("send", data, count, code)?, number("to", to)?);
    // SAFETY: the caller's promise. Something to keep, however small, says that nobody may be waiting.
    unsafe { get(comm)?.submit_send(dtype(code)?, data.cast(), count, (to, tag), Some(Box::new(()))) }
}

/// Starts to receive.
///
/// # Safety
///
/// `data` must be valid for writes of `count` elements, by nobody else, until the operation has ended.
pub(crate) unsafe fn recv(
    comm: *const PhxComm,
    data: *mut c_void,
    count: u64,
    code: i32,
    from: u64,
    tag: u32,
) -> Result<Handle, Error> {
    let (count, from) = (checked("recv", data, count, code)?, number("from", from)?);
    // SAFETY: as above.
    unsafe { get(comm)?.submit_recv(dtype(code)?, data.cast(), count, (from, tag), Some(Box::new(()))) }
}

/// The number of elements, if memory can have them.
fn checked(what: &str, data: *const c_void, count: u64, code: i32) -> Result<usize, Error> {
    let count = number("count", count)?;
    if data.is_null() && count > 0 {
        return Err(Error::invalid(format_args!("{what}: the data is NULL, {count} elements expected")));
    }
    let bytes = count.checked_mul(dtype(code)?.size());
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Error::invalid(format_args!("{what}: {count} elements are more than memory can have")));
    }
    Ok(count)
}
