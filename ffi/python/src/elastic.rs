//! A member of an elastic job, as Python holds it: steps that are run again in one view after the other.

use std::borrow::Cow;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx::comm::Call;
use phalanx::elastic::{self, Attempt, Changes, RawStep, State, StepOutcome};
use phalanx::python::invalid;
use phalanx::types::{self, DataType, Error, ReduceOp, Reduction};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::communicator::{Argument, Communicator, check, check_apart};
use crate::memory::Memory;
use crate::process::Birth;

/// What a signal's handler, or Python code within a step, raised.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn put(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The error of a step into which Python code raised: what it says is kept here.
    fn keep(&self, error: PyErr) -> Error {
        self.put(error);
        Error::invalid("Python code within the step raised")
    }

    /// What was raised goes before how the step ended.
    fn outcome<T>(&self, py: Python<'_>, outcome: types::Result<T>) -> PyResult<T> {
        match (outcome, self.take()) {
            (Ok(value), None) => Ok(value),
            (_, Some(raised)) => Err(raised),
            (Err(error), None) => {
                py.check_signals()?;
                Err(error.into())
            }
        }
    }
}

/// A member of an elastic job.
#[pyclass(frozen, module = "phalanx._native")]
pub struct Elastic {
    inner: ManuallyDrop<elastic::Elastic>,
    birth: Birth,
    raised: Raised,
}

impl Drop for Elastic {
    fn drop(&mut self) {
        // In a forked child the connections are the parent's.
        if !self.birth.is_here() {
            return;
        }
        // SAFETY: this is the only place that takes the value, and it is not used afterwards.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

/// A step's number, its view's, the contributors' slots, then whether members joined, the view changed and this member
/// left, and the seconds that it was held up.
type Outcome = (u64, u64, Vec<usize>, bool, bool, bool, f64);

fn told(outcome: &StepOutcome) -> Outcome {
    let StepOutcome { step, generation, contributors, joined, view_changed, left, held_up } = outcome;
    (*step, generation.0, contributors.to_vec(), *joined, *view_changed, *left, held_up.as_secs_f64())
}

impl Elastic {
    pub fn new(inner: elastic::Elastic) -> Self {
        let raised = Raised::default();
        let handlers = raised.clone();
        inner.set_go_on(Some(Box::new(move || {
            // An interpreter that is about to end has no handlers to run.
            let error = Python::try_attach(|py| py.check_signals()).and_then(Result::err);
            error.map(|error| handlers.put(error)).is_none()
        })));
        Self { inner: ManuallyDrop::new(inner), birth: Birth::here(), raised }
    }

    /// Runs what waits, with other Python threads running meanwhile.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&elastic::Elastic) -> types::Result<T> + Send,
    ) -> PyResult<T> {
        self.birth.check()?;
        self.raised.take();
        let outcome = py.detach(|| body(&self.inner));
        self.raised.outcome(py, outcome)
    }

    /// Calls Python code in one view of a step.
    fn call(&self, body: &Py<PyAny>, attempt: Attempt<'_>) -> types::Result<()> {
        let called = Python::try_attach(|py| {
            let communicator = Communicator::of_view(attempt.communicator.clone(), self.birth);
            body.call1(py, (communicator, attempt.slots.to_vec())).map(drop).map_err(|error| {
                // Errors of calls in this view: the view is over.
                let error_type = error.get_type(py);
                let value = error.value(py);
                match error_type.name().ok().and_then(|name| name.extract::<String>().ok()).as_deref() {
                    Some("ViewChangedError") => {
                        let cause = value.to_string().into();
                        Error::ViewChanged { generation: attempt.communicator.view().generation, cause }
                    }
                    Some("PeerFailedError") => {
                        let rank = value.getattr("rank").and_then(|rank| rank.extract()).unwrap_or(usize::MAX);
                        Error::PeerFailed { rank, operation: "a step".into(), detail: value.to_string().into() }
                    }
                    _ => self.raised.keep(error),
                }
            })
        });
        called.unwrap_or_else(|| Err(Error::Closed { what: "the interpreter is ending".into() }))
    }
}

/// The state of the training, as two pairs of Python functions.
struct PythonState<'a> {
    save: Py<PyAny>,
    load: Py<PyAny>,
    save_own: Py<PyAny>,
    load_own: Py<PyAny>,
    raised: &'a Raised,
}

