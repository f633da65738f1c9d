//! Memory that the library allocates for Python: registered buffers, and the ways in which array libraries get at them.
//!
//! Whoever views the memory, a Python object or a DLPack tensor of whatever library, holds a reference to it. So it is
//! given back when the last of them is gone, be that long after the communicator.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use phalanx::comm;
use phalanx::types::DataType;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::communicator::Communicator;
use crate::dlpack::{CPU, Device};
use crate::dlpack_out::{Outgoing, export};
use crate::numbers;
use crate::process::Birth;

/// The memory itself. Given back on whatever thread lets go of it last, with or without the interpreter.
struct Allocation {
    memory: ManuallyDrop<comm::Buffer<u8>>,
    birth: Birth,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A forked child has the parent's memory, and perhaps a lock that a thread of the parent's held.
        if self.birth.is_here() {
            // SAFETY: this is the only place that takes the value, and it is not used afterwards.
            drop(unsafe { ManuallyDrop::take(&mut self.memory) });
        }
    }
}

/// Elements, zero at first, in memory that the other ranks of this host read where it is.
#[pyclass(frozen, subclass, module = "phalanx._native")]
pub struct Buffer {
    memory: Arc<Allocation>,
    count: usize,
    dtype: DataType,
}

impl Buffer {
    pub fn pointer(&self) -> usize {
        self.memory.memory.as_raw() as usize
    }

    pub fn element_count(&self) -> usize {
        self.count
    }

    pub fn data_type(&self) -> DataType {
        self.dtype
    }
}

#[pymethods]
impl Buffer {
    #[new]
    fn new(
        py: Python<'_>,
        communicator: &Communicator,
        #[pyo3(from_py_with = numbers::count)] count: usize,
        dtype: DataType,
    ) -> PyResult<Self> {
        let (memory, birth) = communicator.alloc(py, dtype, count)?;
        Ok(Self { memory: Arc::new(Allocation { memory: ManuallyDrop::new(memory), birth }), count, dtype })
    }

    fn __len__(&self) -> usize {
        self.count
    }

    #[getter(pointer)]
    fn python_pointer(&self) -> usize {
        self.pointer()
    }

    /// The code of the element type.
    #[getter]
    fn code(&self) -> u8 {
        self.dtype as u8
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.memory.len()
    }

    /// Whether the other ranks of this host can read it where it is.
    #[getter]
    fn is_shared(&self) -> bool {
        self.memory.memory.is_shared()
    }

    /// What NumPy knows memory by.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.count,))?;
        interface.set_item("typestr", typestr(self.dtype))?;
        interface.set_item("data", (self.pointer(), false))?;
        Ok(interface)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    /// The elements as a DLPack tensor of one dimension, which holds the memory.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() || dl_device.is_some_and(|device| device != (CPU, 0)) || copy == Some(true) {
            let what = "a stream, another device or a copy asked for; this is memory of the host, as it is";
            return Err(PyBufferError::new_err(what));
        }
        let outgoing = Outgoing {
            pointer: self.pointer(),
            device: Device { kind: CPU, id: 0 },
            shape: &[self.count],
            dtype: self.dtype,
            owner: self.memory.clone(),
        };
        export(py, outgoing, max_version)
    }

    fn __repr__(&self) -> String {
        let place = if self.is_shared() { "shared" } else { "ordinary" };
        format!("Buffer({} elements of {} in {place} memory)", self.count, self.dtype)
    }
}

/// What NumPy calls an element type. It has none for bf16: those are elements of two bytes without meaning.
pub fn typestr(dtype: DataType) -> String {
    let kind = match dtype {
        DataType::F16 | DataType::F32 | DataType::F64 => 'f',
        DataType::BF16 => 'V',
        DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64 => 'i',
        DataType::U8 | DataType::U32 | DataType::U64 => 'u',
        DataType::Bool => 'b',
    };
    let order = match dtype.size() {
        1 => '|',
        _ if cfg!(target_endian = "little") => '<',
        _ => '>',
    };
    format!("{order}{kind}{}", dtype.size())
}
