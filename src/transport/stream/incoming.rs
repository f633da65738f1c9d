//! What a frame from the peer does. Everything in it is checked here before it is used.

use std::sync::Arc;

use super::LaneMarks;
use super::config::compare;
use super::core::{Admission, Core, Violation, check_length};
use super::reader::{Payload, Sink};
use super::requests::{Arrival, ArrivalBody, EarlyBytes, Offer, segments};
use super::slab::Lookup;
use crate::transport::{Event, Notice};
use crate::types::Tag;
use crate::wire::frame::{Frame, Header, NOTICE_BYTES, RawSignature};

const _: () = assert!(NOTICE_BYTES == Notice::MAX_BYTES);

impl Core {
    /// A header has arrived on a lane. Returns where its payload goes, for the kinds that have one.
    pub fn open(&mut self, header: &Header, lane: &mut LaneMarks) -> Result<Option<Payload>, Violation> {
        let length = header.length as usize;
        if header.generation != self.generation {
            self.statistics.fenced += 1;
            return Ok((length > 0).then(|| Payload::new(Sink::Drop, length, 0)));
        }
        let name = header.frame.name();
        self.check_place(&header.frame, lane)?;
        if header.credit > 0 {
            let credit = header.credit as usize;
            if lane.index != 0 || credit > self.early_used {
                let used = self.early_used;
                return Err(format!("a {name} frame gives {credit} bytes of credit back, of {used} taken"));
            }
            self.early_used -= credit;
        }
        match header.frame {
            Frame::Hello(theirs) => {
                lane.hello = true;
                compare(&self.config.hello(lane.index, lane.count), &theirs)?;
            }
            Frame::Eager { tag, signature } => return self.open_eager(tag, signature, length).map(Some),
            Frame::Announce { tag, signature, total } => self.handle_announce(tag, signature, total)?,
            Frame::Ready { tag, signature, total, target, answer } => {
                self.handle_ready(tag, answer, Offer { signature, total, target })?;
            }
            Frame::Segment { target, offset } => return self.open_segment(target, offset, length).map(Some),
            Frame::Withdraw { tag } => self.withdraw(tag),
            Frame::Differs { tag, signature } => self.handle_differs(tag, signature)?,
            Frame::Credit => {}
            Frame::Notice => return Ok(Some(Payload::new(Sink::Notice(Vec::with_capacity(length)), length, 0))),
            Frame::Goodbye => lane.goodbye = true,
        }
        Ok(None)
    }

    /// That the frame may come on this lane and at this time.
    fn check_place(&self, frame: &Frame, lane: &LaneMarks) -> Result<(), Violation> {
        let name = frame.name();
        if lane.hello == matches!(frame, Frame::Hello(_)) {
            let place = if lane.hello { "a second time" } else { "before hello" };
            return Err(format!("a {name} frame {place} on lane {}", lane.index));
        }
        if lane.index != 0 && !matches!(frame, Frame::Hello(_) | Frame::Segment { .. } | Frame::Goodbye) {
            return Err(format!("a {name} frame on lane {}", lane.index));
        }
        let answers =
            matches!(frame, Frame::Ready { .. } | Frame::Withdraw { .. } | Frame::Differs { .. } | Frame::Credit);
        if lane.goodbye && !answers {
            return Err(format!("a {name} frame after goodbye on lane {}", lane.index));
        }
        Ok(())
    }

    fn open_eager(&mut self, tag: Tag, signature: RawSignature, length: usize) -> Result<Payload, Violation> {
        if length > self.config.eager_limit {
            let limit = self.config.eager_limit;
            return Err(format!("an eager message of {length} bytes, more than the {limit} agreed on"));
        }
        let cost = Core::early_cost(length);
        self.early_held += cost;
        if self.early_held > self.config.early_budget {
            let budget = self.config.early_budget;
            return Err(format!("early messages of {} bytes, more than the {budget} agreed on", self.early_held));
        }
        let place = match self.find_receive(tag, signature)? {
            Receiver::None => {
                let bytes = EarlyBytes::with_capacity(length);
                return Ok(Payload::new(Sink::Early { tag, signature, bytes }, length, cost));
            }
            Receiver::Dropped => return Ok(Payload::new(Sink::Drop, length, cost)),
            Receiver::Posted(place) => place,
        };
        let state = self.tags.at(place);
        let Some(at) = state.recvs.pop(&mut self.recvs) else {
            return Ok(Payload::new(Sink::Drop, length, cost));
        };
        let Some(recv) = self.recvs.get_mut(at) else { return Ok(Payload::new(Sink::Drop, length, cost)) };
        check_length(&signature, recv.bytes, length as u64)?;
        recv.met = true;
        Ok(Payload::new(Sink::Recv { at, offset: 0 }, length, cost))
    }

    fn handle_announce(&mut self, tag: Tag, signature: RawSignature, total: u64) -> Result<(), Violation> {
        let place = match self.find_receive(tag, signature)? {
            Receiver::None => return self.keep(tag, Arrival { signature, body: ArrivalBody::Announced(total) }),
            Receiver::Dropped => return Ok(()),
            Receiver::Posted(place) => place,
        };
        let state = self.tags.at(place);
        let Some(at) = state.recvs.pop(&mut self.recvs) else { return Ok(()) };
        let Some(recv) = self.recvs.get(at) else { return Ok(()) };
        check_length(&signature, recv.bytes, total)?;
        if recv.bytes > self.config.eager_limit && !recv.offered {
            state.unoffered -= 1;
        }
        self.meet_announcement(at);
        Ok(())
    }

