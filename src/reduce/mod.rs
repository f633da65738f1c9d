//! Arithmetic on host memory: combining, finishing, scaling and casting runs of elements.
//!
//! The functions take raw pointers, because targets may be sources and user memory may be misaligned. All of them
//! work on any alignment and any count, zero included (pointers may then be null).

use crate::types::{DataType, Finish, Order, Reduction};

/// Combines `incoming` into `target`, element by element: `target = target op incoming`, or the operands the other way
/// round, and then what `finish` asks for. Halves are combined and finished in `f32` and rounded once.
/// The scales inside `reduction` are ignored. `Average` combines like `Sum`.
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
    let _ = (reduction, dtype, target, incoming, count, order, finish);
    unimplemented!()
}

/// `target = sources[0] op sources[1] op ...` from left to right, then what `finish` asks for, in one pass, halves
/// accumulating in `f32` and rounding once. One source alone is a (finished) copy.
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
    let _ = (reduction, dtype, target, sources, count, finish);
    unimplemented!()
}

/// `target = source * factor`: floats in their own type (halves in `f32`, rounded once), integers in `f64` and
/// truncated towards zero, saturating; `bool` is copied.
///
/// # Safety
///
/// Both must be valid for `count` elements; `target` may be equal to `source`, otherwise they must not overlap.
pub unsafe fn scale(
    dtype: DataType,
    target: *mut u8,
    source: *const u8,
    count: usize,
    factor: f64,
) {
    let _ = (dtype, target, source, count, factor);
    unimplemented!()
}

/// Converts between `f16` or `bf16` and `f32`, rounding to nearest even.
///
/// # Safety
///
/// `source` must be valid for `count` elements of type `from`, `target` of type `to`; they must not overlap.
pub unsafe fn cast(from: DataType, source: *const u8, to: DataType, target: *mut u8, count: usize) {
    let _ = (from, source, to, target, count);
    unimplemented!()
}
