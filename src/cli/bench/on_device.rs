//! Buffers in device memory, beside those in host memory where inputs are made and answers compared.

use std::time::{Duration, Instant};

use phalanx::device::{Device, DeviceBuffer, Driver, Stream};
use phalanx::types::{Collective, Deadline};
use phalanx::{Communicator, DeviceCarrier, Error, Result};

use super::layout::{Layout, call_of};
use super::values::{Exercise, Value};

/// What a copy between host and device may take: far more than any takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// One rank's memory on its device.
pub struct OnDevice<T> {
    stream: Stream,
    input: DeviceBuffer<T>,
    output: DeviceBuffer<T>,
    is_in_place: bool,
}

/// The device of a rank: those of a host in turn, by the rank among those of its host.
fn device_of(comm: &Communicator) -> Result<Device> {
    let driver = Driver::load()?;
    let devices = driver.device_count()?;
    if devices == 0 {
        return Err(Error::environment("--memory device given, and there is no CUDA device", "see `phalanx doctor`"));
    }
    Device::of(&driver, comm.local_rank() % devices)
}

fn soon() -> Deadline {
    Deadline::after(Instant::now(), PATIENCE)
}

impl<T: Value> OnDevice<T> {
    /// Memory for an exercise, not written.
    pub fn new(comm: &Communicator, layout: Layout) -> Result<Self> {
        let device = device_of(comm)?;
        Ok(Self {
            input: DeviceBuffer::new(&device, if layout.in_place { 0 } else { layout.input })?,
            output: DeviceBuffer::new(&device, layout.output)?,
            stream: Stream::new(&device)?,
            is_in_place: layout.in_place,
        })
    }

    /// Copies what lies in host memory to the device.
    pub fn write(&mut self, input: &[T], output: &[T]) -> Result<()> {
        self.input.write(&self.stream, input, soon())?;
        self.output.write(&self.stream, output, soon())
    }

    /// Copies what lies on the device to host memory.
    pub fn read(&self, input: &mut [T], output: &mut [T]) -> Result<()> {
        self.input.read(&self.stream, input, soon())?;
        self.output.read(&self.stream, output, soon())
    }

    /// What carried the calls, and how.
    pub fn carrier(&self, comm: &Communicator) -> (String, &'static str) {
        match comm.device_carrier() {
            Some(DeviceCarrier::Nccl) => ("nccl".into(), "nccl"),
            Some(DeviceCarrier::Peers) => ("peer".into(), "peer"),
            Some(DeviceCarrier::Staged) | None => (comm.transport_summary(), "staged"),
        }
    }

    /// Makes the call, and waits until its results are there.
    pub fn call(&mut self, comm: &Communicator, exercise: &Exercise) -> Result<()> {
        let Some(call) = call_of(exercise, self.is_in_place) else { return Err(cannot(exercise.collective)) };
        comm.call_device(&call, &self.input, &mut self.output, &self.stream)?;
        if self.stream.synchronize(soon())? {
            return Ok(());
        }
        Err(Error::environment(
            format_args!("{}: its results were not there after {PATIENCE:?}", exercise.collective),
            "look at what else the device does",
        ))
    }
}

/// What has no buffers to lie on a device.
pub fn check(collective: Collective) -> Result<()> {
    match collective {
        Collective::SendRecv | Collective::Barrier => Err(cannot(collective)),
        _ => Ok(()),
    }
}

fn cannot(collective: Collective) -> Error {
    Error::invalid(format_args!("--memory device: {collective} is not called on device memory"))
}
