//! The collectives and messages that return when they are done.

use std::ffi::c_void;

use crate::call::{PhxCall, blocks, exchange, plain, reducing, run};
use crate::codes::PhxCollective::*;
use crate::communicator::PhxComm;
use crate::message::{recv, send};
use crate::status::{PhxStatus, guarded};

/// Replaces or fills the output with the reduction of all ranks' inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_allreduce(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &reducing(PHX_ALLREDUCE, dtype, count, op, 0), input, output) })
}

/// Gives the root the reduction of all ranks' inputs. Elsewhere the output is not used, and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_reduce(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    root: u64,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &reducing(PHX_REDUCE, dtype, count, op, root), input, output) })
}

/// Replaces every rank's buffer by the root's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_broadcast(
    comm: *const PhxComm,
    buffer: *mut c_void,
    count: u64,
    dtype: i32,
    root: u64,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &plain(PHX_BROADCAST, dtype, count, root), std::ptr::null(), buffer) })
}

/// Gives every rank every rank's block of count elements, in rank order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_allgather(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &plain(PHX_ALLGATHER, dtype, count, 0), input, output) })
}

/// Gives every rank every rank's block, of counts[i] elements from rank i.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_allgatherv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &blocks(PHX_ALLGATHER, dtype, counts, 0)?, input, output) })
}

/// Gives rank i block i, of count elements, of the reduction of all ranks' inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_reduce_scatter(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &reducing(PHX_REDUCE_SCATTER, dtype, count, op, 0), input, output) })
}

/// Gives rank i block i, of counts[i] elements, of the reduction of all ranks' inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_reduce_scatterv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    op: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &PhxCall { op, ..blocks(PHX_REDUCE_SCATTER, dtype, counts, 0)? }, input, output) })
}

/// Gives rank i block i, of count elements, of every rank's input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_alltoall(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &plain(PHX_ALLTOALL, dtype, count, 0), input, output) })
}

/// As phx_alltoall, with send_counts[i] elements to rank i and recv_counts[i] from it. Not in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_alltoallv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    send_counts: *const u64,
    recv_counts: *const u64,
    dtype: i32,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &exchange(dtype, send_counts, recv_counts)?, input, output) })
}

/// Gives the root every rank's block of count elements. Elsewhere the output is not used, and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_gather(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    root: u64,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &plain(PHX_GATHER, dtype, count, root), input, output) })
}

/// As phx_gather, with counts[i] elements from rank i; every rank gives the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_gatherv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    root: u64,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &blocks(PHX_GATHER, dtype, counts, root)?, input, output) })
}

/// Gives rank i block i, of count elements, of the root's input. Elsewhere the input is not used, and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_scatter(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: i32,
    root: u64,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &plain(PHX_SCATTER, dtype, count, root), input, output) })
}

/// As phx_scatter, with counts[i] elements to rank i; every rank gives the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_scatterv(
    comm: *const PhxComm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const u64,
    dtype: i32,
    root: u64,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &blocks(PHX_SCATTER, dtype, counts, root)?, input, output) })
}

/// Returns when every rank has called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_barrier(comm: *const PhxComm) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(comm, &plain(PHX_BARRIER, 0, 0, 0), std::ptr::null(), std::ptr::null_mut()) })
}

/// Sends count elements to rank to, which must receive as many of the same type under the same tag. Messages of one
/// tag between two ranks arrive in the order of their sends. Returns when the data may be changed again, which says
/// nothing about the receiver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_send(
    comm: *const PhxComm,
    data: *const c_void,
    count: u64,
    dtype: i32,
    to: u64,
    tag: u32,
) -> PhxStatus {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { send(comm, data, count, dtype, to, tag)? }.wait()?;
        Ok(PhxStatus::PHX_OK)
    })
}

/// Receives count elements from rank from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_recv(
    comm: *const PhxComm,
    data: *mut c_void,
    count: u64,
    dtype: i32,
    from: u64,
    tag: u32,
) -> PhxStatus {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { recv(comm, data, count, dtype, from, tag)? }.wait()?;
        Ok(PhxStatus::PHX_OK)
    })
}
