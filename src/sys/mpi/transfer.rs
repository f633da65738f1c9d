//! Messages that do not block, and own their bytes.

use std::ffi::c_int;

use ::mpi::ffi;

use super::process::{is_running, wait};
use super::{MpiError, check};
use crate::types::Deadline;

/// A communicator of Phalanx's own.
#[derive(Clone, Copy, Debug)]
pub struct Channel(ffi::MPI_Comm);

// SAFETY: a communicator is a handle that any thread which may call MPI may use.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

fn bytes() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

fn length(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

impl Channel {
    pub(super) fn new(communicator: ffi::MPI_Comm) -> Self {
        Self(communicator)
    }

    /// Sends a message. With `waits` it is complete only when the receiver has taken it up. At most `i32::MAX` bytes.
    pub fn send(&self, message: Vec<u8>, to: usize, tag: c_int, waits: bool) -> Result<Transfer, MpiError> {
        let mut transfer = Transfer::new(message);
        let (pointer, count) = (transfer.bytes.as_ptr().cast(), length(transfer.bytes.len()));
        let (to, request) = (length(to), &mut transfer.request);
        // SAFETY: the bytes stay where they are until the request is complete: `Transfer` sees to that.
        unsafe {
            if waits {
                check("MPI_Issend", ffi::MPI_Issend(pointer, count, bytes(), to, tag, self.0, request))?;
            } else {
                check("MPI_Isend", ffi::MPI_Isend(pointer, count, bytes(), to, tag, self.0, request))?;
            }
        }
        transfer.is_done = false;
        Ok(transfer)
    }

    /// The next message with this tag, of whichever rank, if one is there.
    pub fn next(&self, tag: c_int) -> Result<Option<Arrival>, MpiError> {
        self.probe(tag)
    }

    /// Waits for all ranks to come here; whether they had by the deadline.
    pub(super) fn barrier(&self, deadline: Deadline) -> Result<bool, MpiError> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the request is waited for, or left to MPI.
        check("MPI_Ibarrier", unsafe { ffi::MPI_Ibarrier(self.0, &mut request) })?;
        wait(&mut request, deadline)
    }

    /// Receives what nobody received, so that no sender waits for it.
    pub(super) fn drain(&self) {
        // SAFETY: a constant of the library.
        let any = unsafe { ffi::RSMPI_ANY_TAG };
        while let Ok(Some(arrival)) = self.probe(any) {
            let Ok(mut transfer) = arrival.receive(Vec::new()) else { return };
            if transfer.is_done().is_err() {
                return;
            }
        }
    }

    fn probe(&self, tag: c_int) -> Result<Option<Arrival>, MpiError> {
        let mut there = 0;
        // SAFETY: constants of the library.
        let (mut message, any) = unsafe { (ffi::RSMPI_MESSAGE_NULL, ffi::RSMPI_ANY_SOURCE) };
        // SAFETY: a status is plain numbers.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        // SAFETY: all of it is written by the call.
        let probed = unsafe { ffi::MPI_Improbe(any, tag, self.0, &mut there, &mut message, &mut status) };
        check("MPI_Improbe", probed)?;
        if there == 0 {
            return Ok(None);
        }
        let mut count = 0;
        // SAFETY: the status was filled in.
        check("MPI_Get_count", unsafe { ffi::MPI_Get_count(&status, bytes(), &mut count) })?;
        let source = usize::try_from(status.MPI_SOURCE).unwrap_or(usize::MAX);
        Ok(Some(Arrival { source, bytes: usize::try_from(count).unwrap_or(0), message }))
    }

    /// Begins to gather, on every rank, the bytes of all, of which there are `lengths`.
    pub(super) fn gather(&self, mine: &[u8], lengths: &[usize]) -> Result<Gathering, MpiError> {
        let counts: Box<[c_int]> = lengths.iter().map(|&bytes| length(bytes)).collect();
        let starts = counts.iter().scan(0, |start: &mut c_int, count| {
            let here = *start;
            *start = start.saturating_add(*count);
            Some(here)
        });
        let starts: Box<[c_int]> = starts.collect();
        let all = vec![0; lengths.iter().sum()];
        // SAFETY: a constant of the library.
        let request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let mut gathering = Gathering { mine: mine.into(), all, counts, starts, request };
        // SAFETY: the memory stays where it is until the request is complete, or for ever: `Gathering::wait` sees to that.
        let begun = unsafe {
            ffi::MPI_Iallgatherv(
                gathering.mine.as_ptr().cast(),
                length(gathering.mine.len()),
                bytes(),
                gathering.all.as_mut_ptr().cast(),
                gathering.counts.as_ptr(),
                gathering.starts.as_ptr(),
                bytes(),
                self.0,
                &mut gathering.request,
            )
        };
        check("MPI_Iallgatherv", begun)?;
        Ok(gathering)
    }
}

