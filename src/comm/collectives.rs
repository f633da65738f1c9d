//! The typed collectives.

use super::call::Call;
use super::communicator::Communicator;
use crate::types::{Element, Error, Reduction, Result};

/// Blocking collectives. Every rank of the communicator makes the same call; see [`Call`] for what each does.
///
/// All of them fail with [`Error::InvalidArgument`] before anything is sent when the lengths do not fit,
/// [`Error::Mismatch`] when the ranks' calls differ, [`Error::PeerFailed`] when a rank is gone, and
/// [`Error::Timeout`] at the deadline. After an error the contents of outputs and in-place buffers are unspecified.
impl Communicator {
    /// Replaces `data` by the reduction of all ranks' `data`.
    pub fn allreduce<T: Element>(&self, data: &mut [T], reduction: impl Into<Reduction>) -> Result<()> {
        self.in_place(Call::allreduce(T::DATA_TYPE, data.len(), reduction), data)
    }

    /// Fills `output` with the reduction of all ranks' `input`, of the same length.
    pub fn allreduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.between(Call::allreduce(T::DATA_TYPE, input.len(), reduction), input, output)
    }

    /// Replaces the root's `data` by the reduction of all ranks' `data`. The other ranks' is unspecified afterwards.
    pub fn reduce<T: Element>(&self, data: &mut [T], reduction: impl Into<Reduction>, root: usize) -> Result<()> {
        self.in_place(Call::reduce(T::DATA_TYPE, data.len(), reduction, root), data)
    }

    /// Fills the root's `output` with the reduction of all ranks' `input`. The other ranks' `output` must be empty.
    pub fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        self.between(Call::reduce(T::DATA_TYPE, input.len(), reduction, root), input, output)
    }

    /// Replaces every rank's `data` by the root's.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.in_place(Call::broadcast(T::DATA_TYPE, data.len(), root), data)
    }

    /// Fills `output` with every rank's `input`, all of one length, in rank order.
    pub fn allgather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.between(Call::allgather(T::DATA_TYPE, input.len()), input, output)
    }

    /// Fills `data` with every rank's block of it, where each rank has its own block in place.
    pub fn allgather_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        let count = self.share(data.len(), "allgather")?;
        self.in_place(Call::allgather(T::DATA_TYPE, count).in_place(true), data)
    }

    /// Fills `output` with every rank's `input` in rank order; `counts[i]` is the length of rank i's.
    pub fn allgatherv<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        self.between(Call::allgatherv(T::DATA_TYPE, counts), input, output)
    }

    /// Fills `output` with this rank's block of the reduction of all ranks' `input`, which is size times as long.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.between(Call::reduce_scatter(T::DATA_TYPE, output.len(), reduction), input, output)
    }

    /// Replaces this rank's block of `data` by that block of the reduction. The other blocks are unspecified
    /// afterwards.
    pub fn reduce_scatter_in_place<T: Element>(&self, data: &mut [T], reduction: impl Into<Reduction>) -> Result<()> {
        let count = self.share(data.len(), "reduce_scatter")?;
        self.in_place(Call::reduce_scatter(T::DATA_TYPE, count, reduction).in_place(true), data)
    }

    /// Fills `output` with this rank's block of the reduction; `counts[i]` is the length of rank i's block.
    pub fn reduce_scatterv<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        reduction: impl Into<Reduction>,
    ) -> Result<()> {
        self.between(Call::reduce_scatterv(T::DATA_TYPE, counts, reduction), input, output)
    }

    /// Sends block i of `input` to rank i, and fills block i of `output` with what rank i sent here.
    pub fn alltoall<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let count = self.share(input.len(), "alltoall")?;
        self.between(Call::alltoall(T::DATA_TYPE, count), input, output)
    }

    /// Replaces block i of `data` by what rank i had in this rank's block.
    pub fn alltoall_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        let count = self.share(data.len(), "alltoall")?;
        self.in_place(Call::alltoall(T::DATA_TYPE, count).in_place(true), data)
    }

    /// Sends `send_counts[i]` elements of `input` to rank i, and gets `recv_counts[i]` elements from it.
    pub fn alltoallv<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        self.between(Call::alltoallv(T::DATA_TYPE, send_counts, recv_counts), input, output)
    }

    /// Fills the root's `output` with every rank's `input`, all of one length. The other ranks' `output` must be empty.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.between(Call::gather(T::DATA_TYPE, input.len(), root), input, output)
    }

    /// Fills the root's `output` with every rank's `input`; `counts`, the same everywhere, has the lengths.
    pub fn gatherv<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize], root: usize) -> Result<()> {
        self.between(Call::gatherv(T::DATA_TYPE, counts, root), input, output)
    }

    /// Fills every rank's `output` with its block of the root's `input`. The other ranks' `input` must be empty.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<()> {
        self.between(Call::scatter(T::DATA_TYPE, output.len(), root), input, output)
    }

    /// Fills every rank's `output` with its block of the root's `input`; `counts`, the same everywhere, has the
    /// lengths.
    pub fn scatterv<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize], root: usize) -> Result<()> {
        self.between(Call::scatterv(T::DATA_TYPE, counts, root), input, output)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.in_place::<u8>(Call::barrier(), &mut [])
    }

    /// This rank's share of a buffer of one block for each rank.
    pub(super) fn share(&self, length: usize, what: &str) -> Result<usize> {
        if length.is_multiple_of(self.size()) {
            return Ok(length / self.size());
        }
        Err(Error::invalid(format_args!(
            "{what}: {length} elements given, a multiple of the {} ranks expected",
            self.size()
        )))
    }

    fn in_place<T: Element>(&self, call: Call, data: &mut [T]) -> Result<()> {
        let call = call.in_place(true);
        // SAFETY: the counts of in-place calls are the length of `data`, which is borrowed for the whole call.
        unsafe { self.run(&call, std::ptr::null(), data.as_mut_ptr().cast()) }
    }

    fn between<T: Element>(&self, call: Call, input: &[T], output: &mut [T]) -> Result<()> {
        self.check_buffers::<T>(&call, input.len(), output.len())?;
        // SAFETY: both have the lengths that the call asks for, and are borrowed for the whole call.
        unsafe { self.run(&call, input.as_ptr().cast(), output.as_mut_ptr().cast()) }
    }
}
