//! The state of a stream apart from its lanes: what was posted here, what came from there, and how they meet.
//!
//! Both ends keep order, so that nothing is numbered: receives meet the messages of their tag first come, first
//! served, and so do long sends and the peer's offers to receive. A queue of one side is empty whenever the other is
//! not.

use std::collections::VecDeque;

use super::config::{EARLY_COST, StreamConfig};
use super::requests::{Arrival, ArrivalBody, Offer, RecvState, SendState, Source, Target, segments};
use super::slab::{Queue, Slab};
use super::tags::Tags;
use crate::transport::{Event, Notice, Receive, RecvRequest, SendRequest};
use crate::types::{Collective, Generation, Tag};
use crate::wire::frame::{Frame, RawSignature};

/// Something that no sound peer does, in words.
pub(super) type Violation = String;

/// Counters of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatistics {
    /// Messages sent before it was known that a receive waited for them.
    pub eager: u64,
    /// Messages announced: long ones, and those for which there was no credit.
    pub announced: u64,
    /// Frames of another generation, dropped.
    pub fenced: u64,
    /// Frames for tags that were given up, dropped.
    pub dropped: u64,
    /// Bytes of early messages held here at this moment, with 256 more for each.
    pub early_bytes: usize,
    /// Announcements from the peer without a receive at this moment.
    pub announcements: usize,
    /// The peer's offers to receive without a send at this moment.
    pub offers: usize,
    /// Requests under way at this moment.
    pub requests: usize,
}

/// What is to become of a message for a tag.
pub(super) enum Admission {
    /// Its tag is in this place.
    At(u32),
    /// Nothing is known of its tag.
    New,
    /// It is for nobody.
    Dropped,
}

pub(super) struct Core {
    pub config: StreamConfig,
    pub generation: Generation,
    pub tags: Tags,
    pub sends: Slab<SendState>,
    pub recvs: Slab<RecvState>,
    pub arrivals: Slab<Arrival>,
    pub offers: Slab<Offer>,

    /// Sends that were neither sent nor announced, in the order in which they were posted.
    pub outbox: VecDeque<u32>,
    /// Sends with segments to be written, in turn.
    pub streaming: VecDeque<u32>,
    /// Frames without payload, and before all others.
    pub control: VecDeque<Frame>,
    pub notices: VecDeque<Notice>,
    /// How much of the peer's early budget is taken.
    pub early_used: usize,
    /// How many of our announcements have no answer.
    pub announced: usize,
    /// The last body on lane 0 was a whole message, so a segment comes next.
    pub segment_turn: bool,
    /// Goodbye is to be said.
    pub goodbye: bool,
    /// Goodbye has been said on some lane: nothing can be sent any more.
    pub goodbye_begun: bool,

    /// How much of our early budget the peer has taken.
    pub early_held: usize,
    /// How much of it is to be given back with the next frame.
    pub credit_due: usize,
    /// How many arrivals are announcements.
    pub announcements: usize,
    /// How many receives were offered whose message is not announced.
    pub offered: usize,

    /// Whether events go straight to the caller of `progress`.
    pub in_progress: bool,
    /// Events for the caller of `progress`.
    pub events: Vec<Event>,
    /// Events of what happened between two calls of `progress`.
    pub pending: Vec<(Tag, Event)>,
    /// What was found wrong between two calls of `progress`.
    pub violation: Option<Violation>,
    pub statistics: StreamStatistics,
}

impl Core {
    pub fn new(generation: Generation, config: StreamConfig) -> Self {
        Self {
            config,
            generation,
            tags: Tags::new(),
            sends: Slab::new(),
            recvs: Slab::new(),
            arrivals: Slab::new(),
            offers: Slab::new(),
            outbox: VecDeque::new(),
            streaming: VecDeque::new(),
            control: VecDeque::new(),
            notices: VecDeque::new(),
            early_used: 0,
            announced: 0,
            segment_turn: false,
            goodbye: false,
            goodbye_begun: false,
            early_held: 0,
            credit_due: 0,
            announcements: 0,
            offered: 0,
            in_progress: false,
            events: Vec::new(),
            pending: Vec::new(),
            violation: None,
            statistics: StreamStatistics::default(),
        }
    }

    pub fn emit(&mut self, tag: Tag, event: Event) {
        if self.in_progress { self.events.push(event) } else { self.pending.push((tag, event)) }
    }

