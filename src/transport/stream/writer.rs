//! What a lane is in the middle of writing.

use super::requests::Source;
use super::slab::NONE;
use crate::transport::{Lane, LaneError};
use crate::wire::frame::{HEADER_BYTES, Header};

/// Headers and short payloads that leave in one write, and behind them at most one payload from the user's memory.
#[derive(Default)]
pub(super) struct Writer {
    staged: Vec<u8>,
    staged_done: usize,
    body: Option<Body>,
    /// Whether the lane may go on reading payloads from the user's memory.
    lends: bool,
}

struct Body {
    bytes: BodyBytes,
    done: usize,
    length: usize,
    owner: BodyOwner,
    /// The lane's last loan of it.
    loan: Option<u64>,
}

enum BodyBytes {
    Lent(Source),
    Owned(Box<[u8]>),
}

/// Whose payload it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyOwner {
    /// The send.
    pub send: u32,
    /// Whether it is a segment, not the whole message.
    pub segment: bool,
}

/// A payload that is written.
pub(super) struct Written {
    pub owner: BodyOwner,
    /// The loan with which the lane has done with it, if it goes on reading.
    pub loan: Option<u64>,
}

impl Writer {
    pub fn new(lends: bool) -> Self {
        Self { lends, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.body.is_none()
    }

    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Bytes staged and not yet written.
    pub fn staged_bytes(&self) -> usize {
        self.staged.len()
    }

    /// Adds a header, and a payload to be copied.
    pub fn stage(&mut self, header: &Header, payload: &[u8]) {
        self.staged.reserve(HEADER_BYTES + payload.len());
        self.staged.extend_from_slice(&header.encode());
        self.staged.extend_from_slice(payload);
    }

    /// Adds a header and a payload that is written from where it lies. Nothing can be added behind it.
    pub fn stage_body(&mut self, header: &Header, bytes: Source, length: usize, owner: BodyOwner) {
        debug_assert!(self.body.is_none());
        self.stage(header, &[]);
        self.body = Some(Body { bytes: BodyBytes::Lent(bytes), done: 0, length, owner, loan: None });
    }

    /// Writes what fits. Returns how many bytes that was, and the payload once everything is written.
    pub fn write(&mut self, lane: &mut dyn Lane) -> Result<(usize, Option<Written>), LaneError> {
        let head = self.staged.get(self.staged_done..).unwrap_or(&[]);
        let body: &[u8] = match &self.body {
            None => &[],
            Some(body) => match &body.bytes {
                BodyBytes::Owned(bytes) => bytes.get(body.done..).unwrap_or(&[]),
                BodyBytes::Lent(_) if body.done == body.length => &[],
                // SAFETY: the bytes belong to a send in progress, whose memory stays readable until it is complete or
                // cancelled: completing needs this payload to be written, and cancelling puts a copy in its place.
                BodyBytes::Lent(source) => unsafe {
                    std::slice::from_raw_parts(source.0.add(body.done), body.length - body.done)
                },
            },
        };
        let offered = head.len() + body.len();
        let is_lent = self.lends && matches!(&self.body, Some(Body { bytes: BodyBytes::Lent(_), .. }));
        let mut loan = None;
        let written = if is_lent && !body.is_empty() {
            // SAFETY: as above; and the send is complete, or its memory given back by `cancel` or at the end, only when the
            // lane has returned the loan, or it was taken back (`StreamEndpoint`).
            let (written, lent) = unsafe { lane.write_lent(head, body)? };
            loan = lent;
            written
        } else {
            lane.write(head, body)?
        };
        let written = written.min(offered);
        let from_head = written.min(head.len());
        self.staged_done += from_head;
        if let Some(body) = &mut self.body {
            body.done += written - from_head;
            if loan.is_some() {
                body.loan = loan;
            }
        }
        if written < offered {
            return Ok((written, None));
        }
        self.staged.clear();
        self.staged_done = 0;
        let body = self.body.take().filter(|body| body.owner.send != NONE);
        Ok((written, body.map(|Body { owner, loan, .. }| Written { owner, loan })))
    }

    /// The send whose payload is being written.
    pub fn owner(&self) -> Option<u32> {
        self.body.as_ref().map(|body| body.owner.send).filter(|&send| send != NONE)
    }

    /// Goes on from a copy of what is left of the payload, which belongs to nobody then.
    pub fn disown(&mut self) {
        let Some(body) = &mut self.body else { return };
        if let BodyBytes::Lent(source) = body.bytes {
            let rest: &[u8] = if body.done == body.length {
                &[]
            } else {
                // SAFETY: as in `write`: the send is not complete, and its cancelling has not returned yet.
                unsafe { std::slice::from_raw_parts(source.0.add(body.done), body.length - body.done) }
            };
            body.bytes = BodyBytes::Owned(rest.into());
            body.length -= body.done;
            body.done = 0;
        }
        body.owner.send = NONE;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
