//! How many elements are not what they should be.

use super::Arithmetic;
use super::parameters;
use crate::device::buffer::DeviceBuffer;
use crate::device::slice::DeviceSlice;
use crate::device::stream::Stream;
use crate::types::{Deadline, Element, Result};

impl Arithmetic {
    /// How many elements of a result differ from the expected ones, in any bit. Comes after what is on the stream, and
    /// waits.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for lengths that differ, or memory or a stream of
    /// another device; when the device fails, or is not done by the deadline.
    pub fn count_wrong<T: Element>(
        &self,
        result: &DeviceSlice<'_, T>,
        expected: &DeviceSlice<'_, T>,
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<u64> {
        let count = result.len();
        self.check_stream(stream)?;
        self.check("the result", result, count)?;
        self.check("what is expected", expected, count)?;
        if count == 0 {
            return Ok(0);
        }
        let shape = self.kernels.shape(count as u64);
        let wrong = DeviceBuffer::<u64>::new(self.device(), shape.blocks as usize)?;
        let parameters = parameters::Check {
            result: result.pointer(),
            expected: expected.pointer(),
            count: count as u64,
            wrong: wrong.pointer(),
        };
        let name = format!("phx_count_wrong_{}", size_of::<T>());
        // SAFETY: both have `count` elements and are borrowed; there is a number for each block.
        unsafe { self.launch_shaped(&name, shape, &parameters, stream)? };
        Ok(wrong.to_vec(stream, deadline)?.iter().sum())
    }
}
