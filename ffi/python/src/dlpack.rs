//! Memory of objects that speak DLPack, the exchange format of array libraries.
//!
//! The layouts are those of DLPack 1.x. A capsule is held unconsumed: its own destructor gives the tensor back, so
//! that nothing here has to call foreign deleters. What goes out is in `dlpack_out`.

use std::ffi::{CStr, c_void};

use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::buffer::KNOWN;
use crate::device::{self, Place};

#[repr(C)]
pub struct Device {
    pub kind: i32,
    pub id: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ElementType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: Device,
    pub dimensions: i32,
    pub element: ElementType,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct Managed {
    pub tensor: Tensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

#[repr(C)]
pub struct ManagedVersioned {
    pub version: Version,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    pub flags: u64,
    pub tensor: Tensor,
}

pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;
const CUDA_PINNED_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;
const READ_ONLY: u64 = 1;
pub const VERSIONED: &CStr = c"dltensor_versioned";
pub const UNVERSIONED: &CStr = c"dltensor";

/// What an object says about its memory.
pub struct View {
    pub pointer: usize,
    pub shape: Vec<usize>,
    pub dtype: DataType,
    pub writable: bool,
    /// What holds the memory.
    pub owner: Py<PyAny>,
    /// Of device memory.
    pub place: Option<Place>,
}

/// Views an object that has `__dlpack__`, or memory on a device; `None` when it has neither.
pub fn view(object: &Bound<'_, PyAny>) -> PyResult<Option<View>> {
    if !object.hasattr("__dlpack__")? {
        return device::view_by_interface(object);
    }
    let (kind, id): (i32, i64) = object.call_method0("__dlpack_device__")?.extract()?;
    match kind {
        CPU | CUDA_PINNED_HOST => take(object, None).map(Some),
        CUDA | CUDA_MANAGED => device::view(object, id).map(Some),
        _ => Err(PyTypeError::new_err(format!(
            "memory of DLPack device type {kind} given, that of the host or of a CUDA device expected; copy it to the host \
             first"
        ))),
    }
}

/// Asks an object for its tensor, which is ready on a stream where one is given.
pub fn take(object: &Bound<'_, PyAny>, stream: Option<i64>) -> PyResult<View> {
    let py = object.py();
    // The versioned form says whether memory may be written. Objects that know only the older one refuse the keyword.
    let keywords = PyDict::new(py);
    if let Some(stream) = stream {
        keywords.set_item("stream", stream)?;
    }
    let versioned = keywords.copy()?;
    versioned.set_item("max_version", (1u32, 0u32))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&versioned)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method("__dlpack__", (), Some(&keywords))?
        }
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
        return read(&managed.tensor, managed.flags & READ_ONLY == 0, &capsule);
    }
    let managed = capsule.pointer_checked(Some(UNVERSIONED))?.cast::<Managed>();
    // SAFETY: a capsule of this name holds this struct. The capsule lives as long as the reference.
    let managed = unsafe { managed.as_ref() };
    read(&managed.tensor, true, &capsule)
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
        owner: capsule.clone().into_any().unbind(),
        place: None,
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

/// The codes and bits of element types.
const ELEMENTS: [(u8, u8, DataType); 12] = [
    (SIGNED, 8, DataType::I8),
    (SIGNED, 16, DataType::I16),
    (SIGNED, 32, DataType::I32),
    (SIGNED, 64, DataType::I64),
    (UNSIGNED, 8, DataType::U8),
    (UNSIGNED, 32, DataType::U32),
    (UNSIGNED, 64, DataType::U64),
    (FLOAT, 16, DataType::F16),
    (FLOAT, 32, DataType::F32),
    (FLOAT, 64, DataType::F64),
    (BFLOAT, 16, DataType::BF16),
    (BOOL, 8, DataType::Bool),
];
const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const BOOL: u8 = 6;

fn element_type(element: &ElementType) -> PyResult<DataType> {
    let ElementType { code, bits, lanes } = *element;
    let known = ELEMENTS.iter().find(|known| lanes == 1 && (known.0, known.1) == (code, bits));
    known.map(|known| known.2).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "elements of DLPack type code {code}, {bits} bits, {lanes} lanes are not supported; {KNOWN} expected"
        ))
    })
}

/// What DLPack calls an element type.
pub fn element_of(dtype: DataType) -> ElementType {
    // Every type is in the table.
    let (code, bits, _) = ELEMENTS.into_iter().find(|known| known.2 == dtype).unwrap_or(ELEMENTS[0]);
    ElementType { code, bits, lanes: 1 }
}
