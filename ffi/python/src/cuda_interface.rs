//! Memory of objects with `__cuda_array_interface__`, versions 2 and 3.

use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::KNOWN;
use crate::device::{self, Place};
use crate::dlpack::View;

/// The version from which on a stream is told.
const WITH_STREAM: i64 = 3;

/// Views an object; `None` when it has no such interface, or, where there `is_another_way`, one with elements that only
/// the other way may know. Without the number of the device it is asked for.
pub fn view(object: &Bound<'_, PyAny>, ordinal: Option<usize>, is_another_way: bool) -> PyResult<Option<View>> {
    let Some(interface) = object.getattr_opt("__cuda_array_interface__")? else { return Ok(None) };
    let interface = interface.cast_into::<PyDict>()?;
    let field = |name: &str| interface.get_item(name).map(|field| field.filter(|field| !field.is_none()));
    let wanted =
        |name: &str| field(name)?.ok_or_else(|| invalid(format_args!("a CUDA array interface without {name} given")));
    let kind: String = wanted("typestr")?.extract()?;
    let dtype = match element_type(&kind) {
        Some(dtype) => dtype,
        None if is_another_way => return Ok(None),
        None => {
            return Err(PyTypeError::new_err(format!(
                "elements of type {kind:?} are not supported; {KNOWN} expected, in this machine's byte order"
            )));
        }
    };
    if field("mask")?.is_some() {
        return Err(invalid("a CUDA array with a mask given, one without expected"));
    }
    let lengths: Vec<i64> = wanted("shape")?.extract()?;
    let shape = lengths.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| invalid("a CUDA array with a negative length given"))?;
    let strides: Option<Vec<i64>> = field("strides")?.map(|strides| strides.extract()).transpose()?;
    if strides.is_some_and(|strides| !is_contiguous(&shape, &strides, dtype.size())) {
        return Err(invalid("memory with gaps given, C-contiguous memory expected; make a copy first"));
    }
    let (pointer, read_only): (Option<usize>, bool) = wanted("data")?.extract()?;
    let pointer = pointer.unwrap_or(0);
    let stream = if wanted("version")?.extract::<i64>()? < WITH_STREAM { None } else { field("stream")? };
    let stream = stream.map(|stream| named(&stream)).transpose()?;
    let place = match ordinal {
        Some(ordinal) => Place::new(object.py(), ordinal, stream)?,
        // An array of no elements may be nowhere. Its stream is of no use then.
        None if shape.contains(&0) => Place::open(object.py())?,
        None => Place::new(object.py(), device::owner_of(pointer)?, stream)?,
    };
    let (writable, owner) = (!read_only, object.clone().unbind());
    Ok(Some(View { pointer, shape, dtype, writable, owner, place: Some(place) }))
}

/// A stream by its number: 1 is the legacy default stream, 2 the calling thread's default stream.
fn named(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    match stream.extract::<u64>() {
        Ok(0) => Err(invalid("stream 0 given in a CUDA array interface, which may mean two; 1 or 2 expected")),
        Ok(raw) => Ok(raw),
        Err(_) => {
            Err(invalid(format_args!("stream {stream} given in a CUDA array interface, a number from 1 on expected")))
        }
    }
}

fn element_type(kind: &str) -> Option<DataType> {
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let plain = kind.strip_prefix([native, '|', '='])?;
    Some(match plain {
        "b1" => DataType::Bool,
        "i1" => DataType::I8,
        "i2" => DataType::I16,
        "i4" => DataType::I32,
        "i8" => DataType::I64,
        "u1" => DataType::U8,
        "u4" => DataType::U32,
        "u8" => DataType::U64,
        "f2" => DataType::F16,
        "f4" => DataType::F32,
        "f8" => DataType::F64,
        _ => return None,
    })
}

/// Whether strides, which are bytes here, leave no gaps.
fn is_contiguous(shape: &[usize], strides: &[i64], width: usize) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = width;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(&length, &stride)| {
            let fits = length == 1 || usize::try_from(stride) == Ok(expected);
            expected = expected.wrapping_mul(length);
            fits
        })
}
