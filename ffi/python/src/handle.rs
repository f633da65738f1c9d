//! A pending operation, as Python holds it.

use std::time::{Duration, Instant};

use phalanx::comm;
use phalanx::python::seconds;
use phalanx::types::{self, Generation};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::communicator::Life;
use crate::device;
use crate::process::Birth;

/// How long a thread waits before it looks whether Python has a signal to handle. Short enough for Ctrl-C to feel
/// prompt, long enough to cost nothing.
pub const SIGNAL_PERIOD: Duration = Duration::from_millis(100);

/// What is waited for.
pub enum Started {
    OnHost(comm::Handle),
    OnDevice(device::Pending),
}

impl Started {
    fn wait_for(&self, limit: Duration) -> Option<types::Result<()>> {
        match self {
            Self::OnHost(handle) => handle.wait_for(limit),
            Self::OnDevice(pending) => pending.wait_for(limit),
        }
    }

    fn wait_while(&self, period: Duration, go_on: &mut dyn FnMut() -> bool) -> types::Result<()> {
        match self {
            Self::OnHost(handle) => handle.wait_while(period, go_on),
            Self::OnDevice(pending) => pending.wait_while(period, go_on),
        }
    }

    fn poll(&self) -> Option<types::Result<()>> {
        match self {
            Self::OnHost(handle) => handle.poll(),
            Self::OnDevice(pending) => pending.poll(),
        }
    }
}

/// A pending operation. Dropping it is safe: the operation goes on, and its memory is kept until it ends.
#[pyclass(frozen, module = "phalanx._native")]
pub struct Handle {
    inner: Started,
    birth: Birth,
    life: Life,
    generation: Generation,
}

impl Handle {
    pub fn new(inner: Started, birth: Birth, life: Life, generation: Generation) -> Self {
        Self { inner, birth, life, generation }
    }

    /// With `wait`, waits for the end, and gives the operation up on every rank when a signal's handler raises.
    pub fn finish(self, py: Python<'_>, wait: bool) -> PyResult<Option<Self>> {
        if !wait {
            return Ok(Some(self));
        }
        let mut signals = Signals::default();
        let outcome = py.detach(|| self.inner.wait_while(SIGNAL_PERIOD, &mut || signals.are_quiet()));
        signals.outcome(py, self.life.judge(self.generation, outcome)).map(|()| None)
    }
}

/// Python's signal handlers, called while a thread waits detached from the interpreter.
#[derive(Default)]
pub struct Signals {
    raised: Option<PyErr>,
}

impl Signals {
    /// Lets pending handlers run; false when one has raised.
    pub fn are_quiet(&mut self) -> bool {
        // An interpreter that is about to end has no handlers to run.
        self.raised = Python::try_attach(|py| py.check_signals()).and_then(Result::err);
        self.raised.is_none()
    }

    /// What a handler raised goes before how the operation ended.
    pub fn outcome<T>(self, py: Python<'_>, outcome: types::Result<T>) -> PyResult<T> {
        match self.raised {
            Some(error) => Err(error),
            None => told(py, outcome),
        }
    }
}

/// The outcome of an operation. Ctrl-C reaches all ranks, and the first to go makes the others' operations fail:
/// handlers of signals that came before that run first, so that it is Ctrl-C everywhere.
fn told<T>(py: Python<'_>, outcome: types::Result<T>) -> PyResult<T> {
    if outcome.is_err() {
        py.check_signals()?;
    }
    Ok(outcome?)
}

#[pymethods]
impl Handle {
    /// Waits until the operation has ended, or at most `timeout` seconds. Other Python threads run meanwhile, and a
    /// signal's handler may raise: the operation stays pending then.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.birth.check()?;
        if let Some(outcome) = py.detach(|| self.inner.poll()) {
            return told(py, self.life.judge(self.generation, outcome));
        }
        let limit = timeout.map(seconds).transpose()?;
        let started = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(started.elapsed()));
            let period = left.map_or(SIGNAL_PERIOD, |left| left.min(SIGNAL_PERIOD));
            if let Some(outcome) = py.detach(|| self.inner.wait_for(period)) {
                return told(py, self.life.judge(self.generation, outcome));
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err(format!(
                    "the operation is still pending after {:.3} s; it goes on, wait again or longer",
                    started.elapsed().as_secs_f64()
                )));
            }
        }
    }

    /// Whether the operation has ended, well or not; `wait` tells which.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.birth.check()?;
        Ok(py.detach(|| self.inner.poll()).is_some())
    }
}
