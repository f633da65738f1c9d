//! Memory of objects that speak Python's buffer protocol.
//!
//! The protocol joined the stable interface with Python 3.11, so that PyO3 leaves it out when 3.10 is to be supported.
//! Its functions and the layout of its struct have been the same since Python 3.3; they are declared here.

use std::ffi::{CStr, c_char, c_int, c_void};

use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_IsContiguous(view: *const PyBuffer, order: c_char) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// Which elements there are, in NumPy's words.
pub const KNOWN: &str = "float16 to float64, bfloat16, int8 to int64, uint8, uint32, uint64 or bool";

/// Asks for format, shape, strides and suboffsets, and accepts read-only memory.
const FULL_READ_ONLY: c_int = 0x0100 | 0x0008 | 0x0010 | 0x0004;

/// A buffer that its exporter holds in place until this is dropped.
pub struct Buffer(Box<PyBuffer>);

// SAFETY: the view is only read, and it is released by `drop` with the interpreter attached, on whatever thread.
unsafe impl Send for Buffer {}
// SAFETY: nothing changes the view between its making and its release.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Asks an object for its buffer; `None` when it has none to give.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        // SAFETY: the object is alive, and the interpreter attached.
        if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Ok(None);
        }
        let mut view = Box::new(PyBuffer {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: as above; the box does not move what exporters may point into.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, FULL_READ_ONLY) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Some(Self(view)))
    }

    pub fn pointer(&self) -> usize {
        self.0.buf as usize
    }

    pub fn is_writable(&self) -> bool {
        self.0.readonly == 0
    }

    /// The lengths of the dimensions, checked to be without gaps.
    pub fn shape(&self) -> PyResult<Vec<usize>> {
        // SAFETY: the view was filled by its exporter, which is still held.
        if unsafe { PyBuffer_IsContiguous(&raw const *self.0, b'C' as c_char) } == 0 {
            return Err(invalid("memory with gaps given, C-contiguous memory expected; make a copy first"));
        }
        let dimensions = usize::try_from(self.0.ndim).unwrap_or(0);
        if dimensions == 0 {
            return Ok(Vec::new());
        }
        if self.0.shape.is_null() {
            return Ok(vec![(self.0.len / self.0.itemsize.max(1)).unsigned_abs()]);
        }
        // SAFETY: a shape, when not null, has one number for each dimension.
        let shape = unsafe { std::slice::from_raw_parts(self.0.shape, dimensions) };
        Ok(shape.iter().map(|length| length.unsigned_abs()).collect())
    }

    pub fn dtype(&self) -> PyResult<DataType> {
        let format = if self.0.format.is_null() {
            "B"
        } else {
            // SAFETY: a format, when not null, is a text that ends in zero and lives as long as the view.
            unsafe { CStr::from_ptr(self.0.format) }.to_str().unwrap_or("?!")
        };
        let size = self.0.itemsize;
        let native = if cfg!(target_endian = "little") { '<' } else { '>' };
        let code = match format.strip_prefix(['@', '=', native]).unwrap_or(format) {
            "?" if size == 1 => DataType::Bool,
            "c" | "B" if size == 1 => DataType::U8,
            "e" if size == 2 => DataType::F16,
            "f" if size == 4 => DataType::F32,
            "d" if size == 8 => DataType::F64,
            "b" | "h" | "i" | "l" | "q" | "n" => match size {
                1 => DataType::I8,
                2 => DataType::I16,
                4 => DataType::I32,
                _ => DataType::I64,
            },
            "I" | "L" | "Q" | "N" => match size {
                4 => DataType::U32,
                _ => DataType::U64,
            },
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "elements of format {format:?} and {size} bytes are not supported; {KNOWN} expected, in this machine's \
                     byte order"
                )));
            }
        };
        Ok(code)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view is released once. It is part of a Python object, whose end comes with the interpreter attached.
        unsafe { PyBuffer_Release(&raw mut *self.0) }
    }
}
