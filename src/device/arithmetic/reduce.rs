//! Several buffers into one, and scaling.

use super::parameters::{self, MOST_SOURCES};
use super::{Arithmetic, VECTOR, check_apart};
use crate::device::slice::{DeviceSlice, DeviceSliceMut};
use crate::device::stream::Stream;
use crate::types::{DataType, Element, Error, Finish, ReduceOp, Result};

impl Arithmetic {
    /// `target = sources[0] op sources[1] op ...` from left to right, then what `finish` asks for, in one pass: what
    /// [`reduce::reduce`](crate::reduce::reduce) does on the host. Halves accumulate in `f32` and are rounded once. An
    /// average is a sum: its divisor is in `finish`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for an operation that the type has not or that is a user's, no source or more than
    /// 16, lengths that differ, memory or a stream of another device, or an overlap.
    pub fn reduce<T: Element>(
        &self,
        op: ReduceOp,
        finish: Finish,
        target: &mut DeviceSliceMut<'_, T>,
        sources: &[DeviceSlice<'_, T>],
        stream: &Stream,
    ) -> Result<()> {
        for (number, source) in sources.iter().enumerate() {
            self.check(&format!("source {number}"), source, target.len())?;
            check_apart(("the target", target.bytes()), &[(&format!("source {number}"), source.bytes())])?;
        }
        let pointers: Vec<u64> = sources.iter().map(DeviceSlice::pointer).collect();
        self.reduce_pointers(op, finish, target, &pointers, stream)
    }

    /// `target = target op others[0] op ...`, else as [`reduce`](Self::reduce).
    ///
    /// # Errors
    ///
    /// As `reduce`; here the target is the first of the 16.
    pub fn reduce_in_place<T: Element>(
        &self,
        op: ReduceOp,
        finish: Finish,
        target: &mut DeviceSliceMut<'_, T>,
        others: &[DeviceSlice<'_, T>],
        stream: &Stream,
    ) -> Result<()> {
        let mut pointers = vec![target.pointer()];
        for (number, other) in others.iter().enumerate() {
            self.check(&format!("other {number}"), other, target.len())?;
            check_apart(("the target", target.bytes()), &[(&format!("other {number}"), other.bytes())])?;
            pointers.push(other.pointer());
        }
        self.reduce_pointers(op, finish, target, &pointers, stream)
    }

    /// The sources were checked.
    fn reduce_pointers<T: Element>(
        &self,
        op: ReduceOp,
        finish: Finish,
        target: &mut DeviceSliceMut<'_, T>,
        sources: &[u64],
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, count) = (T::DATA_TYPE, target.len());
        self.check_stream(stream)?;
        self.check("the target", target, count)?;
        if op == ReduceOp::User {
            return Err(Error::invalid("a user's function cannot run on a device"));
        }
        if !op.supports(dtype) {
            return Err(Error::invalid(format_args!("{op} is not defined for {dtype}")));
        }
        if sources.is_empty() || sources.len() > MOST_SOURCES {
            return Err(Error::invalid(format_args!("{} sources, 1 to {MOST_SOURCES} expected", sources.len())));
        }
        if count == 0 {
            return Ok(());
        }
        let is_logical = matches!(op, ReduceOp::LogicalAnd | ReduceOp::LogicalOr);
        let sources = match sources {
            // Of one, only the truth is kept: it meets itself.
            &[source] if is_logical && dtype != DataType::Bool => vec![source, source],
            &[source] if dtype != DataType::Bool => {
                // SAFETY: both have `count` elements of memory that the caller borrows.
                return unsafe { self.scale_pointers(dtype, target.pointer(), source, count, finish, stream) };
            }
            sources => sources.to_vec(),
        };
        let mut parameters = parameters::Reduce {
            target: target.pointer(),
            sources: [0; MOST_SOURCES],
            count: count as u64,
            finish: finish.into(),
            sources_used: u32::try_from(sources.len()).unwrap_or_default(),
        };
        parameters.sources[..sources.len()].copy_from_slice(&sources);
        let name = reduce_kernel(op, dtype);
        // SAFETY: every array has `count` elements of memory that the caller borrows; freeing it waits for the launch.
        unsafe { self.launch(&name, (count * dtype.size()).div_ceil(VECTOR), &parameters, stream) }
    }

    /// `target = source`, divided and multiplied as `finish` says: floats in their own type (halves in `f32`, rounded
    /// once), integers in `f64` and truncated towards zero, saturating; `bool` is copied. [`Finish::NONE`] copies bit
    /// by bit.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for lengths that differ, memory or a stream of another device, or an overlap.
    pub fn scale<T: Element>(
        &self,
        finish: Finish,
        target: &mut DeviceSliceMut<'_, T>,
        source: &DeviceSlice<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check("the source", source, target.len())?;
        check_apart(("the target", target.bytes()), &[("the source", source.bytes())])?;
        self.check_stream(stream)?;
        self.check("the target", target, target.len())?;
        let (to, from) = (target.pointer(), source.pointer());
        // SAFETY: both have as many elements, and are borrowed.
        unsafe { self.scale_pointers(T::DATA_TYPE, to, from, target.len(), finish, stream) }
    }

    /// As [`scale`](Self::scale), where the elements are.
    ///
    /// # Errors
    ///
    /// As `scale`.
    pub fn scale_in_place<T: Element>(
        &self,
        finish: Finish,
        target: &mut DeviceSliceMut<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_stream(stream)?;
        self.check("the target", target, target.len())?;
        let at = target.pointer();
        // SAFETY: the memory is borrowed; the kernel takes a target that is its source.
        unsafe { self.scale_pointers(T::DATA_TYPE, at, at, target.len(), finish, stream) }
    }

    /// # Safety
    ///
    /// Both must have `count` elements of this device's memory until the launch is done.
    unsafe fn scale_pointers(
        &self,
        dtype: DataType,
        target: u64,
        source: u64,
        count: usize,
        finish: Finish,
        stream: &Stream,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let parameters = parameters::Scale { target, source, count: count as u64, finish: finish.into() };
        let vectors = (count * dtype.size()).div_ceil(VECTOR);
        // SAFETY: the caller's promise.
        unsafe { self.launch(&format!("phx_scale_{dtype}"), vectors, &parameters, stream) }
    }
}

/// The name of an operation's kernel.
pub(in crate::device) fn reduce_kernel(op: ReduceOp, dtype: DataType) -> String {
    format!("phx_reduce_{}_{dtype}", op.combination(dtype))
}