impl PythonState<'_> {
    fn saved(&self, save: &Py<PyAny>) -> types::Result<Vec<u8>> {
        let saved = Python::try_attach(|py| {
            let saved = save.call0(py)?;
            let memory = Memory::of(saved.bind(py))?;
            let pointer = memory.host_pointer()?;
            // SAFETY: `saved` holds that many bytes in place, and is held here.
            let bytes = unsafe { std::slice::from_raw_parts(pointer.cast_const(), memory.bytes()) };
            Ok(if memory.bytes() == 0 { Vec::new() } else { bytes.to_vec() })
        });
        saved.unwrap_or_else(|| Ok(Vec::new())).map_err(|error| self.raised.keep(error))
    }

    fn give(&self, load: &Py<PyAny>, bytes: &[u8]) -> types::Result<()> {
        let loaded = Python::try_attach(|py| load.call1(py, (PyBytes::new(py, bytes),)).map(drop));
        loaded.unwrap_or(Ok(())).map_err(|error| self.raised.keep(error))
    }
}

impl State for PythonState<'_> {
    fn save(&self) -> types::Result<Cow<'_, [u8]>> {
        self.saved(&self.save).map(Cow::Owned)
    }

    fn load(&mut self, bytes: &[u8]) -> types::Result<()> {
        self.give(&self.load, bytes)
    }

    fn save_own(&self) -> types::Result<Vec<u8>> {
        self.saved(&self.save_own)
    }

    fn load_own(&mut self, bytes: &[u8]) -> types::Result<()> {
        self.give(&self.load_own, bytes)
    }
}

#[pymethods]
impl Elastic {
    /// This member's number for the life of the job.
    #[getter]
    fn slot(&self) -> usize {
        self.inner.slot()
    }

    /// The members of the agreed view, as slots in rank order.
    #[getter]
    fn slots(&self) -> Vec<usize> {
        self.inner.basis().to_vec()
    }

    /// The number of the agreed view.
    #[getter]
    fn generation(&self) -> PyResult<u64> {
        Ok(self.inner.agreed()?.view().generation.0)
    }

    /// How many steps counted so far.
    #[getter]
    fn counted(&self) -> u64 {
        self.inner.counted()
    }

    /// Whether this member was asked to leave.
    #[getter]
    fn is_leaving(&self) -> bool {
        self.inner.is_leaving()
    }

    /// The communicator of the agreed view.
    fn communicator(&self) -> PyResult<Communicator> {
        self.birth.check()?;
        Ok(Communicator::of_view(self.inner.agreed()?, self.birth))
    }

    /// An empty step.
    fn begin(slf: &Bound<'_, Self>) -> PyResult<Step> {
        slf.get().birth.check()?;
        Ok(Step { elastic: slf.clone().unbind(), open: Mutex::default() })
    }

    /// A step of one allreduce.
    fn allreduce_pointer(
        &self,
        py: Python<'_>,
        pointer: usize,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> PyResult<Outcome> {
        let call = Call::allreduce(dtype, count, op);
        let bytes =
            count.checked_mul(dtype.size()).ok_or_else(|| invalid("more elements given than memory can have"))?;
        let outcome = self.wait(py, |elastic| {
            let mut step = RawStep::default();
            // SAFETY: the caller answers for the address, as long as this takes.
            unsafe { step.allreduce(elastic, call, pointer as *mut u8, bytes)? };
            step.finish_with(elastic, Changes::PutOff, &mut |_| Ok(()))
        })?;
        Ok(told(&outcome))
    }

    /// An empty step, behind which members may come and go.
    fn boundary(&self, py: Python<'_>) -> PyResult<Outcome> {
        self.wait(py, |elastic| RawStep::default().finish(elastic)).map(|outcome| told(&outcome))
    }

    /// Agrees with the others on the view, after a step that failed on all of them.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, elastic::Elastic::settle)
    }