    /// The receive that a message of this tag would meet. A posted one is of the same call.
    fn find_receive(&mut self, tag: Tag, signature: RawSignature) -> Result<Receiver, Violation> {
        if let Some(place) = self.tags.find(tag) {
            let state = self.tags.at(place);
            if !state.is_void()
                && let Some(recv) = state.recvs.front().and_then(|at| self.recvs.get(at))
            {
                let ours = recv.signature;
                if ours == signature {
                    return Ok(Receiver::Posted(place));
                }
                self.mismatch(place, ours, signature, true)?;
                return Ok(Receiver::Dropped);
            }
        }
        match self.admit(tag, signature)? {
            Admission::At(_) | Admission::New => Ok(Receiver::None),
            Admission::Dropped => Ok(Receiver::Dropped),
        }
    }

    /// Keeps a message that came before its receive, or gives it to one that was posted while it came.
    fn keep(&mut self, tag: Tag, arrival: Arrival) -> Result<(), Violation> {
        let announced = matches!(arrival.body, ArrivalBody::Announced(_));
        let call = arrival.signature.decode().map_err(|error| error.to_string())?;
        let place = self.tags.find_or_make(tag);
        let state = self.tags.at(place);
        if announced {
            self.announcements += 1;
            if self.announcements > self.config.announce_limit {
                let limit = self.config.announce_limit;
                return Err(format!("{} unanswered announcements, more than the {limit} agreed on", limit + 1));
            }
        }
        if let Some(at) = state.recvs.pop(&mut self.recvs) {
            return self.meet(place, at, arrival);
        }
        let at = self.arrivals.insert(arrival);
        state.arrivals.push(&mut self.arrivals, at);
        if !std::mem::replace(&mut state.told, true) {
            self.emit(tag, Event::Early { tag, signature: call });
        }
        Ok(())
    }

    fn handle_ready(&mut self, tag: Tag, answer: bool, offer: Offer) -> Result<(), Violation> {
        let place = match self.admit(tag, offer.signature)? {
            Admission::At(place) => Some(place),
            Admission::New => None,
            Admission::Dropped => return Ok(()),
        };
        let long = offer.total > self.config.eager_limit as u64;
        if let Some(place) = place {
            let state = self.tags.at(place);
            let waiting = if long { &mut state.long_sends } else { &mut state.short_sends };
            if let Some(at) = waiting.pop(&mut self.sends) {
                return self.answer(place, at, &offer);
            }
        }
        if answer {
            // To an announcement that was given up since, so long ago that its tag is forgotten.
            self.statistics.dropped += 1;
            return Ok(());
        }
        if !long {
            return Err(format!("an offer to receive {} bytes, which need none", offer.total));
        }
        if self.offers.len() >= self.config.ready_limit {
            let limit = self.config.ready_limit;
            return Err(format!("{} offers to receive, more than the {limit} agreed on", limit + 1));
        }
        offer.signature.decode().map_err(|error| error.to_string())?;
        let place = self.tags.find_or_make(tag);
        let at = self.offers.insert(offer);
        self.tags.at(place).offers.push(&mut self.offers, at);
        Ok(())
    }

    fn open_segment(&mut self, target: u64, offset: u64, length: usize) -> Result<Payload, Violation> {
        let at = match self.recvs.look_up(target) {
            Lookup::Live(at) => at,
            Lookup::Old => {
                self.statistics.dropped += 1;
                return Ok(Payload::new(Sink::Drop, length, 0));
            }
            Lookup::Unknown => return Err(format!("a segment for {target:#x}, which was never offered")),
        };
        let segment_bytes = self.config.segment_bytes;
        let wrong = || format!("a segment of {length} bytes at {offset}, where no segment of its message can be");
        let recv = self.recvs.get_mut(at).ok_or_else(wrong)?;
        let offset = usize::try_from(offset).map_err(|_| wrong())?;
        let number = offset / segment_bytes;
        let fits = recv.offered
            && offset.is_multiple_of(segment_bytes)
            && number < segments(recv.bytes, segment_bytes)
            && length == segment_bytes.min(recv.bytes - offset);
        let seen = recv.seen.get_mut(number / 64).filter(|_| fits).ok_or_else(wrong)?;
        let bit = 1 << (number % 64);
        if *seen & bit != 0 {
            return Err(format!("the segment at {offset} of a message a second time"));
        }
        *seen |= bit;
        Ok(Payload::new(Sink::Recv { at, offset }, length, 0))
    }

    fn handle_differs(&mut self, tag: Tag, signature: RawSignature) -> Result<(), Violation> {
        let Some(place) = self.tags.find(tag) else { return Ok(()) };
        match self.tags.at(place).local {
            Some(ours) if ours != signature => self.mismatch(place, ours, signature, false),
            _ => Ok(()),
        }
    }

    /// The whole payload of a frame has come.
    pub fn finish(&mut self, payload: Payload) -> Result<(), Violation> {
        match payload.sink {
            Sink::Early { tag, signature, bytes } => match self.find_receive(tag, signature)? {
                Receiver::None | Receiver::Posted(_) => {
                    let body = ArrivalBody::Whole { bytes, cost: payload.cost };
                    return self.keep(tag, Arrival { signature, body });
                }
                Receiver::Dropped => {}
            },
            Sink::Recv { at, .. } => {
                if let Some(recv) = self.recvs.get_mut(at) {
                    recv.left -= 1;
                    if recv.left == 0 && recv.met {
                        self.complete_recv(at);
                    }
                }
            }
            Sink::Notice(bytes) => self.events.push(Event::Notice(Notice(Arc::from(bytes)))),
            Sink::Drop => {}
        }
        if payload.cost > 0 {
            self.give_back(payload.cost);
        }
        Ok(())
    }
}

/// Who waits for a message.
enum Receiver {
    /// Nobody yet.
    None,
    /// The first receive of the tag in this place.
    Posted(u32),
    /// Nobody, ever.
    Dropped,
}
