//! An endpoint over byte streams.
//!
//! [`StreamEndpoint`] turns one or several [`Lane`]s to the same peer into the contract of this room. What travels is
//! in `wire::frame`; the protocol is this.
//!
//! **Short messages** (up to [`StreamConfig::eager_limit`]) leave at once, header and bytes in one write. One that
//! arrives before its receive is kept here; how much the peer may thus make us keep is bounded by a budget that the
//! sender charges and the receiver gives back, in the headers that travel anyway.
//!
//! **Long messages**, and short ones for which there is no credit, are *announced*. The receiver answers *ready* when
//! it has a receive; for a long one it says so as soon as that is posted, so that whoever posts first costs no round
//! trip. Then the bytes come as *segments*, striped over the lanes, each with the name of the receive it belongs to, so
//! that they go straight to their place or into its reduction, and are in nobody's buffer but the carrier's.
//!
//! **Meeting.** Messages of a tag meet its receives in order; there are no message numbers, and a tag that has nothing
//! under way needs no memory. That is why everything but segments travels on lane 0.
//!
//! **Another call.** Messages, announcements and offers carry the signature of their call. If what comes differs from
//! what is posted under the same tag, both sides hear of it, and the tag is dead on both until it is cancelled.
//!
//! **Giving up.** A cancelled tag's frames are dropped; what was told the peer of it is *withdrawn*, so that it holds
//! nothing for it. A frame that is half written is completed from a copy, one that is half read runs to nowhere. What
//! the peer has posted for the tag waits until the peer gives it up too.
//!
//! **The end.** Goodbye travels on every lane after the last message. The answers to the peer's messages may still
//! follow it. A lane that ends without goodbye is a failure, told after everything that arrived on the other lanes.
//!
//! **On loan.** A lane may go on reading a payload after it has taken it (RDMA does). Its message is complete, and its memory
//! free, when the lane has done with it; whoever gives it up before waits for that (`Lane::take_back`).

mod config;
mod core;
mod incoming;
mod outgoing;
mod reader;
mod requests;
mod slab;
mod tags;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use self::core::Core;
use self::reader::{Reader, Sink, Stop};
use self::writer::{BodyOwner, Writer, Written};
use super::board::Neighbour;
use super::{Endpoint, Event, Lane, LaneError, Notice, RecvRequest, SendRequest};
use crate::types::{Generation, Tag, TransportKind};
use crate::wire::frame::{Frame, Header};

pub use self::config::StreamConfig;
pub use self::core::StreamStatistics;

/// What has been said on a lane by the peer.
struct LaneMarks {
    /// Its number.
    index: usize,
    /// How many lanes there are.
    count: usize,
    /// The first frame has come.
    hello: bool,
    /// The last message has come.
    goodbye: bool,
}

/// One lane, and what it is in the middle of.
struct LaneState {
    lane: Box<dyn Lane>,
    reader: Reader,
    writer: Writer,
    /// Payloads that are written and that the lane still reads, with their last loans, in their order.
    lent: VecDeque<(BodyOwner, u64)>,
    marks: LaneMarks,
    goodbye_said: bool,
    /// Why nothing more can be read.
    read_end: Option<LaneError>,
    /// Why nothing more can be written.
    write_end: Option<LaneError>,
}

impl LaneState {
    /// Whether the lane has done with the first of the payloads that it reads.
    fn has_returned(&mut self) -> bool {
        self.lent.front().is_some_and(|&(_, loan)| self.lane.returned() >= loan)
    }
}

/// An endpoint over lanes to one peer. See this module's story.
pub struct StreamEndpoint {
    kind: TransportKind,
    link: Arc<str>,
    lanes: Vec<LaneState>,
    core: Core,
    /// Whether a lane goes on reading what it has taken.
    lends: bool,
    /// The peer's goodbye was told.
    goodbye_told: bool,
    /// Nothing will happen any more.
    over: bool,
}

impl StreamEndpoint {
    /// An endpoint over `lanes`, in the order in which the peer has them too. Settings that cannot work are moved to
    /// the nearest that can. Without a lane the link has failed from the start.
    pub fn new(lanes: Vec<Box<dyn Lane>>, generation: Generation, config: StreamConfig) -> Self {
        let config = config.sound();
        let count = lanes.len();
        let (kind, link) = match lanes.first() {
            Some(lane) => (lane.kind(), lane.link()),
            None => (TransportKind::Inproc, "no lane".into()),
        };
        let begin = |(index, lane): (usize, Box<dyn Lane>)| {
            let mut writer = Writer::new(lane.lends());
            let frame = Frame::Hello(config.hello(index, count));
            writer.stage(&Header { generation, credit: 0, length: 0, frame }, &[]);
            LaneState {
                lane,
                reader: Reader::new(),
                writer,
                lent: VecDeque::new(),
                marks: LaneMarks { index, count, hello: false, goodbye: false },
                goodbye_said: false,
                read_end: None,
                write_end: None,
            }
        };
        let mut core = Core::new(generation, config);
        if count == 0 {
            core.violation = Some("there is no lane".to_owned());
        }
        let lends = lanes.iter().any(|lane| lane.lends());
        let lanes = lanes.into_iter().enumerate().map(begin).collect();
        Self { kind, link, lanes, core, lends, goodbye_told: false, over: false }
    }

