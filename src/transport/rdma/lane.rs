//! A queue pair as a lane. This room's `mod.rs` tells how bytes move.

mod writing;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use self::writing::LEAST_IN_PLACE;
#[cfg(test)]
pub(super) use self::writing::LINGER;
use self::writing::{Loans, NAMED_EVERY, PIECE_BYTES, Writing};
use super::adapter::Adapter;
use crate::sys::unix::{self, Quiet};
use crate::sys::verbs::{Completion, Depths, status_in_words};
use crate::sys::{Uninherited, socket};
use crate::transport::lane::{Lane, LaneError, MIN_WINDOW};
use crate::transport::sleep::Sleeper;
use crate::types::TransportKind;

/// The size of each ring. At 100 Gbit/s and a round trip of 20 us 250 KB are under way; as much again lets the reader be
/// late. Both rings of a link lock twice this much memory.
pub(super) const RING_BYTES: usize = 512 << 10;

/// How many messages may be under way. Short ones come in batches, long ones fill the ring before.
pub(super) const MESSAGES: u32 = 256;

/// Words without bytes that may be under way besides: credit comes in quarters of bytes and of messages, and once there
/// is a last word.
const WORDS: u32 = 4 + 4 + 1;

/// Requests beyond the peer's credit that may wait for their completion to be noticed: every [`NAMED_EVERY`]th is told of.
const SLACK: u32 = 2 * NAMED_EVERY;

/// How many requests of a lane may be under way.
const SENDS: u32 = MESSAGES + WORDS + SLACK;

/// One more for the trial packet that went before.
pub(super) const DEPTHS: Depths = Depths { send: SENDS + 1, receive: MESSAGES + WORDS, inline: 220 };

/// Credit for bytes travels in units of this many.
const UNIT: u64 = 64;

/// The word of one who writes nothing more.
pub(super) const LAST: u32 = u32::MAX;

/// The word that goes each way before a link is used.
pub(super) const TRIAL: u32 = LAST - 1;

/// The most units, and the most messages, that one word gives back.
const MOST_UNITS: u64 = 0xffff;
const MOST_MESSAGES: u32 = 0x3ff;

/// After how many looks in vain the peer is looked after, by one who never sleeps.
const LOOKS_PER_CHECK: u32 = 1024;

/// How long after the end of the peer's connection, or a failure, its last bytes are looked for: another way may be quicker
/// than theirs, and the adapter's two queues keep no order between them.
const GRACE: Duration = Duration::from_millis(2);

const _: () = assert!(RING_BYTES >= 2 * MIN_WINDOW && RING_BYTES as u64 / UNIT <= MOST_UNITS);
const _: () = assert!(MESSAGES <= MOST_MESSAGES);

/// What has come.
#[derive(Debug, Default)]
struct Reading {
    /// Bytes that came since the beginning.
    arrived: u64,
    /// Of these, how many were read, and how many the peer was told of.
    taken: u64,
    returned: u64,
    /// Messages that were polled and the peer was not told of.
    messages: u32,
    /// The peer writes nothing more.
    last: bool,
}

/// A lane over a queue pair.
pub(super) struct RdmaLane<A: Adapter> {
    adapter: A,
    /// Dropped after the queue pair that reads from them, and before the heap that they lie in.
    loans: Loans<A::Region>,
    /// Stays open and silent; its end is the peer's.
    socket: Uninherited<OwnedFd>,
    /// What the device says, as a descriptor of this lane's own.
    events: Uninherited<OwnedFd>,
    sleeper: Arc<Sleeper>,
    name: Arc<str>,
    writing: Writing,
    reading: Reading,
    found: Vec<Completion>,
    looks_in_vain: u32,
    /// The sleeper's count of closings when the peer was last looked after.
    closings: usize,
    /// When the peer's connection was seen to have ended.
    gone: Option<Instant>,
    /// Why the lane carries no more, and when that was found out. The reader is told after everything that came.
    end: Option<(LaneError, Instant)>,
    /// Nothing that came before the end is left in the adapter's queue.
    drained: bool,
    /// Whether the reader knows of the end.
    told: bool,
}

