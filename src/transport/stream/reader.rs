//! What a lane is in the middle of reading.

use super::core::{Core, Violation};
use super::requests::EarlyBytes;
use crate::transport::{Lane, LaneError, MIN_WINDOW, Receive};
use crate::types::Tag;
use crate::wire::frame::{HEADER_BYTES, Header, RawSignature};

/// Why reading ended.
pub(super) enum Stop {
    /// The lane can carry no more.
    Lane(LaneError),
    /// The peer does what no sound peer does.
    Violation(Violation),
}

impl From<LaneError> for Stop {
    fn from(error: LaneError) -> Self {
        Stop::Lane(error)
    }
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Stop::Violation(violation)
    }
}

/// Where a payload goes.
pub(super) enum Sink {
    /// Nowhere.
    Drop,
    /// To a receive, its next whole element to this offset.
    Recv {
        /// The receive.
        at: u32,
        /// Bytes from the start of its target.
        offset: usize,
    },
    /// Into memory of ours, until a receive is posted.
    Early {
        /// The message's tag.
        tag: Tag,
        /// Its call.
        signature: RawSignature,
        /// What has come of it.
        bytes: EarlyBytes,
    },
    /// A word from the peer's executor.
    Notice(Vec<u8>),
}

/// The payload of a frame whose header has been read.
pub(super) struct Payload {
    pub sink: Sink,
    /// How many bytes have not come.
    pub left: usize,
    /// What the sender was charged for it.
    pub cost: usize,
    /// The beginning of an element whose end has not come.
    pub carry: [u8; 8],
    pub carried: usize,
}

impl Payload {
    pub fn new(sink: Sink, left: usize, cost: usize) -> Self {
        Self { sink, left, cost, carry: [0; 8], carried: 0 }
    }
}

/// Between two reads, a lane holds nothing back: what it has shown is consumed, to the last byte of half a header.
pub(super) struct Reader {
    header: [u8; HEADER_BYTES],
    have: usize,
    pub payload: Option<Payload>,
    /// The last turn ended before what had arrived did.
    pub has_more: bool,
}

impl Reader {
    pub fn new() -> Self {
        Self { header: [0; HEADER_BYTES], have: 0, payload: None, has_more: false }
    }

    /// Whether the last frame is complete.
    pub fn is_between_frames(&self) -> bool {
        self.have == 0 && self.payload.is_none()
    }

    /// Reads what has arrived, up to the configured turn. Returns whether anything had.
    pub fn read(&mut self, lane: &mut dyn Lane, core: &mut Core, link: &mut super::LaneMarks) -> Result<bool, Stop> {
        let (mut bytes, mut frames) = (0, 0);
        self.has_more = false;
        while bytes < core.config.turn_bytes && frames < core.config.turn_frames {
            if bytes > 0 && !lane.may_have_more() {
                return Ok(true);
            }
            if let Some(payload) = &mut self.payload {
                let count = core.pull(lane, payload)?;
                bytes += count;
                if payload.left == 0 {
                    if let Some(payload) = self.payload.take() {
                        core.finish(payload)?;
                    }
                    frames += 1;
                } else if count == 0 {
                    return Ok(bytes > 0);
                }
                continue;
            }
            let window = lane.fill(HEADER_BYTES)?;
            if window.is_empty() {
                return Ok(bytes > 0);
            }
            let wanted = HEADER_BYTES - self.have;
            let (Some(head), rest) = (window.get(..wanted), window.get(wanted..).unwrap_or(&[])) else {
                let count = window.len();
                self.header[self.have..self.have + count].copy_from_slice(window);
                self.have += count;
                lane.consume(count);
                bytes += count;
                continue;
            };
            let header = match head.try_into() {
                Ok(whole) => Header::decode(whole),
                Err(_) => {
                    self.header[self.have..].copy_from_slice(head);
                    Header::decode(&self.header)
                }
            };
            self.have = 0;
            let header = header.map_err(|error| error.to_string())?;
            let mut count = wanted;
            frames += 1;
            if let Some(mut payload) = core.open(&header, link)? {
                let here = rest.get(..payload.left).unwrap_or(rest);
                core.feed(&mut payload, here);
                count += here.len();
                lane.consume(count);
                if payload.left == 0 {
                    core.finish(payload)?;
                } else {
                    frames -= 1;
                    self.payload = Some(payload);
                }
            } else {
                lane.consume(count);
            }
            bytes += count;
        }
        self.has_more = true;
        Ok(true)
    }
}

