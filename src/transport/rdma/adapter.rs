//! What a lane asks of its queue pair. A stand-in takes its place in tests.

use std::io;
use std::os::fd::BorrowedFd;

use super::rails::Connected;
use crate::sys::RingMapping;
use crate::sys::verbs::Completion;

/// A connected queue pair between two rings, and its device.
pub(super) trait Adapter: Send {
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
