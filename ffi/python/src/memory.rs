//! Where a call's elements are: an address, a count, a type, the device if it is not host memory, and the Python object
//! that keeps them there.

use phalanx::comm;
use phalanx::python::invalid;
use phalanx::types::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::allocation;
use crate::buffer::Buffer;
use crate::device::Place;
use crate::device_array::DeviceArray;
use crate::dlpack::{self, View};
use crate::numbers;

/// A run of elements, and what keeps it alive.
#[pyclass(frozen, module = "phalanx._native")]
pub struct Memory {
    pointer: usize,
    count: usize,
    dtype: DataType,
    shape: Vec<usize>,
    writable: bool,
    /// Of device memory.
    place: Option<Place>,
    /// Read by nobody: it holds the elements in place.
    _owner: Owner,
}

enum Owner {
    Buffer(#[expect(dead_code, reason = "held, not read")] Buffer),
    Object(#[expect(dead_code, reason = "held, not read")] Py<PyAny>),
}

impl Memory {
    pub fn address(&self) -> usize {
        self.pointer
    }

    /// Where it is, if that is a device's memory.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The address, which must be the host's.
    pub fn host_pointer(&self) -> PyResult<*mut u8> {
        match &self.place {
            None => Ok(self.pointer as *mut u8),
            Some(place) => Err(invalid(format_args!(
                "memory of device {} given, host memory expected; copy it to the host first",
                place.ordinal()
            ))),
        }
    }

    pub fn element_count(&self) -> usize {
        self.count
    }

    pub fn data_type(&self) -> DataType {
        self.dtype
    }

    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// The memory as a communicator's call takes it: on the device of its calls, if it is nowhere.
    pub fn within(mut self, py: Python<'_>, communicator: &comm::Communicator) -> PyResult<Self> {
        self.place = self.place.map(|place| place.within(py, communicator)).transpose()?;
        Ok(self)
    }

    fn new(pointer: usize, shape: Vec<usize>, dtype: DataType, writable: bool, owner: Owner) -> PyResult<Self> {
        Self::at(None, pointer, shape, dtype, writable, owner)
    }

    fn at(
        place: Option<Place>,
        pointer: usize,
        shape: Vec<usize>,
        dtype: DataType,
        writable: bool,
        owner: Owner,
    ) -> PyResult<Self> {
        let count = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
        match count.filter(|count| count.checked_mul(dtype.size()).is_some_and(|bytes| bytes <= isize::MAX as usize)) {
            Some(count) => Ok(Self { pointer, count, dtype, shape, writable, place, _owner: owner }),
            None => Err(invalid("more elements given than memory can have")),
        }
    }

    /// NumPy arrays of element types that NumPy itself does not know, such as `ml_dtypes.bfloat16`: they export neither
    /// a buffer nor a DLPack tensor.
    fn of_foreign_numpy_type(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Ok(interface) = object.getattr("__array_interface__") else { return Ok(None) };
        let kind: String = interface.get_item("typestr")?.extract()?;
        if !kind.contains('V') {
            return Ok(None);
        }
        let name: String = object.getattr("dtype")?.getattr("name")?.extract()?;
        let Ok(dtype) = name.parse::<DataType>() else { return Ok(None) };
        if !interface.get_item("strides")?.is_none() {
            return Err(invalid("memory with gaps given, C-contiguous memory expected; make a copy first"));
        }
        let (pointer, read_only): (usize, bool) = interface.get_item("data")?.extract()?;
        let shape = interface.get_item("shape")?.extract()?;
        Self::new(pointer, shape, dtype, !read_only, Owner::Object(object.clone().unbind())).map(Some)
    }
}

#[pymethods]
impl Memory {
    /// `count` elements at an address, which `owner` keeps there: of the host, or of a device and used on a stream, whose
    /// number is the driver's. Nothing can check address and stream: the caller answers for them.
    #[new]
    #[pyo3(signature = (pointer, count, dtype, owner, writable = true, device = None, stream = None))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn of_pointer(
        py: Python<'_>,
        pointer: usize,
        count: usize,
        dtype: DataType,
        owner: Py<PyAny>,
        writable: bool,
        #[pyo3(from_py_with = numbers::device)] device: Option<usize>,
        #[pyo3(from_py_with = numbers::stream)] stream: Option<u64>,
    ) -> PyResult<Self> {
        let place = device.map(|device| Place::new(py, device, stream)).transpose()?;
        Self::at(place, pointer, vec![count], dtype, writable, Owner::Object(owner))
    }

    /// The memory of an object with the buffer protocol, DLPack, or the interface of CUDA arrays. Nothing is copied.
    #[staticmethod]
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(buffer) = object.cast::<allocation::Buffer>() {
            let (buffer, owner) = (buffer.get(), Owner::Object(object.clone().unbind()));
            return Self::new(buffer.pointer(), vec![buffer.element_count()], buffer.data_type(), true, owner);
        }
        if let Ok(array) = object.cast::<DeviceArray>() {
            let (array, owner) = (array.get(), Owner::Object(object.clone().unbind()));
            let (place, shape) = (array.place().cloned(), array.lengths().to_vec());
            return Self::at(place, array.pointer(), shape, array.data_type(), true, owner);
        }
        let from_buffer = Buffer::of(object).and_then(|buffer| {
            let Some(buffer) = buffer else { return Ok(None) };
            let (shape, dtype) = (buffer.shape()?, buffer.dtype()?);
            Self::new(buffer.pointer(), shape, dtype, buffer.is_writable(), Owner::Buffer(buffer)).map(Some)
        });
        match from_buffer {
            Ok(Some(memory)) => return Ok(memory),
            Ok(None) => {}
            Err(error) => return Self::of_foreign_numpy_type(object)?.ok_or(error),
        }
        if let Some(View { place, pointer, shape, dtype, writable, owner }) = dlpack::view(object)? {
            return Self::at(place, pointer, shape, dtype, writable, Owner::Object(owner));
        }
        Err(PyTypeError::new_err(format!(
            "an object of type {} given; expected one with the buffer protocol, DLPack or __cuda_array_interface__, such as \
             an array",
            object.get_type().name()?
        )))
    }

