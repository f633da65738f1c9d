//! Runs of elements in device memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use super::buffer::DeviceBuffer;
use super::context::Device;
use crate::types::{Element, Error, Result};

/// Where a run lies.
#[derive(Clone, Debug)]
struct Run {
    device: Device,
    start: u64,
    count: usize,
}

impl Run {
    fn part(&self, range: Range<usize>, width: usize) -> Result<Self> {
        let Range { start, end } = range;
        if start > end || end > self.count {
            return Err(Error::invalid(format_args!("elements {start}..{end} asked for of {}", self.count)));
        }
        let count = end - start;
        // An empty run lies nowhere.
        let start = if count == 0 { 0 } else { self.start + (start * width) as u64 };
        Ok(Self { device: self.device.clone(), start, count })
    }

    /// Memory that somebody else vouches for.
    fn foreign(device: &Device, pointer: u64, count: usize, width: usize) -> Result<Self> {
        let end = count.checked_mul(width).and_then(|bytes| pointer.checked_add(bytes as u64));
        if end.is_none() {
            return Err(Error::invalid(format_args!("{count} elements at {pointer:#x} are more than memory can have")));
        }
        if count > 0 {
            device.check_pointer("memory", pointer)?;
        }
        Ok(Self { device: device.clone(), start: if count == 0 { 0 } else { pointer }, count })
    }
}

/// Elements in device memory, to be read. They may lie at any address.
pub struct DeviceSlice<'a, T> {
    run: Run,
    elements: PhantomData<&'a [T]>,
}

/// Elements in device memory, to be written too. They may lie at any address.
pub struct DeviceSliceMut<'a, T> {
    run: Run,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        Self { run: self.run.clone(), elements: PhantomData }
    }
}

macro_rules! both {
    ($name:ident) => {
        impl<T> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.run.fmt(f)
            }
        }

        impl<'a, T: Element> $name<'a, T> {
            /// Memory that Phalanx has not allocated, such as a tensor of PyTorch.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidArgument`] when the address is not memory of this device.
            ///
            /// # Safety
            ///
            /// There must be `count` elements from `pointer` on, as long as this value and what is on streams with it
            /// live, and nobody else may use them in a way that contradicts a borrow of them.
            pub unsafe fn from_raw(device: &Device, pointer: u64, count: usize) -> Result<Self> {
                Ok(Self { run: Run::foreign(device, pointer, count, size_of::<T>())?, elements: PhantomData })
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                self.run.count
            }

            /// Whether it has none.
            pub fn is_empty(&self) -> bool {
                self.run.count == 0
            }

            /// The device.
            pub fn device(&self) -> &Device {
                &self.run.device
            }

            /// The address on the device; 0 when it has no elements.
            pub fn pointer(&self) -> u64 {
                self.run.start
            }

            /// The addresses of its bytes.
            pub(super) fn bytes(&self) -> Range<u64> {
                self.run.start..self.run.start + (self.run.count * size_of::<T>()) as u64
            }
        }
    };
}

both!(DeviceSlice);
both!(DeviceSliceMut);

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// Some of the elements.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when there are not so many.
    pub fn part(&self, range: Range<usize>) -> Result<DeviceSlice<'a, T>> {
        Ok(Self { run: self.run.part(range, size_of::<T>())?, elements: PhantomData })
    }
}

impl<T: Element> DeviceSliceMut<'_, T> {
    /// Some of the elements.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when there are not so many.
    pub fn part(&mut self, range: Range<usize>) -> Result<DeviceSliceMut<'_, T>> {
        Ok(DeviceSliceMut { run: self.run.part(range, size_of::<T>())?, elements: PhantomData })
    }

    /// The same, to be read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { run: self.run.clone(), elements: PhantomData }
    }
}

impl<T: Element> DeviceBuffer<T> {
    fn run(&self) -> Run {
        Run { device: self.device().clone(), start: self.pointer(), count: self.len() }
    }

    /// All elements, to be read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { run: self.run(), elements: PhantomData }
    }

    /// All elements, to be written too.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut { run: self.run(), elements: PhantomData }
    }
}
