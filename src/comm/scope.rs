//! Calls that borrow their buffers while the program computes.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

use super::call::Call;
use super::communicator::Communicator;
use super::handle::Handle;
use crate::types::{Element, Error, Reduction, Result};

/// Within [`Communicator::scope`]: starts calls on borrowed buffers.
///
/// The buffers stay borrowed until the scope ends, because only its end is sure to come after every call's.
pub struct Scope<'scope, 'env: 'scope> {
    communicator: &'scope Communicator,
    pending: RefCell<Vec<Rc<Handle>>>,
    /// Invariant in both, so that no borrow can be shortened.
    lifetimes: PhantomData<&'scope mut &'env mut ()>,
}

/// A pending call of a scope. Waiting early is optional: the end of the scope waits for all.
pub struct ScopedHandle<'scope> {
    handle: Rc<Handle>,
    scope: PhantomData<&'scope ()>,
}

impl ScopedHandle<'_> {
    /// Waits until the call has ended.
    pub fn wait(&self) -> Result<()> {
        self.handle.wait()
    }

    /// Waits at most `limit`. `None`: still pending.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<()>> {
        self.handle.wait_for(limit)
    }

    /// Whether the call has ended. Does not wait.
    pub fn is_finished(&self) -> bool {
        self.handle.poll().is_some()
    }
}

impl Communicator {
    /// Runs `body`, in which calls can be started on borrowed buffers, and waits for all of them.
    ///
    /// # Errors
    ///
    /// What `body` returns; if that is well, the first failure among the calls that it started.
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>,
    ) -> Result<R> {
        let scope = Scope { communicator: self, pending: RefCell::default(), lifetimes: PhantomData };
        // Waits for every call, also when `body` panics: the buffers must not be given back before.
        let guard = WaitForAll(&scope.pending);
        let result = body(&scope);
        let ended = guard.wait();
        std::mem::forget(guard);
        result.and_then(|value| ended.map(|()| value))
    }
}

struct WaitForAll<'a>(&'a RefCell<Vec<Rc<Handle>>>);