impl<A: Adapter> RdmaLane<A> {
    pub(super) fn new(
        adapter: A,
        socket: Uninherited<OwnedFd>,
        sleeper: Arc<Sleeper>,
        peer: usize,
    ) -> io::Result<Self> {
        let events = Uninherited::from(adapter.device_events().try_clone_to_owned()?);
        let name = format!("rdma rank {peer} ({})", adapter.name()).into();
        let lane = Self {
            adapter,
            loans: Loans::new(),
            socket,
            events,
            sleeper,
            name,
            writing: Writing::default(),
            reading: Reading::default(),
            found: Vec::new(),
            looks_in_vain: 0,
            // Not the present count: what may have happened before the watch is looked at once.
            closings: usize::MAX,
            gone: None,
            end: None,
            drained: false,
            told: false,
        };
        lane.sleeper.watch_closing(&lane.socket)?;
        lane.sleeper.watch_closing(&lane.events)?;
        let channel = lane.adapter.events().ok_or(io::ErrorKind::NotConnected)?;
        lane.sleeper.watch(channel)?;
        Ok(lane)
    }

    /// Ends the lane for a reason, unless it has ended.
    fn broken(&mut self, what: impl std::fmt::Display) -> LaneError {
        self.end_for(LaneError::Broken(what.to_string().into()))
    }

    fn end_for(&mut self, why: LaneError) -> LaneError {
        self.end.get_or_insert_with(|| (why, Instant::now())).0.clone()
    }

    /// Ends the lane because of what the peer did: nothing more of it is heard.
    fn violated(&mut self, what: &str) -> LaneError {
        self.drained = true;
        self.broken(format!("protocol violation: {what}"))
    }

    /// Bytes that have come and were not read.
    fn known(&self) -> usize {
        (self.reading.arrived - self.reading.taken) as usize
    }

    // What the adapter says.

    /// Takes what has come and what has been sent. Whether there was anything.
    fn poll(&mut self) -> Result<bool, LaneError> {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let outcome = if self.end.is_none() { self.poll_into(&mut found) } else { self.poll_rest(&mut found) };
        let any = !found.is_empty();
        self.found = found;
        outcome.map(|()| any)
    }

    fn poll_into(&mut self, found: &mut Vec<Completion>) -> Result<(), LaneError> {
        if let Err(error) = self.adapter.poll_received(found) {
            return Err(self.broken(error));
        }
        let mut came = 0;
        let mut failed = None;
        for one in found.iter() {
            if one.status != 0 {
                failed.get_or_insert(*one);
                continue;
            }
            came += 1;
            if let Err(what) = self.note_received(one) {
                return Err(self.violated(&what));
            }
        }
        if let Some(failed) = failed {
            // Receives complete in their order: behind one that failed, none has bytes.
            self.drained = true;
            return self.note_failure(failed);
        }
        if came > 0 {
            if let Err(error) = self.adapter.post_receives(came) {
                return Err(self.broken(format!("a receive cannot be posted: {error}")));
            }
            self.give_back()?;
        }
        // Failures of what was sent show among what is received, too: there is no hurry.
        if self.in_flight() >= SENDS / 2 { self.poll_sent(found) } else { Ok(()) }
    }

    /// Takes what came before the end and was not looked at until then.
    fn poll_rest(&mut self, found: &mut Vec<Completion>) -> Result<(), LaneError> {
        if self.drained {
            return Ok(());
        }
        if let Err(error) = self.adapter.poll_received(found) {
            self.drained = true;
            return Err(self.broken(error));
        }
        for one in found.iter() {
            if one.status != 0 {
                self.drained = true;
                break;
            }
            if let Err(what) = self.note_received(one) {
                return Err(self.violated(&what));
            }
        }
        if self.reading.last {
            // The peer had said everything, and failed at nothing.
            self.end = self.end.take().map(|(_, since)| (LaneError::Closed, since));
        }
        Ok(())
    }

