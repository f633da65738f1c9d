//! Arrays in device memory that are made here: results of calls on arrays whose own library is not known.

use std::sync::Arc;

use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::device::{Place, Room};
use crate::dlpack::{CUDA, Device};
use crate::dlpack_out::{Outgoing, export};
use crate::numbers;

/// An array in the memory of a CUDA device, which array libraries take over as it is: by `__cuda_array_interface__` and by
/// DLPack. Both say on which stream it is made, so that what they do with it comes after.
#[pyclass(frozen, module = "phalanx._native")]
pub struct DeviceArray {
    room: Arc<Room>,
    place: Place,
    shape: Vec<usize>,
    dtype: DataType,
}

impl DeviceArray {
    pub fn pointer(&self) -> usize {
        self.room.pointer()
    }

    pub fn place(&self) -> Option<&Place> {
        Some(&self.place)
    }

    pub fn lengths(&self) -> &[usize] {
        &self.shape
    }

    pub fn data_type(&self) -> DataType {
        self.dtype
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

#[pymethods]
impl DeviceArray {
    /// Elements on a device, not written.
    #[new]
    pub fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::count)] device: usize,
        #[pyo3(from_py_with = numbers::counts)] shape: Vec<usize>,
        dtype: DataType,
    ) -> PyResult<Self> {
        let bytes = shape.iter().try_fold(dtype.size(), |product, &length| product.checked_mul(length));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| invalid("more elements given than memory can have"))?;
        let place = Place::home(py, device)?;
        let room = Arc::new(Room::new(py, &place, bytes)?);
        Ok(Self { room, place, shape, dtype })
    }

    fn __len__(&self) -> PyResult<usize> {
        self.shape.first().copied().ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("an array of no dimension"))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The name of the element type.
    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        self.dtype.name()
    }

    /// The number of the device.
    #[getter]
    fn device(&self) -> usize {
        self.place.ordinal()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes()
    }

    /// There is no code for bf16: those are elements of two bytes without meaning.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", crate::allocation::typestr(self.dtype))?;
        interface.set_item("data", (self.pointer(), false))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("stream", self.place.raw_stream())?;
        Ok(interface)
    }

    fn __dlpack_device__(&self) -> (i32, usize) {
        (CUDA, self.place.ordinal())
    }

    /// The array as a DLPack tensor, which holds the memory. The given stream waits until it is ready.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, usize)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) || copy == Some(true) {
            let what =
                format!("another device or a copy asked for; this is memory of device {}, as it is", self.device());
            return Err(PyBufferError::new_err(what));
        }
        self.place.hand_over(stream)?;
        let id = i32::try_from(self.place.ordinal()).map_err(|_| invalid("a device beyond what DLPack can name"))?;
        let outgoing = Outgoing {
            pointer: self.pointer(),
            device: Device { kind: CUDA, id },
            shape: &self.shape,
            dtype: self.dtype,
            owner: self.room.clone(),
        };
        export(py, outgoing, max_version)
    }

    fn __repr__(&self) -> String {
        format!("DeviceArray(shape {:?} of {} on device {})", self.shape, self.dtype, self.place.ordinal())
    }
}
