//! A queue pair as a lane. This room's `mod.rs` tells how bytes move.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// How many requests to send there are for each whose completion is told.
const NAMED_EVERY: u32 = 32;

/// How much is copied before it is sent: the adapter begins while the rest is still copied.
const PIECE_BYTES: usize = 32 << 10;

/// From how many bytes on memory that can be read where it is is not copied. A request of its own costs what copying some
/// thousand bytes does.
pub(super) const LEAST_IN_PLACE: usize = 8 << 10;

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

/// How long a lane that is dropped waits for the peer's adapter to have everything, and one whose memory is wanted back for
/// its own adapter. A packet that was lost is repeated after a second.
const LINGER: Duration = Duration::from_secs(2);

const _: () = assert!(RING_BYTES >= 2 * MIN_WINDOW && RING_BYTES as u64 / UNIT <= MOST_UNITS);
const _: () = assert!(MESSAGES <= MOST_MESSAGES);

/// What may be written.
#[derive(Debug, Default)]
struct Writing {
    /// Bytes written since the beginning.
    bytes: u64,
    /// Of these, how many the peer has given back.
    returned: u64,
    /// Messages whose receive the peer has not posted again.
    messages: u32,
    /// Requests posted since the beginning, and of these how many are known to be complete.
    posted: u64,
    completed: u64,
    /// The last request that reads from memory that is on loan.
    lent: u64,
    /// Bytes that were copied into the ring, and that were not.
    copied: u64,
    in_place: u64,
}

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
    /// Stays open and silent; its end is the peer's.
    socket: Uninherited<OwnedFd>,
    /// What the device says, as a descriptor of this lane's own.
    events: Uninherited<OwnedFd>,
    sleeper: Arc<Sleeper>,
    name: Arc<str>,
    writing: Writing,
    reading: Reading,
    /// What is being read from, until the request of this number is complete.
    on_loan: VecDeque<(u64, Arc<A::Region>)>,
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
            socket,
            events,
            sleeper,
            name,
            writing: Writing::default(),
            reading: Reading::default(),
            on_loan: VecDeque::new(),
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
        while self.on_loan.front().is_some_and(|(number, _)| *number <= self.writing.completed) {
            self.on_loan.pop_front();
        }
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

    // Credit.

    /// How many requests are not known to be complete.
    fn in_flight(&self) -> u32 {
        (self.writing.posted - self.writing.completed) as u32
    }

    /// The word that gives back what can be.
    fn credit(&mut self) -> u32 {
        let reading = &mut self.reading;
        let units = ((reading.taken - reading.returned) / UNIT).min(MOST_UNITS);
        let messages = reading.messages.min(MOST_MESSAGES);
        reading.returned += units * UNIT;
        reading.messages -= messages;
        units as u32 | messages << 16
    }

    fn credit_is_due(&self) -> bool {
        let reading = &self.reading;
        reading.taken - reading.returned >= RING_BYTES as u64 / 4 || reading.messages >= MESSAGES / 4
    }

    /// Tells the peer what it may use again, if that is much and nothing else carries it.
    fn give_back(&mut self) -> Result<(), LaneError> {
        if !self.credit_is_due() || self.reading.last || self.end.is_some() || self.in_flight() >= SENDS - 1 {
            return Ok(());
        }
        let word = self.credit();
        let named = self.name_next();
        self.posted(self.adapter.post_word(word, named))
    }

    /// Counts a request; its name if its completion is to be told.
    fn name_next(&mut self) -> Option<u64> {
        self.writing.posted += 1;
        Some(self.writing.posted).filter(|posted| posted.is_multiple_of(NAMED_EVERY.into()))
    }

    fn posted(&mut self, outcome: io::Result<()>) -> Result<(), LaneError> {
        outcome.map_err(|error| self.broken(format!("a request to send was refused: {error}")))
    }

    /// How many bytes can be written in one piece.
    fn room(&self) -> usize {
        let writing = &self.writing;
        // One place for a word that gives back and one for the last are always left.
        if writing.messages >= MESSAGES || self.in_flight() >= SENDS - WORDS {
            return 0;
        }
        let free = RING_BYTES - (writing.bytes - writing.returned) as usize;
        free.min(RING_BYTES - place(writing.bytes))
    }

    /// Writes as much as fits. The body lies in `region`, if that is given, and is read from there.
    fn write_from(&mut self, head: &[u8], body: &[u8], region: Option<Arc<A::Region>>) -> usize {
        // Why nothing can be written any more is told by the reading side, after everything that came.
        if self.end.is_some() || self.reading.last || self.gone.is_some() {
            return 0;
        }
        let total = head.len() + body.len();
        let mut written = 0;
        while written < total {
            let mut room = self.room();
            if room == 0 {
                // Perhaps room was given back, or a completion has come.
                let _ = self.poll();
                let mut found = std::mem::take(&mut self.found);
                let _ = self.poll_sent(&mut found);
                self.found = found;
                room = if self.end.is_some() { 0 } else { self.room() };
            }
            let most = if region.is_some() && written < head.len() { head.len() } else { total };
            let piece = (most - written).min(PIECE_BYTES).min(room);
            if piece == 0 {
                break;
            }
            let from_head = &head[written.min(head.len())..(written + piece).min(head.len())];
            let body_start = written.saturating_sub(head.len());
            let from_body = &body[body_start..body_start + (piece - from_head.len())];
            let outcome = match &region {
                Some(region) if from_head.is_empty() => self.post_in_place(region, from_body),
                _ => self.post_copy(from_head, from_body),
            };
            if self.posted(outcome).is_err() {
                break;
            }
            self.writing.bytes += piece as u64;
            self.writing.messages += 1;
            written += piece;
        }
        written
    }

    /// Writes these bytes, for which there is room in one piece, by way of the own ring.
    fn post_copy(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let (at, piece) = (place(self.writing.bytes), head.len() + body.len());
        // SAFETY: `piece` bytes from here on were given back by the peer, or never written, so that the adapter has
        // no use for them; they lie inside the ring. The sources are slices outside of it.
        unsafe {
            let target = self.adapter.outgoing().start().as_ptr().add(at);
            target.copy_from_nonoverlapping(head.as_ptr(), head.len());
            target.add(head.len()).copy_from_nonoverlapping(body.as_ptr(), body.len());
        }
        let word = self.credit();
        let named = self.name_next();
        self.adapter.post_write(at, piece, word, named)?;
        self.writing.copied += piece as u64;
        Ok(())
    }

    /// Writes these bytes, for which there is room in one piece, from where they lie.
    fn post_in_place(&mut self, region: &Arc<A::Region>, body: &[u8]) -> io::Result<()> {
        let word = self.credit();
        self.writing.posted += 1;
        let number = self.writing.posted;
        self.adapter.post_write_from(region, body, place(self.writing.bytes), word, number)?;
        self.writing.lent = number;
        self.writing.in_place += body.len() as u64;
        self.on_loan.push_back((number, region.clone()));
        Ok(())
    }

    // The end.

    /// Ends the lane so that nothing is read or written any more. What has come stays.
    fn tear_down(&mut self) {
        let _ = self.poll();
        self.adapter.tear_down();
        self.on_loan.clear();
        self.drained = true;
        if self.gone.is_some() || self.reading.last {
            self.end_for(LaneError::Closed);
        }
        self.broken("a call was given up while the adapter read from its memory, which it did not end in time");
    }

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

    /// Waits until the peer's adapter has everything, and tells it that there is no more.
    fn hand_over(&mut self) {
        let deadline = Instant::now() + LINGER;
        let mut last_posted = false;
        let mut found = Vec::new();
        loop {
            if self.end.is_some() || self.gone.is_some() || self.reading.last || Instant::now() >= deadline {
                return;
            }
            if !last_posted && self.in_flight() < SENDS {
                self.writing.posted += 1;
                last_posted = true;
                if self.adapter.post_word(LAST, Some(self.writing.posted)).is_err() {
                    return;
                }
            }
            found.clear();
            if self.poll_sent(&mut found).is_err() || (last_posted && self.in_flight() == 0) {
                return;
            }
            if !found.is_empty() {
                continue;
            }
            // Armed first, then looked once more, then slept: a completion between is not missed.
            if self.adapter.arm(true).is_err() || self.poll_sent(&mut found).is_err() || self.look_after_peer().is_err()
            {
                return;
            }
            if found.is_empty()
                && let Some(events) = self.adapter.events()
            {
                let _ = socket::wait_readable(events, Duration::from_millis(10));
            }
        }
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

    unsafe fn write_lent(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        let heap = self.sleeper.heap().filter(|_| body.len() >= LEAST_IN_PLACE && self.end.is_none());
        let region = heap.and_then(|heap| self.adapter.region(heap, body));
        Ok(self.write_from(head, body, region))
    }

    fn lent(&self) -> u64 {
        self.writing.lent
    }

    fn returned(&mut self) -> u64 {
        if !self.on_loan.is_empty() {
            let _ = self.poll_sent(&mut Vec::new());
            // Who waits for memory of a lane that has failed hears of that first.
            if self.end.is_some() && self.told {
                self.tear_down();
            }
        }
        self.on_loan.front().map_or(self.writing.lent, |(number, _)| number - 1)
    }

    fn take_back(&mut self) {
        let deadline = Instant::now() + LINGER;
        let mut has_armed = false;
        let mut found = Vec::new();
        while !self.on_loan.is_empty() {
            let is_over = self.end.is_some() || self.gone.is_some() || self.reading.last;
            if is_over || Instant::now() >= deadline {
                self.tear_down();
                break;
            }
            found.clear();
            // As in `hand_over`. What failed has ended the lane.
            let _ = self.poll_sent(&mut found);
            if !found.is_empty() {
                continue;
            }
            has_armed = true;
            if self.adapter.arm(true).is_err() {
                self.tear_down();
                break;
            }
            let _ = self.poll_sent(&mut found);
            let _ = self.look_after_peer();
            if found.is_empty()
                && let Some(events) = self.adapter.events()
            {
                let _ = socket::wait_readable(events, Duration::from_millis(10));
            }
        }
        if has_armed {
            // One who slept meanwhile may have been woken by what was taken here.
            self.sleeper.kick();
        }
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
        if let Err(error) = self.adapter.arm(wants_write || self.credit_is_due() || !self.on_loan.is_empty()) {
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
