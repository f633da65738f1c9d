//! A collective call as a plain struct, and the way from it into the library.

use std::ffi::{CStr, c_char, c_void};

use phalanx::types::Collective;
use phalanx::{Call, Communicator, DataType, Error, ReduceOp, Reduction};

use crate::codes::{PhxCollective, PhxOp, collective, dtype, op};
use crate::communicator::{PhxComm, get, number, numbers, put};
use crate::handle::PhxHandle;
use crate::status::{PhxStatus, guarded};

/// A reduction of the caller's own: combines count elements of incoming into accumulator, element by element. Neither
/// need be aligned. It may run on any thread, on several at once, and must return normally. It must be associative;
/// commutative too, unless the communicator is deterministic.
pub type PhxFunction = Option<
    unsafe extern "C" fn(
        accumulator: *mut c_void,
        incoming: *const c_void,
        count: u64,
        dtype: i32,
        context: *mut c_void,
    ),
>;

/// Everything about a collective call but its memory. Make one with phx_call, then change what is special.
///
/// Elements of the input and the output, for n ranks:
///
///     allreduce, reduce      count, count (reduce: at the root; elsewhere the output is not used)
///     broadcast              the output is the only buffer, of count elements
///     allgather, gather      count, n * count; with counts: counts[rank], their sum (gather: at the root)
///     reduce_scatter         n * count, count; with counts: their sum, counts[rank]
///     scatter                n * count (at the root), count; with counts: their sum, counts[rank]
///     alltoall               n * count, n * count; with counts and recv_counts: their sums
///     barrier                none
///
/// With PHX_IN_PLACE the output is the larger of the two, and this rank's own block is where it lies in that; of
/// reduce_scatter the other blocks are unspecified afterwards, of reduce the whole on ranks that are not the root.
/// For gather and scatter only the root may be in place, for alltoall only equal blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PhxCall {
    /// A phx_collective_t.
    pub collective: i32,
    /// A phx_dtype_t.
    pub dtype: i32,
    /// A phx_op_t, for collectives that reduce.
    pub op: i32,
    /// The root, for collectives that have one.
    pub root: u64,
    /// Elements: of the whole, or of each block.
    pub count: u64,
    /// Elements of each rank's block, one number for each rank, instead of count; or NULL. For alltoall those that this
    /// rank sends to each. Read before the call returns.
    pub counts: *const u64,
    /// For alltoall with counts: the elements that this rank gets from each.
    pub recv_counts: *const u64,
    /// What each input is multiplied by; 1 for nothing.
    pub prescale: f64,
    /// What each result is multiplied by; 1 for nothing.
    pub postscale: f64,
    /// For PHX_USER.
    pub function: PhxFunction,
    /// For PHX_USER: a name that every rank gives alike.
    pub function_name: *const c_char,
    /// For PHX_USER: given to the function; must stay valid until the operation has ended.
    pub context: *mut c_void,
}

/// A call with the usual settings: sum, root 0, no scales, equal blocks.
#[unsafe(no_mangle)]
pub extern "C" fn phx_call(collective: i32, dtype: i32, count: u64) -> PhxCall {
    PhxCall {
        collective,
        dtype,
        op: PhxOp::PHX_SUM as i32,
        root: 0,
        count,
        counts: std::ptr::null(),
        recv_counts: std::ptr::null(),
        prescale: 1.0,
        postscale: 1.0,
        function: None,
        function_name: std::ptr::null(),
        context: std::ptr::null_mut(),
    }
}

/// Runs a call to its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_run(
    comm: *const PhxComm,
    call: *const PhxCall,
    input: *const c_void,
    output: *mut c_void,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        let call = call.as_ref().ok_or_else(|| Error::invalid("the call is NULL"))?;
        run(comm, call, input, output)
    })
}

/// Starts a call. Sets *handle, to NULL after an error. The memory is the operation's until phx_wait has returned, or
/// phx_wait_for or phx_poll something else than PHX_PENDING, or phx_handle_free has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_submit(
    comm: *const PhxComm,
    call: *const PhxCall,
    input: *const c_void,
    output: *mut c_void,
    handle: *mut *mut PhxHandle,
) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe {
        put(handle, std::ptr::null_mut(), "place for the handle")?;
        let call = call.as_ref().ok_or_else(|| Error::invalid("the call is NULL"))?;
        start(comm, call, input, output, handle)
    })
}

/// The address that C programs give as the input of a call in place.
pub(crate) const IN_PLACE: *const c_void = std::ptr::without_provenance(usize::MAX);

/// # Safety
///
/// The caller keeps what the header says about collectives and memory.
pub(crate) unsafe fn run(
    comm: *const PhxComm,
    call: &PhxCall,
    input: *const c_void,
    output: *mut c_void,
) -> Result<PhxStatus, Error> {
    // SAFETY: the caller's promise.
    unsafe {
        let comm = get(comm)?;
        let (call, input) = translate(comm, call, input, output)?;
        comm.run(&call, input, output.cast())?;
    }
    Ok(PhxStatus::PHX_OK)
}

/// # Safety
///
/// The caller keeps what the header says about collectives and memory.
pub(crate) unsafe fn start(
    comm: *const PhxComm,
    call: &PhxCall,
    input: *const c_void,
    output: *mut c_void,
    handle: *mut *mut PhxHandle,
) -> Result<PhxStatus, Error> {
    // SAFETY: the caller's promise.
    unsafe {
        put(handle, std::ptr::null_mut(), "place for the handle")?;
        let comm = get(comm)?;
        let (call, input) = translate(comm, call, input, output)?;
        let started = comm.submit(&call, input, output.cast(), None)?;
        put(handle, PhxHandle::new(started), "place for the handle")
    }
}

