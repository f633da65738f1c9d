//! Device memory: where it is, which stream it is used on, and calls on it.
//!
//! A call comes after what is on the stream that its memory is used on, and that stream waits for its results: PyTorch's
//! current stream, or the one that an array's interface names. What names none has its elements ready when it is given, and
//! its results are there when the wait returns. New arrays are used on a stream of this module's own, one for each device,
//! the *home* stream, which whoever takes them over is told of.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx::DeviceHandle;
use phalanx::comm::{self, Call};
use phalanx::device::{Device, DeviceBuffer, Driver, Event, Stream};
use phalanx::python::invalid;
use phalanx::types::{self, DataType, Deadline, Error};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

use crate::buffer::KNOWN;
use crate::communicator::Ends;
use crate::cuda_interface;
use crate::dlpack::{self, View};
use crate::process::Birth;

/// How long the last copies may take once the network is done with a call.
const COPY_LIMIT: Duration = Duration::from_secs(30);

/// A device that this process uses, and the stream of new arrays on it.
struct Opened {
    device: Device,
    home: Stream,
    birth: Birth,
}

/// Opened once, and kept as long as the process, as the CUDA runtime does it.
static OPENED: Mutex<Vec<Arc<Opened>>> = Mutex::new(Vec::new());

impl Opened {
    fn find(ordinal: usize) -> PyResult<Option<Arc<Self>>> {
        let all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|opened| opened.device.ordinal() == ordinal);
        found.map(|opened| opened.birth.check().map(|()| opened.clone())).transpose()
    }

    fn of(py: Python<'_>, ordinal: usize) -> PyResult<Arc<Self>> {
        if let Some(opened) = Self::find(ordinal)? {
            return Ok(opened);
        }
        // Takes up to a second. The lock is not held meanwhile: who waits for it has the interpreter.
        let opened = py.detach(|| -> types::Result<_> {
            let device = Device::open(ordinal)?;
            let home = Stream::new(&device)?;
            Ok(Arc::new(Self { device, home, birth: Birth::here() }))
        })?;
        let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = all.iter().find(|other| other.device.ordinal() == ordinal) {
            return Ok(other.clone());
        }
        all.push(opened.clone());
        Ok(opened)
    }
}

/// On which device memory is, and on which stream it is used.
#[derive(Clone)]
pub struct Place {
    opened: Arc<Opened>,
    /// Somebody else's; without one, the home stream.
    stream: Option<Arc<Stream>>,
    /// Whether nobody knows of the stream, so that results must be there when a wait returns.
    is_awaited: bool,
    /// Whether it is on no device in truth: memory of no elements, of which nobody says where it is.
    is_open: bool,
}

impl Place {
    /// Memory of a device that is used on a stream, or of which nobody says on which.
    pub fn new(py: Python<'_>, ordinal: usize, stream: Option<u64>) -> PyResult<Self> {
        let opened = Opened::of(py, ordinal)?;
        // SAFETY: whoever names a stream answers for it, as for the memory: it is one of the device's, and stays until what
        // is done with the memory is over.
        let stream = stream.map(|raw| Arc::new(unsafe { Stream::foreign(&opened.device, raw) }));
        Ok(Self { opened, is_awaited: stream.is_none(), stream, is_open: false })
    }

    /// Memory of a new array.
    pub fn home(py: Python<'_>, ordinal: usize) -> PyResult<Self> {
        Ok(Self { opened: Opened::of(py, ordinal)?, stream: None, is_awaited: false, is_open: false })
    }

    /// Memory of no elements that is nowhere: taken to be on the device that the calling thread uses, until there is a
    /// communicator that knows better.
    pub fn open(py: Python<'_>) -> PyResult<Self> {
        let current = driver()?.current_device()?;
        Ok(Self { is_open: true, ..Self::home(py, current.unwrap_or_default())? })
    }

    /// The place of memory that is given to a communicator: where it is nowhere, that of the communicator's calls.
    pub fn within(self, py: Python<'_>, communicator: &comm::Communicator) -> PyResult<Self> {
        match communicator.device_of_calls().filter(|_| self.is_open) {
            Some(device) => Ok(Self { is_open: true, ..Self::home(py, device.ordinal())? }),
            None => Ok(self),
        }
    }

    fn stream(&self) -> &Stream {
        self.stream.as_deref().unwrap_or(&self.opened.home)
    }

    /// A mark behind what is on the stream now.
    fn mark(&self) -> types::Result<Event> {
        let mark = Event::new(&self.opened.device)?;
        mark.record(self.stream())?;
        Ok(mark)
    }

    /// The number of the device.
    pub fn ordinal(&self) -> usize {
        self.opened.device.ordinal()
    }

    /// The number by which others know the stream.
    pub fn raw_stream(&self) -> u64 {
        self.stream().raw()
    }