impl WaitForAll<'_> {
    fn wait(&self) -> Result<()> {
        let pending = std::mem::take(&mut *self.0.borrow_mut());
        pending.iter().map(|handle| handle.wait()).fold(Ok(()), Result::and)
    }
}

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        for handle in self.0.borrow().iter() {
            handle.give_up("a panic ended the scope of the call");
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts an [`allreduce`](Communicator::allreduce).
    pub fn allreduce<T: Element>(
        &'scope self,
        data: &'env mut [T],
        reduction: impl Into<Reduction>,
    ) -> Result<ScopedHandle<'scope>> {
        self.in_place(Call::allreduce(T::DATA_TYPE, data.len(), reduction), data)
    }

    /// Starts a [`reduce`](Communicator::reduce).
    pub fn reduce<T: Element>(
        &'scope self,
        data: &'env mut [T],
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<ScopedHandle<'scope>> {
        self.in_place(Call::reduce(T::DATA_TYPE, data.len(), reduction, root), data)
    }

    /// Starts a [`broadcast`](Communicator::broadcast).
    pub fn broadcast<T: Element>(&'scope self, data: &'env mut [T], root: usize) -> Result<ScopedHandle<'scope>> {
        self.in_place(Call::broadcast(T::DATA_TYPE, data.len(), root), data)
    }

    /// Starts an [`allreduce_into`](Communicator::allreduce_into).
    pub fn allreduce_into<T: Element>(
        &'scope self,
        input: &'env [T],
        output: &'env mut [T],
        reduction: impl Into<Reduction>,
    ) -> Result<ScopedHandle<'scope>> {
        self.call(&Call::allreduce(T::DATA_TYPE, input.len(), reduction), input, output)
    }

    /// Starts a [`reduce_into`](Communicator::reduce_into).
    pub fn reduce_into<T: Element>(
        &'scope self,
        input: &'env [T],
        output: &'env mut [T],
        reduction: impl Into<Reduction>,
        root: usize,
    ) -> Result<ScopedHandle<'scope>> {
        self.call(&Call::reduce(T::DATA_TYPE, input.len(), reduction, root), input, output)
    }

    /// Starts an [`allgather`](Communicator::allgather).
    pub fn allgather<T: Element>(
        &'scope self,
        input: &'env [T],
        output: &'env mut [T],
    ) -> Result<ScopedHandle<'scope>> {
        self.call(&Call::allgather(T::DATA_TYPE, input.len()), input, output)
    }

    /// Starts a [`reduce_scatter`](Communicator::reduce_scatter).
    pub fn reduce_scatter<T: Element>(
        &'scope self,
        input: &'env [T],
        output: &'env mut [T],
        reduction: impl Into<Reduction>,
    ) -> Result<ScopedHandle<'scope>> {
        self.call(&Call::reduce_scatter(T::DATA_TYPE, output.len(), reduction), input, output)
    }

    /// Starts an [`alltoall`](Communicator::alltoall).
    pub fn alltoall<T: Element>(&'scope self, input: &'env [T], output: &'env mut [T]) -> Result<ScopedHandle<'scope>> {
        let count = self.communicator.share(input.len(), "alltoall")?;
        self.call(&Call::alltoall(T::DATA_TYPE, count), input, output)
    }

    /// Starts a [`gather`](Communicator::gather).
    pub fn gather<T: Element>(
        &'scope self,
        input: &'env [T],
        output: &'env mut [T],
        root: usize,
    ) -> Result<ScopedHandle<'scope>> {
        self.call(&Call::gather(T::DATA_TYPE, input.len(), root), input, output)
    }

    /// Starts a [`scatter`](Communicator::scatter).
    pub fn scatter<T: Element>(
        &'scope self,
        input: &'env [T],
        output: &'env mut [T],
        root: usize,
    ) -> Result<ScopedHandle<'scope>> {
        self.call(&Call::scatter(T::DATA_TYPE, output.len(), root), input, output)
    }

    /// Starts a [`barrier`](Communicator::barrier).
    pub fn barrier(&'scope self) -> Result<ScopedHandle<'scope>> {
        self.in_place::<u8>(Call::barrier(), &mut [])
    }

    /// Starts a [`send`](Communicator::send).
    pub fn send<T: Element>(&'scope self, data: &'env [T], to: usize, tag: u32) -> Result<ScopedHandle<'scope>> {
        let (start, count) = (data.as_ptr().cast(), data.len());
        // SAFETY: the buffer stays borrowed until the scope has waited for it.
        let handle = unsafe { self.communicator.submit_send(T::DATA_TYPE, start, count, (to, tag), None)? };
        Ok(self.remember(handle))
    }

    /// Starts a [`recv`](Communicator::recv).
    pub fn recv<T: Element>(&'scope self, data: &'env mut [T], from: usize, tag: u32) -> Result<ScopedHandle<'scope>> {
        let (start, count) = (data.as_mut_ptr().cast(), data.len());
        // SAFETY: as in `send`, and nobody else has it.
        let handle = unsafe { self.communicator.submit_recv(T::DATA_TYPE, start, count, (from, tag), None)? };
        Ok(self.remember(handle))
    }

    /// Starts any call from `input` to `output`: those above, and those with counts, such as [`Call::allgatherv`].
    pub fn call<T: Element>(
        &'scope self,
        call: &Call,
        input: &'env [T],
        output: &'env mut [T],
    ) -> Result<ScopedHandle<'scope>> {
        self.communicator.check_buffers::<T>(call, input.len(), output.len())?;
        let input = if call.is_in_place(self.communicator.rank()) { std::ptr::null() } else { input.as_ptr() };
        // SAFETY: both have the lengths that the call asks for, and stay borrowed until the scope has waited for it.
        let handle = unsafe { self.communicator.submit(call, input.cast(), output.as_mut_ptr().cast(), None)? };
        Ok(self.remember(handle))
    }

    fn in_place<T: Element>(&'scope self, call: Call, data: &'env mut [T]) -> Result<ScopedHandle<'scope>> {
        let call = call.in_place(true);
        // SAFETY: as in `call`.
        let handle = unsafe { self.communicator.submit(&call, std::ptr::null(), data.as_mut_ptr().cast(), None)? };
        Ok(self.remember(handle))
    }

    fn remember(&self, handle: Handle) -> ScopedHandle<'scope> {
        let handle = Rc::new(handle);
        self.pending.borrow_mut().push(handle.clone());
        ScopedHandle { handle, scope: PhantomData }
    }
}

impl Communicator {
    /// Checks that buffers have the type and lengths that a call needs on this rank.
    pub(super) fn check_buffers<T: Element>(&self, call: &Call, input: usize, output: usize) -> Result<()> {
        call.validate(self.rank(), self.size())?;
        if call.dtype != T::DATA_TYPE {
            let what =
                format_args!("{}: buffers of {} given for a call of {}", call.collective, T::DATA_TYPE, call.dtype);
            return Err(Error::invalid(what));
        }
        let (input_count, output_count) = call.buffer_counts(self.rank(), self.size());
        for (name, given, expected) in [("input", input, input_count), ("output", output, output_count)] {
            if given != expected {
                return Err(Error::invalid(format_args!(
                    "{}: {name} of {given} elements given, {expected} expected on rank {}",
                    call.collective,
                    self.rank()
                )));
            }
        }
        Ok(())
    }
}