    /// Checks and counts what a completion tells.
    fn note_received(&mut self, one: &Completion) -> Result<(), String> {
        let (reading, writing) = (&mut self.reading, &mut self.writing);
        if one.word == LAST && one.bytes == 0 {
            reading.last = true;
            return Ok(());
        }
        let free = RING_BYTES as u64 - (reading.arrived - reading.taken);
        if u64::from(one.bytes) > free {
            return Err(format!("the peer wrote {} bytes where {free} were free", one.bytes));
        }
        reading.arrived += u64::from(one.bytes);
        if one.bytes > 0 {
            reading.messages += 1;
        }
        let bytes = UNIT * u64::from(one.word & 0xffff);
        let messages = one.word >> 16;
        if bytes > writing.bytes - writing.returned || messages > writing.messages {
            return Err(format!("the peer gave back {bytes} bytes and {messages} messages that it never had"));
        }
        writing.returned += bytes;
        writing.messages -= messages;
        Ok(())
    }

    fn poll_sent(&mut self, found: &mut Vec<Completion>) -> Result<(), LaneError> {
        let from = found.len();
        if let Err(error) = self.adapter.poll_sent(found) {
            return Err(self.broken(error));
        }
        for one in found.iter().skip(from).copied() {
            if one.status != 0 {
                return self.note_failure(one);
            }
            self.writing.completed = self.writing.completed.max(one.request);
        }
        self.loans.settle(self.writing.completed);
        Ok(())
    }

    /// The queue pair has failed. What failed first is told, not what was flushed then.
    fn note_failure(&mut self, mut first: Completion) -> Result<(), LaneError> {
        const FLUSHED: u32 = 5;
        if self.reading.last {
            // The peer has taken its queue pair down, and everything it wrote before has come.
            return Ok(());
        }
        if first.status == FLUSHED {
            let mut sent = Vec::new();
            let _ = self.adapter.poll_sent(&mut sent);
            first = sent.into_iter().find(|one| one.status != 0 && one.status != FLUSHED).unwrap_or(first);
        }
        // A peer that has ended says so over its connection, in fewer words.
        if self.gone.is_none() {
            self.look_after_peer()?;
        }
        if self.gone.is_some() {
            self.end_for(LaneError::Closed);
            return Ok(());
        }
        let Completion { status, vendor, .. } = first;
        let words = status_in_words(status);
        Err(self.broken(format!("the adapter reports {words} (status {status}, vendor error {vendor:#x})")))
    }

    /// Whether something else than the adapter ends the lane: the peer's connection, or the device.
    fn look_after_peer(&mut self) -> Result<(), LaneError> {
        if let Some(trouble) = self.adapter.trouble() {
            return Err(self.broken(trouble));
        }
        match unix::look(&self.socket) {
            Quiet::Silent => Ok(()),
            Quiet::HungUp => {
                self.gone.get_or_insert_with(Instant::now);
                Ok(())
            }
            Quiet::Speaking => Err(self.broken("the peer spoke on the connection of an RDMA link")),
        }
    }

    // The end.

    /// What the reader is told when there is nothing to read.
    fn read_end(&mut self) -> Result<(), LaneError> {
        let is_over = self.reading.last || self.gone.is_some_and(|since| since.elapsed() >= GRACE);
        if is_over {
            self.end_for(LaneError::Closed);
        }
        let Some((end, since)) = &self.end else { return Ok(()) };
        if !is_over && !self.drained && since.elapsed() < GRACE {
            return Ok(());
        }
        self.told = true;
        Err(end.clone())
    }
}

#[cfg(test)]
impl<A: Adapter> RdmaLane<A> {
    pub(super) fn adapter(&self) -> &A {
        &self.adapter
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Bytes that were copied into the ring, and bytes that were not.
    pub(super) fn copied(&self) -> (u64, u64) {
        (self.writing.copied, self.writing.in_place)
    }

    /// As if the adapter had read for long.
    pub(super) fn age_loans(&mut self) {
        self.loans.age();
    }

    pub(super) fn look_at_sent(&mut self) -> Result<(), LaneError> {
        self.poll_sent(&mut Vec::new())
    }
}

/// Where in a ring the byte of this number lies.
fn place(byte: u64) -> usize {
    (byte % RING_BYTES as u64) as usize
}

impl<A: Adapter> Lane for RdmaLane<A> {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn link(&self) -> Arc<str> {
        self.name.clone()
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        Ok(self.write_from(head, body, None))
    }

    fn lends(&self) -> bool {
        true
    }

