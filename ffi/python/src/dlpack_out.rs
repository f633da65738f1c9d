//! Memory that goes out as a DLPack tensor, which holds it as long as somebody has the tensor.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::prelude::*;

use crate::dlpack::{Device, Managed, ManagedVersioned, Tensor, UNVERSIONED, VERSIONED, Version, element_of};

/// What goes out.
pub struct Outgoing<'a> {
    pub pointer: usize,
    pub device: Device,
    pub shape: &'a [usize],
    pub dtype: DataType,
    /// What holds the memory.
    pub owner: Arc<dyn Any + Send + Sync>,
}

/// A tensor that went out, and what it needs as long as somebody has it. The tensor comes first: its address is this one's.
#[repr(C)]
struct Export<M> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// A capsule with the tensor, of the newest form that `max_version` allows.
pub fn export<'py>(
    py: Python<'py>,
    outgoing: Outgoing<'_>,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyAny>> {
    if max_version.is_some_and(|(major, _)| major >= 1) {
        let managed = |tensor| ManagedVersioned {
            version: Version { major: 1, minor: 0 },
            context: std::ptr::null_mut(),
            deleter: Some(release::<ManagedVersioned>),
            flags: 0,
            tensor,
        };
        return put(py, outgoing, managed, |managed| &raw mut managed.tensor, VERSIONED, destroy_versioned);
    }
    let managed = |tensor| Managed { tensor, context: std::ptr::null_mut(), deleter: Some(release::<Managed>) };
    put(py, outgoing, managed, |managed| &raw mut managed.tensor, UNVERSIONED, destroy_unversioned)
}

fn put<'py, M>(
    py: Python<'py>,
    outgoing: Outgoing<'_>,
    managed: impl FnOnce(Tensor) -> M,
    tensor_of: impl FnOnce(&mut M) -> *mut Tensor,
    name: &'static CStr,
    destroy: unsafe extern "C" fn(*mut pyo3::ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    let Outgoing { pointer, device, shape, dtype, owner } = outgoing;
    let lengths = shape.iter().map(|&length| i64::try_from(length)).collect::<Result<Box<[i64]>, _>>();
    let shape = lengths.map_err(|_| invalid("more elements than DLPack can count"))?;
    let mut strides = vec![1i64; shape.len()].into_boxed_slice();
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].wrapping_mul(shape[at]);
    }
    let tensor = Tensor {
        data: pointer as *mut c_void,
        device,
        dimensions: i32::try_from(shape.len()).map_err(|_| invalid("more dimensions than DLPack can count"))?,
        element: element_of(dtype),
        shape: std::ptr::null(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };
    let mut export = Box::new(Export { managed: managed(tensor), shape, strides, _owner: owner });
    let tensor = tensor_of(&mut export.managed);
    // SAFETY: it is a part of the box, which nothing else refers to; what it points to stays where it is as long as the box.
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

/// Called once by whoever took a tensor over, when it is done with it, on any thread.
unsafe extern "C" fn release<M>(managed: *mut M) {
    // SAFETY: the tensor is the first member of the box that `put` made, which is given up here.
    drop(unsafe { Box::from_raw(managed.cast::<Export<M>>()) });
}

/// The end of a capsule. One whose tensor was taken over has got another name by then.
unsafe fn destroy<M>(capsule: *mut pyo3::ffi::PyObject, name: &CStr) {
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
