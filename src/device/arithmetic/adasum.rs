//! Two gradients into one, by how far they agree.

use super::parameters::{self, ADASUM_RUN, ADASUM_SUMS};
use super::{Arithmetic, VECTOR, check_apart};
use crate::device::slice::{DeviceSlice, DeviceSliceMut};
use crate::device::stream::Stream;
use crate::types::{Element, Error, Result};

impl Arithmetic {
    /// How many numbers [`adasum`](Self::adasum) of so many elements needs room for.
    pub fn adasum_room(count: usize) -> usize {
        count.div_ceil(ADASUM_RUN) * ADASUM_SUMS
    }

    /// `target = left (1 - left.right / 2 left.left) + right (1 - left.right / 2 right.right)`: gradients that point the
    /// same way are averaged, those at right angles are added. For floats. Products are summed in `f64`, in an order
    /// that depends on the count alone. `room` has as many numbers as [`adasum_room`](Self::adasum_room) says, and is
    /// free again when the launch is done.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a type that is no float, lengths that differ, memory or a stream of another
    /// device, or an overlap.
    pub fn adasum<T: Element>(
        &self,
        target: &mut DeviceSliceMut<'_, T>,
        left: &DeviceSlice<'_, T>,
        right: &DeviceSlice<'_, T>,
        room: &mut DeviceSliceMut<'_, f64>,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, count) = (T::DATA_TYPE, target.len());
        if !dtype.is_float() {
            return Err(Error::invalid(format_args!("Adasum of {dtype}: floats expected")));
        }
        self.check_stream(stream)?;
        self.check("the target", target, count)?;
        self.check("the left gradient", left, count)?;
        self.check("the right gradient", right, count)?;
        self.check("the room", room, Self::adasum_room(count))?;
        let read = [("the left gradient", left.bytes()), ("the right gradient", right.bytes())];
        check_apart(("the target", target.bytes()), &read)?;
        check_apart(("the room", room.bytes()), &read)?;
        check_apart(("the room", room.bytes()), &[("the target", target.bytes())])?;
        if !room.pointer().is_multiple_of(align_of::<f64>() as u64) {
            return Err(Error::invalid(format_args!(
                "the room at {:#x} is not aligned to its numbers",
                room.pointer()
            )));
        }
        if count == 0 {
            return Ok(());
        }
        let parameters = parameters::Adasum {
            target: target.pointer(),
            left: left.pointer(),
            right: right.pointer(),
            count: count as u64,
            products: room.pointer(),
        };
        // SAFETY: all have what the kernels want, and are borrowed; the second launch comes after the first.
        unsafe {
            let runs = count.div_ceil(ADASUM_RUN);
            self.launch_runs(&format!("phx_adasum_products_{dtype}"), runs, &parameters, stream)?;
            let vectors = (count * dtype.size()).div_ceil(VECTOR);
            self.launch(&format!("phx_adasum_combine_{dtype}"), vectors, &parameters, stream)
        }
    }
}
