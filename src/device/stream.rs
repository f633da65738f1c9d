//! Streams and events.

use std::ffi::c_uint;
use std::fmt;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::codes::NOT_READY;
use super::context::Device;
use crate::types::{Deadline, Result};

/// Does not wait for the legacy default stream, nor it for this.
const NON_BLOCKING: c_uint = 1;

/// An event that is never asked for a time costs less.
const DISABLE_TIMING: c_uint = 2;

/// Polls of an event before the thread sleeps between them, and how long it sleeps.
const SPINS: usize = 2000;
const NAP: Duration = Duration::from_micros(50);

/// An ordered queue of device work: of its own, or somebody else's.
pub struct Stream {
    device: Device,
    raw: sys::CUstream,
    is_own: bool,
}

// SAFETY: the driver's calls may be made from any thread; the handle is a name, not memory.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver orders the calls of several threads.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.device).field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Stream {
    /// A new stream, apart from the default stream.
    ///
    /// # Errors
    ///
    /// When the driver cannot make one.
    pub fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written.
        let code = unsafe { (device.driver().calls().cuStreamCreate)(&mut raw, NON_BLOCKING) };
        device.check("cuStreamCreate", code)?;
        Ok(Self { device: device.clone(), raw, is_own: true })
    }

    /// Somebody else's stream, such as PyTorch's current one. 0 and 1 are the legacy default stream, 2 is the calling
    /// thread's default stream.
    ///
    /// # Safety
    ///
    /// `raw` must be a stream of this device, and outlive this value.
    pub unsafe fn foreign(device: &Device, raw: u64) -> Self {
        Self { device: device.clone(), raw: ptr::with_exposed_provenance_mut(raw as usize), is_own: false }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's handle.
    pub fn raw(&self) -> u64 {
        self.raw.expose_provenance() as u64
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.raw
    }

    /// What is put on this stream from now on runs after `event`. Does not wait.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (self.device.driver().calls().cuStreamWaitEvent)(self.raw, event.raw, 0) };
        self.device.check("cuStreamWaitEvent", code)
    }

    /// What is put on this stream from now on runs after what is on `other` now. Does not wait.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    pub fn follow(&self, other: &Self) -> Result<()> {
        let event = Event::new(&other.device)?;
        event.record(other)?;
        self.wait_for(&event)
    }

    /// Begins to copy bytes between places that this device reaches, after what is on this stream. Does not wait.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    ///
    /// # Safety
    ///
    /// Both must be memory of that length, of this device or mapped on it, valid until the copy is done, and must not overlap.
    pub unsafe fn copy(&self, target: u64, source: u64, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.device.driver().calls().cuMemcpyDtoDAsync_v2)(target, source, bytes, self.raw) };
        self.device.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Waits until everything put on this stream so far is done. `false`: the deadline passed.
    ///
    /// # Errors
    ///
    /// When the driver refuses, or work on the device failed.
    pub fn synchronize(&self, deadline: Deadline) -> Result<bool> {
        let event = Event::new(&self.device)?;
        event.record(self)?;
        event.wait(deadline)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_own
            && let Ok(_entered) = self.device.enter()
        {
            // SAFETY: made by `new`, and not used again. What is on it still runs to its end.
            unsafe { (self.device.driver().calls().cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A mark in a stream.
pub struct Event {
    device: Device,
    raw: sys::CUevent,
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as for `Stream`.
unsafe impl Sync for Event {}

impl Event {
    /// A mark that is nowhere yet, and counts as come.
    ///
    /// # Errors
    ///
    /// When the driver cannot make one.
    pub fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written.
        let code = unsafe { (device.driver().calls().cuEventCreate)(&mut raw, DISABLE_TIMING) };
        device.check("cuEventCreate", code)?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Marks what is on the stream now.
    ///
    /// # Errors
    ///
    /// When the driver refuses.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (self.device.driver().calls().cuEventRecord)(self.raw, stream.raw) };
        self.device.check("cuEventRecord", code)
    }

    /// Whether everything before the mark is done.
    ///
    /// # Errors
    ///
    /// When work on the device failed.
    pub fn is_done(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: the handle lives.
        let code = unsafe { (self.device.driver().calls().cuEventQuery)(self.raw) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.device.check("cuEventQuery", code)?;
        Ok(true)
    }

    /// Waits until everything before the mark is done. `false`: the deadline passed. The driver's own wait has no
    /// deadline, so the event is polled: for a while without a pause, then with short ones.
    ///
    /// # Errors
    ///
    /// When work on the device failed.
    pub fn wait(&self, deadline: Deadline) -> Result<bool> {
        let mut polls = 0usize;
        loop {
            if self.is_done()? {
                return Ok(true);
            }
            if deadline.has_passed(Instant::now()) {
                return Ok(false);
            }
            polls += 1;
            if polls < SPINS {
                std::thread::yield_now();
            } else {
                std::thread::park_timeout(NAP);
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: made by `new`, and not used again. The driver keeps what it needs until the mark has come.
            unsafe { (self.device.driver().calls().cuEventDestroy_v2)(self.raw) };
        }
    }
}