    /// Forgets everything posted and everything that came.
    pub fn clear(&mut self) {
        let kept = (std::mem::take(&mut self.events), self.statistics, self.in_progress);
        *self = Self::new(self.generation, self.config);
        (self.events, self.statistics, self.in_progress) = kept;
    }

    pub fn post_send(&mut self, request: &SendRequest) {
        let place = self.tags.find_or_make(request.tag);
        let state = self.tags.at(place);
        if state.is_void() {
            return;
        }
        let signature = RawSignature::from(&request.signature);
        state.local = Some(signature);
        state.live += 1;
        let long = request.bytes > self.config.eager_limit;
        let at = self.sends.insert(SendState {
            tag: request.tag,
            place,
            signature,
            source: Source(request.source),
            bytes: request.bytes,
            token: request.token,
            long,
            announced: false,
            target: None,
            cut: 0,
            left: segments(request.bytes, self.config.segment_bytes),
        });
        self.outbox.push_back(at);
        let state = self.tags.at(place);
        let met = if let Some(arrival) = state.arrivals.front().and_then(|at| self.arrivals.get(at)) {
            self.compare_calls(place, signature, arrival.signature)
        } else {
            Ok(true)
        };
        let met = match met {
            Ok(true) if long => self.meet_offer(place, at),
            other => other.map(|_| ()),
        };
        self.note(met);
    }

    /// Finds the offer for a long send just posted.
    fn meet_offer(&mut self, place: u32, at: u32) -> Result<(), Violation> {
        let state = self.tags.at(place);
        let Some(offer) = state.offers.pop(&mut self.offers) else {
            state.long_sends.push(&mut self.sends, at);
            return Ok(());
        };
        let Some(offer) = self.offers.remove(offer) else { return Ok(()) };
        self.answer(place, at, &offer)
    }

    /// A send and the peer's receive have met. The send is in no queue of its tag any more.
    pub fn answer(&mut self, place: u32, at: u32, offer: &Offer) -> Result<(), Violation> {
        let Some(send) = self.sends.get_mut(at) else { return Ok(()) };
        if send.signature != offer.signature {
            let ours = send.signature;
            return self.mismatch(place, ours, offer.signature, true);
        }
        if send.bytes as u64 != offer.total {
            return Err(format!(
                "the peer receives {} bytes where {} are sent, both in {:?}",
                offer.total, send.bytes, send.signature
            ));
        }
        send.target = Some(offer.target);
        if send.announced {
            self.announced -= 1;
            self.streaming.push_back(at);
        }
        Ok(())
    }

    pub fn post_recv(&mut self, request: RecvRequest) {
        let place = self.tags.find_or_make(request.tag);
        let state = self.tags.at(place);
        if state.is_void() {
            return;
        }
        let signature = RawSignature::from(&request.signature);
        state.local = Some(signature);
        state.live += 1;
        state.told = true;
        let bytes = request.bytes;
        let at = self.recvs.insert(RecvState {
            tag: request.tag,
            place,
            signature,
            target: Target(request.target),
            bytes,
            mode: request.mode,
            token: request.token,
            offered: false,
            met: false,
            left: 1,
            seen: smallvec::SmallVec::new(),
        });
        if let Some(arrival) = state.arrivals.pop(&mut self.arrivals) {
            let met = match self.arrivals.remove(arrival) {
                Some(arrival) => self.meet(place, at, arrival),
                None => Ok(()),
            };
            return self.note(met);
        }
        state.recvs.push(&mut self.recvs, at);
        if bytes > self.config.eager_limit {
            // Offers of one tag go in the order of its receives, so none may overtake one that was held back.
            if state.unoffered == 0 && self.offered < self.config.ready_limit {
                self.offered += 1;
                self.offer(at, false);
            } else {
                state.unoffered += 1;
            }
        }
    }

    /// A receive and a message have met. Neither is in a queue of the tag any more.
    pub fn meet(&mut self, place: u32, at: u32, arrival: Arrival) -> Result<(), Violation> {
        let Some(recv) = self.recvs.get(at) else { return Ok(()) };
        let (ours, bytes, offered) = (recv.signature, recv.bytes, recv.offered);
        let total = match &arrival.body {
            ArrivalBody::Whole { bytes, .. } => bytes.len() as u64,
            ArrivalBody::Announced(total) => *total,
        };
        if ours != arrival.signature {
            let theirs = arrival.signature;
            self.discard(arrival);
            return self.mismatch(place, ours, theirs, true);
        }
        check_length(&ours, bytes, total)?;
        match arrival.body {
            ArrivalBody::Whole { bytes, cost } => {
                self.deliver(at, &bytes);
                self.give_back(cost);
                self.complete_recv(at);
            }
            ArrivalBody::Announced(_) => {
                self.announcements -= 1;
                debug_assert!(!offered, "an announcement waits only while no receive is posted");
                self.meet_announcement(at);
            }
        }
        Ok(())
    }