    /// What was counted so far.
    pub fn statistics(&self) -> StreamStatistics {
        StreamStatistics {
            early_bytes: self.core.early_held,
            announcements: self.core.announcements,
            offers: self.core.offers.len(),
            requests: self.core.sends.len() + self.core.recvs.len(),
            ..self.core.statistics
        }
    }

    /// Writes what there is on every lane, until it is full or has had its turn. Returns whether anything moved.
    fn write_lanes(&mut self) -> bool {
        let mut moved = false;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let mut written = 0;
            while lane.write_end.is_none() && written < self.core.config.turn_bytes {
                if lane.writer.is_empty() {
                    self.core.build(index, &mut lane.writer, &mut lane.goodbye_said);
                    if lane.writer.is_empty() {
                        break;
                    }
                    // Short messages are copied, and so complete, whether or not the lane takes them now.
                    moved = true;
                }
                match lane.writer.write(lane.lane.as_mut()) {
                    Ok((0, _)) => break,
                    Ok((count, body)) => {
                        written += count;
                        match body {
                            Some(Written { owner, loan: Some(loan) }) => lane.lent.push_back((owner, loan)),
                            Some(Written { owner, loan: None }) => self.core.finish_body(owner),
                            None => {}
                        }
                    }
                    Err(error) => lane.write_end = Some(error),
                }
            }
            moved |= written > 0;
        }
        moved
    }

    /// Finishes payloads that their lanes read no more. Returns whether there were any.
    fn settle_lent(&mut self) -> bool {
        let mut moved = false;
        for lane in &mut self.lanes {
            while lane.has_returned()
                && let Some((owner, _)) = lane.lent.pop_front()
            {
                self.core.finish_body(owner);
                moved = true;
            }
        }
        moved
    }

    /// Reads what has arrived on every lane, up to its turn. Returns whether anything had.
    fn read_lanes(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for lane in &mut self.lanes {
            if lane.read_end.is_some() {
                continue;
            }
            match lane.reader.read(lane.lane.as_mut(), &mut self.core, &mut lane.marks) {
                Ok(any) => moved |= any,
                Err(Stop::Lane(error)) => {
                    lane.read_end = Some(error);
                    // Whatever came before the end is worth another look at the other lanes.
                    moved = true;
                }
                Err(Stop::Violation(what)) => return Err(format!("protocol violation: {what}")),
            }
        }
        Ok(moved)
    }

    /// Whether the peer has said goodbye.
    fn peer_left(&self) -> bool {
        !self.lanes.is_empty() && self.lanes.iter().all(|lane| lane.marks.goodbye)
    }

    /// Why the link is broken, if it is.
    fn breakage(&self) -> Option<String> {
        if self.peer_left() {
            return None;
        }
        self.lanes.iter().find_map(|lane| {
            let (error, what) = match (&lane.read_end, &lane.write_end) {
                _ if lane.marks.goodbye => return None,
                (Some(error), _) => (error, "reading"),
                (None, Some(error)) => (error, "writing"),
                (None, None) => return None,
            };
            let place = match lane.marks.count {
                1 => String::new(),
                count => format!(" (lane {} of {count})", lane.marks.index),
            };
            Some(match error {
                LaneError::Closed if !lane.reader.is_between_frames() => {
                    format!("the peer closed in the middle of a message{place}")
                }
                LaneError::Closed => format!("the peer closed without goodbye{place}"),
                LaneError::Broken(how) => format!("{what} failed{place}: {how}"),
            })
        })
    }

    /// Nothing posted is touched from here on.
    fn end(&mut self) {
        self.over = true;
        self.core.clear();
        for lane in &mut self.lanes {
            lane.lane.take_back();
            lane.lent.clear();
            lane.writer.clear();
            lane.reader.payload = None;
        }
    }

    fn fail(&mut self, detail: &str) {
        self.end();
        self.core.events.push(Event::Failed(format!("{}: {detail}", self.link).into()));
    }

    fn advance(&mut self) -> bool {
        if let Some(violation) = self.core.violation.take() {
            self.fail(&format!("protocol violation: {violation}"));
            return true;
        }
        let mut moved = self.lends && self.settle_lent();
        moved |= self.write_lanes();
        match self.read_lanes() {
            Ok(false) => {
                // With nothing left to read, what is broken is final.
                if let Some(detail) = self.breakage() {
                    self.fail(&detail);
                    return true;
                }
            }
            Ok(true) => {
                moved = true;
                // Answers leave in the same turn.
                self.write_lanes();
            }
            Err(detail) => {
                self.fail(&detail);
                return true;
            }
        }
        if self.peer_left() && !self.goodbye_told {
            self.goodbye_told = true;
            self.core.events.push(Event::Goodbye);
            moved = true;
        }
        moved
    }
}

