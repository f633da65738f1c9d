//! The collectives and messages that return a handle at once. See `phx_submit` for how long memory is theirs.

use std::ffi::c_void;

use crate::call::{PhxCall, blocks, exchange, plain, reducing, start};
use crate::codes::PhxCollective::*;
use crate::communicator::{PhxComm, put};
use crate::handle::PhxHandle;
use crate::message::{recv, send};
use crate::status::{PhxStatus, guarded};

/// Starts phx_allreduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_iallreduce(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &reducing(PHX_ALLREDUCE, dtype, count, op, 0), input, output, handle) })
}

/// Starts phx_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ireduce(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    root: u64,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &reducing(PHX_REDUCE, dtype, count, op, root), input, output, handle) })
}

/// Starts phx_broadcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ibroadcast(
    comm: *const PhxComm,
    buffer: *mut c_void,
    count: u64,
    dtype: i32,
    root: u64,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &plain(PHX_BROADCAST, dtype, count, root), std::ptr::null(), buffer, handle) })
}

/// Starts phx_allgather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_iallgather(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &plain(PHX_ALLGATHER, dtype, count, 0), input, output, handle) })
}

/// Starts phx_allgatherv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_iallgatherv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &blocks(PHX_ALLGATHER, dtype, counts, 0)?, input, output, handle) })
}

/// Starts phx_reduce_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ireduce_scatter(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &reducing(PHX_REDUCE_SCATTER, dtype, count, op, 0), input, output, handle) })
}

/// Starts phx_reduce_scatterv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ireduce_scatterv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    op: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        start(comm, &PhxCall { op, ..blocks(PHX_REDUCE_SCATTER, dtype, counts, 0)? }, input, output, handle)
    })
}

/// Starts phx_alltoall.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ialltoall(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &plain(PHX_ALLTOALL, dtype, count, 0), input, output, handle) })
}

/// Starts phx_alltoallv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ialltoallv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    send_counts: *const u64,
    recv_counts: *const u64,
    dtype: i32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &exchange(dtype, send_counts, recv_counts)?, input, output, handle) })
}

/// Starts phx_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_igather(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    root: u64,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &plain(PHX_GATHER, dtype, count, root), input, output, handle) })
}

/// Starts phx_gatherv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_igatherv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    root: u64,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &blocks(PHX_GATHER, dtype, counts, root)?, input, output, handle) })
}

/// Starts phx_scatter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_iscatter(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    root: u64,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &plain(PHX_SCATTER, dtype, count, root), input, output, handle) })
}

/// Starts phx_scatterv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_iscatterv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    root: u64,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &blocks(PHX_SCATTER, dtype, counts, root)?, input, output, handle) })
}

/// Starts phx_barrier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_ibarrier(comm: *const PhxComm, handle: *mut *mut PhxHandle) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { start(comm, &plain(PHX_BARRIER, 0, 0, 0), std::ptr::null(), std::ptr::null_mut(), handle) })
}

/// Starts phx_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_isend(
    comm: *const PhxComm,
    data: *const c_void,
    count: u64,
    dtype: i32,
    to: u64,
    tag: u32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        put(handle, std::ptr::null_mut(), "place for the handle")?;
        put(handle, PhxHandle::new(send(comm, data, count, dtype, to, tag)?), "place for the handle")
    })
}

/// Starts phx_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_irecv(
    comm: *const PhxComm,
    data: *mut c_void,
    count: u64,
    dtype: i32,
    from: u64,
    tag: u32,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        put(handle, std::ptr::null_mut(), "place for the handle")?;
        put(handle, PhxHandle::new(recv(comm, data, count, dtype, from, tag)?), "place for the handle")
    })
}
