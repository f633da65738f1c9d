//! Casts, and many tensors in one buffer.

use std::marker::PhantomData;

use super::parameters::{self, PIECE_WORDS};
use super::{Arithmetic, VECTOR, check_apart};
use crate::device::buffer::DeviceBuffer;
use crate::device::slice::{DeviceSlice, DeviceSliceMut};
use crate::device::stream::Stream;
use crate::types::{DataType, Deadline, Element, Error, Result};

/// A form of floats of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eighth {
    /// 4 bits of exponent, 3 of fraction, no infinity.
    E4M3,
    /// 5 bits of exponent, 2 of fraction.
    E5M2,
}

impl Eighth {
    fn name(self) -> &'static str {
        match self {
            Self::E4M3 => "f8_e4m3",
            Self::E5M2 => "f8_e5m2",
        }
    }
}

impl Arithmetic {
    /// Converts between `f32` and `f16` or `bf16`, rounding to nearest even. NaN becomes the canonical one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for another pair of types, lengths that differ, memory or a stream of another device,
    /// or an overlap.
    pub fn cast<From: Element, To: Element>(
        &self,
        target: &mut DeviceSliceMut<'_, To>,
        source: &DeviceSlice<'_, From>,
        stream: &Stream,
    ) -> Result<()> {
        let (from, to) = (From::DATA_TYPE, To::DATA_TYPE);
        let is_known = matches!((from, to), (DataType::F32, other) | (other, DataType::F32) if other.is_half());
        if !is_known {
            return Err(Error::invalid(format_args!("a cast from {from} to {to}: only f32 and a half are cast")));
        }
        self.cast_by(&format!("phx_cast_{from}_{to}"), target, source, stream)
    }

    /// Converts to floats of 8 bits, rounding to nearest even; what is beyond the largest finite one becomes that.
    ///
    /// # Errors
    ///
    /// As [`cast`](Self::cast).
    pub fn cast_to_eighths(
        &self,
        form: Eighth,
        target: &mut DeviceSliceMut<'_, u8>,
        source: &DeviceSlice<'_, f32>,
        stream: &Stream,
    ) -> Result<()> {
        self.cast_by(&format!("phx_cast_f32_{}", form.name()), target, source, stream)
    }

    /// Converts from floats of 8 bits.
    ///
    /// # Errors
    ///
    /// As [`cast`](Self::cast).
    pub fn cast_from_eighths(
        &self,
        form: Eighth,
        target: &mut DeviceSliceMut<'_, f32>,
        source: &DeviceSlice<'_, u8>,
        stream: &Stream,
    ) -> Result<()> {
        self.cast_by(&format!("phx_cast_{}_f32", form.name()), target, source, stream)
    }

    fn cast_by<From: Element, To: Element>(
        &self,
        name: &str,
        target: &mut DeviceSliceMut<'_, To>,
        source: &DeviceSlice<'_, From>,
        stream: &Stream,
    ) -> Result<()> {
        let count = target.len();
        self.check_stream(stream)?;
        self.check("the source", source, count)?;
        self.check("the target", target, count)?;
        check_apart(("the target", target.bytes()), &[("the source", source.bytes())])?;
        if count == 0 {
            return Ok(());
        }
        let parameters = parameters::Cast { target: target.pointer(), source: source.pointer(), count: count as u64 };
        let narrow = size_of::<From>().min(size_of::<To>());
        // SAFETY: both have `count` elements of borrowed memory; freeing it waits for the launch.
        unsafe { self.launch(name, (count * narrow).div_ceil(VECTOR), &parameters, stream) }
    }

    /// Copies tensors into one buffer, where [`Pieces::places`] says, in one launch.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a buffer of another length than [`Pieces::len`], or memory or a stream of another
    /// device.
    pub fn gather<T: Element>(
        &self,
        buffer: &mut DeviceSliceMut<'_, T>,
        pieces: &Pieces<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check("the buffer", buffer, pieces.count)?;
        pieces.check_apart(("the buffer", buffer.bytes()))?;
        self.pack("phx_gather_pieces", buffer.pointer(), pieces, stream)
    }

    /// Copies tensors back out of one buffer, in one launch.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub fn scatter<T: Element>(
        &self,
        buffer: &DeviceSlice<'_, T>,
        pieces: &mut Pieces<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check("the buffer", buffer, pieces.count)?;
        pieces.check_apart(("the buffer", buffer.bytes()))?;
        self.pack("phx_scatter_pieces", buffer.pointer(), pieces, stream)
    }

    fn pack<T: Element>(&self, name: &str, buffer: u64, pieces: &Pieces<'_, T>, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        self.check("the table of pieces", &pieces.table.as_slice(), pieces.table.len())?;
        let count = pieces.ranges.len();
        if count == 0 {
            return Ok(());
        }
        let longest = pieces.ranges.iter().map(|range| range.end - range.start).max().unwrap_or_default();
        let parameters = parameters::Pack {
            buffer,
            pieces: pieces.table.pointer(),
            count: u32::try_from(count).map_err(|_| Error::invalid(format_args!("{count} tensors at once")))?,
        };
        // SAFETY: each piece is a tensor that `pieces` borrows, and a range of the buffer, which has the length that
        // was reckoned for all of them.
        unsafe { self.launch(name, (longest as usize).div_ceil(VECTOR), &parameters, stream) }
    }
}

/// Tensors of one device that are gathered into one buffer and scattered back.
#[derive(Debug)]
pub struct Pieces<'a, T> {
    table: DeviceBuffer<u64>,
    /// Where each tensor lies.
    ranges: Vec<std::ops::Range<u64>>,
    places: Vec<usize>,
    count: usize,
    tensors: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> Pieces<'a, T> {
    /// Lays the tensors out one after the other, each beginning at a multiple of sixteen bytes, and tells the device.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when one is of another device than the stream; and as
    /// [`DeviceBuffer::from_slice`].
    pub fn new(stream: &Stream, tensors: Vec<DeviceSliceMut<'a, T>>, deadline: Deadline) -> Result<Self> {
        let (mut table, mut ranges, mut places) = (Vec::with_capacity(PIECE_WORDS * tensors.len()), vec![], vec![]);
        let lanes = VECTOR / size_of::<T>();
        let mut count = 0usize;
        for (number, tensor) in tensors.iter().enumerate() {
            if !tensor.is_empty() && tensor.device() != stream.device() {
                return Err(Error::invalid(format_args!(
                    "tensor {number} is memory of device {}, the stream is of device {}",
                    tensor.device().ordinal(),
                    stream.device().ordinal()
                )));
            }
            let at = tensor.bytes();
            table.extend([at.start, (count * size_of::<T>()) as u64, at.end - at.start]);
            ranges.push(at);
            places.push(count);
            count = count
                .checked_add(tensor.len())
                .and_then(|end| end.checked_next_multiple_of(lanes))
                .filter(|count| count.checked_mul(size_of::<T>()).is_some())
                .ok_or_else(|| Error::invalid("tensors of more bytes than memory can have"))?;
        }
        let table = DeviceBuffer::from_slice(stream, &table, deadline)?;
        Ok(Self { table, ranges, places, count, tensors: PhantomData })
    }

    /// Elements that the one buffer has.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where each tensor begins in the buffer. What lies between two of them is not written.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    fn check_apart(&self, buffer: (&str, std::ops::Range<u64>)) -> Result<()> {
        let all: Vec<_> = self.ranges.iter().map(|range| ("a tensor", range.clone())).collect();
        check_apart(buffer, &all)
    }
}