/// The library's call, and its input: null in place.
///
/// # Safety
///
/// The lists and names of the call must be valid.
unsafe fn translate(
    comm: &Communicator,
    call: &PhxCall,
    input: *const c_void,
    output: *mut c_void,
) -> Result<(Call, *const u8), Error> {
    let kind = collective(call.collective)?;
    let elements = if kind == Collective::Barrier { DataType::U8 } else { dtype(call.dtype)? };
    let in_place = input == IN_PLACE;
    let (count, root) = (number("count", call.count)?, number("root", call.root)?);
    let ranks = comm.size() as u64;
    let counts = if call.counts.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { numbers("counts", call.counts, ranks)? })
    };
    // Empty blocks may lie anywhere.
    let own = counts.as_ref().map_or(count, |counts| counts[comm.rank()]);
    if !in_place && own > 0 && input == output.cast_const() && kind != Collective::Broadcast && !input.is_null() {
        return Err(Error::invalid(format_args!("{kind}: input and output are the same; give PHX_IN_PLACE as input")));
    }
    let reduces = matches!(kind, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter);
    // SAFETY: the caller's promise.
    let reduction = if reduces { unsafe { reduction(call)? } } else { Reduction::new(ReduceOp::Sum) };
    let translated = match (kind, counts) {
        (Collective::Allreduce, None) => Call::allreduce(elements, count, reduction),
        (Collective::Reduce, None) => Call::reduce(elements, count, reduction, root),
        (Collective::Broadcast, None) => Call::broadcast(elements, count, root),
        (Collective::Allgather, None) => Call::allgather(elements, count),
        (Collective::Allgather, Some(counts)) => Call::allgatherv(elements, &counts),
        (Collective::ReduceScatter, None) => Call::reduce_scatter(elements, count, reduction),
        (Collective::ReduceScatter, Some(counts)) => Call::reduce_scatterv(elements, &counts, reduction),
        (Collective::Alltoall, None) => Call::alltoall(elements, count),
        (Collective::Alltoall, Some(send)) => {
            // SAFETY: the caller's promise.
            let recv = unsafe { numbers("recv_counts", call.recv_counts, ranks)? };
            Call::alltoallv(elements, &send, &recv)
        }
        (Collective::Gather, None) => Call::gather(elements, count, root),
        (Collective::Gather, Some(counts)) => Call::gatherv(elements, &counts, root),
        (Collective::Scatter, None) => Call::scatter(elements, count, root),
        (Collective::Scatter, Some(counts)) => Call::scatterv(elements, &counts, root),
        (Collective::Barrier, None) => Call::barrier(),
        (Collective::Allreduce | Collective::Reduce | Collective::Broadcast | Collective::Barrier, Some(_))
        | (Collective::SendRecv, _) => {
            return Err(Error::invalid(format_args!("{kind}: counts given, but it has no blocks")));
        }
    };
    let input = if in_place || kind == Collective::Broadcast { std::ptr::null() } else { input.cast() };
    Ok((translated.in_place(in_place), input))
}

/// # Safety
///
/// The name of the call's function must be valid.
unsafe fn reduction(call: &PhxCall) -> Result<Reduction, Error> {
    let reduction = match (op(call.op)?, call.function) {
        (ReduceOp::User, Some(function)) => {
            if call.function_name.is_null() {
                return Err(Error::invalid("PHX_USER wants a function_name, the same on every rank"));
            }
            // SAFETY: the caller's promise.
            let name = unsafe { CStr::from_ptr(call.function_name) }.to_string_lossy();
            let context = Context(call.context);
            Reduction::user(&name, move |accumulator, incoming, dtype| {
                let count = (accumulator.len() / dtype.size()) as u64;
                let (to, from) = (accumulator.as_mut_ptr().cast(), incoming.as_ptr().cast());
                // SAFETY: both hold `count` elements and are apart; the caller vouches for the function and what it
                // is given.
                unsafe { function(to, from, count, dtype as i32, context.get()) }
            })
        }
        (ReduceOp::User, None) => return Err(Error::invalid("PHX_USER wants a function, and it is NULL")),
        (op, _) => Reduction::new(op),
    };
    Ok(reduction.prescale(call.prescale).postscale(call.postscale))
}

/// What the caller's function is given.
struct Context(*mut c_void);

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: it is only handed to the caller's function, which may run on any thread, as the header says.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A call of a collective that does not reduce.
pub(crate) fn plain(collective: PhxCollective, dtype: i32, count: u64, root: u64) -> PhxCall {
    PhxCall { root, ..phx_call(collective as i32, dtype, count) }
}

/// A call of a collective that reduces.
pub(crate) fn reducing(collective: PhxCollective, dtype: i32, count: u64, op: i32, root: u64) -> PhxCall {
    PhxCall { op, root, ..phx_call(collective as i32, dtype, count) }
}

/// A call over blocks of differing lengths.
pub(crate) fn blocks(collective: PhxCollective, dtype: i32, counts: *const u64, root: u64) -> Result<PhxCall, Error> {
    if counts.is_null() {
        return Err(Error::invalid("counts is NULL, one number for each rank expected"));
    }
    Ok(PhxCall { counts, root, ..phx_call(collective as i32, dtype, 0) })
}

/// An alltoall of differing lengths.
pub(crate) fn exchange(dtype: i32, send_counts: *const u64, recv_counts: *const u64) -> Result<PhxCall, Error> {
    Ok(PhxCall { recv_counts, ..blocks(PhxCollective::PHX_ALLTOALL, dtype, send_counts, 0)? })
}