/// What a gather reads and writes.
pub(super) struct Gathering {
    mine: Box<[u8]>,
    all: Vec<u8>,
    counts: Box<[c_int]>,
    starts: Box<[c_int]>,
    request: ffi::MPI_Request,
}

impl Gathering {
    /// The bytes of all ranks, if all have come by the deadline.
    pub fn wait(mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, MpiError> {
        let outcome = wait(&mut self.request, deadline);
        if outcome == Ok(true) {
            return Ok(Some(self.all));
        }
        // MPI may still read and write all of it.
        std::mem::forget(self);
        outcome.map(|_| None)
    }
}

/// A message that is there and has not been received.
#[derive(Debug)]
pub struct Arrival {
    /// Who sent it.
    pub source: usize,
    /// Its length.
    pub bytes: usize,
    message: ffi::MPI_Message,
}

// SAFETY: a handle that any thread which may call MPI may use.
unsafe impl Send for Arrival {}

impl Arrival {
    /// Begins to receive it into `target`, which becomes as long as the message.
    pub fn receive(mut self, mut target: Vec<u8>) -> Result<Transfer, MpiError> {
        target.resize(self.bytes, 0);
        let mut transfer = Transfer::new(target);
        let (pointer, count) = (transfer.bytes.as_mut_ptr().cast(), length(self.bytes));
        // SAFETY: the target has that many bytes, and stays where it is until the request is complete.
        let begun = unsafe { ffi::MPI_Imrecv(pointer, count, bytes(), &mut self.message, &mut transfer.request) };
        check("MPI_Imrecv", begun)?;
        transfer.is_done = false;
        Ok(transfer)
    }
}

/// A message under way, with its bytes.
#[derive(Debug)]
pub struct Transfer {
    bytes: Vec<u8>,
    request: ffi::MPI_Request,
    is_done: bool,
}

// SAFETY: a request is a handle that any thread which may call MPI may use.
unsafe impl Send for Transfer {}

impl Transfer {
    fn new(bytes: Vec<u8>) -> Self {
        // SAFETY: a constant of the library.
        Self { bytes, request: unsafe { ffi::RSMPI_REQUEST_NULL }, is_done: true }
    }

    /// Whether MPI is done with it.
    pub fn is_done(&mut self) -> Result<bool, MpiError> {
        if !self.is_done {
            let mut done = 0;
            // SAFETY: the request is this message's.
            check("MPI_Test", unsafe { ffi::MPI_Test(&mut self.request, &mut done, ffi::RSMPI_STATUS_IGNORE) })?;
            self.is_done = done != 0;
        }
        Ok(self.is_done)
    }

    /// Its bytes, once MPI is done with it.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.is_done { std::mem::take(&mut self.bytes) } else { Vec::new() }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // What MPI may still read or write is not given back, unless it has ended. There is no way to cancel a send that
        // all implementations have.
        if !self.is_done && is_running() {
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}
