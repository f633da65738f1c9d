//! A call, with the lengths of its memory checked before an address is used, and its way: by the host or on a device.

use phalanx::comm::Call;
use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::prelude::*;

use crate::device::{self, Place};
use crate::handle::{Handle, SIGNAL_PERIOD, Signals, Started};
use crate::memory::Memory;

use super::Communicator;

pub type Argument<'a, 'py> = &'a Bound<'py, Memory>;

/// What a call needs of its memory on this rank: elements of the input and of the output.
pub(super) struct Needs {
    pub dtype: DataType,
    pub input: usize,
    pub output: usize,
}

pub fn check(name: &str, memory: &Memory, dtype: DataType, count: usize) -> PyResult<()> {
    if memory.data_type() != dtype || memory.element_count() != count {
        return Err(invalid(format_args!(
            "{name} of {} elements of {} given, {count} elements of {dtype} expected",
            memory.element_count(),
            memory.data_type(),
        )));
    }
    Ok(())
}

pub fn check_apart(input: &Memory, output: &Memory) -> PyResult<()> {
    let range = |memory: &Memory| (memory.address(), memory.address() + memory.bytes());
    let ((input_start, input_end), (output_start, output_end)) = (range(input), range(output));
    if input_start < output_end && output_start < input_end {
        return Err(invalid("input and output overlap; use the in-place form, or memory of its own"));
    }
    Ok(())
}

pub(super) fn sum(counts: &[usize]) -> PyResult<usize> {
    counts
        .iter()
        .try_fold(0usize, |sum, &count| sum.checked_add(count))
        .ok_or_else(|| invalid("more elements given than memory can have"))
}

/// Where a call's memory on a device is: the place and the address of its input and of its output.
pub struct Ends<'a> {
    pub input: Option<(&'a Place, usize)>,
    pub output: Option<(&'a Place, usize)>,
}

impl Communicator {
    /// Blocks until the call is done. Other Python threads run meanwhile; a signal's handler that raises gives the
    /// operation up on every rank, as its memory goes back to the program.
    pub(super) fn run(&self, py: Python<'_>, call: &Call, input: *const u8, output: *mut u8) -> PyResult<()> {
        self.birth.check()?;
        let (input, output) = (input as usize, output as usize);
        let mut signals = Signals::default();
        // SAFETY: the caller checked the lengths against the call, and holds the memory until this returns.
        let outcome = py.detach(|| unsafe {
            let mut go_on = || signals.are_quiet();
            self.inner.run_while(call, input as *const u8, output as *mut u8, SIGNAL_PERIOD, &mut go_on)
        });
        signals.outcome(py, self.judge(outcome))
    }

    /// Runs or starts a call whose memory is checked here.
    pub(super) fn call(
        &self,
        py: Python<'_>,
        call: Call,
        needs: &Needs,
        input: Option<Argument<'_, '_>>,
        output: Option<Argument<'_, '_>>,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        if let Some(input) = input {
            check("input", input.get(), needs.dtype, needs.input)?;
        }
        if let Some(output) = output {
            check("output", output.get(), needs.dtype, needs.output)?;
            if needs.output > 0 && !output.get().is_writable() {
                return Err(invalid("read-only memory given for the output"));
            }
        }
        if let (Some(input), Some(output)) = (input, output) {
            check_apart(input.get(), output.get())?;
        }
        if [input, output].into_iter().flatten().any(|memory| memory.get().place().is_some()) {
            return self.call_on_device(py, &call, input, output, wait);
        }
        let from = input.map(|input| input.get().host_pointer()).transpose()?;
        let from = from.map_or(std::ptr::null(), <*mut u8>::cast_const);
        let to = output.map(|output| output.get().host_pointer()).transpose()?.unwrap_or(std::ptr::null_mut());
        if wait {
            return self.run(py, &call, from, to).map(|()| None);
        }
        self.birth.check()?;
        let keep = [input, output].map(|memory| memory.map(|memory| memory.clone().unbind()));
        // SAFETY: the lengths were checked against the call, and what is kept holds the memory until the end.
        let handle = unsafe { self.inner.submit(&call, from, to, Some(Box::new(keep)))? };
        Ok(Some(self.handle(Started::OnHost(handle))))
    }

    /// Runs or starts a call whose memory was checked, but for where it is.
    fn call_on_device(
        &self,
        py: Python<'_>,
        call: &Call,
        input: Option<Argument<'_, '_>>,
        output: Option<Argument<'_, '_>>,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        self.birth.check()?;
        let ends = Ends { input: end(input, output)?, output: end(output, input)? };
        let keep = [input, output].map(|memory| memory.map(|memory| memory.clone().unbind()));
        let pending = device::start(py, &self.inner, call, &ends, Box::new(keep))?;
        self.handle(Started::OnDevice(pending)).finish(py, wait)
    }
}

/// Where memory on a device is; none where there is no memory. The call's other memory must be on a device too.
fn end<'a>(memory: Option<Argument<'a, '_>>, other: Option<Argument<'_, '_>>) -> PyResult<Option<(&'a Place, usize)>> {
    let Some(memory) = memory.map(Bound::get) else { return Ok(None) };
    if let Some(place) = memory.place() {
        return Ok(Some((place, memory.address())));
    }
    let device = other.and_then(|other| other.get().place()).map_or(0, Place::ordinal);
    Err(invalid(format_args!("an array in host memory and one on device {device} given, both in one place expected")))
}
