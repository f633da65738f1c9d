//! What leaves a lane: through the own ring, or from memory that is on loan until the adapter has done with it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{LAST, MESSAGES, MOST_MESSAGES, MOST_UNITS, RING_BYTES, RdmaLane, SENDS, UNIT, WORDS, place};
use crate::sys::socket;
use crate::transport::lane::LaneError;
use crate::transport::rdma::adapter::Adapter;

/// How many requests to send there are for each whose completion is told.
pub(super) const NAMED_EVERY: u32 = 32;

/// How much is copied before it is sent: the adapter begins while the rest is still copied.
pub(super) const PIECE_BYTES: usize = 32 << 10;

/// From how many bytes on memory that can be read where it is is not copied. A request of its own costs what copying some
/// thousand bytes does.
pub(in crate::transport::rdma) const LEAST_IN_PLACE: usize = 8 << 10;

/// How long a lane that is dropped waits for the peer's adapter to have everything, and how long the own adapter may read
/// from memory that is wanted back. A packet that was lost is repeated after a second.
pub(in crate::transport::rdma) const LINGER: Duration = Duration::from_secs(2);

/// What may be written.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// Bytes written since the beginning.
    pub bytes: u64,
    /// Of these, how many the peer has given back.
    pub returned: u64,
    /// Messages whose receive the peer has not posted again.
    pub messages: u32,
    /// Requests posted since the beginning, and of these how many are known to be complete.
    pub posted: u64,
    pub completed: u64,
    /// Bytes that were copied into the ring, and that were not.
    pub copied: u64,
    pub in_place: u64,
}

/// Memory that the adapter reads from.
pub(super) struct Loans<T> {
    /// The registrations, each until the request of this number is complete.
    open: VecDeque<(u64, Arc<T>)>,
    /// The last request of them all, and when it was posted.
    last: u64,
    since: Option<Instant>,
}

impl<T> Loans<T> {
    pub fn new() -> Self {
        Self { open: VecDeque::new(), last: 0, since: None }
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn lend(&mut self, number: u64, region: Arc<T>) {
        self.open.push_back((number, region));
        (self.last, self.since) = (number, Some(Instant::now()));
    }

    /// All requests up to this one are complete.
    pub fn settle(&mut self, completed: u64) {
        while self.open.front().is_some_and(|(number, _)| *number <= completed) {
            self.open.pop_front();
        }
    }

    /// The last request.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Up to which request nothing is read any more.
    pub fn returned(&self) -> u64 {
        self.open.front().map_or(self.last, |(number, _)| number - 1)
    }

    /// Whether the adapter has had time enough for all of them. From when they were lent, not from when they are wanted
    /// back: of many links whose peers cannot be reached, the first is waited for, and the others not any more.
    fn are_overdue(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= LINGER)
    }

    #[cfg(test)]
    pub fn age(&mut self) {
        self.since = self.since.and_then(|since| since.checked_sub(LINGER));
    }
}

impl<A: Adapter> RdmaLane<A> {
    // Credit.

    /// How many requests are not known to be complete.
    pub(super) fn in_flight(&self) -> u32 {
        (self.writing.posted - self.writing.completed) as u32
    }

    /// The word that gives back what can be.
    pub(super) fn credit(&mut self) -> u32 {
        let reading = &mut self.reading;
        let units = ((reading.taken - reading.returned) / UNIT).min(MOST_UNITS);
        let messages = reading.messages.min(MOST_MESSAGES);
        reading.returned += units * UNIT;
        reading.messages -= messages;
        units as u32 | messages << 16
    }

    pub(super) fn credit_is_due(&self) -> bool {
        let reading = &self.reading;
        reading.taken - reading.returned >= RING_BYTES as u64 / 4 || reading.messages >= MESSAGES / 4
    }

    /// Tells the peer what it may use again, if that is much and nothing else carries it.
    pub(super) fn give_back(&mut self) -> Result<(), LaneError> {
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
    pub(super) fn room(&self) -> usize {
        let writing = &self.writing;
        // One place for a word that gives back and one for the last are always left.
        if writing.messages >= MESSAGES || self.in_flight() >= SENDS - WORDS {
            return 0;
        }
        let free = RING_BYTES - (writing.bytes - writing.returned) as usize;
        free.min(RING_BYTES - place(writing.bytes))
    }

    /// Writes as much as fits. The body lies in `region`, if that is given, and is read from there.
    pub(super) fn write_from(&mut self, head: &[u8], body: &[u8], region: Option<Arc<A::Region>>) -> usize {
        // Why nothing can be written any more is told by the reading side, after everything that came.
        if self.is_over() {
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
        self.writing.in_place += body.len() as u64;
        self.loans.lend(number, region.clone());
        Ok(())
    }

    // The end.

    /// Waits a little for the adapter to say what was sent.
    fn await_sent(&mut self) -> Result<(), LaneError> {
        let mut found = Vec::new();
        self.poll_sent(&mut found)?;
        if !found.is_empty() {
            return Ok(());
        }
        // Armed first, then looked once more, then slept: a completion between is not missed.
        if let Err(error) = self.adapter.arm(true) {
            return Err(self.broken(error));
        }
        self.poll_sent(&mut found)?;
        self.look_after_peer()?;
        if found.is_empty()
            && let Some(events) = self.adapter.events()
        {
            let _ = socket::wait_readable(events, Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether nothing is worth waiting for.
    fn is_over(&self) -> bool {
        self.end.is_some() || self.gone.is_some() || self.reading.last
    }

    /// Waits until nothing reads from memory that is on loan, or takes the lane down.
    pub(super) fn await_loans(&mut self) {
        if self.loans.is_empty() {
            return;
        }
        let _ = self.poll_sent(&mut Vec::new());
        while !self.loans.is_empty() {
            if self.is_over() || self.loans.are_overdue() {
                self.tear_down();
            } else {
                // What fails here has ended the lane.
                let _ = self.await_sent();
            }
        }
        // One who slept meanwhile may have been woken by what was taken here.
        self.sleeper.kick();
    }

    /// Ends the lane so that nothing is read or written any more. What has come stays.
    pub(super) fn tear_down(&mut self) {
        let _ = self.poll();
        self.adapter.tear_down();
        self.loans.settle(u64::MAX);
        self.drained = true;
        if self.gone.is_some() || self.reading.last {
            self.end_for(LaneError::Closed);
        }
        self.broken("a call was given up while the adapter read from its memory, which it did not end in time");
    }

    /// Waits until the peer's adapter has everything, and tells it that there is no more.
    pub(super) fn hand_over(&mut self) {
        let deadline = Instant::now() + LINGER;
        let mut last_posted = false;
        while !self.is_over() && Instant::now() < deadline {
            if !last_posted && self.in_flight() < SENDS {
                self.writing.posted += 1;
                last_posted = true;
                if self.adapter.post_word(LAST, Some(self.writing.posted)).is_err() {
                    return;
                }
            }
            if self.await_sent().is_err() || (last_posted && self.in_flight() == 0) {
                return;
            }
        }
    }
}
