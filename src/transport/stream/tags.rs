//! What is known of each tag that is in use, has just been, or was given up.
//!
//! A tag is an operation, so new ones come all the time and old ones never come back. Nothing here counts messages:
//! the k-th send and the k-th receive of a tag find each other because both ends keep their order, so that a tag
//! without requests and without early messages can be forgotten.

use std::collections::{HashMap, VecDeque};

use super::slab::{NONE, Queue};
use crate::transport::hashing::Seeded;
use crate::types::Tag;
use crate::wire::frame::RawSignature;

/// How many tags without requests are remembered, for the signature of what was posted last: a peer that is in
/// another call of the same number is then found out even if our part was already over.
const IDLE_TAGS: usize = 64;

/// How many given-up tags are remembered. Beyond it, a message for the oldest is early again, and is cancelled again
/// by whoever hears of it.
const CANCELLED_TAGS: usize = 1024;

/// What is known of one tag. The queues run through the slabs of their elements.
pub(super) struct TagState {
    pub tag: Tag,
    /// The call that was last posted here.
    pub local: Option<RawSignature>,
    /// Receives that no message has met.
    pub recvs: Queue,
    /// Messages that no receive has met.
    pub arrivals: Queue,
    /// Long sends that no ready has met.
    pub long_sends: Queue,
    /// Announced short sends that no ready has met.
    pub short_sends: Queue,
    /// Offered receives that no send has met.
    pub offers: Queue,
    /// How many of `recvs` are for long messages and were not offered.
    pub unoffered: u32,
    /// Sends and receives under way.
    pub live: u32,
    /// A receive has been posted here, or an early message told of.
    pub told: bool,
    /// The peer is in another call.
    pub mismatched: bool,
    /// Given up here.
    pub cancelled: bool,
    idle_queued: bool,
}

impl TagState {
    fn new(tag: Tag) -> Self {
        Self {
            tag,
            local: None,
            recvs: Queue::EMPTY,
            arrivals: Queue::EMPTY,
            long_sends: Queue::EMPTY,
            short_sends: Queue::EMPTY,
            offers: Queue::EMPTY,
            unoffered: 0,
            live: 0,
            told: false,
            mismatched: false,
            cancelled: false,
            idle_queued: false,
        }
    }

    /// Whether nothing more is to happen for this tag here.
    pub fn is_void(&self) -> bool {
        self.mismatched || self.cancelled
    }

    fn is_idle(&self) -> bool {
        self.live == 0 && self.arrivals.is_empty() && self.offers.is_empty() && !self.cancelled
    }
}

/// The tags of one endpoint.
pub(super) struct Tags {
    places: HashMap<Tag, u32, Seeded>,
    states: Vec<TagState>,
    free: Vec<u32>,
    /// The tag that was looked up last, and its place: most look-ups are for the same tag as the one before.
    last: Option<(Tag, u32)>,
    idle: VecDeque<Tag>,
    cancelled: VecDeque<Tag>,
}

impl Tags {
    pub fn new() -> Self {
        Self {
            places: HashMap::with_hasher(Seeded::default()),
            states: Vec::new(),
            free: Vec::new(),
            last: None,
            idle: VecDeque::new(),
            cancelled: VecDeque::new(),
        }
    }

    /// The place of a tag that is known.
    pub fn find(&mut self, tag: Tag) -> Option<u32> {
        if let Some((last, at)) = self.last
            && last == tag
        {
            return Some(at);
        }
        let at = *self.places.get(&tag)?;
        self.last = Some((tag, at));
        Some(at)
    }

    /// The place of a tag, known from now on.
    pub fn find_or_make(&mut self, tag: Tag) -> u32 {
        if let Some(at) = self.find(tag) {
            return at;
        }
        let state = TagState::new(tag);
        let at = match self.free.pop() {
            Some(at) => {
                self.states[at as usize] = state;
                at
            }
            None => {
                self.states.push(state);
                self.states.len() as u32 - 1
            }
        };
        debug_assert_ne!(at, NONE);
        self.places.insert(tag, at);
        self.last = Some((tag, at));
        at
    }

    /// What is known of the tag in a place. Places come from the two methods above and stay valid while the tag has
    /// requests or early messages.
    pub fn at(&mut self, at: u32) -> &mut TagState {
        &mut self.states[at as usize]
    }

    /// To be called when something of the tag has ended: it may be forgotten once it has nothing left.
    pub fn settle(&mut self, at: u32) {
        let state = &mut self.states[at as usize];
        if state.idle_queued || !state.is_idle() {
            return;
        }
        state.idle_queued = true;
        self.idle.push_back(state.tag);
        while self.idle.len() > IDLE_TAGS
            && let Some(tag) = self.idle.pop_front()
        {
            let Some(&at) = self.places.get(&tag) else { continue };
            let state = &mut self.states[at as usize];
            state.idle_queued = false;
            if state.is_idle() {
                self.forget(tag, at);
            }
        }
    }

    /// Remembers that a tag, which has nothing left, was given up.
    pub fn cancel(&mut self, at: u32) {
        let state = &mut self.states[at as usize];
        state.cancelled = true;
        self.cancelled.push_back(state.tag);
        while self.cancelled.len() > CANCELLED_TAGS
            && let Some(tag) = self.cancelled.pop_front()
        {
            if let Some(&at) = self.places.get(&tag) {
                self.forget(tag, at);
            }
        }
    }

    fn forget(&mut self, tag: Tag, at: u32) {
        self.places.remove(&tag);
        self.free.push(at);
        if self.last.is_some_and(|(last, _)| last == tag) {
            self.last = None;
        }
    }

    /// How many tags are known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;
    use crate::types::CommunicatorId;

    fn tag(sequence: u64) -> Tag {
        Tag { communicator: CommunicatorId::WORLD, sequence }
    }

    #[test]
    fn idle_tags_are_forgotten_and_busy_ones_are_not() {
        let mut tags = Tags::new();
        let busy = tags.find_or_make(tag(1 << 40));
        tags.at(busy).live = 1;
        tags.settle(busy);
        for sequence in 0..100_000 {
            let at = tags.find_or_make(tag(sequence));
            tags.at(at).live = 1;
            tags.settle(at);
            tags.at(at).live = 0;
            tags.settle(at);
            tags.settle(at);
        }
        assert_eq!(tags.len(), IDLE_TAGS + 1);
        assert!(tags.states.len() <= IDLE_TAGS + 2);
        assert_eq!(tags.find(tag(1 << 40)), Some(busy));
        assert_eq!(tags.find(tag(3)), None);
        assert!(tags.find(tag(99_999)).is_some());
    }

    #[test]
    fn cancelled_tags_are_remembered_up_to_a_limit() {
        let mut tags = Tags::new();
        for sequence in 0..5000 {
            let at = tags.find_or_make(tag(sequence));
            tags.settle(at);
            tags.cancel(at);
        }
        assert_eq!(tags.find(tag(5000 - CANCELLED_TAGS as u64 - 1)), None);
        let oldest = tags.find(tag(5000 - CANCELLED_TAGS as u64)).unwrap();
        assert!(tags.at(oldest).cancelled);
        assert!(tags.len() <= CANCELLED_TAGS);
    }

    #[test]
    fn the_hash_spreads_neighbours() {
        let seeded = Seeded::default();
        let mut buckets = [0; 256];
        for sequence in 0..2560 {
            buckets[(seeded.hash_one(tag(sequence)) >> 56) as usize] += 1;
        }
        assert!(buckets.iter().all(|&count| count < 60), "{buckets:?}");
    }
}
