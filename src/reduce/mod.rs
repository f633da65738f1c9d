//! Arithmetic on host memory: combining, finishing, scaling and casting runs of elements.
//!
//! The functions take raw pointers, because targets may be sources and user memory may be misaligned. All of them
//! work on any alignment and any count, zero included (pointers may then be null).
//!
//! How it is done: `storage` knows how elements lie in memory and gets a few at a time into registers; `number` knows
//! what the operations mean for what is then in the registers; `kernel` is the one loop around them, compiled for each
//! element type, operation and level of processor, and the table that finds the right copy once a call. `half_bits`
//! converts 16-bit floats without help of the processor, `x86` and `neon` with it. `finish` divides and scales integers (floats are finished in
//! the loop), `user` calls a user's function, `cast` converts whole runs.
//!
//! The same operands give the same bits on every processor: nothing is fused or reassociated, and a NaN that comes out
//! of a calculation is written as the canonical one, positive and quiet with no payload. So the built-in operations
//! are commutative to the last bit, and [`Order`] matters for a user's function alone.

mod cast;
mod finish;
mod half_bits;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod number;
mod storage;
mod stream;
#[cfg(test)]
mod tests;
mod user;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use stream::{copy_streaming, prefetch};

use crate::types::{DataType, Finish, Order, ReduceOp, Reduction};
use cast::Kind;
use kernel::{Kernel, Level};

/// Elements combined before they are finished, where that is a pass of its own: few enough to be still in the nearest
/// cache.
const BLOCK: usize = 1024;

/// Combines `incoming` into `target`, element by element: `target = target op incoming`, or the operands the other way
/// round, and then what `finish` asks for. Halves are combined and finished in `f32` and rounded once.
/// The scales inside `reduction` are ignored. `Average` combines like `Sum`.
///
/// An operation that is not defined for the type ([`ReduceOp::supports`]), or a user's without its function, is a
/// defect of the caller and leaves `target` as it is.
///
/// # Safety
///
/// `target` must be valid for reads and writes and `incoming` for reads of `count` elements; they must not overlap.
pub unsafe fn combine(
    reduction: &Reduction,
    dtype: DataType,
    target: *mut u8,
    incoming: *const u8,
    count: usize,
    order: Order,
    finish: Finish,
) {
    // SAFETY: the caller keeps the promises, and the level is that of this processor.
    unsafe { combine_by(Level::best(), reduction, dtype, target, incoming, count, order, finish) }
}

/// # Safety
///
/// As for [`combine`], and the processor must be of this level.
#[allow(clippy::too_many_arguments)]
unsafe fn combine_by(
    level: Level,
    reduction: &Reduction,
    dtype: DataType,
    target: *mut u8,
    incoming: *const u8,
    count: usize,
    order: Order,
    finish: Finish,
) {
    if count == 0 {
        return;
    }
    if let (ReduceOp::User, Some((_, function))) = (reduction.op, &reduction.function) {
        // SAFETY: the caller keeps the promises.
        return unsafe {
            user::combine(function, dtype, target, incoming, count, order);
            finish_run(level, dtype, target, count, &finish);
        };
    }
    let Some(kernels) = kernel::select(level, dtype, reduction.op) else { return undefined(dtype, reduction.op) };
    // Either order gives the same bits.
    let sources = [target.cast_const(), incoming];
    // SAFETY: the caller keeps the promises, and the kernel was selected for this level.
    unsafe { run(level, kernels.pair, dtype, target, &sources, count, &finish) }
}

/// `target = sources[0] op sources[1] op ...` from left to right, then what `finish` asks for, in one pass, halves
/// accumulating in `f32` and rounding once. One source alone is a (finished) copy, of which only the truth is kept if
/// the operation is logical or the elements are `bool`: those results are always 0 or 1. No source leaves `target` as
/// it is, and so does what [`combine`] calls a defect of the caller.
///
/// # Safety
///
/// All pointers must be valid for `count` elements, `target` for writes too. `target` may be equal to one or several
/// of the sources; otherwise it must not overlap any.
pub unsafe fn reduce(
    reduction: &Reduction,
    dtype: DataType,
    target: *mut u8,
    sources: &[*const u8],
    count: usize,
    finish: Finish,
) {
    // SAFETY: the caller keeps the promises, and the level is that of this processor.
    unsafe { reduce_by(Level::best(), reduction, dtype, target, sources, count, finish) }
}

/// # Safety
///
/// As for [`reduce`], and the processor must be of this level.
unsafe fn reduce_by(
    level: Level,
    reduction: &Reduction,
    dtype: DataType,
    target: *mut u8,
    sources: &[*const u8],
    count: usize,
    finish: Finish,
) {
    let Some((&first, rest)) = sources.split_first() else { return };
    if count == 0 {
        return;
    }
    if let (ReduceOp::User, Some((_, function))) = (reduction.op, &reduction.function) {
        // SAFETY: the caller keeps the promises.
        return unsafe {
            user::reduce(function, dtype, target, first, rest, count);
            finish_run(level, dtype, target, count, &finish);
        };
    }
    let Some(kernels) = kernel::select(level, dtype, reduction.op) else { return undefined(dtype, reduction.op) };
    // SAFETY: the caller keeps the promises, and the kernels were selected for this level.
    unsafe {
        match sources {
            [source] => match (dtype, reduction.op) {
                // Reading and writing a `bool` is what brings it down to its truth.
                (DataType::Bool, _) => run(level, kernels.many, dtype, target, sources, count, &finish),
                (_, ReduceOp::LogicalAnd | ReduceOp::LogicalOr) => {
                    run(level, kernels.pair, dtype, target, &[*source, *source], count, &finish);
                }
                _ => copy_finished(level, dtype, target, *source, count, &finish),
            },
            [_, _] => run(level, kernels.pair, dtype, target, sources, count, &finish),
            _ => run(level, kernels.many, dtype, target, sources, count, &finish),
        }
    }
}