    /// Makes a stream of whoever takes the memory over wait until it is ready, as DLPack has it: `None` and 1 are the legacy
    /// default stream, 2 the calling thread's default stream, -1 wants no order.
    pub fn hand_over(&self, stream: Option<i64>) -> PyResult<()> {
        self.opened.birth.check()?;
        let raw = match stream.unwrap_or(1) {
            -1 => return Ok(()),
            raw @ 1.. => raw.unsigned_abs(),
            0 => return Err(PyBufferError::new_err("stream 0 given, which may mean two; give 1 or 2")),
            other => return Err(PyBufferError::new_err(format!("stream {other} given, at least -1 expected"))),
        };
        // SAFETY: the caller's stream lives for the call.
        let stream = unsafe { Stream::foreign(&self.opened.device, raw) };
        Ok(stream.follow(self.stream())?)
    }

    /// Begins to copy bytes from elsewhere on the same device: after what is on both streams, and this one waits for it.
    pub fn copy(&self, py: Python<'_>, target: usize, from: &Self, source: usize, bytes: usize) -> PyResult<()> {
        if self.ordinal() != from.ordinal() {
            return Err(invalid(two_devices(from, self)));
        }
        self.opened.birth.check()?;
        py.detach(|| {
            self.stream().follow(from.stream())?;
            // SAFETY: both are held by whoever calls, of which the copied memory is in use on these two streams alone.
            unsafe { self.stream().copy(target as u64, source as u64, bytes)? };
            // What comes next on the other stream may write there.
            from.stream().follow(self.stream())
        })?;
        Ok(())
    }
}

fn two_devices(input: &Place, output: &Place) -> String {
    format!("input on device {} and output on device {} given, one device expected", input.ordinal(), output.ordinal())
}

/// Memory on a device for new arrays. Freed when the last array or tensor of it is gone, on whatever thread.
pub struct Room {
    buffer: ManuallyDrop<DeviceBuffer<u8>>,
    birth: Birth,
}

impl Room {
    /// So many bytes, not written.
    pub fn new(py: Python<'_>, place: &Place, bytes: usize) -> PyResult<Self> {
        place.opened.birth.check()?;
        let buffer = py.detach(|| DeviceBuffer::new(&place.opened.device, bytes))?;
        Ok(Self { buffer: ManuallyDrop::new(buffer), birth: place.opened.birth })
    }

    pub fn pointer(&self) -> usize {
        self.buffer.pointer() as usize
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A forked child has no use of the parent's device.
        if !self.birth.is_here() {
            return;
        }
        // SAFETY: this is the only place that takes the value, and it is not used afterwards.
        let mut buffer = Some(unsafe { ManuallyDrop::take(&mut self.buffer) });
        // The driver waits for work that uses the memory, while other Python threads run. An interpreter that is about to
        // end lets nobody in.
        Python::try_attach(|py| py.detach(|| drop(buffer.take())));
        drop(buffer);
    }
}

/// A call on device memory that was started.
pub struct Pending {
    handle: DeviceHandle,
    places: Vec<Place>,
    /// When the network was done, and what marks the ends of the copies that are to be awaited.
    marks: OnceLock<(Instant, Vec<Event>)>,
    outcome: OnceLock<types::Result<()>>,
}