    /// The message of a receive is announced.
    pub fn meet_announcement(&mut self, at: u32) {
        let Some(recv) = self.recvs.get_mut(at) else { return };
        recv.met = true;
        if !recv.offered {
            self.offer(at, true);
        } else {
            self.offered -= 1;
            if recv.left == 0 {
                self.complete_recv(at);
            }
        }
    }

    /// Tells the peer that a receive waits.
    pub fn offer(&mut self, at: u32, answer: bool) {
        let key = self.recvs.key(at);
        let Some(recv) = self.recvs.get_mut(at) else { return };
        recv.offered = true;
        recv.left = segments(recv.bytes, self.config.segment_bytes);
        recv.seen.resize(recv.left.div_ceil(64), 0);
        self.control.push_back(Frame::Ready {
            tag: recv.tag,
            signature: recv.signature,
            total: recv.bytes as u64,
            target: key,
            answer,
        });
    }

    /// Moves a whole message to its target.
    pub fn deliver(&self, at: u32, bytes: &[u8]) {
        let Some(recv) = self.recvs.get(at) else { return };
        debug_assert_eq!(recv.bytes, bytes.len());
        match &recv.mode {
            Receive::Store => {
                if !bytes.is_empty() {
                    // SAFETY: the target is ours for `recv.bytes` bytes, which is how many there are; it is the
                    // user's memory, and the source is not.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), recv.target.0, bytes.len()) };
                }
            }
            Receive::Reduce(how) => {
                let count = bytes.len() / how.dtype.size();
                // SAFETY: the target is ours for `recv.bytes` bytes, which is how many there are; it is the user's
                // memory, and the source is not.
                unsafe {
                    crate::reduce::combine(
                        &how.reduction,
                        how.dtype,
                        recv.target.0,
                        bytes.as_ptr(),
                        count,
                        how.order,
                        how.finish,
                    );
                }
            }
        }
    }

    /// Everything of a receive has arrived.
    pub fn complete_recv(&mut self, at: u32) {
        let Some(recv) = self.recvs.remove(at) else { return };
        self.emit(recv.tag, Event::Received(recv.token));
        self.tags.at(recv.place).live -= 1;
        self.tags.settle(recv.place);
    }

    /// Everything of a send is written.
    pub fn complete_send(&mut self, at: u32) {
        let Some(send) = self.sends.remove(at) else { return };
        self.emit(send.tag, Event::Sent(send.token));
        self.tags.at(send.place).live -= 1;
        self.tags.settle(send.place);
    }

    /// What a message was charged may be used again.
    pub fn give_back(&mut self, cost: usize) {
        self.early_held -= cost;
        self.credit_due += cost;
    }

    /// Forgets a message that no receive will meet.
    fn discard(&mut self, arrival: Arrival) {
        match arrival.body {
            ArrivalBody::Whole { cost, .. } => self.give_back(cost),
            ArrivalBody::Announced(_) => self.announcements -= 1,
        }
    }

    /// Whether a message of the peer may belong to what is posted under its tag here.
    pub fn admit(&mut self, tag: Tag, signature: RawSignature) -> Result<Admission, Violation> {
        let Some(place) = self.tags.find(tag) else { return Ok(Admission::New) };
        let state = self.tags.at(place);
        if state.is_void() {
            self.statistics.dropped += 1;
            return Ok(Admission::Dropped);
        }
        match state.local {
            Some(ours) => {
                let same = self.compare_calls(place, ours, signature)?;
                Ok(if same { Admission::At(place) } else { Admission::Dropped })
            }
            None => Ok(Admission::At(place)),
        }
    }

    /// Whether two signatures under one tag are of one call; says so to both sides if not. Point-to-point messages
    /// under one tag, and the exchanges of an alltoall, only have to agree in pairs: their lengths may differ.
    fn compare_calls(&mut self, place: u32, ours: RawSignature, theirs: RawSignature) -> Result<bool, Violation> {
        let is_message = |signature: RawSignature| {
            let decoded = signature.decode().map_err(|error| error.to_string())?;
            Ok::<_, Violation>(matches!(decoded.collective, Collective::SendRecv | Collective::Alltoall))
        };
        if ours == theirs || is_message(theirs)? || is_message(ours)? {
            return Ok(true);
        }
        self.mismatch(place, ours, theirs, true)?;
        Ok(false)
    }

