//! Messages from one rank to another.

use std::any::Any;
use std::sync::{Arc, PoisonError};

use super::communicator::Communicator;
use super::handle::Handle;
use super::pending::{Kept, Pending};
use crate::executor::Work;
use crate::schedule::{Buffer, Instruction, Schedule, Span, Step};
use crate::types::{
    Algorithm, Collective, CommunicatorId, DataType, Digest, Element, Error, ReduceOp, Reduction, Result, Signature,
    Tag,
};

/// Blocking messages between two ranks. Messages of one tag between two ranks arrive in the order of their sends.
impl Communicator {
    /// Sends `data` to rank `to`, which must receive as many elements of the same type under the same tag. Returns
    /// when `data` may be changed again, which says nothing about the receiver.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u32) -> Result<()> {
        // SAFETY: borrowed until the wait below has ended; a send only reads.
        let handle = unsafe { self.submit_send(T::DATA_TYPE, data.as_ptr().cast(), data.len(), (to, tag), None)? };
        handle.wait()
    }

    /// Receives into `data` from rank `from`.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize, tag: u32) -> Result<()> {
        // SAFETY: borrowed mutably until the wait below has ended.
        let handle =
            unsafe { self.submit_recv(T::DATA_TYPE, data.as_mut_ptr().cast(), data.len(), (from, tag), None)? };
        handle.wait()
    }

    /// Starts a [`send`](Self::send) of `data`, which comes back when it may be changed.
    pub fn start_send<T: Element>(&self, data: Vec<T>, to: usize, tag: u32) -> Result<Pending<Vec<T>>> {
        self.start_owned(true, data, (to, tag))
    }

    /// Starts a [`recv`](Self::recv) into `data`.
    pub fn start_recv<T: Element>(&self, data: Vec<T>, from: usize, tag: u32) -> Result<Pending<Vec<T>>> {
        self.start_owned(false, data, (from, tag))
    }

    fn start_owned<T: Element>(&self, sends: bool, mut data: Vec<T>, link: (usize, u32)) -> Result<Pending<Vec<T>>> {
        let (start, count) = (data.as_mut_ptr(), data.len());
        let keep = Some(Box::new(Kept::one(data)) as Box<dyn Any + Send>);
        // SAFETY: the vector's memory does not move with it; the operation keeps it alive, and nobody else reaches it.
        Ok(Pending::new(unsafe { self.start_message(sends, T::DATA_TYPE, start.cast(), count, link, keep)? }))
    }

    /// Starts to send `count` elements of raw memory to a rank under a tag. `keep` is kept alive until the operation
    /// ends; without it the caller must wait for the handle at once.
    ///
    /// # Safety
    ///
    /// `data` must be valid for reads of `count` elements until the operation has ended.
    pub unsafe fn submit_send(
        &self,
        dtype: DataType,
        data: *const u8,
        count: usize,
        to: (usize, u32),
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Handle> {
        // SAFETY: the caller's promise; a send only reads.
        unsafe { self.start_message(true, dtype, data.cast_mut(), count, to, keep) }
    }

    /// Starts to receive `count` elements into raw memory, like [`submit_send`](Self::submit_send).
    ///
    /// # Safety
    ///
    /// `data` must be valid for writes of `count` elements, and used by nobody else, until the operation has ended.
    pub unsafe fn submit_recv(
        &self,
        dtype: DataType,
        data: *mut u8,
        count: usize,
        from: (usize, u32),
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Handle> {
        // SAFETY: the caller's promise.
        unsafe { self.start_message(false, dtype, data, count, from, keep) }
    }

    /// # Safety
    ///
    /// `data` must be valid for `count` elements until the handle has ended, for writes too when receiving.
    unsafe fn start_message(
        &self,
        sends: bool,
        dtype: DataType,
        data: *mut u8,
        count: usize,
        (peer, tag): (usize, u32),
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Handle> {
        let (rank, size) = (self.rank(), self.size());
        let what = if sends { "send" } else { "recv" };
        if peer >= size || peer == rank {
            return Err(Error::invalid(format_args!(
                "{what}: rank {peer} given, another rank than {rank} below {size} expected"
            )));
        }
        let (source, target) = if sends { (rank, peer) } else { (peer, rank) };
        let id = self.message_channel(source, target, tag)?;
        let sequence = {
            let mut points = self.inner.points.lock().unwrap_or_else(PoisonError::into_inner);
            let next = points.entry(id).or_insert(0);
            *next += 1;
            *next - 1
        };
        let span = Span::new(Buffer::Output, 0, count);
        // The engine's channel has the sender as rank 0 and the receiver as rank 1.
        let instruction = if sends {
            Instruction::Send { peer: 1, source: span }
        } else {
            Instruction::Recv { peer: 0, target: span }
        };
        let schedule = Schedule {
            algorithm: Algorithm::Linear,
            steps: vec![Step { instructions: vec![instruction] }],
            scratch: 0,
            partials_travel: false,
        };
        let work = Work {
            tag: Tag { communicator: id, sequence },
            signature: Signature {
                collective: Collective::SendRecv,
                dtype,
                op: None,
                algorithm: Algorithm::Linear,
                root: None,
                count: count as u64,
                digest: u64::from(tag),
            },
            schedule: Arc::new(schedule),
            dtype,
            reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
            unequal: false,
            contributions: 1,
            input: std::ptr::null(),
            input_count: 0,
            output: data,
            output_count: count,
            deadline: self.deadline(),
            spoilt: None,
            keep,
            layout: None,
        };
        let detached = work.keep.is_some();
        let world = &self.inner.world;
        world.count_operation(count * dtype.size());
        // SAFETY: the caller's promise.
        let completion = unsafe { world.engine.submit(work, detached) };
        Ok(Handle { world: world.clone(), completion })
    }

    /// The channel of messages from one rank to another under a tag, made on first use.
    fn message_channel(&self, source: usize, target: usize, tag: u32) -> Result<CommunicatorId> {
        let mut digest = Digest::new();
        for word in [self.inner.id.0, source as u64, target as u64, u64::from(tag)] {
            digest.add(&word.to_le_bytes());
        }
        let id = CommunicatorId::point_to_point(self.inner.view.generation, digest.0);
        let mut points = self.inner.points.lock().unwrap_or_else(PoisonError::into_inner);
        if let std::collections::hash_map::Entry::Vacant(e) = points.entry(id) {
            let members = [self.inner.members[source], self.inner.members[target]];
            let rank = usize::from(self.rank() == target);
            self.inner.world.engine.add_link(id, members, [source, target], rank)?;
            e.insert(0);
        }
        Ok(id)
    }
}
