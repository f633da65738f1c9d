//! A world of one with the calls that the training makes, until communicators have landed.

use phalanx::types::Result;
use phalanx::types::Reduction;
use std::cell::Cell;

pub struct Communicator;
pub struct Pending<T>(T);
impl<T> Pending<T> {
    pub fn wait(self) -> Result<T> {
        Ok(self.0)
    }
}
impl Communicator {
    pub fn rank(&self) -> usize {
        0
    }
    pub fn size(&self) -> usize {
        1
    }
    pub fn broadcast<T>(&self, _: &mut [T], _: usize) -> Result<()> {
        Ok(())
    }
    pub fn allreduce<T>(&self, _: &mut [T], _: impl Into<Reduction>) -> Result<()> {
        Ok(())
    }
    pub fn allgather<T: Copy>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        output.copy_from_slice(input);
        Ok(())
    }
    pub fn start_allreduce(&self, mut data: Vec<f32>, reduction: impl Into<Reduction>) -> Result<Pending<Vec<f32>>> {
        let factor = reduction.into().postscale as f32;
        data.iter_mut().for_each(|x| *x *= factor);
        Ok(Pending(data))
    }
    pub fn with_deterministic(&self, _: bool) -> Communicator {
        Communicator
    }
}
