//! What is written next.
//!
//! Lane 0 carries, in this order: answers to the peer's frames, notices, messages in the order in which they were
//! posted (each whole, or announced), and one segment of a long message, so that a flood of short messages cannot hold
//! a long one up. The other lanes carry segments. Long messages take turns by segments.

use super::core::Core;
use super::writer::{BodyOwner, Writer};
use crate::wire::frame::{Frame, Header};

/// How many bytes of headers and copied payloads are gathered for one write.
const BATCH_BYTES: usize = 4096;

impl Core {
    fn header(&mut self, lane: usize, frame: Frame, length: usize) -> Header {
        let credit = if lane == 0 { std::mem::take(&mut self.credit_due) } else { 0 };
        Header { generation: self.generation, credit: credit as u32, length: length as u32, frame }
    }

    /// Chooses what a lane writes next; nothing if there is nothing.
    pub fn build(&mut self, lane: usize, writer: &mut Writer, goodbye_said: &mut bool) {
        if lane == 0 {
            self.build_control(writer);
            self.build_notices(writer);
            if !self.segment_turn || self.streaming.is_empty() {
                self.build_messages(writer);
            }
        }
        if !writer.has_body() {
            self.build_segment(lane, writer);
        }
        if self.goodbye_is_due(*goodbye_said) {
            *goodbye_said = true;
            self.goodbye_begun = true;
            let header = self.header(lane, Frame::Goodbye, 0);
            writer.stage(&header, &[]);
        }
        if lane == 0 && writer.is_empty() && self.credit_is_due() {
            let header = self.header(lane, Frame::Credit, 0);
            writer.stage(&header, &[]);
        }
    }

    /// Whether `build` would find something.
    pub fn has_output(&self, lane: usize, goodbye_said: bool) -> bool {
        let on_lane_0 =
            || !self.control.is_empty() || !self.notices.is_empty() || self.next_is_sendable() || self.credit_is_due();
        !self.streaming.is_empty() || self.goodbye_is_due(goodbye_said) || (lane == 0 && on_lane_0())
    }

    fn goodbye_is_due(&self, said: bool) -> bool {
        self.goodbye && !said && self.sends.is_empty() && self.notices.is_empty()
    }

    /// Whether so much credit has come together that it deserves a frame of its own.
    fn credit_is_due(&self) -> bool {
        self.credit_due >= self.config.early_budget / 4
    }

    fn build_control(&mut self, writer: &mut Writer) {
        while writer.staged_bytes() < BATCH_BYTES
            && let Some(frame) = self.control.pop_front()
        {
            let header = self.header(0, frame, 0);
            writer.stage(&header, &[]);
        }
    }

    fn build_notices(&mut self, writer: &mut Writer) {
        while writer.staged_bytes() < BATCH_BYTES
            && let Some(notice) = self.notices.pop_front()
        {
            let header = self.header(0, Frame::Notice, notice.0.len());
            writer.stage(&header, &notice.0);
        }
    }

    /// Whether the message posted first among those that wait can leave, whole or as an announcement.
    fn next_is_sendable(&self) -> bool {
        let Some(send) = self.outbox.front().and_then(|&at| self.sends.get(at)) else { return false };
        self.announced < self.config.announce_limit || send.target.is_some() || (!send.long && self.fits(send.bytes))
    }

    /// Whether there is credit for a message.
    fn fits(&self, bytes: usize) -> bool {
        self.early_used + Core::early_cost(bytes) <= self.config.early_budget
    }

    fn build_messages(&mut self, writer: &mut Writer) {
        while writer.staged_bytes() < BATCH_BYTES
            && self.next_is_sendable()
            && let Some(at) = self.outbox.pop_front()
        {
            let Some(send) = self.sends.get(at) else { continue };
            let (tag, signature, bytes, source) = (send.tag, send.signature, send.bytes, send.source);
            if send.long || !self.fits(bytes) {
                self.announce(at, writer);
                continue;
            }
            self.early_used += Core::early_cost(bytes);
            self.statistics.eager += 1;
            let header = self.header(0, Frame::Eager { tag, signature }, bytes);
            if bytes > self.config.copy_limit {
                writer.stage_body(&header, source, bytes, BodyOwner { send: at, segment: false });
                self.segment_turn = true;
                return;
            }
            let payload: &[u8] = if bytes == 0 {
                &[]
            } else {
                // SAFETY: the send is in progress, so that its memory is readable and nobody writes to it.
                unsafe { std::slice::from_raw_parts(source.0, bytes) }
            };
            writer.stage(&header, payload);
            self.complete_send(at);
        }
    }

    fn announce(&mut self, at: u32, writer: &mut Writer) {
        let Some(send) = self.sends.get_mut(at) else { return };
        send.announced = true;
        let (place, long, met) = (send.place, send.long, send.target.is_some());
        let frame = Frame::Announce { tag: send.tag, signature: send.signature, total: send.bytes as u64 };
        self.statistics.announced += 1;
        if met {
            self.streaming.push_back(at);
        } else {
            self.announced += 1;
            if !long {
                self.tags.at(place).short_sends.push(&mut self.sends, at);
            }
        }
        let header = self.header(0, frame, 0);
        writer.stage(&header, &[]);
    }

    fn build_segment(&mut self, lane: usize, writer: &mut Writer) {
        while let Some(at) = self.streaming.pop_front() {
            let segment_bytes = self.config.segment_bytes;
            let Some(send) = self.sends.get_mut(at) else { continue };
            let Some(target) = send.target else { continue };
            let offset = send.cut * segment_bytes;
            let length = segment_bytes.min(send.bytes.saturating_sub(offset));
            send.cut += 1;
            // The source of an empty message may be null: no offset is added to it.
            let source =
                if length == 0 { send.source } else { super::requests::Source(send.source.0.wrapping_add(offset)) };
            if send.cut * segment_bytes < send.bytes {
                self.streaming.push_back(at);
            }
            self.segment_turn = false;
            let header = self.header(lane, Frame::Segment { target, offset: offset as u64 }, length);
            writer.stage_body(&header, source, length, BodyOwner { send: at, segment: true });
            return;
        }
    }

    /// A payload is written.
    pub fn finish_body(&mut self, owner: BodyOwner) {
        if owner.segment {
            let Some(send) = self.sends.get_mut(owner.send) else { return };
            send.left -= 1;
            if send.left > 0 {
                return;
            }
        }
        self.complete_send(owner.send);
    }
}
