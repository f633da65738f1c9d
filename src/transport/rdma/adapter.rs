//! What a lane asks of its queue pair. A stand-in takes its place in tests.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::rails::Connected;
use crate::sys::RingMapping;
use crate::sys::verbs::{Completion, Region};
use crate::transport::heap::Heap;

/// A connected queue pair between two rings, and its device.
pub(super) trait Adapter: Send {
    /// Memory outside the rings that it can read. Kept as long as it does.
    type Region: Send + Sync;

    /// Device and port, for people.
    fn name(&self) -> String;

    /// What the peer writes to.
    fn incoming(&self) -> &RingMapping;

    /// What is written to the peer.
    fn outgoing(&self) -> &RingMapping;

    /// Posts receives for `count` messages.
    fn post_receives(&self, count: u32) -> io::Result<()>;

    /// Writes bytes of the outgoing ring to the same place of the peer's, and `word` with them.
    fn post_write(&self, at: usize, bytes: usize, word: u32, named: Option<u64>) -> io::Result<()>;

    /// What these bytes lie in, if it can be read where it is: a buffer of `heap`.
    fn region(&self, heap: &Arc<Heap>, bytes: &[u8]) -> Option<Arc<Self::Region>>;

    /// Writes bytes of a region to a place of the peer's ring, and `word` with them.
    fn post_write_from(&self, region: &Self::Region, source: &[u8], at: usize, word: u32, named: u64)
    -> io::Result<()>;

    /// When this returns, nothing is read or written any more. What was told and not polled may be lost.
    fn tear_down(&mut self);

    /// Sends a word alone.
    fn post_word(&self, word: u32, named: Option<u64>) -> io::Result<()>;

    /// Appends what has been sent and was named.
    fn poll_sent(&self, found: &mut Vec<Completion>) -> io::Result<()>;

    /// Appends what has come.
    fn poll_received(&self, found: &mut Vec<Completion>) -> io::Result<()>;

    /// From now on the next completion makes [`Self::events`] readable.
    fn arm(&self, also_sent: bool) -> io::Result<()>;

    /// Becomes readable when a queue that was armed has a completion.
    fn events(&self) -> Option<BorrowedFd<'_>>;

    /// Becomes readable when the device has something to say.
    fn device_events(&self) -> BorrowedFd<'_>;

    /// What the device says that ends the lane, in words.
    fn trouble(&self) -> Option<String>;
}

impl Adapter for Connected {
    type Region = Region;

    fn name(&self) -> String {
        format!("{} port {}", self.context.name(), self.port)
    }

    fn incoming(&self) -> &RingMapping {
        self.link.incoming()
    }

    fn outgoing(&self) -> &RingMapping {
        self.link.outgoing()
    }

    fn post_receives(&self, count: u32) -> io::Result<()> {
        self.link.post_receives(count)
    }

    fn post_write(&self, at: usize, bytes: usize, word: u32, named: Option<u64>) -> io::Result<()> {
        self.link.post_write(&self.remote, at, bytes, word, named)
    }

    fn region(&self, heap: &Arc<Heap>, bytes: &[u8]) -> Option<Arc<Region>> {
        self.registrations.find(heap, bytes.as_ptr(), bytes.len())
    }

    fn post_write_from(&self, region: &Region, source: &[u8], at: usize, word: u32, named: u64) -> io::Result<()> {
        self.link.post_write_from(&self.remote, region, (source.as_ptr(), source.len()), at, word, named)
    }

    fn tear_down(&mut self) {
        self.link.tear_down();
    }

    fn post_word(&self, word: u32, named: Option<u64>) -> io::Result<()> {
        self.link.post_word(word, named)
    }

    fn poll_sent(&self, found: &mut Vec<Completion>) -> io::Result<()> {
        self.link.poll_sent(found)
    }

    fn poll_received(&self, found: &mut Vec<Completion>) -> io::Result<()> {
        self.link.poll_received(found)
    }

    fn arm(&self, also_sent: bool) -> io::Result<()> {
        self.link.arm(also_sent)
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.link.events()
    }

    fn device_events(&self) -> BorrowedFd<'_> {
        self.context.events()
    }

    fn trouble(&self) -> Option<String> {
        self.context.trouble(self.port)
    }
}