impl Pending {
    /// Waits at most so long, and makes the streams of the call's memory wait for its results. `None`: still pending.
    pub fn wait_for(&self, limit: Duration) -> Option<types::Result<()>> {
        if let Some(outcome) = self.outcome.get() {
            return Some(outcome.clone());
        }
        let outcome = match self.settle(Deadline::after(Instant::now(), limit)) {
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        Some(self.outcome.get_or_init(|| outcome).clone())
    }

    /// As [`wait_for`](Self::wait_for), until it has ended. Asks `go_on` about every `period` whether to wait on; when it
    /// says no, the call is given up on every rank, and nothing writes its memory any more.
    pub fn wait_while(&self, period: Duration, go_on: &mut dyn FnMut() -> bool) -> types::Result<()> {
        loop {
            if let Some(outcome) = self.wait_for(period) {
                return outcome;
            }
            if !go_on() {
                self.handle.give_up("the wait was interrupted");
                // Of a call that ended well before, the last copies are waited for.
                let outcome = self.wait_for(COPY_LIMIT);
                return outcome.unwrap_or_else(|| Err(Error::internal("a wait ended before its operation")));
            }
        }
    }

    /// Whether it has ended by the deadline.
    fn settle(&self, deadline: Deadline) -> types::Result<bool> {
        for place in &self.places {
            let Some(outcome) = self.handle.wait_for(deadline.remaining(Instant::now()), place.stream()) else {
                return Ok(false);
            };
            outcome?;
        }
        let (since, marks) = match self.marks.get() {
            Some(marks) => marks,
            None => {
                let awaited = self.places.iter().filter(|place| place.is_awaited);
                let marks = awaited.map(Place::mark).collect::<types::Result<Vec<_>>>()?;
                self.marks.get_or_init(|| (Instant::now(), marks))
            }
        };
        for mark in marks {
            if !mark.wait(deadline)? {
                if since.elapsed() < COPY_LIMIT {
                    return Ok(false);
                }
                let what = "a device did not come to the end of a call's copies";
                return Err(Error::environment(what, "look at what else the device is doing"));
            }
        }
        Ok(true)
    }

    /// The outcome, if there is one. Does not wait.
    pub fn poll(&self) -> Option<types::Result<()>> {
        if self.handle.is_done() { self.wait_for(Duration::ZERO) } else { None }
    }
}

/// Starts a call. Its memory was checked to have the elements that the call needs, and is held by `keep`.
pub fn start(
    py: Python<'_>,
    communicator: &comm::Communicator,
    call: &Call,
    ends: &Ends<'_>,
    keep: Box<dyn Any + Send>,
) -> PyResult<Pending> {
    let Ends { input, output } = ends;
    let mut places: Vec<Place> = [input, output].into_iter().flatten().map(|(place, _)| (*place).clone()).collect();
    // What is nowhere is where the rest is.
    if places.iter().any(|place| !place.is_open) {
        places.retain(|place| !place.is_open);
    }
    if let [input, output] = &places[..]
        && input.ordinal() != output.ordinal()
    {
        return Err(invalid(two_devices(input, output)));
    }
    let known = places.iter().find(|place| place.stream.is_some()).or(places.first());
    let Some(place) = known else { return Err(invalid("neither input nor output given")) };
    place.opened.birth.check()?;
    let stream = place.stream();
    let address = |end: &Option<(&Place, usize)>| end.map_or(0, |(_, pointer)| pointer as u64);
    let (from, to) = (address(input), address(output));
    let handle = py.detach(|| {
        for other in places.iter().filter(|other| other.raw_stream() != stream.raw()) {
            stream.follow(other.stream())?;
        }
        // SAFETY: the lengths were checked, and what is kept holds the memory until nothing touches it any more.
        unsafe { communicator.submit_device(call, from, to, stream, Some(keep)) }
    })?;
    Ok(Pending { handle, places, marks: OnceLock::new(), outcome: OnceLock::new() })
}

/// Views an object with DLPack whose memory is on this device.
pub fn view(object: &Bound<'_, PyAny>, ordinal: i64) -> PyResult<View> {
    let py = object.py();
    let ordinal = usize::try_from(ordinal).map_err(|_| invalid(format_args!("device {ordinal} given")))?;
    if let Some(view) = view_of_tensor(object, ordinal)? {
        return Ok(view);
    }
    // This interface is asked first since it may know the stream; DLPack knows more element types.
    if let Some(view) = cuda_interface::view(object, Some(ordinal), true)? {
        return Ok(view);
    }
    let place = Place::new(py, ordinal, None)?;
    let stream = i64::try_from(place.raw_stream()).map_err(|_| invalid("a stream beyond what DLPack can name"))?;
    dlpack::take(object, Some(stream)).map(|view| View { place: Some(place), ..view })
}

/// Views an object without DLPack that has the interface of CUDA arrays; `None` when it has not.
pub fn view_by_interface(object: &Bound<'_, PyAny>) -> PyResult<Option<View>> {
    cuda_interface::view(object, None, false)
}

fn driver() -> PyResult<Driver> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner).first().cloned();
    Ok(opened.map_or_else(Driver::load, |opened| Ok(opened.device.driver().clone()))?)
}

/// The number of the device that has the memory at an address.
pub fn owner_of(pointer: usize) -> PyResult<usize> {
    let owner = driver()?.owner_of(pointer as u64)?;
    owner.ok_or_else(|| invalid(format_args!("memory at {pointer:#x} given, which is not that of a CUDA device")))
}

/// Views a tensor of PyTorch's, on its current stream; `None` when it is none. PyTorch is not imported for it, and not asked
/// by DLPack, since it gives that for the current device alone.
fn view_of_tensor(object: &Bound<'_, PyAny>, ordinal: usize) -> PyResult<Option<View>> {
    let Ok(torch) = object.py().import("sys")?.getattr("modules")?.get_item("torch") else { return Ok(None) };
    let Ok(class) = torch.getattr("Tensor") else { return Ok(None) };
    if !object.is_instance(&class)? {
        return Ok(None);
    }
    if object.getattr("requires_grad")?.extract()? {
        return Err(PyBufferError::new_err("a tensor that requires a gradient given; give tensor.detach()"));
    }
    let name = object.getattr("dtype")?.str()?.extract::<String>()?;
    let name = name.strip_prefix("torch.").unwrap_or(&name);
    let dtype = name
        .parse::<DataType>()
        .map_err(|_| PyTypeError::new_err(format!("elements of {name} are not supported; {KNOWN} expected")))?;
    let is_dense = object.getattr("layout")?.eq(torch.getattr("strided")?)?;
    if !is_dense || !object.call_method0("is_contiguous")?.extract::<bool>()? {
        return Err(invalid("memory with gaps given, C-contiguous memory expected; make a copy first"));
    }
    let stream = torch.getattr("cuda")?.call_method1("current_stream", (ordinal,))?;
    let place = Place::new(object.py(), ordinal, Some(stream.getattr("cuda_stream")?.extract()?))?;
    Ok(Some(View {
        pointer: object.call_method0("data_ptr")?.extract()?,
        shape: object.getattr("shape")?.extract()?,
        dtype,
        writable: true,
        owner: object.clone().unbind(),
        place: Some(place),
    }))
}