    /// The elements from `start` to `stop` of the first dimension.
    fn rows(slf: &Bound<'_, Self>, start: usize, stop: usize) -> PyResult<Self> {
        let memory = slf.get();
        let Some((&length, rest)) = memory.shape.split_first().filter(|(length, _)| start <= stop && stop <= **length)
        else {
            return Err(invalid(format_args!("rows {start} to {stop} of shape {:?} given", memory.shape)));
        };
        let row = memory.bytes().checked_div(length).unwrap_or(0);
        let shape = std::iter::once(stop - start).chain(rest.iter().copied()).collect();
        let owner = Owner::Object(slf.clone().into_any().unbind());
        Self::at(memory.place.clone(), memory.pointer + start * row, shape, memory.dtype, memory.writable, owner)
    }

    /// Copies the elements of other memory of the same length and type here. On a device it is begun: what comes next on
    /// the streams of both comes after.
    fn copy_from(&self, py: Python<'_>, source: &Self) -> PyResult<()> {
        if !self.writable || source.count != self.count || source.dtype != self.dtype {
            return Err(invalid(format_args!(
                "{} elements of {} cannot be copied to {} of {}",
                source.count, source.dtype, self.count, self.dtype
            )));
        }
        if let (Some(place), Some(from)) = (&self.place, &source.place) {
            let bytes = self.bytes();
            return if bytes > 0 { place.copy(py, self.pointer, from, source.pointer, bytes) } else { Ok(()) };
        }
        let (from, to) = (source.host_pointer()?.cast_const(), self.host_pointer()?);
        // SAFETY: both have that many bytes, and are held by their owners. `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, self.bytes()) };
        Ok(())
    }

    /// A copy on the same device, used on a stream of its own that waits for it.
    fn copied(slf: &Bound<'_, Self>) -> PyResult<Self> {
        let (py, memory) = (slf.py(), slf.get());
        let Some(place) = &memory.place else { return Err(invalid("host memory given, that of a device expected")) };
        let array = DeviceArray::new(py, place.ordinal(), memory.shape.clone(), memory.dtype)?;
        let copy = Self::of(Bound::new(py, array)?.as_any())?;
        copy.copy_from(py, memory)?;
        Ok(copy)
    }

    /// The number of the device; none of host memory.
    #[getter]
    fn device(&self) -> Option<usize> {
        self.place.as_ref().map(Place::ordinal)
    }

    #[getter(pointer)]
    fn python_pointer(&self) -> usize {
        self.pointer
    }

    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// The code of the element type.
    #[getter]
    fn dtype(&self) -> u8 {
        self.dtype as u8
    }

    #[getter]
    fn dtype_name(&self) -> &'static str {
        self.dtype.name()
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    #[getter]
    fn writable(&self) -> bool {
        self.writable
    }

    fn __repr__(&self) -> String {
        format!("Memory({} elements of {}, shape {:?})", self.count, self.dtype, self.shape)
    }
}
