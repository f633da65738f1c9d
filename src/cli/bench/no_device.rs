//! What stands in place of device memory in a build without CUDA.

use std::convert::Infallible;
use std::marker::PhantomData;

use phalanx::types::Collective;
use phalanx::{Communicator, Error, Result};

use super::layout::Layout;
use super::values::Exercise;

/// There is none.
pub struct OnDevice<T>(Infallible, PhantomData<T>);

impl<T> OnDevice<T> {
    pub fn new(_: &Communicator, _: Layout) -> Result<Self> {
        Err(absent())
    }

    pub fn write(&mut self, _: &[T], _: &[T]) -> Result<()> {
        match self.0 {}
    }

    pub fn read(&self, _: &mut [T], _: &mut [T]) -> Result<()> {
        match self.0 {}
    }

    pub fn call(&mut self, _: &Communicator, _: &Exercise) -> Result<()> {
        match self.0 {}
    }

    pub fn carrier(&self, _: &Communicator) -> (String, &'static str) {
        match self.0 {}
    }
}

pub fn check(_: Collective) -> Result<()> {
    Err(absent())
}

fn absent() -> Error {
    Error::environment("--memory device given, and this build has no CUDA", "build with the feature cuda")
}
