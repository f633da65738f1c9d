//! Conversions between Python objects and the public types, behind the feature `python`.
//!
//! They live here because the orphan rule wants them in the crate of the types. The extension module itself, and the
//! Python package that defines the exception classes (`phalanx.errors`), are in `ffi/python`.

use std::fmt::Display;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyType};

use crate::types::{Algorithm, DataType, Error, Fault, ReduceOp};

impl Fault {
    /// The word for it in an exception's attribute `fault`.
    fn word(self) -> &'static str {
        match self {
            Fault::Caller => "caller",
            Fault::Peer => "peer",
            Fault::Environment => "environment",
            Fault::Bug => "bug",
        }
    }
}

/// The exception class for an error. The class objects are looked up once.
fn class_of<'py>(py: Python<'py>, error: &Error) -> PyResult<&'py Bound<'py, PyType>> {
    static INVALID_ARGUMENT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static MISMATCH: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static PEER_FAILED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static TIMEOUT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static CLOSED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static SURROUNDINGS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static INTERNAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (cell, name) = match error {
        Error::InvalidArgument { .. } => (&INVALID_ARGUMENT, "InvalidArgumentError"),
        Error::Mismatch { .. } => (&MISMATCH, "MismatchError"),
        Error::PeerFailed { .. } => (&PEER_FAILED, "PeerFailedError"),
        Error::Timeout { .. } => (&TIMEOUT, "PhalanxTimeoutError"),
        Error::Closed { .. } => (&CLOSED, "ClosedError"),
        Error::Environment { .. } => (&SURROUNDINGS, "PhalanxEnvironmentError"),
        Error::Internal { .. } => (&INTERNAL, "InternalError"),
    };
    cell.import(py, "phalanx.errors", name)
}

fn to_exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let exception = class_of(py, error)?.call1((error.to_string(),))?;
    exception.setattr("fault", error.fault().word())?;
    exception.setattr("retryable", error.is_retryable())?;
    exception.setattr("hint", error.hint())?;
    match error {
        Error::Mismatch { sequence, ours, theirs } => {
            exception.setattr("sequence", *sequence)?;
            exception.setattr("ours", (ours.0, ours.1.to_string()))?;
            exception.setattr("theirs", (theirs.0, theirs.1.to_string()))?;
        }
        Error::PeerFailed { rank, .. } => exception.setattr("rank", *rank)?,
        Error::Timeout { waiting_for, waited, .. } => {
            exception.setattr("waiting_for", waiting_for.clone())?;
            exception.setattr("waited", waited.as_secs_f64())?;
        }
        _ => {}
    }
    Ok(exception)
}

/// An exception of the class in `phalanx.errors` that stands for the error, with the compared values as attributes.
impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| match to_exception(py, &error) {
            Ok(exception) => PyErr::from_value(exception),
            // The package's own classes cannot be reached; the message must not be lost with them.
            Err(_) => PyRuntimeError::new_err(error.to_string()),
        })
    }
}

/// An argument that cannot be used, as a `phalanx.InvalidArgumentError`.
pub fn invalid(what: impl Display) -> PyErr {
    Error::invalid(what).into()
}

/// Reads a type that has codes and names from either.
fn by_code_or_name<T>(
    object: Borrowed<'_, '_, PyAny>,
    what: &str,
    from_code: impl Fn(u8) -> Option<T>,
    from_name: impl Fn(&str) -> Result<T, String>,
) -> PyResult<T> {
    // True is an integer too, but hardly meant as the code 1.
    if !object.is_instance_of::<PyBool>() {
        if let Ok(code) = object.extract::<u8>() {
            return from_code(code).ok_or_else(|| invalid(format_args!("unknown {what} {code}")));
        }
        if let Ok(name) = object.extract::<String>() {
            return from_name(&name).map_err(invalid);
        }
    }
    Err(invalid(format_args!("{} given, the name or the code of a known {what} expected", object.repr()?)))
}

macro_rules! by_code_or_name {
    ($($what:literal $name:ident),* $(,)?) => {$(
        /// From its code or its name.
        impl FromPyObject<'_, '_> for $name {
            type Error = PyErr;

            fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
                by_code_or_name(object, $what, $name::from_code, |name| name.parse())
            }
        }
    )*};
}

by_code_or_name! { "element type" DataType, "reduce op" ReduceOp, "algorithm" Algorithm }

/// A length of time from seconds, which must be a number of at least zero. Infinity becomes the longest length.
pub fn seconds(value: f64) -> PyResult<Duration> {
    if value.is_nan() || value < 0.0 {
        return Err(invalid(format_args!("a time of {value} seconds given, at least zero expected")));
    }
    Ok(Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX))
}
