//! Combining by a user's own function.
//!
//! The function sees slices that are apart, so whatever may be the same memory is copied to the stack in blocks. After
//! it, what it wrote is brought into the form that results have: see [`super::finish_run`].

use crate::types::{DataType, Order, UserFunction};

/// Bytes combined at once where a temporary is needed: large enough that the call does not matter, small enough to
/// stay in the nearest cache. A whole number of elements of any type.
const BLOCK_BYTES: usize = 8192;

/// `target = target f incoming`, or the operands the other way round.
///
/// # Safety
///
/// `target` must be valid for reads and writes and `incoming` for reads of `count` elements, at least one; they must
/// be apart.
pub(super) unsafe fn combine(
    function: &UserFunction,
    dtype: DataType,
    target: *mut u8,
    incoming: *const u8,
    count: usize,
    order: Order,
) {
    let bytes = count * dtype.size();
    // SAFETY: the caller vouches for both runs and for their being apart.
    let (here, incoming) =
        unsafe { (std::slice::from_raw_parts_mut(target, bytes), std::slice::from_raw_parts(incoming, bytes)) };
    if order == Order::HereFirst {
        return function(here, incoming, dtype);
    }
    let mut block = [0; BLOCK_BYTES];
    for (here, incoming) in here.chunks_mut(BLOCK_BYTES).zip(incoming.chunks(BLOCK_BYTES)) {
        let left = &mut block[..here.len()];
        left.copy_from_slice(incoming);
        function(left, here, dtype);
        here.copy_from_slice(left);
    }
}

/// `target = first f rest[0] f rest[1] ...` from left to right.
///
/// # Safety
///
/// All must be valid for `count` elements, at least one, `target` for writes too; each source must be equal to the
/// target or apart from it.
pub(super) unsafe fn reduce(
    function: &UserFunction,
    dtype: DataType,
    target: *mut u8,
    first: *const u8,
    rest: &[*const u8],
    count: usize,
) {
    let bytes = count * dtype.size();
    let mut block = [0; BLOCK_BYTES];
    for start in (0..bytes).step_by(BLOCK_BYTES) {
        let left = &mut block[..BLOCK_BYTES.min(bytes - start)];
        // SAFETY: these bytes lie within the elements that the caller vouches for; nothing else reaches the block, and
        // the target is written when no source's slice is alive any more.
        unsafe {
            first.add(start).copy_to_nonoverlapping(left.as_mut_ptr(), left.len());
            for source in rest {
                function(left, std::slice::from_raw_parts(source.add(start), left.len()), dtype);
            }
            target.add(start).copy_from_nonoverlapping(left.as_ptr(), left.len());
        }
    }
}
