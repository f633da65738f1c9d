//! Calls that own their buffers while they run.

use std::marker::PhantomData;
use std::time::Duration;

use super::call::Call;
use super::communicator::Communicator;
use super::handle::Handle;
use crate::types::{Element, Error, Reduction, Result};

/// A pending call that owns its buffer, and gives it back with the result.
///
/// Dropping it is safe: the call goes on, as the other ranks expect, and the buffer is freed when it has ended.
#[derive(Debug)]
#[must_use = "a call that nobody waits for may fail unnoticed"]
pub struct Pending<B> {
    handle: Handle,
    buffer: PhantomData<B>,
}

impl<B: Send + 'static> Pending<B> {
    /// A call whose operation was given a [`Kept`] of `B`.
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, buffer: PhantomData }
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<B> {
        self.handle.wait()?;
        let kept = self.handle.take_kept().and_then(|kept| kept.downcast::<Kept<B>>().ok());
        kept.map(|kept| kept.output).ok_or_else(|| Error::internal("an operation lost its buffer"))
    }

    /// Waits at most `limit`; whether the call has ended, well or not. [`wait`](Self::wait) then returns at once.
    pub fn wait_for(&self, limit: Duration) -> bool {
        self.handle.wait_for(limit).is_some()
    }

    /// Whether the call has ended. Neither waits nor moves anything.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// Whether the call has ended, after lending a hand if nobody is moving it. Does not wait.
    pub fn is_finished(&self) -> bool {
        self.handle.poll().is_some()
    }
}

/// What an operation keeps alive: the buffer that comes back, and one that does not.
pub(super) struct Kept<B> {
    output: B,
    _input: Option<B>,
}

impl<B> Kept<B> {
    /// Keeps the buffer that comes back.
    pub fn one(output: B) -> Self {
        Self { output, _input: None }
    }
}

/// Calls that return at once. The buffers are theirs until [`Pending::wait`] gives the result back.
impl Communicator {
    /// Starts an [`allreduce`](Self::allreduce) of `data`.
    pub fn start_allreduce<T: Element>(
        &self,
        data: Vec<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<Pending<Vec<T>>> {
        let call = Call::allreduce(T::DATA_TYPE, data.len(), reduction);
        self.start_in_place(call, data)
    }

    /// Starts a [`reduce`](Self::reduce) of `data`.
    pub fn start_reduce<T: Element>(
        &self,
        data: Vec<T>,
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<Pending<Vec<T>>> {
        let call = Call::reduce(T::DATA_TYPE, data.len(), reduction, root);
        self.start_in_place(call, data)
    }

    /// Starts a [`broadcast`](Self::broadcast) of `data`.
    pub fn start_broadcast<T: Element>(&self, data: Vec<T>, root: usize) -> Result<Pending<Vec<T>>> {
        let call = Call::broadcast(T::DATA_TYPE, data.len(), root);
        self.start_in_place(call, data)
    }

    /// Starts an [`allgather`](Self::allgather) of `input`; the result has size times its length.
    pub fn start_allgather<T: Element + Default>(&self, input: Vec<T>) -> Result<Pending<Vec<T>>> {
        let call = Call::allgather(T::DATA_TYPE, input.len());
        self.start_between(call, input)
    }

    /// Starts a [`reduce_scatter`](Self::reduce_scatter) of `input`; the result is this rank's block.
    pub fn start_reduce_scatter<T: Element + Default>(
        &self,
        input: Vec<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<Pending<Vec<T>>> {
        let count = self.share(input.len(), "reduce_scatter")?;
        self.start_between(Call::reduce_scatter(T::DATA_TYPE, count, reduction), input)
    }

    /// Starts an [`alltoall`](Self::alltoall) of `input`; the result has its length.
    pub fn start_alltoall<T: Element + Default>(&self, input: Vec<T>) -> Result<Pending<Vec<T>>> {
        let count = self.share(input.len(), "alltoall")?;
        self.start_between(Call::alltoall(T::DATA_TYPE, count), input)
    }

    /// Starts an [`allgatherv`](Self::allgatherv) of `input`; the result has the sum of the counts.
    pub fn start_allgatherv<T: Element + Default>(&self, input: Vec<T>, counts: &[usize]) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::allgatherv(T::DATA_TYPE, counts), input)
    }

    /// Starts a [`reduce_scatterv`](Self::reduce_scatterv) of `input`; the result is this rank's block.
    pub fn start_reduce_scatterv<T: Element + Default>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        reduction: impl Into<Reduction>,
    ) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::reduce_scatterv(T::DATA_TYPE, counts, reduction), input)
    }

    /// Starts an [`alltoallv`](Self::alltoallv) of `input`; the result has the sum of the counts received.
    pub fn start_alltoallv<T: Element + Default>(
        &self,
        input: Vec<T>,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::alltoallv(T::DATA_TYPE, send_counts, recv_counts), input)
    }

    /// Starts a [`gather`](Self::gather) of `input`; the result has every rank's at the root, and is empty elsewhere.
    pub fn start_gather<T: Element + Default>(&self, input: Vec<T>, root: usize) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::gather(T::DATA_TYPE, input.len(), root), input)
    }

    /// Starts a [`gatherv`](Self::gatherv) of `input`; the result has every rank's at the root, and is empty elsewhere.
    pub fn start_gatherv<T: Element + Default>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::gatherv(T::DATA_TYPE, counts, root), input)
    }

    /// Starts a [`scatter`](Self::scatter) of the root's `input`, empty elsewhere; the result is this rank's block, of
    /// `count` elements on every rank.
    pub fn start_scatter<T: Element + Default>(
        &self,
        input: Vec<T>,
        count: usize,
        root: usize,
    ) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::scatter(T::DATA_TYPE, count, root), input)
    }

    /// Starts a [`scatterv`](Self::scatterv) of the root's `input`, empty elsewhere; the result is this rank's block.
    pub fn start_scatterv<T: Element + Default>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<Vec<T>>> {
        self.start_between(Call::scatterv(T::DATA_TYPE, counts, root), input)
    }

    /// Starts a [`barrier`](Self::barrier).
    pub fn start_barrier(&self) -> Result<Pending<Vec<u8>>> {
        self.start_in_place(Call::barrier(), Vec::new())
    }

    fn start_in_place<T: Element>(&self, call: Call, mut data: Vec<T>) -> Result<Pending<Vec<T>>> {
        let output = data.as_mut_ptr();
        let kept = Kept::one(data);
        let call = call.in_place(true);
        // SAFETY: the call's count is the length of the vector, whose memory does not move with it; the operation
        // keeps it alive, and nobody else reaches it until then.
        let handle = unsafe { self.submit(&call, std::ptr::null(), output.cast(), Some(Box::new(kept)))? };
        Ok(Pending::new(handle))
    }

    fn start_between<T: Element + Default>(&self, call: Call, input: Vec<T>) -> Result<Pending<Vec<T>>> {
        call.validate(self.rank(), self.size())?;
        let (_, output_count) = call.buffer_counts(self.rank(), self.size());
        self.check_buffers::<T>(&call, input.len(), output_count)?;
        let mut output = vec![T::default(); output_count];
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        let kept = Kept { output, _input: Some(input) };
        // SAFETY: as in `start_in_place`; both have the lengths that the call asks for.
        let handle = unsafe { self.submit(&call, from.cast(), to.cast(), Some(Box::new(kept)))? };
        Ok(Pending::new(handle))
    }
}