impl Endpoint for StreamEndpoint {
    fn kind(&self) -> TransportKind {
        self.kind
    }

    fn link(&self) -> Arc<str> {
        self.link.clone()
    }

    unsafe fn post_send(&mut self, request: SendRequest) {
        if !self.over && !self.core.goodbye_begun {
            self.core.post_send(&request);
        }
    }

    unsafe fn post_recv(&mut self, request: RecvRequest) {
        if !self.over {
            self.core.post_recv(request);
        }
    }

    fn notify(&mut self, notice: Notice) {
        debug_assert!(notice.0.len() <= Notice::MAX_BYTES);
        if !self.over && !self.core.goodbye_begun && notice.0.len() <= Notice::MAX_BYTES {
            self.core.notices.push_back(notice);
        }
    }

    fn cancel(&mut self, tag: Tag) {
        if self.over {
            return;
        }
        for lane in &mut self.lanes {
            let sends = &self.core.sends;
            let is_of_tag = |send: u32| sends.get(send).is_some_and(|send| send.tag == tag);
            let is_being_written = lane.writer.owner().is_some_and(is_of_tag);
            if is_being_written || lane.lent.iter().any(|(owner, _)| is_of_tag(owner.send)) {
                lane.lane.take_back();
            }
            lane.lent.retain(|(owner, _)| !is_of_tag(owner.send));
            if is_being_written {
                lane.writer.disown();
            }
            if let Some(payload) = &mut lane.reader.payload {
                let given_up = match &payload.sink {
                    Sink::Recv { at, .. } => self.core.recvs.get(*at).is_some_and(|recv| recv.tag == tag),
                    Sink::Early { tag: other, .. } => *other == tag,
                    Sink::Drop | Sink::Notice(_) => false,
                };
                if given_up {
                    payload.sink = Sink::Drop;
                }
            }
        }
        self.core.cancel(tag);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        if self.over {
            return false;
        }
        std::mem::swap(&mut self.core.events, events);
        self.core.in_progress = true;
        let told = self.core.events.len();
        self.core.events.extend(self.core.pending.drain(..).map(|(_, event)| event));
        let mut moved = self.core.events.len() > told;
        moved |= self.advance();
        self.core.in_progress = false;
        std::mem::swap(&mut self.core.events, events);
        moved
    }

    fn push(&mut self) {
        if !self.over && self.core.violation.is_none() {
            self.write_lanes();
        }
    }

    fn is_idle(&self) -> bool {
        let core = &self.core;
        core.sends.is_empty()
            && core.recvs.is_empty()
            && core.pending.is_empty()
            && core.violation.is_none()
            && self.is_drained()
            && self.is_flushed()
            && self.lanes.iter().all(|lane| !lane.reader.has_more)
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.over {
            return true;
        }
        if !self.core.pending.is_empty() || self.core.violation.is_some() || self.breakage().is_some() {
            return false;
        }
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if lane.read_end.is_some() {
                continue;
            }
            if lane.reader.has_more || (self.lends && lane.has_returned()) {
                return false;
            }
            let wants_write =
                lane.write_end.is_none() && (!lane.writer.is_empty() || self.core.has_output(index, lane.goodbye_said));
            if !lane.lane.prepare_sleep(wants_write) {
                return false;
            }
        }
        true
    }

    fn say_goodbye(&mut self) {
        self.core.goodbye = true;
    }

    fn neighbour(&self) -> Option<&Neighbour> {
        self.lanes.first().and_then(|lane| lane.lane.neighbour())
    }

    fn is_flushed(&self) -> bool {
        self.over || self.lanes.iter().all(|lane| lane.lane.is_flushed())
    }

    fn is_drained(&self) -> bool {
        let core = &self.core;
        // A peer that closed, or is gone, takes nothing more either.
        let has_ended = |lane: &LaneState| lane.write_end.is_some() || lane.read_end.is_some();
        self.over
            || self.lanes.iter().all(has_ended)
            || (core.sends.is_empty()
                && core.notices.is_empty()
                && core.control.is_empty()
                && self
                    .lanes
                    .iter()
                    .all(|lane| has_ended(lane) || (lane.writer.is_empty() && lane.goodbye_said == core.goodbye)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
