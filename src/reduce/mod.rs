//! Arithmetic on host memory: combining, finishing, scaling and casting runs of elements.
//!
//! The functions take raw pointers, because targets may be sources and user memory may be misaligned. All of them
//! work on any alignment and any count, zero included (pointers may then be null).

mod plain;

use crate::types::{DataType, Finish, Order, ReduceOp, Reduction};

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
    if count == 0 {
        return;
    }
    if reduction.op == ReduceOp::User {
        let Some((_, function)) = &reduction.function else {
            return;
        };
        let bytes = count * dtype.size();
        // SAFETY: the caller vouches for both runs and for their being apart.
        let (here, there) =
            unsafe { (std::slice::from_raw_parts_mut(target, bytes), std::slice::from_raw_parts(incoming, bytes)) };
        match order {
            Order::HereFirst => function(here, there, dtype),
            Order::IncomingFirst => {
                let mut left = there.to_vec();
                function(&mut left, here, dtype);
                here.copy_from_slice(&left);
            }
        }
        // SAFETY: the caller vouches for `target`.
        return unsafe { reduce(&ReduceOp::Sum.into(), dtype, target, &[target.cast_const()], count, finish) };
    }
    let sources = match order {
        Order::HereFirst => [target.cast_const(), incoming],
        Order::IncomingFirst => [incoming, target.cast_const()],
    };
    // SAFETY: the caller vouches for both runs.
    unsafe { reduce(reduction, dtype, target, &sources, count, finish) };
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
    let Some((&first, rest)) = sources.split_first() else {
        return;
    };
    if reduction.op == ReduceOp::User {
        let Some((_, function)) = &reduction.function else {
            return;
        };
        let bytes = count * dtype.size();
        if count == 0 {
            return;
        }
        // SAFETY: the caller vouches for every source.
        let mut left = unsafe { std::slice::from_raw_parts(first, bytes) }.to_vec();
        for &source in rest {
            // SAFETY: the caller vouches for every source.
            function(&mut left, unsafe { std::slice::from_raw_parts(source, bytes) }, dtype);
        }
        // SAFETY: the caller vouches for `target`, and `left` is as long.
        return unsafe { reduce(&ReduceOp::Sum.into(), dtype, target, &[left.as_ptr()], count, finish) };
    }
    for index in 0..count {
        // SAFETY: the caller vouches for `count` elements of every run; all operands are read before the result is
        // written, so that it may replace one of them.
        unsafe {
            let mut value = plain::load(dtype, first, index);
            for &source in rest {
                value = plain::apply(reduction.op, dtype, value, plain::load(dtype, source, index));
            }
            plain::store(dtype, target, index, plain::settle(dtype, value, finish));
        }
    }
}

/// `target = source * factor`: floats in their own type (halves in `f32`, rounded once), integers in `f64` and
/// truncated towards zero, saturating; `bool` is copied.
///
/// # Safety
///
/// Both must be valid for `count` elements; `target` may be equal to `source`, otherwise they must not overlap.
pub unsafe fn scale(dtype: DataType, target: *mut u8, source: *const u8, count: usize, factor: f64) {
    // SAFETY: the caller vouches for both runs. One source is not combined with anything.
    unsafe { reduce(&ReduceOp::Sum.into(), dtype, target, &[source], count, Finish { divisor: 1, factor }) };
}

/// Converts between `f16` or `bf16` and `f32`, rounding to nearest even.
///
/// # Safety
///
/// `source` must be valid for `count` elements of type `from`, `target` of type `to`; they must not overlap.
pub unsafe fn cast(from: DataType, source: *const u8, to: DataType, target: *mut u8, count: usize) {
    for index in 0..count {
        // SAFETY: the caller vouches for both runs.
        unsafe { plain::store(to, target, index, plain::load(from, source, index)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_known_answers() {
        let mut target = [1.0f32, 2.0];
        let incoming = [3.0f32, 5.0];
        let average = Finish { divisor: 2, factor: 1.0 };
        // SAFETY: both arrays hold two elements.
        unsafe {
            let (target, incoming) = (target.as_mut_ptr().cast(), incoming.as_ptr().cast());
            combine(&ReduceOp::Average.into(), DataType::F32, target, incoming, 2, Order::HereFirst, average);
        }
        assert_eq!(target, [2.0, 3.5]);
    }
}