impl Core {
    /// Moves arrived bytes of a payload to their place. Returns how many; 0 when none have arrived.
    fn pull(&mut self, lane: &mut dyn Lane, payload: &mut Payload) -> Result<usize, LaneError> {
        let straight = match &mut payload.sink {
            Sink::Recv { at, offset } => match self.recvs.get(*at) {
                Some(recv) if matches!(recv.mode, Receive::Store) => {
                    debug_assert!(*offset + payload.left <= recv.bytes);
                    Some(recv.target.0.wrapping_add(*offset))
                }
                _ => None,
            },
            Sink::Early { bytes, .. } => {
                bytes.reserve(payload.left);
                let length = bytes.len();
                Some(bytes.as_mut_ptr().wrapping_add(length))
            }
            Sink::Drop | Sink::Notice(_) => None,
        };
        let Some(target) = straight else {
            let window = lane.fill(payload.left.min(MIN_WINDOW))?;
            // A long window is taken in pieces that stay in the cache.
            let count = window.len().min(payload.left).min(self.config.segment_bytes);
            self.feed(payload, &window[..count]);
            lane.consume(count);
            return Ok(count);
        };
        let wanted = payload.left.min(self.config.turn_bytes);
        // SAFETY: `target` is either inside a receive's memory, which is ours, with `left` bytes after it, as was
        // checked when the frame was opened; or the spare room of a buffer of ours, reserved above.
        let count = unsafe { lane.read_into(target, wanted)? }.min(wanted);
        payload.left -= count;
        match &mut payload.sink {
            Sink::Recv { offset, .. } => *offset += count,
            Sink::Early { bytes, .. } => {
                let length = bytes.len() + count;
                // SAFETY: `count` more bytes have just been written into the reserved room.
                unsafe { bytes.set_len(length) };
            }
            Sink::Drop | Sink::Notice(_) => {}
        }
        Ok(count)
    }

    /// Moves bytes of a payload, at most as many as are left of it, to their place.
    pub fn feed(&mut self, payload: &mut Payload, bytes: &[u8]) {
        payload.left -= bytes.len();
        match &mut payload.sink {
            Sink::Drop => {}
            Sink::Notice(notice) => notice.extend_from_slice(bytes),
            Sink::Early { bytes: early, .. } => early.extend_from_slice(bytes),
            Sink::Recv { at, offset } => {
                let Some(recv) = self.recvs.get(*at) else { return };
                match &recv.mode {
                    Receive::Store => {
                        if !bytes.is_empty() {
                            // SAFETY: the target is ours, and this payload lies inside it, as was checked when the
                            // frame was opened; the source is a lane's window, not the user's memory.
                            unsafe {
                                let target = recv.target.0.add(*offset);
                                std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
                            }
                        }
                        *offset += bytes.len();
                    }
                    Receive::Reduce(how) => {
                        let combine = |offset: usize, bytes: &[u8], count: usize| {
                            // SAFETY: as above, for `count` whole elements at `offset`.
                            unsafe {
                                crate::reduce::combine(
                                    &how.reduction,
                                    how.dtype,
                                    recv.target.0.add(offset),
                                    bytes.as_ptr(),
                                    count,
                                    how.order,
                                    how.finish,
                                );
                            }
                        };
                        let size = how.dtype.size();
                        let mut bytes = bytes;
                        if payload.carried > 0 {
                            let (head, rest) = bytes.split_at(bytes.len().min(size - payload.carried));
                            payload.carry[payload.carried..payload.carried + head.len()].copy_from_slice(head);
                            payload.carried += head.len();
                            bytes = rest;
                            if payload.carried < size {
                                return;
                            }
                            combine(*offset, &payload.carry[..size], 1);
                            *offset += size;
                            payload.carried = 0;
                        }
                        let count = bytes.len() / size;
                        let (whole, rest) = bytes.split_at(count * size);
                        if count > 0 {
                            combine(*offset, whole, count);
                            *offset += whole.len();
                        }
                        payload.carry[..rest.len()].copy_from_slice(rest);
                        payload.carried = rest.len();
                    }
                }
            }
        }
    }
}
