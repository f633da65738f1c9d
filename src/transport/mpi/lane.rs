//! A stream of bytes to one rank, and one back, in MPI messages.

use std::ffi::c_int;
use std::sync::Arc;

use super::Port;
use crate::transport::{Lane, LaneError};
use crate::types::TransportKind;

/// The stream to one rank.
pub struct MpiLane {
    port: Arc<Port>,
    peer: usize,
    /// The tag under which the peer looks for messages.
    tag: c_int,
    /// The message that `fill` shows.
    window: Vec<u8>,
    start: usize,
}

impl MpiLane {
    /// The stream to `peer`, whose port has the given tag. A port has one lane for a rank.
    pub fn new(port: Arc<Port>, peer: usize, tag: c_int) -> Self {
        port.open(peer);
        Self { port, peer, tag, window: Vec::new(), start: 0 }
    }

    fn shown(&self) -> &[u8] {
        self.window.get(self.start..).unwrap_or(&[])
    }

    /// Replaces the window, of which everything was read, by the next message. Whether there was one.
    fn next(&mut self) -> Result<bool, LaneError> {
        let is_new = self.port.receive(self.peer, &mut self.window)?;
        if is_new {
            self.start = 0;
        }
        Ok(is_new)
    }
}

impl Lane for MpiLane {
    fn kind(&self) -> TransportKind {
        TransportKind::Mpi
    }

    fn link(&self) -> Arc<str> {
        format!("mpi rank {}", self.peer).into()
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        let mut count = 0;
        loop {
            let (head, body) = match head.get(count..) {
                Some(head) => (head, body),
                None => (&[][..], body.get(count - head.len()..).unwrap_or(&[])),
            };
            match self.port.send(self.peer, self.tag, head, body)? {
                0 => return Ok(count),
                sent => count += sent,
            }
        }
    }

    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError> {
        while self.shown().len() < wanted {
            let rest = self.shown().to_vec();
            match self.next() {
                // The end of one message and the beginning of the next: seldom, since headers begin messages.
                Ok(true) if !rest.is_empty() => {
                    self.window.splice(..0, rest);
                }
                Ok(true) => {}
                Err(error) if rest.is_empty() => return Err(error),
                // What has come is read first.
                Ok(false) | Err(_) => break,
            }
        }
        Ok(self.shown())
    }

    fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.window.len());
    }

    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError> {
        let mut taken = 0;
        while taken < bytes {
            if self.shown().is_empty() {
                match self.next() {
                    Ok(true) => {}
                    Err(error) if taken == 0 => return Err(error),
                    Ok(false) | Err(_) => break,
                }
            }
            let shown = self.shown();
            let count = shown.len().min(bytes - taken);
            // SAFETY: the caller's promise for the target; the window is this lane's.
            unsafe { std::ptr::copy_nonoverlapping(shown.as_ptr(), target.add(taken), count) };
            self.consume(count);
            taken += count;
        }
        Ok(taken)
    }

    fn prepare_sleep(&mut self, wants_write: bool) -> bool {
        // Whatever arrives from here on is found by the next look, which is never far: `Nap`.
        self.shown().is_empty() && !self.port.has_arrived(self.peer) && !(wants_write && self.port.has_room(self.peer))
    }

    fn is_flushed(&self) -> bool {
        self.port.is_flushed(self.peer)
    }
}

impl Drop for MpiLane {
    fn drop(&mut self) {
        self.port.close(self.peer, self.tag);
    }
}
