//! Memory that the other ranks of the host read where it is.

use std::ffi::c_void;

use phalanx::{Buffer, Error};

use crate::codes::dtype;
use crate::communicator::{PhxComm, get, number, put};
use crate::status::{PhxStatus, guarded, guarded_or};

/// Elements in memory that the other ranks of this host read where it is.
pub struct PhxBuffer(Buffer<u8>);

/// Allocates count elements, all zero, in memory that the other ranks of this host read where it is. Collectives of more
/// than 16 KiB whose buffers are all of this kind, on all ranks, are made without copies in between. Otherwise it is memory
/// as any other, good for any call of any communicator; and it is ordinary memory where there are no other ranks, or limits
/// leave no room. It costs a multiple of a page, so allocate few large ones. A child made by fork shares it instead of
/// getting a copy, and must not write to it. Sets *buffer, to NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_alloc(
    comm: *const PhxComm,
    count: u64,
    dtype: i32,
    buffer: *mut *mut PhxBuffer,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        put(buffer, std::ptr::null_mut(), "place for the buffer")?;
        let made = get(comm)?.alloc_bytes(self::dtype(dtype)?, number("phx_alloc: count", count)?)?;
        put(buffer, Box::into_raw(Box::new(PhxBuffer(made))), "place for the buffer")
    })
}

/// The first element, at the start of a cache line; NULL if buffer is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_buffer_data(buffer: *const PhxBuffer) -> *mut c_void {
    // SAFETY: the caller's promise.
    guarded_or(|| Ok(unsafe { buffer_of(buffer)? }.as_raw().cast()), |_| std::ptr::null_mut())
}

/// The length in bytes; 0 if buffer is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_buffer_bytes(buffer: *const PhxBuffer) -> u64 {
    // SAFETY: the caller's promise.
    guarded_or(|| Ok(unsafe { buffer_of(buffer)? }.len() as u64), |_| 0)
}

/// 1 if other ranks of this host can read it where it is, 0 if it is ordinary memory; -1 if buffer is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_buffer_is_shared(buffer: *const PhxBuffer) -> i32 {
    // SAFETY: the caller's promise.
    guarded_or(|| Ok(i32::from(unsafe { buffer_of(buffer)? }.is_shared())), |_| -1)
}

/// Frees a buffer with its memory; NULL is ignored. No operation may use it any more. It may be freed after the
/// communicator, and used as ordinary memory until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_buffer_free(buffer: *mut PhxBuffer) {
    let free = || {
        if !buffer.is_null() {
            // SAFETY: it comes from `phx_alloc`, and the caller gives it up.
            drop(unsafe { Box::from_raw(buffer) });
        }
        Ok(())
    };
    guarded_or(free, |_| ());
}

/// # Safety
///
/// The pointer must be null or come from this library and not be freed while the reference is used.
unsafe fn buffer_of<'a>(buffer: *const PhxBuffer) -> Result<&'a Buffer<u8>, Error> {
    // SAFETY: the caller's promise.
    let buffer = unsafe { buffer.as_ref() };
    buffer.map(|buffer| &buffer.0).ok_or_else(|| Error::invalid("the buffer is NULL"))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr::{null, null_mut};

    use super::*;
    use crate::*;

    const COUNT: u64 = 30_001;

    #[test]
    fn a_buffer_is_zero_serves_calls_and_outlives_its_communicator() {
        let world = phalanx::thread_world(2).expect("a world of threads");
        std::thread::scope(|scope| {
            for comm in world {
                scope.spawn(move || {
                    let mine = comm.rank() as i32 + 1;
                    let comm = Box::into_raw(Box::new(PhxComm(comm)));
                    let (i32_, mut buffer) = (PhxDtype::PHX_I32 as i32, null_mut());
                    // SAFETY: the memory is of as many elements as the calls say, and freed last.
                    unsafe {
                        assert_eq!(phx_alloc(comm, COUNT, i32_, &raw mut buffer), PhxStatus::PHX_OK);
                        assert_eq!(phx_buffer_bytes(buffer), 4 * COUNT);
                        // Between threads there is no memory to share.
                        assert_eq!(phx_buffer_is_shared(buffer), 0);
                        let data = phx_buffer_data(buffer).cast::<i32>();
                        assert!(data.addr().is_multiple_of(64));
                        let elements = std::slice::from_raw_parts_mut(data, COUNT as usize);
                        assert!(elements.iter().all(|element| *element == 0));
                        elements.fill(mine);
                        let (place, sum) = (data.cast(), PhxOp::PHX_SUM as i32);
                        let status = phx_allreduce(comm, IN_PLACE, place, COUNT, i32_, sum);
                        assert_eq!(status, PhxStatus::PHX_OK);
                        phx_comm_free(comm);
                        assert!(elements.iter().all(|element| *element == 3));
                        elements.fill(7);
                        phx_buffer_free(buffer);
                    }
                });
            }
        });
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let comm = phalanx::thread_world(1).expect("a world of one").remove(0);
        let comm = Box::into_raw(Box::new(PhxComm(comm)));
        let mut buffer = std::ptr::dangling_mut();
        // SAFETY: nothing is read or written but the place for the buffer; texts are C strings.
        unsafe {
            let words = || CStr::from_ptr(phx_last_error()).to_string_lossy().into_owned();
            for (count, dtype, status, expected) in [
                (1, 12, PhxStatus::PHX_ERROR_ARGUMENT, "dtype 12"),
                (u64::MAX, 2, PhxStatus::PHX_ERROR_ENVIRONMENT, "18446744073709551615 elements of f32"),
            ] {
                assert_eq!(phx_alloc(comm, count, dtype, &raw mut buffer), status);
                assert!(buffer.is_null() && words().contains(expected), "{}", words());
            }
            assert_eq!(phx_alloc(comm, 1, 2, null_mut()), PhxStatus::PHX_ERROR_ARGUMENT);
            assert!(words().contains("buffer is NULL"), "{}", words());
            assert_eq!(phx_alloc(null(), 1, 2, &raw mut buffer), PhxStatus::PHX_ERROR_ARGUMENT);
            assert!(words().contains("communicator is NULL"), "{}", words());
            assert!(phx_buffer_data(null()).is_null());
            assert_eq!((phx_buffer_bytes(null()), phx_buffer_is_shared(null())), (0, -1));
            phx_buffer_free(null_mut());
            assert_eq!(phx_alloc(comm, 0, 2, &raw mut buffer), PhxStatus::PHX_OK);
            assert!(!phx_buffer_data(buffer).is_null() && phx_buffer_bytes(buffer) == 0);
            phx_buffer_free(buffer);
            phx_comm_free(comm);
        }
    }
}
