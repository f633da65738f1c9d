//! A pending operation, as Python holds it.

use std::time::{Duration, Instant};

use phalanx::python::seconds;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::process::Birth;

/// How long a thread waits before it looks whether Python has a signal to handle. Short enough for Ctrl-C to feel
/// prompt, long enough to cost nothing.
pub const SIGNAL_PERIOD: Duration = Duration::from_millis(100);

/// A pending operation. Dropping it is safe: the operation goes on, and its memory is kept until it ends.
#[pyclass(frozen, module = "phalanx._native")]
pub struct Handle {
    inner: phalanx::Handle,
    birth: Birth,
}

impl Handle {
    pub fn new(inner: phalanx::Handle, birth: Birth) -> Self {
        Self { inner, birth }
    }
}

#[pymethods]
impl Handle {
    /// Waits until the operation has ended, or at most `timeout` seconds. Other Python threads run meanwhile, and a
    /// signal's handler may raise: the operation stays pending then.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.birth.check()?;
        if let Some(outcome) = self.inner.poll() {
            return Ok(outcome?);
        }
        let limit = timeout.map(seconds).transpose()?;
        let started = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(started.elapsed()));
            let period = left.map_or(SIGNAL_PERIOD, |left| left.min(SIGNAL_PERIOD));
            if let Some(outcome) = py.detach(|| self.inner.wait_for(period)) {
                return Ok(outcome?);
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
    fn poll(&self) -> PyResult<bool> {
        self.birth.check()?;
        Ok(self.inner.poll().is_some())
    }
}