    /// Brings the state to those that lack it.
    fn sync(
        &self,
        py: Python<'_>,
        save: Py<PyAny>,
        load: Py<PyAny>,
        save_own: Py<PyAny>,
        load_own: Py<PyAny>,
    ) -> PyResult<Outcome> {
        let mut state = PythonState { save, load, save_own, load_own, raised: &self.raised };
        self.wait(py, |elastic| elastic.sync(&mut state)).map(|outcome| told(&outcome))
    }

    /// Asks to leave behind the next step that allows changes.
    fn request_leave(&self) {
        self.inner.request_leave();
    }

    /// Raises in a process forked from the one that made it.
    fn check_process(&self) -> PyResult<()> {
        self.birth.check()
    }

    /// Says goodbye, and nothing of the work: this process's exit code says whether it is done.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.birth.check()?;
        py.detach(|| self.inner.close());
        Ok(())
    }

    /// Says that the work is done, and goodbye.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.birth.check()?;
        py.detach(|| self.inner.shutdown());
        Ok(())
    }
}

/// Collectives that are under way, and what holds their memory.
#[derive(Default)]
struct Open {
    raw: RawStep,
    memory: Vec<Py<Memory>>,
}

/// A step under construction.
#[pyclass(frozen, module = "phalanx._native")]
pub struct Step {
    elastic: Py<Elastic>,
    open: Mutex<Open>,
}

impl Step {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Step {
    /// Starts an allreduce; without `input`, in place. A result is there when the step counts.
    #[pyo3(signature = (input, output, op, prescale = 1.0, postscale = 1.0))]
    fn allreduce(
        &self,
        py: Python<'_>,
        input: Option<Argument<'_, '_>>,
        output: Argument<'_, '_>,
        op: ReduceOp,
        prescale: f64,
        postscale: f64,
    ) -> PyResult<()> {
        let memory = output.get();
        let (dtype, count) = (memory.data_type(), memory.element_count());
        if count > 0 && !memory.is_writable() {
            return Err(invalid("read-only memory given for the output"));
        }
        let mut kept = vec![output.clone().unbind()];
        if let Some(input) = input {
            check("input", input.get(), dtype, count)?;
            check_apart(input.get(), memory)?;
            kept.push(input.clone().unbind());
        }
        let call = Call::allreduce(dtype, count, Reduction::new(op).prescale(prescale).postscale(postscale));
        let from = input.map(|input| input.get().host_pointer()).transpose()?.map(|from| from as usize);
        let (to, bytes) = (memory.host_pointer()? as usize, memory.bytes());
        let elastic = self.elastic.get();
        elastic.wait(py, |inner| {
            let mut open = self.open();
            open.memory.extend(kept);
            // SAFETY: the lengths were checked, and what is kept holds the memory until the step is finished or dropped.
            unsafe {
                match from {
                    Some(from) => open.raw.allreduce_into(inner, call, from as *const u8, to as *mut u8),
                    None => open.raw.allreduce(inner, call, to as *mut u8, bytes),
                }
            }
        })
    }

    /// Whether what was started has ended, well or not.
    fn poll(&self, py: Python<'_>) -> bool {
        py.detach(|| self.open().raw.poll())
    }

    /// Waits until the step counts. `body` is called with the communicator and the slots of each view that the step is
    /// tried in.
    #[pyo3(signature = (body = None))]
    fn finish(&self, py: Python<'_>, body: Option<Py<PyAny>>) -> PyResult<Outcome> {
        let elastic = self.elastic.get();
        let outcome = elastic.wait(py, |inner| {
            let mut also = |attempt: Attempt<'_>| body.as_ref().map_or(Ok(()), |body| elastic.call(body, attempt));
            self.open().raw.finish_with(inner, Changes::PutOff, &mut also)
        })?;
        self.open().memory.clear();
        Ok(told(&outcome))
    }

    /// Gives up what was started.
    fn abandon(&self, py: Python<'_>) {
        let open = py.detach(|| {
            let Open { raw, memory } = std::mem::take(&mut *self.open());
            drop(raw);
            memory
        });
        drop(open);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.elastic.get().birth.is_here() {
            // Part of a Python object, whose end comes with the interpreter attached.
            Python::attach(|py| self.abandon(py));
        } else {
            // The operations are the parent's.
            std::mem::forget(std::mem::take(&mut *self.open()));
        }
    }
}
