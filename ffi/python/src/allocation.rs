//! Memory that the library allocates for Python: registered buffers, and the ways in which array libraries get at them.
//!
//! Whoever views the memory, a Python object or a DLPack tensor of whatever library, holds a reference to it. So it is
//! given back when the last of them is gone, be that long after the communicator.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use phalanx::comm;
use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::communicator::Communicator;
use crate::dlpack::{CPU, Device, Managed, ManagedVersioned, Tensor, UNVERSIONED, VERSIONED, Version, element_of};
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

    /// What NumPy knows memory by. It has no type for bf16: those are elements of two bytes without meaning.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.dtype {
            DataType::F16 | DataType::F32 | DataType::F64 => 'f',
            DataType::BF16 => 'V',
            DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64 => 'i',
            DataType::U8 | DataType::U32 | DataType::U64 => 'u',
            DataType::Bool => 'b',
        };
        let order = match self.dtype.size() {
            1 => '|',
            _ if cfg!(target_endian = "little") => '<',
            _ => '>',
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.count,))?;
        interface.set_item("typestr", format!("{order}{kind}{}", self.dtype.size()))?;
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
        let exported = |tensor: Tensor| ManagedVersioned {
            version: Version { major: 1, minor: 0 },
            context: std::ptr::null_mut(),
            deleter: Some(release::<ManagedVersioned>),
            flags: 0,
            tensor,
        };
        if max_version.is_some_and(|(major, _)| major >= 1) {
            return self.export(py, exported, |managed| &raw mut managed.tensor, VERSIONED, destroy_versioned);
        }
        let exported =
            |tensor: Tensor| Managed { tensor, context: std::ptr::null_mut(), deleter: Some(release::<Managed>) };
        self.export(py, exported, |managed| &raw mut managed.tensor, UNVERSIONED, destroy_unversioned)
    }

    fn __repr__(&self) -> String {
        let place = if self.is_shared() { "shared" } else { "ordinary" };
        format!("Buffer({} elements of {} in {place} memory)", self.count, self.dtype)
    }
}

/// A tensor that went out, and what it needs as long as somebody has it. The tensor comes first: its address is this one's.
#[repr(C)]
struct Export<M> {
    managed: M,
    shape: [i64; 1],
    strides: [i64; 1],
    _memory: Arc<Allocation>,
}

impl Buffer {
    fn export<'py, M>(
        &self,
        py: Python<'py>,
        managed: impl FnOnce(Tensor) -> M,
        tensor_of: impl FnOnce(&mut M) -> *mut Tensor,
        name: &'static std::ffi::CStr,
        destroy: unsafe extern "C" fn(*mut pyo3::ffi::PyObject),
    ) -> PyResult<Bound<'py, PyAny>> {
        let length = i64::try_from(self.count).map_err(|_| invalid("more elements than DLPack can count"))?;
        let tensor = Tensor {
            data: self.pointer() as *mut c_void,
            device: Device { kind: CPU, id: 0 },
            dimensions: 1,
            element: element_of(self.dtype),
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        let mut export =
            Box::new(Export { managed: managed(tensor), shape: [length], strides: [1], _memory: self.memory.clone() });
        let tensor = tensor_of(&mut export.managed);
        // SAFETY: it is a part of the box, which nothing else refers to, and the box stays where it is.
        unsafe { ((*tensor).shape, (*tensor).strides) = (export.shape.as_ptr(), export.strides.as_ptr()) };
        let export = Box::into_raw(export);
        // SAFETY: the interpreter is attached, the name lives for ever, and the destructor fits the pointer.
        let capsule = unsafe { pyo3::ffi::PyCapsule_New(export.cast(), name.as_ptr(), Some(destroy)) };
        if capsule.is_null() {
            // SAFETY: made above, and nobody has it.
            drop(unsafe { Box::from_raw(export) });
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference, which is not null.
        Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
    }
}

/// Called once by whoever took a tensor over, when it is done with it, on any thread.
unsafe extern "C" fn release<M>(managed: *mut M) {
    // SAFETY: the tensor is the first member of the box that `export` made, which is given up here.
    drop(unsafe { Box::from_raw(managed.cast::<Export<M>>()) });
}

/// The end of a capsule. One whose tensor was taken over has got another name by then.
unsafe fn destroy<M>(capsule: *mut pyo3::ffi::PyObject, name: &std::ffi::CStr) {
    // SAFETY: Python calls a destructor attached, with the capsule; the name says that the tensor is still in it.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            release(pyo3::ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<M>());
        }
    }
}

unsafe extern "C" fn destroy_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: only capsules with this struct have this destructor.
    unsafe { destroy::<ManagedVersioned>(capsule, VERSIONED) }
}

unsafe extern "C" fn destroy_unversioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: only capsules with this struct have this destructor.
    unsafe { destroy::<Managed>(capsule, UNVERSIONED) }
}