    unsafe fn write_lent(&mut self, head: &[u8], body: &[u8]) -> Result<(usize, Option<u64>), LaneError> {
        let heap = self.sleeper.heap().filter(|_| body.len() >= LEAST_IN_PLACE && self.end.is_none());
        let region = heap.and_then(|heap| self.adapter.region(heap, body));
        let before = self.writing.in_place;
        let written = self.write_from(head, body, region);
        Ok((written, (self.writing.in_place > before).then_some(self.loans.last())))
    }

    fn returned(&mut self) -> u64 {
        if !self.loans.is_empty() {
            let _ = self.poll_sent(&mut Vec::new());
            // Who waits for memory of a lane that has failed hears of that first.
            if self.end.is_some() && self.told {
                self.tear_down();
            }
        }
        self.loans.returned()
    }

    fn take_back(&mut self) {
        self.await_loans();
    }

    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError> {
        debug_assert!(wanted <= MIN_WINDOW);
        if self.known() < wanted {
            // An error is told when there is nothing else to tell.
            let moved = self.poll().unwrap_or(true);
            if self.known() == 0 {
                self.looks_in_vain = if moved { 0 } else { self.looks_in_vain + 1 };
                if self.looks_in_vain >= LOOKS_PER_CHECK {
                    self.looks_in_vain = 0;
                    let _ = self.look_after_peer();
                }
                self.read_end()?;
            }
        }
        // SAFETY: so many bytes from here on have come, and are one piece of the doubled mapping. A sound peer does not
        // write to them until they are given back; whoever parses them takes each value once and then checks it.
        Ok(unsafe {
            std::slice::from_raw_parts(
                self.adapter.incoming().start().as_ptr().add(place(self.reading.taken)),
                self.known(),
            )
        })
    }

    fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.known());
        self.reading.taken += count.min(self.known()) as u64;
        // Told as the end of reading.
        let _ = self.give_back();
    }

    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError> {
        let mut read = 0;
        while read < bytes {
            let count = match self.fill(1) {
                Ok(window) => {
                    let count = window.len().min(bytes - read).min(PIECE_BYTES);
                    // SAFETY: the target is writable by the caller's promise and no part of the ring.
                    unsafe { target.add(read).copy_from_nonoverlapping(window.as_ptr(), count) };
                    count
                }
                Err(error) => return if read > 0 { Ok(read) } else { Err(error) },
            };
            if count == 0 {
                break;
            }
            self.consume(count);
            read += count;
        }
        Ok(read)
    }

    fn prepare_sleep(&mut self, wants_write: bool) -> bool {
        if self.end.is_some() {
            return self.told;
        }
        // Room depends on what was sent, too, and so do a credit that found no place and memory that is on loan.
        if let Err(error) = self.adapter.arm(wants_write || self.credit_is_due() || !self.loans.is_empty()) {
            self.broken(error);
            return false;
        }
        let closings = self.sleeper.closings();
        if closings != self.closings {
            self.closings = closings;
            if self.look_after_peer().is_err() {
                return false;
            }
        }
        let before = (self.reading.arrived, self.writing.completed);
        let mut found = Vec::new();
        let sent = self.poll_sent(&mut found);
        let polled = self.poll();
        let has_moved = before != (self.reading.arrived, self.writing.completed);
        if sent.is_err() || polled != Ok(false) || has_moved {
            return false;
        }
        if self.gone.is_some() || self.reading.last {
            // The end is told by `fill`.
            return false;
        }
        let _ = self.give_back();
        self.known() == 0 && !(wants_write && self.room() > 0) && self.end.is_none()
    }
}

impl<A: Adapter> Drop for RdmaLane<A> {
    fn drop(&mut self) {
        self.hand_over();
        let Writing { copied, in_place, .. } = self.writing;
        tracing::debug!(link = %self.name, copied, in_place, "bytes that were sent by way of the ring, and from where they were");
        if let Some(channel) = self.adapter.events() {
            self.sleeper.unwatch(channel);
        }
        self.sleeper.unwatch_closing(&self.events);
        self.sleeper.unwatch_closing(&self.socket);
        socket::end_writing(&self.socket);
    }
}
