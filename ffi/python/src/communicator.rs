//! A communicator, as Python holds it: collectives over [`Memory`].

mod call;

use std::collections::HashMap;
use std::mem::ManuallyDrop;

use phalanx::comm::{self, Call};
use phalanx::python::{invalid, seconds};
use phalanx::types::{self, Algorithm, DataType, Error, Generation, ReduceOp, Reduction};
use pyo3::prelude::*;

use crate::handle::{Handle, SIGNAL_PERIOD, Signals, Started};
use crate::memory::Memory;
use crate::numbers;
use crate::process::Birth;

pub use self::call::{Argument, Ends, check, check_apart};
use self::call::{Needs, sum};

/// A group of ranks that make collective calls together.
///
/// Collectives with `wait` return when they are done, without it they return a handle. An `input` of `None` means in
/// place, where that is possible.
#[pyclass(frozen, module = "phalanx._native")]
pub struct Communicator {
    inner: ManuallyDrop<comm::Communicator>,
    birth: Birth,
    life: Life,
}

/// How long a communicator lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// As long as the job.
    Job,
    /// As long as a view of an elastic job.
    View,
    /// As long as a view, and it is a group: that a peer is lost means that the view ends, and nobody else is to be told.
    Group,
}

impl Life {
    /// The outcome in the words of whoever holds the communicator.
    pub fn judge(self, generation: Generation, outcome: types::Result<()>) -> types::Result<()> {
        match outcome {
            Err(Error::PeerFailed { detail, .. }) if self == Life::Group => {
                Err(Error::ViewChanged { generation, cause: detail })
            }
            outcome => outcome,
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // In a forked child the connections are the parent's: saying goodbye there would end them for both.
        if !self.birth.is_here() {
            return;
        }
        // SAFETY: this is the only place that takes the value, and it is not used afterwards.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        // The last communicator's end waits for what is in flight.
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

impl Communicator {
    pub fn new(inner: comm::Communicator) -> Self {
        Self { inner: ManuallyDrop::new(inner), birth: Birth::here(), life: Life::Job }
    }

    /// The communicator of a view of an elastic job.
    pub fn of_view(inner: comm::Communicator, birth: Birth) -> Self {
        Self { inner: ManuallyDrop::new(inner), birth, life: Life::View }
    }

    /// Zeroed memory that the other ranks of this host can read, and the process that it belongs to.
    pub fn alloc(&self, py: Python<'_>, dtype: DataType, count: usize) -> PyResult<(comm::Buffer<u8>, Birth)> {
        self.birth.check()?;
        Ok((py.detach(|| self.inner.alloc_bytes(dtype, count))?, self.birth))
    }

    fn with(&self, inner: comm::Communicator) -> Self {
        Self { inner: ManuallyDrop::new(inner), birth: self.birth, life: self.life }
    }

    fn group(&self, inner: comm::Communicator) -> Self {
        let life = if self.life == Life::Job { Life::Job } else { Life::Group };
        Self { inner: ManuallyDrop::new(inner), birth: self.birth, life }
    }

    fn judge(&self, outcome: types::Result<()>) -> types::Result<()> {
        self.life.judge(self.inner.view().generation, outcome)
    }

    fn handle(&self, started: Started) -> Handle {
        Handle::new(started, self.birth, self.life, self.inner.view().generation)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    /// Elements of all blocks of `count`.
    fn all(&self, count: usize) -> PyResult<usize> {
        count.checked_mul(self.size()).ok_or_else(|| invalid("more elements given than memory can have"))
    }

    fn own(&self, counts: &[usize]) -> PyResult<usize> {
        counts.get(self.inner.rank()).copied().ok_or_else(|| {
            invalid(format_args!("{} counts given, one for each of {} ranks expected", counts.len(), self.size()))
        })
    }
}

fn reduction(op: ReduceOp, prescale: f64, postscale: f64) -> Reduction {
    Reduction::new(op).prescale(prescale).postscale(postscale)
}

#[pymethods]
impl Communicator {
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    #[getter(size)]
    fn python_size(&self) -> usize {
        self.inner.size()
    }

    #[getter]
    fn local_rank(&self) -> usize {
        self.inner.local_rank()
    }

    #[getter]
    fn local_size(&self) -> usize {
        self.inner.local_size()
    }

    /// Which host each rank is on, numbered from 0 in the order of their first ranks.
    #[getter]
    fn hosts(&self) -> Vec<usize> {
        self.inner.view().hosts.clone()
    }

    #[getter]
    fn cross_rank(&self) -> usize {
        self.inner.cross_rank()
    }

    #[getter]
    fn cross_size(&self) -> usize {
        self.inner.cross_size()
    }

    /// Raises in a process forked from the one that made it.
    fn check_process(&self) -> PyResult<()> {
        self.birth.check()
    }

    /// The memory of an object, as [`Memory::of`] has it. An array of no elements that is on no device is taken to be on
    /// that of this communicator's calls.
    fn memory_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::of(object)?.within(object.py(), &self.inner)
    }

    fn with_timeout(&self, timeout: f64) -> PyResult<Self> {
        Ok(self.with(self.inner.with_timeout(seconds(timeout)?)))
    }

    fn with_algorithm(&self, algorithm: Option<Algorithm>) -> Self {
        self.with(self.inner.with_algorithm(algorithm))
    }

    fn with_deterministic(&self, deterministic: bool) -> Self {
        self.with(self.inner.with_deterministic(deterministic))
    }

    /// The ranks that give the same colour, ordered by key; `None` where no colour is given.
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::colour)] color: Option<u64>,
        key: i64,
    ) -> PyResult<Option<Self>> {
        self.birth.check()?;
        let mut signals = Signals::default();
        let group = py.detach(|| self.inner.split_while(color, key, SIGNAL_PERIOD, &mut || signals.are_quiet()));
        let group = signals.outcome(py, group)?;
        Ok(group.map(|group| self.group(group)))
    }

