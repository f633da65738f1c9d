//! Memory of objects that speak DLPack, the exchange format of array libraries.
//!
//! The layouts are those of DLPack 1.x. A capsule is held unconsumed: its own destructor gives the tensor back, so
//! that nothing here has to call foreign deleters.

use std::ffi::{CStr, c_void};

use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule};

use crate::buffer::KNOWN;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    element: ElementType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: *const c_void,
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: *const c_void,
    flags: u64,
    tensor: Tensor,
}

const CPU: i32 = 1;
const CUDA_PINNED_HOST: i32 = 3;
const READ_ONLY: u64 = 1;
const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

/// What a capsule says about its memory.
pub struct View {
    pub pointer: usize,
    pub shape: Vec<usize>,
    pub dtype: DataType,
    pub writable: bool,
    pub capsule: Py<PyAny>,
}

/// Views an object that has `__dlpack__`; `None` when it has not.
pub fn view(object: &Bound<'_, PyAny>) -> PyResult<Option<View>> {
    let py = object.py();
    if !object.hasattr("__dlpack__")? {
        return Ok(None);
    }
    let (kind, _): (i32, i64) = object.call_method0("__dlpack_device__")?.extract()?;
    if kind != CPU && kind != CUDA_PINNED_HOST {
        return Err(PyTypeError::new_err(format!(
            "memory of DLPack device type {kind} given, host memory expected; copy it to the host first"
        )));
    }
    // The versioned form says whether memory may be written. Objects that know only the older one refuse the keyword.
    let keywords = [("max_version", (1u32, 0u32))].into_py_dict(py)?;
    let capsule = match object.call_method("__dlpack__", (), Some(&keywords)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__")?,
        other => other?,
    };
    let capsule = capsule.cast_into::<PyCapsule>()?;
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersioned>();
        // SAFETY: a capsule of this name holds this struct, whose first member is its version in every version.
        let major = unsafe { (*managed.as_ptr()).version.major };
        if major != 1 {
            return Err(PyTypeError::new_err(format!("DLPack version {major} given, version 1 expected")));
        }
        // SAFETY: as above, and the version's layout is this one. The capsule lives as long as the reference.
        let managed = unsafe { managed.as_ref() };
        return read(&managed.tensor, managed.flags & READ_ONLY == 0, &capsule).map(Some);
    }
    let managed = capsule.pointer_checked(Some(UNVERSIONED))?.cast::<Managed>();
    // SAFETY: a capsule of this name holds this struct. The capsule lives as long as the reference.
    let managed = unsafe { managed.as_ref() };
    read(&managed.tensor, true, &capsule).map(Some)
}

fn read(tensor: &Tensor, writable: bool, capsule: &Bound<'_, PyCapsule>) -> PyResult<View> {
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let numbers = |start: *const i64| {
        // SAFETY: shape and strides, when not null, have one number for each dimension.
        if start.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(start, dimensions) } }
    };
    let shape = numbers(tensor.shape)
        .iter()
        .map(|&length| usize::try_from(length))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| invalid("a DLPack tensor with a negative length given"))?;
    if !is_contiguous(&shape, numbers(tensor.strides)) {
        return Err(invalid("memory with gaps given, C-contiguous memory expected; make a copy first"));
    }
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| invalid("DLPack offset too large"))?;
    Ok(View {
        pointer: (tensor.data as usize).wrapping_add(offset),
        shape,
        dtype: element_type(&tensor.element)?,
        writable,
        capsule: capsule.clone().into_any().unbind(),
    })
}

fn is_contiguous(shape: &[usize], strides: &[i64]) -> bool {
    if strides.is_empty() || shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&length, &stride)| {
        let fits = length == 1 || usize::try_from(stride) == Ok(expected);
        expected *= length;
        fits
    })
}

fn element_type(element: &ElementType) -> PyResult<DataType> {
    const SIGNED: u8 = 0;
    const UNSIGNED: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const BOOL: u8 = 6;
    let dtype = match (element.code, element.bits, element.lanes) {
        (SIGNED, 8, 1) => DataType::I8,
        (SIGNED, 16, 1) => DataType::I16,
        (SIGNED, 32, 1) => DataType::I32,
        (SIGNED, 64, 1) => DataType::I64,
        (UNSIGNED, 8, 1) => DataType::U8,
        (UNSIGNED, 32, 1) => DataType::U32,
        (UNSIGNED, 64, 1) => DataType::U64,
        (FLOAT, 16, 1) => DataType::F16,
        (FLOAT, 32, 1) => DataType::F32,
        (FLOAT, 64, 1) => DataType::F64,
        (BFLOAT, 16, 1) => DataType::BF16,
        (BOOL, 8, 1) => DataType::Bool,
        (code, bits, lanes) => {
            return Err(PyTypeError::new_err(format!(
                "elements of DLPack type code {code}, {bits} bits, {lanes} lanes are not supported; {KNOWN} expected"
            )));
        }
    };
    Ok(dtype)
}