/// `target = source * factor`: floats in their own type (halves in `f32`, rounded once), integers in `f64` and
/// truncated towards zero, saturating; `bool` is copied. A factor of 1 copies any type bit by bit.
///
/// # Safety
///
/// Both must be valid for `count` elements; `target` may be equal to `source`, otherwise they must not overlap.
pub unsafe fn scale(dtype: DataType, target: *mut u8, source: *const u8, count: usize, factor: f64) {
    // SAFETY: the caller keeps the promises, and the level is that of this processor.
    unsafe { scale_by(Level::best(), dtype, target, source, count, factor) }
}

/// # Safety
///
/// As for [`scale`], and the processor must be of this level.
unsafe fn scale_by(level: Level, dtype: DataType, target: *mut u8, source: *const u8, count: usize, factor: f64) {
    if count > 0 {
        // SAFETY: the caller keeps the promises.
        unsafe { copy_finished(level, dtype, target, source, count, &Finish { divisor: 1, factor }) }
    }
}

/// Converts between `f16` or `bf16` and `f32`, rounding to nearest even. NaNs become quiet and keep what fits of their
/// payload. Any other pair of types is a defect of the caller and leaves `target` as it is.
///
/// # Safety
///
/// `source` must be valid for `count` elements of type `from`, `target` of type `to`; they must not overlap.
pub unsafe fn cast(from: DataType, source: *const u8, to: DataType, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises, and the level is that of this processor.
    unsafe { cast_by(Level::best(), from, source, to, target, count) }
}

/// # Safety
///
/// As for [`cast()`], and the processor must be of this level.
unsafe fn cast_by(level: Level, from: DataType, source: *const u8, to: DataType, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe {
        match (from, to) {
            (DataType::F16, DataType::F32) => cast::widen(level, Kind::F16, source, target, count),
            (DataType::BF16, DataType::F32) => cast::widen(level, Kind::Bf16, source, target, count),
            (DataType::F32, DataType::F16) => cast::narrow(level, Kind::F16, source, target, count),
            (DataType::F32, DataType::BF16) => cast::narrow(level, Kind::Bf16, source, target, count),
            _ => debug_assert!(false, "a cast from {from} to {to}"),
        }
    }
}

/// Runs a kernel over all elements; integers are finished block by block behind it.
///
/// # Safety
///
/// As for [`Kernel`], with `count` for the end of the range.
unsafe fn run(
    level: Level,
    kernel: Kernel,
    dtype: DataType,
    target: *mut u8,
    sources: &[*const u8],
    count: usize,
    finish: &Finish,
) {
    if dtype.is_float() || finish.is_none() {
        // SAFETY: the caller keeps the promises.
        return unsafe { kernel(target, sources, 0..count, finish) };
    }
    for start in (0..count).step_by(BLOCK) {
        let end = count.min(start + BLOCK);
        // SAFETY: the caller vouches for `count` elements, among which the block lies.
        unsafe {
            kernel(target, sources, start..end, finish);
            finish::integers(level, dtype, target.add(start * dtype.size()), end - start, finish);
        }
    }
}

/// `target = source`, finished; bit by bit where there is nothing to finish.
///
/// # Safety
///
/// As for [`scale`], with at least one element, and the processor must be of this level.
unsafe fn copy_finished(
    level: Level,
    dtype: DataType,
    target: *mut u8,
    source: *const u8,
    count: usize,
    finish: &Finish,
) {
    if dtype.is_float() && !finish.is_none() {
        // The operation does not matter: of one source nothing is combined, the kernel only finishes.
        let Some(kernels) = kernel::select(level, dtype, ReduceOp::Sum) else { return };
        // SAFETY: the caller keeps the promises, and the kernel was selected for this level.
        return unsafe { (kernels.many)(target, &[source], 0..count, finish) };
    }
    let size = dtype.size();
    let block = if finish.is_none() { count } else { BLOCK };
    for start in (0..count).step_by(block) {
        let length = block.min(count - start);
        // SAFETY: the caller vouches for `count` elements, among which the block lies.
        unsafe {
            source.add(start * size).copy_to(target.add(start * size), length * size);
            finish::integers(level, dtype, target.add(start * size), length, finish);
        }
    }
}

/// Brings what a user's function wrote into the form that results have: `bool` is 0 or 1, and finished.
///
/// # Safety
///
/// `target` must be valid for reads and writes of `count` elements, at least one, and the processor must be of this
/// level.
unsafe fn finish_run(level: Level, dtype: DataType, target: *mut u8, count: usize, finish: &Finish) {
    // SAFETY: the caller keeps the promises; the target may be its own source.
    unsafe {
        if dtype == DataType::Bool {
            reduce_by(level, &ReduceOp::LogicalOr.into(), dtype, target, &[target.cast_const()], count, Finish::NONE);
        } else if !finish.is_none() {
            copy_finished(level, dtype, target, target.cast_const(), count, finish);
        }
    }
}

/// An operation reached this room that the rooms above should have refused.
#[cold]
fn undefined(dtype: DataType, op: ReduceOp) {
    debug_assert!(false, "{op} of {dtype}");
}
