//! Gradients in 8 bits.

use super::parameters::{self, QUANTIZE_RUN, SCALE_NUMBERS};
use super::{Arithmetic, check_apart};
use crate::device::slice::{DeviceSlice, DeviceSliceMut};
use crate::device::stream::Stream;
use crate::types::{DataType, Element, Error, Result};

impl Arithmetic {
    /// How many numbers the scales of so many elements are: two for each 1024.
    pub fn scales(count: usize) -> usize {
        count.div_ceil(QUANTIZE_RUN) * SCALE_NUMBERS
    }

    /// Codes each run of 1024 elements in 255 steps between its least and its greatest. `scales` gets each run's least
    /// and step. What rounding took away is left in `error`, if that is given, and added the next time; it is zero at
    /// first. For `f32` and halves.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for another type, lengths that differ, memory or a stream of another device, an
    /// overlap, or scales or errors that are not aligned to their numbers.
    pub fn quantize<T: Element>(
        &self,
        codes: &mut DeviceSliceMut<'_, u8>,
        scales: &mut DeviceSliceMut<'_, f32>,
        source: &DeviceSlice<'_, T>,
        error: Option<&mut DeviceSliceMut<'_, f32>>,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, count) = (T::DATA_TYPE, source.len());
        check_type(dtype)?;
        self.check_stream(stream)?;
        self.check("the source", source, count)?;
        self.check("the codes", codes, count)?;
        self.check("the scales", scales, Self::scales(count))?;
        check_alignment("the scales", scales.pointer())?;
        let mut others = vec![("the source", source.bytes()), ("the codes", codes.bytes())];
        check_apart(("the scales", scales.bytes()), &others)?;
        check_apart(("the codes", codes.bytes()), &others[..1])?;
        if let Some(error) = &error {
            self.check("the errors", *error, count)?;
            check_alignment("the errors", error.pointer())?;
            others.push(("the scales", scales.bytes()));
            check_apart(("the errors", error.bytes()), &others)?;
        }
        if count == 0 {
            return Ok(());
        }
        let parameters = parameters::Quantize {
            codes: codes.pointer(),
            scales: scales.pointer(),
            source: source.pointer(),
            error: error.map_or(0, |error| error.pointer()),
            count: count as u64,
        };
        // SAFETY: all have what the kernel wants, and are borrowed.
        unsafe { self.launch_runs(&format!("phx_quantize_{dtype}"), count.div_ceil(QUANTIZE_RUN), &parameters, stream) }
    }

    /// Decodes what [`quantize`](Self::quantize) has coded, in place of the target or, with `adds`, added to it.
    ///
    /// # Errors
    ///
    /// As `quantize`.
    pub fn dequantize<T: Element>(
        &self,
        target: &mut DeviceSliceMut<'_, T>,
        codes: &DeviceSlice<'_, u8>,
        scales: &DeviceSlice<'_, f32>,
        adds: bool,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, count) = (T::DATA_TYPE, target.len());
        check_type(dtype)?;
        self.check_stream(stream)?;
        self.check("the target", target, count)?;
        self.check("the codes", codes, count)?;
        self.check("the scales", scales, Self::scales(count))?;
        check_alignment("the scales", scales.pointer())?;
        let read = [("the codes", codes.bytes()), ("the scales", scales.bytes())];
        check_apart(("the target", target.bytes()), &read)?;
        if count == 0 {
            return Ok(());
        }
        let parameters = parameters::Dequantize {
            target: target.pointer(),
            codes: codes.pointer(),
            scales: scales.pointer(),
            count: count as u64,
            adds: u32::from(adds),
        };
        // SAFETY: all have what the kernel wants, and are borrowed.
        unsafe { self.launch(&format!("phx_dequantize_{dtype}"), count, &parameters, stream) }
    }
}

fn check_type(dtype: DataType) -> Result<()> {
    if matches!(dtype, DataType::F16 | DataType::BF16 | DataType::F32) {
        return Ok(());
    }
    Err(Error::invalid(format_args!("8 bits of {dtype}: f32, f16 or bf16 expected")))
}

fn check_alignment(what: &str, pointer: u64) -> Result<()> {
    // A scale is read as two numbers of four bytes each.
    if pointer.is_multiple_of(align_of::<f32>() as u64) {
        return Ok(());
    }
    Err(Error::invalid(format_args!("{what} at {pointer:#x} are not aligned to their numbers")))
}
