//! Stands for `device` in a build without the feature `cuda`: there is no device memory, and what is given of it is refused.

use std::any::Any;
use std::time::Duration;

use phalanx::comm::{self, Call};
use phalanx::types;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::communicator::Ends;
use crate::dlpack::View;

fn refused() -> PyErr {
    PyTypeError::new_err(
        "memory of a CUDA device given, but this build lacks the feature cuda; copy it to the host first",
    )
}

/// There is none.
#[derive(Clone)]
pub enum Place {}

impl Place {
    pub fn new(_py: Python<'_>, _ordinal: usize, _stream: Option<u64>) -> PyResult<Self> {
        Err(refused())
    }

    pub fn home(_py: Python<'_>, _ordinal: usize) -> PyResult<Self> {
        Err(refused())
    }

    pub fn open(_py: Python<'_>) -> PyResult<Self> {
        Err(refused())
    }

    pub fn within(self, _py: Python<'_>, _communicator: &comm::Communicator) -> PyResult<Self> {
        match self {}
    }

    pub fn ordinal(&self) -> usize {
        match *self {}
    }

    pub fn raw_stream(&self) -> u64 {
        match *self {}
    }

    pub fn hand_over(&self, _stream: Option<i64>) -> PyResult<()> {
        match *self {}
    }

    pub fn copy(&self, _py: Python<'_>, _target: usize, _from: &Self, _source: usize, _bytes: usize) -> PyResult<()> {
        match *self {}
    }
}

/// There is none.
pub enum Room {}

impl Room {
    pub fn new(_py: Python<'_>, place: &Place, _bytes: usize) -> PyResult<Self> {
        match *place {}
    }

    pub fn pointer(&self) -> usize {
        match *self {}
    }
}

/// There is none.
pub enum Pending {}

impl Pending {
    pub fn wait_for(&self, _limit: Duration) -> Option<types::Result<()>> {
        match *self {}
    }

    pub fn wait_while(&self, _period: Duration, _go_on: &mut dyn FnMut() -> bool) -> types::Result<()> {
        match *self {}
    }

    pub fn poll(&self) -> Option<types::Result<()>> {
        match *self {}
    }
}

pub fn start(
    _py: Python<'_>,
    _communicator: &comm::Communicator,
    _call: &Call,
    ends: &Ends<'_>,
    _keep: Box<dyn Any + Send>,
) -> PyResult<Pending> {
    match ends.input.or(ends.output) {
        Some((place, _)) => match *place {},
        None => Err(refused()),
    }
}

pub fn view(_object: &Bound<'_, PyAny>, _ordinal: i64) -> PyResult<View> {
    Err(refused())
}

pub fn view_by_interface(object: &Bound<'_, PyAny>) -> PyResult<Option<View>> {
    if object.getattr_opt("__cuda_array_interface__")?.is_some() { Err(refused()) } else { Ok(None) }
}
