//! Numbers that count from zero, as Python gives them. One that cannot be is an `InvalidArgumentError` that says which,
//! not Python's `OverflowError`; what is no whole number at all is a `TypeError`.

use phalanx::python::invalid;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

fn from_zero<'py, T: FromPyObjectOwned<'py, Error = PyErr>>(
    what: &str,
    expected: &str,
    object: &Bound<'py, PyAny>,
) -> PyResult<T> {
    object.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(object.py()) {
            invalid(format_args!("{what} {object} given, {expected} expected"))
        } else {
            error
        }
    })
}

/// A rank. Whether the communicator has it is the library's to say.
pub fn rank(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    from_zero("rank", "at least 0", object)
}

/// Ranks.
pub fn ranks(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    object.try_iter()?.map(|object| rank(&object?)).collect()
}

/// A number of elements.
pub fn count(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    from_zero("a count of", "at least 0, and no more than memory can have,", object)
}

/// The tag of a message.
pub fn tag(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    from_zero("tag", "0 to 4294967295", object)
}

/// The colour of a rank, or none.
pub fn colour(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if object.is_none() { Ok(None) } else { from_zero("colour", "at least 0", object).map(Some) }
}

/// Lengths of dimensions.
pub fn counts(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    object.try_iter()?.map(|object| count(&object?)).collect()
}

/// The number of a device, or none.
pub fn device(object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if object.is_none() { Ok(None) } else { from_zero("device", "at least 0", object).map(Some) }
}

/// The number of a stream, or none.
pub fn stream(object: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if object.is_none() { Ok(None) } else { from_zero("stream", "at least 0", object).map(Some) }
}