    /// The peer is in another call. From now on nothing of this tag is heard; what is posted stays until cancelled.
    pub fn mismatch(
        &mut self,
        place: u32,
        ours: RawSignature,
        theirs: RawSignature,
        tell: bool,
    ) -> Result<(), Violation> {
        let signature = theirs.decode().map_err(|error| error.to_string())?;
        let state = self.tags.at(place);
        if state.is_void() {
            return Ok(());
        }
        state.mismatched = true;
        let tag = state.tag;
        self.discard_unmet(place);
        self.emit(tag, Event::Mismatch { tag, theirs: signature });
        if tell {
            self.control.push_back(Frame::Differs { tag, signature: ours });
        }
        Ok(())
    }

    /// Forgets what came for a tag and met nothing.
    fn discard_unmet(&mut self, place: u32) {
        self.discard_offers(place);
        while let Some(at) = self.tags.at(place).arrivals.pop(&mut self.arrivals) {
            if let Some(arrival) = self.arrivals.remove(at) {
                self.discard(arrival);
            }
        }
    }

    fn discard_offers(&mut self, place: u32) {
        while let Some(at) = self.tags.at(place).offers.pop(&mut self.offers) {
            self.offers.remove(at);
        }
    }

    /// The peer gave a tag up: its announcements and offers lead nowhere. Its whole messages stay.
    pub fn withdraw(&mut self, tag: Tag) {
        let Some(place) = self.tags.find(tag) else { return };
        self.discard_offers(place);
        let mut kept = Queue::EMPTY;
        while let Some(at) = self.tags.at(place).arrivals.pop(&mut self.arrivals) {
            if self.arrivals.get(at).is_some_and(|arrival| matches!(arrival.body, ArrivalBody::Whole { .. })) {
                kept.push(&mut self.arrivals, at);
            } else if let Some(arrival) = self.arrivals.remove(at) {
                self.discard(arrival);
            }
        }
        self.tags.at(place).arrivals = kept;
        self.tags.settle(place);
    }

    /// Gives a tag up. `None` when it was given up before; otherwise its place.
    pub fn cancel(&mut self, tag: Tag) -> Option<u32> {
        let place = self.tags.find_or_make(tag);
        if self.tags.at(place).cancelled {
            return None;
        }
        // What the peer has heard of it and cannot know to be void.
        let mut told = false;
        let sends: Vec<u32> = self.sends.iter().filter(|(_, send)| send.place == place).map(|(at, _)| at).collect();
        for at in sends {
            if let Some(send) = self.sends.remove(at)
                && send.announced
                && send.target.is_none()
            {
                self.announced -= 1;
                told = true;
            }
        }
        let recvs: Vec<u32> = self.recvs.iter().filter(|(_, recv)| recv.place == place).map(|(at, _)| at).collect();
        for at in recvs {
            if let Some(recv) = self.recvs.remove(at)
                && recv.offered
                && !recv.met
            {
                self.offered -= 1;
                told = true;
            }
        }
        let sends = &self.sends;
        self.outbox.retain(|&at| sends.get(at).is_some());
        self.streaming.retain(|&at| sends.get(at).is_some());
        self.control.retain(|frame| !matches!(frame, Frame::Ready { tag: other, .. } if *other == tag));
        self.pending.retain(|(other, _)| *other != tag);
        self.discard_unmet(place);
        if told {
            self.control.push_back(Frame::Withdraw { tag });
        }
        let state = self.tags.at(place);
        state.recvs = Queue::EMPTY;
        state.long_sends = Queue::EMPTY;
        state.short_sends = Queue::EMPTY;
        state.unoffered = 0;
        state.live = 0;
        self.tags.cancel(place);
        Some(place)
    }

    /// Keeps what went wrong for the next call of `progress`.
    fn note(&mut self, outcome: Result<(), Violation>) {
        if let Err(violation) = outcome
            && self.violation.is_none()
        {
            self.violation = Some(violation);
        }
    }

    pub fn early_cost(bytes: usize) -> usize {
        bytes + EARLY_COST
    }
}

/// That a message has the length its receive wants.
pub(super) fn check_length(signature: &RawSignature, wanted: usize, found: u64) -> Result<(), Violation> {
    if wanted as u64 == found {
        return Ok(());
    }
    Err(format!("a message of {found} bytes came where {wanted} were expected, both in {signature:?}"))
}
