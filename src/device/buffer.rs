//! Elements in device memory.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use cudarc::driver::sys;

use super::context::Device;
use super::stream::Stream;
use crate::types::{DataType, Deadline, Element, Error, Result};

/// `count` elements in the memory of a device, freed when dropped. Their content is what was there until written.
pub struct DeviceBuffer<T> {
    device: Device,
    start: sys::CUdeviceptr,
    count: usize,
    elements: PhantomData<T>,
}

// SAFETY: the address is a name here, not memory of this process; the driver orders the calls of several threads.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, start, count, .. } = self;
        f.debug_struct("DeviceBuffer").field("device", device).field("start", start).field("count", count).finish()
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Memory for `count` elements, not written.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when the device has not so much.
    pub fn new(device: &Device, count: usize) -> Result<Self> {
        let bytes = bytes_of(T::DATA_TYPE, count)?;
        let mut start = 0;
        // The driver has no memory of no bytes.
        if bytes > 0 {
            let _entered = device.enter()?;
            // SAFETY: the first argument points to an address to be written.
            let code = unsafe { (device.driver().calls().cuMemAlloc_v2)(&mut start, bytes) };
            let about = || format!("{bytes} bytes on device {}", device.ordinal());
            device.driver().check("cuMemAlloc_v2", code, about)?;
        }
        Ok(Self { device: device.clone(), start, count, elements: PhantomData })
    }

    /// Memory with these elements. Waits until they are there.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and when the copy fails or is not done by the deadline.
    pub fn from_slice(stream: &Stream, elements: &[T], deadline: Deadline) -> Result<Self> {
        let mut buffer = Self::new(stream.device(), elements.len())?;
        buffer.write(stream, elements, deadline)?;
        Ok(buffer)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address on the device; 0 when it has no elements.
    pub fn pointer(&self) -> u64 {
        self.start
    }

    /// Replaces all elements, after what is on the stream. Waits until it is done.
    ///
    /// # Errors
    ///
    /// When the lengths differ, the copy fails or is not done by the deadline.
    pub fn write(&mut self, stream: &Stream, elements: &[T], deadline: Deadline) -> Result<()> {
        self.check_length(elements.len())?;
        if self.count > 0 {
            let entered = self.device.enter()?;
            // SAFETY: the device memory has as many bytes as the slice. A copy from memory that is not pinned has read
            // it when the call returns.
            let code = unsafe {
                (self.device.driver().calls().cuMemcpyHtoDAsync_v2)(
                    self.start,
                    elements.as_ptr().cast::<c_void>(),
                    size_of_val(elements),
                    stream.handle(),
                )
            };
            drop(entered);
            self.device.check("cuMemcpyHtoDAsync_v2", code)?;
        }
        self.finish(stream, deadline)
    }

    /// Copies all elements out, after what is on the stream. Waits until it is done.
    ///
    /// # Errors
    ///
    /// When the lengths differ, the copy fails or is not done by the deadline, or bytes are no elements: of those that nobody
    /// wrote any may be.
    pub fn read(&self, stream: &Stream, elements: &mut [T], deadline: Deadline) -> Result<()> {
        self.check_length(elements.len())?;
        if self.count == 0 {
            return Ok(());
        }
        // Through pinned memory: the driver goes on writing into it should the deadline pass.
        let mut pinned = super::pinned::PinnedBuffer::new(&self.device, size_of_val(elements))?;
        let entered = self.device.enter()?;
        // SAFETY: both have this many bytes; the pinned memory is not given back before the copy is done, see `drop`.
        let code = unsafe {
            (self.device.driver().calls().cuMemcpyDtoHAsync_v2)(
                pinned.pointer().cast::<c_void>(),
                self.start,
                size_of_val(elements),
                stream.handle(),
            )
        };
        drop(entered);
        self.device.check("cuMemcpyDtoHAsync_v2", code)?;
        let outcome = self.finish(stream, deadline);
        if outcome.is_err() {
            // Still being written: better lost than used again.
            std::mem::forget(pinned);
            return outcome;
        }
        // SAFETY: the pinned memory has as many bytes, which the copy has written.
        check_elements(T::DATA_TYPE, unsafe { std::slice::from_raw_parts(pinned.pointer(), size_of_val(elements)) })?;
        // SAFETY: both have this many bytes, which were found to be elements.
        unsafe {
            std::ptr::copy_nonoverlapping(
                pinned.pointer().cast_const(),
                elements.as_mut_ptr().cast::<u8>(),
                size_of_val(elements),
            );
        }
        Ok(())
    }

    /// All elements, as [`read`](Self::read) copies them.
    ///
    /// # Errors
    ///
    /// As `read`.
    pub fn to_vec(&self, stream: &Stream, deadline: Deadline) -> Result<Vec<T>>
    where
        T: Default,
    {
        let mut elements = vec![T::default(); self.count];
        self.read(stream, &mut elements, deadline)?;
        Ok(elements)
    }

    /// Begins to copy the first `count` elements from `source`, after what is on the stream. Does not wait.
    ///
    /// # Errors
    ///
    /// When there is no room for so many, or the driver refuses.
    ///
    /// # Safety
    ///
    /// `source` must have as many elements, in memory of this device, which nobody writes and which stays valid until the
    /// stream is past the copy. So must this buffer.
    pub unsafe fn copy_from(&mut self, stream: &Stream, source: u64, count: usize) -> Result<()> {
        if count > self.count {
            return self.check_length(count);
        }
        let bytes = bytes_of(T::DATA_TYPE, count)?;
        let _entered = self.device.enter()?;
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.device.driver().calls().cuMemcpyDtoDAsync_v2)(self.start, source, bytes, stream.handle()) };
        self.device.check("cuMemcpyDtoDAsync_v2", code)
    }

    fn check_length(&self, given: usize) -> Result<()> {
        if given == self.count {
            return Ok(());
        }
        Err(Error::invalid(format_args!("{given} elements given for a device buffer of {}", self.count)))
    }

    fn finish(&self, stream: &Stream, deadline: Deadline) -> Result<()> {
        if stream.synchronize(deadline)? {
            return Ok(());
        }
        let what = format_args!("a copy on device {} was not done by its deadline", self.device.ordinal());
        Err(Error::environment(what, "look at what else is on the stream: work that does not end keeps the copy back"))
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.start != 0
            && let Ok(_entered) = self.device.enter()
        {
            // SAFETY: allocated by `new`. The driver waits for work that uses it.
            unsafe { (self.device.driver().calls().cuMemFree_v2)(self.start) };
        }
    }
}

/// That bytes are elements. Any are, but of `bool`.
fn check_elements(dtype: DataType, bytes: &[u8]) -> Result<()> {
    let of_bool = if dtype == DataType::Bool { bytes } else { &[] };
    match of_bool.iter().position(|byte| *byte > 1) {
        None => Ok(()),
        Some(at) => Err(Error::invalid(format_args!(
            "element {at} of a device buffer of bool is {}, 0 or 1 expected; was it written?",
            bytes[at]
        ))),
    }
}

/// The bytes of so many elements.
fn bytes_of(dtype: DataType, count: usize) -> Result<usize> {
    count.checked_mul(dtype.size()).filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
        Error::invalid(format_args!(
            "a device buffer of {count} elements of {dtype} has more bytes than memory can have"
        ))
    })
}