    /// The given ranks, in the given order; `None` on ranks that are not among them.
    fn subgroup(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::ranks)] ranks: Vec<usize>,
    ) -> PyResult<Option<Self>> {
        self.birth.check()?;
        let group = py.detach(|| self.inner.subgroup(&ranks))?;
        Ok(group.map(|group| self.group(group)))
    }

    /// The fast path: replaces `count` elements at an address by their reduction over all ranks. The caller answers
    /// for the address.
    fn allreduce_pointer(
        &self,
        py: Python<'_>,
        pointer: usize,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> PyResult<()> {
        let call = Call::allreduce(dtype, count, op).in_place(true);
        self.run(py, &call, std::ptr::null(), pointer as *mut u8)
    }

    #[pyo3(signature = (input, output, op, prescale = 1.0, postscale = 1.0, wait = true))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn allreduce(
        &self,
        py: Python<'_>,
        input: Option<Argument<'_, '_>>,
        output: Argument<'_, '_>,
        op: ReduceOp,
        prescale: f64,
        postscale: f64,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let (dtype, count) = (output.get().data_type(), output.get().element_count());
        let call = Call::allreduce(dtype, count, reduction(op, prescale, postscale)).in_place(input.is_none());
        self.call(py, call, &Needs { dtype, input: count, output: count }, input, Some(output), wait)
    }

    /// `output` is needed at the root only; in place it is both, and needed everywhere.
    #[pyo3(signature = (input, output, op, root, prescale = 1.0, postscale = 1.0, wait = true))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn reduce(
        &self,
        py: Python<'_>,
        input: Option<Argument<'_, '_>>,
        output: Option<Argument<'_, '_>>,
        op: ReduceOp,
        #[pyo3(from_py_with = numbers::rank)] root: usize,
        prescale: f64,
        postscale: f64,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let Some(given) = input.or(output) else {
            return Err(invalid("reduce: neither input nor output given"));
        };
        let (dtype, count) = (given.get().data_type(), given.get().element_count());
        let call = Call::reduce(dtype, count, reduction(op, prescale, postscale), root).in_place(input.is_none());
        let output_count = if input.is_none() || self.inner.rank() == root { count } else { 0 };
        if output.is_none() && output_count > 0 {
            return Err(invalid("reduce: no output given at the root"));
        }
        let output = output.filter(|_| output_count > 0);
        self.call(py, call, &Needs { dtype, input: count, output: output_count }, input, output, wait)
    }

    #[pyo3(signature = (memory, root, wait = true))]
    fn broadcast(
        &self,
        py: Python<'_>,
        memory: Argument<'_, '_>,
        #[pyo3(from_py_with = numbers::rank)] root: usize,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let (dtype, count) = (memory.get().data_type(), memory.get().element_count());
        let call = Call::broadcast(dtype, count, root);
        self.call(py, call, &Needs { dtype, input: 0, output: count }, None, Some(memory), wait)
    }

    /// With `counts`, the elements of each rank's block; without, blocks of one length.
    #[pyo3(signature = (input, output, counts = None, wait = true))]
    fn allgather(
        &self,
        py: Python<'_>,
        input: Argument<'_, '_>,
        output: Argument<'_, '_>,
        counts: Option<Vec<usize>>,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let dtype = input.get().data_type();
        let (call, needs) = match counts {
            Some(counts) => {
                let needs = Needs { dtype, input: self.own(&counts)?, output: sum(&counts)? };
                (Call::allgatherv(dtype, &counts), needs)
            }
            None => {
                let count = input.get().element_count();
                (Call::allgather(dtype, count), Needs { dtype, input: count, output: self.all(count)? })
            }
        };
        self.call(py, call, &needs, Some(input), Some(output), wait)
    }

    /// With `counts`, the elements of each rank's block; without, blocks of one length.
    #[pyo3(signature = (input, output, op, counts = None, prescale = 1.0, postscale = 1.0, wait = true))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        input: Argument<'_, '_>,
        output: Argument<'_, '_>,
        op: ReduceOp,
        counts: Option<Vec<usize>>,
        prescale: f64,
        postscale: f64,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let dtype = output.get().data_type();
        let reduction = reduction(op, prescale, postscale);
        let (call, needs) = match counts {
            Some(counts) => {
                let needs = Needs { dtype, input: sum(&counts)?, output: self.own(&counts)? };
                (Call::reduce_scatterv(dtype, &counts, reduction), needs)
            }
            None => {
                let count = output.get().element_count();
                let needs = Needs { dtype, input: self.all(count)?, output: count };
                (Call::reduce_scatter(dtype, count, reduction), needs)
            }
        };
        self.call(py, call, &needs, Some(input), Some(output), wait)
    }

    /// With both counts, the elements to and from each rank; without, blocks of one length.
    #[pyo3(signature = (input, output, send_counts = None, recv_counts = None, wait = true))]
    fn alltoall(
        &self,
        py: Python<'_>,
        input: Argument<'_, '_>,
        output: Argument<'_, '_>,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let dtype = input.get().data_type();
        let (call, needs) = match (send_counts, recv_counts) {
            (Some(send), Some(recv)) => {
                let needs = Needs { dtype, input: sum(&send)?, output: sum(&recv)? };
                (Call::alltoallv(dtype, &send, &recv), needs)
            }
            (None, None) => {
                let count = input.get().element_count();
                if !count.is_multiple_of(self.size()) {
                    return Err(invalid(format_args!(
                        "alltoall: {count} elements given, a multiple of the {} ranks expected",
                        self.size()
                    )));
                }
                (Call::alltoall(dtype, count / self.size()), Needs { dtype, input: count, output: count })
            }
            _ => return Err(invalid("alltoall: counts to send and to receive go together")),
        };
        self.call(py, call, &needs, Some(input), Some(output), wait)
    }

    /// `output` is needed at the root only. `counts`, the same on every rank, has the elements of each block.
    #[pyo3(signature = (input, output, root, counts = None, wait = true))]
    fn gather(
        &self,
        py: Python<'_>,
        input: Argument<'_, '_>,
        output: Option<Argument<'_, '_>>,
        #[pyo3(from_py_with = numbers::rank)] root: usize,
        counts: Option<Vec<usize>>,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let dtype = input.get().data_type();
        let (call, own, all) = match counts {
            Some(counts) => (Call::gatherv(dtype, &counts, root), self.own(&counts)?, sum(&counts)?),
            None => {
                let count = input.get().element_count();
                (Call::gather(dtype, count, root), count, self.all(count)?)
            }
        };
        let is_root = self.inner.rank() == root;
        if is_root && output.is_none() {
            return Err(invalid("gather: no output given at the root"));
        }
        self.call(py, call, &Needs { dtype, input: own, output: all }, Some(input), output.filter(|_| is_root), wait)
    }

    /// `input` is needed at the root only. `counts`, the same on every rank, has the elements of each block.
    #[pyo3(signature = (input, output, root, counts = None, wait = true))]
    fn scatter(
        &self,
        py: Python<'_>,
        input: Option<Argument<'_, '_>>,
        output: Argument<'_, '_>,
        #[pyo3(from_py_with = numbers::rank)] root: usize,
        counts: Option<Vec<usize>>,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        let dtype = output.get().data_type();
        let (call, own, all) = match counts {
            Some(counts) => (Call::scatterv(dtype, &counts, root), self.own(&counts)?, sum(&counts)?),
            None => {
                let count = output.get().element_count();
                (Call::scatter(dtype, count, root), count, self.all(count)?)
            }
        };
        let is_root = self.inner.rank() == root;
        if is_root && input.is_none() {
            return Err(invalid("scatter: no input given at the root"));
        }
        self.call(py, call, &Needs { dtype, input: all, output: own }, input.filter(|_| is_root), Some(output), wait)
    }

    #[pyo3(signature = (wait = true))]
    fn barrier(&self, py: Python<'_>, wait: bool) -> PyResult<Option<Handle>> {
        self.call(
            py,
            Call::barrier().in_place(true),
            &Needs { dtype: DataType::U8, input: 0, output: 0 },
            None,
            None,
            wait,
        )
    }

    /// Sends to another rank, which must receive as many elements of the same type under the same tag.
    #[pyo3(signature = (memory, to, tag = 0, wait = true))]
    fn send(
        &self,
        py: Python<'_>,
        memory: Argument<'_, '_>,
        #[pyo3(from_py_with = numbers::rank)] to: usize,
        #[pyo3(from_py_with = numbers::tag)] tag: u32,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        self.birth.check()?;
        let (keep, memory) = (Box::new(memory.clone().unbind()), memory.get());
        let pointer = memory.host_pointer()?.cast_const();
        // SAFETY: the memory is of that length, and is kept until the end.
        let handle = unsafe {
            self.inner.submit_send(memory.data_type(), pointer, memory.element_count(), (to, tag), Some(keep))?
        };
        self.handle(Started::OnHost(handle)).finish(py, wait)
    }

    /// Receives from another rank.
    #[pyo3(signature = (memory, source, tag = 0, wait = true))]
    fn recv(
        &self,
        py: Python<'_>,
        memory: Argument<'_, '_>,
        #[pyo3(from_py_with = numbers::rank)] source: usize,
        #[pyo3(from_py_with = numbers::tag)] tag: u32,
        wait: bool,
    ) -> PyResult<Option<Handle>> {
        self.birth.check()?;
        let (keep, memory) = (Box::new(memory.clone().unbind()), memory.get());
        if memory.element_count() > 0 && !memory.is_writable() {
            return Err(invalid("read-only memory given for the output"));
        }
        let pointer = memory.host_pointer()?;
        // SAFETY: the memory is of that length, writable, and is kept until the end.
        let handle = unsafe {
            self.inner.submit_recv(memory.data_type(), pointer, memory.element_count(), (source, tag), Some(keep))?
        };
        self.handle(Started::OnHost(handle)).finish(py, wait)
    }

    /// Gives every rank's numbers, as many from each, to every rank: the small exchange before a collective whose
    /// lengths differ.
    fn exchange(&self, py: Python<'_>, numbers: Vec<i64>) -> PyResult<Vec<i64>> {
        let mut all = vec![0i64; self.all(numbers.len())?];
        let call = Call::allgather(DataType::I64, numbers.len());
        self.run(py, &call, numbers.as_ptr().cast(), all.as_mut_ptr().cast())?;
        Ok(all)
    }

    /// Sends the i-th part of `numbers` to rank i, and gets one part of that length from each.
    fn exchange_parts(&self, py: Python<'_>, numbers: Vec<i64>) -> PyResult<Vec<i64>> {
        if !numbers.len().is_multiple_of(self.size()) {
            return Err(invalid("as many numbers for each rank expected"));
        }
        let mut all = vec![0i64; numbers.len()];
        let call = Call::alltoall(DataType::I64, numbers.len() / self.size());
        self.run(py, &call, numbers.as_ptr().cast(), all.as_mut_ptr().cast())?;
        Ok(all)
    }

    /// Operations, bytes and seconds waited of this process.
    fn statistics(&self) -> HashMap<&'static str, f64> {
        let statistics = self.inner.statistics();
        HashMap::from([
            ("operations", statistics.operations as f64),
            ("bytes", statistics.bytes as f64),
            ("time_in_communication", statistics.waited.as_secs_f64()),
        ])
    }

    fn transport_summary(&self) -> String {
        self.inner.transport_summary()
    }

    /// Waits for what is in flight, says goodbye, and closes every communicator of this process.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.birth.check()?;
        py.detach(|| self.inner.shutdown());
        Ok(())
    }
}
