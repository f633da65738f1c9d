//! Frames: what follows the handshake on every lane.
//!
//! A frame is a header of [`HEADER_BYTES`] bytes and, for three kinds, a payload. All numbers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `PX` |
//! | 2 | [`VERSION`] |
//! | 3 | kind |
//! | 4..8 | length of the payload |
//! | 8..12 | credit given back |
//! | 12..16 | flags |
//! | 16..24 | generation |
//! | 24..40 | tag: communicator, sequence |
//! | 40..64 | signature |
//! | 64..72 | total bytes of the message |
//! | 72..80 | target |
//!
//! A kind that has no use for a field leaves it zero, and a field that is not zero where it must be is an error: every
//! valid header has exactly one meaning, and every meaning one header. Limits that depend on the endpoint's settings
//! (how long an eager payload may be) are the endpoint's to check.

use std::fmt;

use crate::types::{CommunicatorId, Generation, Signature, Tag};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 80;

/// The version of this layout.
pub const VERSION: u8 = 1;

/// The most bytes that a notice's payload may have.
pub const NOTICE_BYTES: usize = 4096;

const MAGIC: [u8; 2] = *b"PX";

/// Set in a [`Frame::Ready`] that answers an announcement.
const ANSWER: u32 = 1;

/// A signature as it travels. Two are compared byte for byte, which is all that the common case needs; only one that
/// differs from what was expected is decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawSignature([u8; Signature::BYTES]);

impl RawSignature {
    /// The signature it stands for.
    ///
    /// # Errors
    ///
    /// [`FrameError::Signature`] when a field holds a value that does not exist.
    pub fn decode(&self) -> Result<Signature, FrameError> {
        Signature::decode(&self.0).ok_or(FrameError::Signature { found: self.0 })
    }
}

impl From<&Signature> for RawSignature {
    fn from(signature: &Signature) -> Self {
        Self(signature.encode())
    }
}

impl fmt::Debug for RawSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decode() {
            Ok(signature) => write!(f, "{signature}"),
            Err(_) => write!(f, "{:02x?}", self.0),
        }
    }
}

/// The settings of an endpoint on which both ends must agree. The first frame on each lane says them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The number of this lane among those of the link.
    pub lane: u32,
    /// How many lanes the link has.
    pub lanes: u32,
    /// The longest message that travels without having been asked for.
    pub eager_limit: u64,
    /// How much of what was not asked for may be under way or waiting.
    pub early_budget: u64,
    /// Bytes of every segment of a long message but the last.
    pub segment_bytes: u64,
    /// How many announcements may be unanswered.
    pub announce_limit: u64,
    /// How many receives may be offered before their message is announced.
    pub ready_limit: u64,
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first frame on each lane.
    Hello(Hello),
    /// A whole message; the payload.
    Eager {
        /// Pairs it with its receive.
        tag: Tag,
        /// The call it belongs to.
        signature: RawSignature,
    },
    /// A message that waits at the sender for [`Frame::Ready`].
    Announce {
        /// Pairs it with its receive.
        tag: Tag,
        /// The call it belongs to.
        signature: RawSignature,
        /// Its bytes.
        total: u64,
    },
    /// A receive waits for its message.
    Ready {
        /// Pairs it with its message.
        tag: Tag,
        /// The call it belongs to.
        signature: RawSignature,
        /// The bytes it expects.
        total: u64,
        /// What the segments for it must name.
        target: u64,
        /// Whether the message was announced before; otherwise the receive was posted first.
        answer: bool,
    },
    /// A piece of a message; the payload.
    Segment {
        /// The receive it belongs to, as its [`Frame::Ready`] said.
        target: u64,
        /// Where in the message it begins.
        offset: u64,
    },
    /// The sender of this frame gave up the tag: what it announced and what it offered under it are void.
    Withdraw {
        /// The tag.
        tag: Tag,
    },
    /// Something the peer sent belongs to another call than the sender's of the same tag.
    Differs {
        /// The tag.
        tag: Tag,
        /// The sender's call.
        signature: RawSignature,
    },
    /// Nothing but the credit that any header may carry.
    Credit,
    /// A word between executors; the payload.
    Notice,
    /// The last message or notice was before this frame.
    Goodbye,
}

impl Frame {
    const fn code(&self) -> u8 {
        match self {
            Frame::Hello(_) => 1,
            Frame::Eager { .. } => 2,
            Frame::Announce { .. } => 3,
            Frame::Ready { .. } => 4,
            Frame::Segment { .. } => 5,
            Frame::Withdraw { .. } => 6,
            Frame::Differs { .. } => 7,
            Frame::Credit => 8,
            Frame::Notice => 9,
            Frame::Goodbye => 10,
        }
    }

    /// The kind in a word, for messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Frame::Hello(_) => "hello",
            Frame::Eager { .. } => "eager",
            Frame::Announce { .. } => "announce",
            Frame::Ready { .. } => "ready",
            Frame::Segment { .. } => "segment",
            Frame::Withdraw { .. } => "withdraw",
            Frame::Differs { .. } => "differs",
            Frame::Credit => "credit",
            Frame::Notice => "notice",
            Frame::Goodbye => "goodbye",
        }
    }

    /// The longest payload that this kind can have.
    const fn longest_payload(&self) -> u32 {
        match self {
            Frame::Eager { .. } | Frame::Segment { .. } => u32::MAX,
            Frame::Notice => NOTICE_BYTES as u32,
            _ => 0,
        }
    }
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The generation it belongs to.
    pub generation: Generation,
    /// How much of the receiver's early budget is given back.
    pub credit: u32,
    /// Bytes of payload that follow.
    pub length: u32,
    /// What it says.
    pub frame: Frame,
}

/// Why bytes are not a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It does not begin as a frame does.
    Magic {
        /// The first two bytes.
        found: [u8; 2],
    },
    /// A layout that is not known here.
    Version {
        /// The version byte.
        found: u8,
    },
    /// No such kind.
    Kind {
        /// The kind byte.
        found: u8,
    },
    /// A payload longer than the kind can have.
    Length {
        /// The kind.
        kind: &'static str,
        /// The length field.
        found: u32,
        /// The most it can be.
        most: u32,
    },
    /// A field that this kind does not use is not zero.
    Unused {
        /// The kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A signature with a value that does not exist.
    Signature {
        /// Its bytes.
        found: [u8; Signature::BYTES],
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found } => {
                write!(f, "a frame begins with {found:02x?}, expected {MAGIC:02x?}")
            }
            Self::Version { found } => write!(f, "frame version {found}, expected {VERSION}"),
            Self::Kind { found } => write!(f, "frame kind {found}, expected 1 to 10"),
            Self::Length { kind, found, most } => {
                write!(f, "a {kind} frame with {found} bytes of payload, expected at most {most}")
            }
            Self::Unused { kind, field } => {
                write!(f, "a {kind} frame with a {field}, expected none")
            }
            Self::Signature { found } => write!(f, "a signature that no call has: {found:02x?}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// A header's fields before the kind gives them a meaning.
#[derive(Default)]
struct Fields {
    flags: u32,
    tag: [u64; 2],
    signature: [u8; Signature::BYTES],
    total: u64,
    target: u64,
}

impl Header {
    /// The bytes of this header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut fields = Fields::default();
        let put_tag = |fields: &mut Fields, tag: &Tag| fields.tag = [tag.communicator.0, tag.sequence];
        match &self.frame {
            Frame::Hello(hello) => {
                fields.tag = [hello.eager_limit, hello.early_budget];
                fields.signature[..8].copy_from_slice(&hello.segment_bytes.to_le_bytes());
                fields.signature[8..16].copy_from_slice(&hello.announce_limit.to_le_bytes());
                fields.signature[16..].copy_from_slice(&hello.ready_limit.to_le_bytes());
                fields.total = u64::from(hello.lanes) << 32 | u64::from(hello.lane);
            }
            Frame::Eager { tag, signature } | Frame::Differs { tag, signature } => {
                put_tag(&mut fields, tag);
                fields.signature = signature.0;
            }
            Frame::Announce { tag, signature, total } => {
                put_tag(&mut fields, tag);
                fields.signature = signature.0;
                fields.total = *total;
            }
            Frame::Ready { tag, signature, total, target, answer } => {
                put_tag(&mut fields, tag);
                fields.signature = signature.0;
                fields.total = *total;
                fields.target = *target;
                fields.flags = if *answer { ANSWER } else { 0 };
            }
            Frame::Segment { target, offset } => {
                fields.target = *target;
                fields.total = *offset;
            }
            Frame::Withdraw { tag } => put_tag(&mut fields, tag),
            Frame::Credit | Frame::Notice | Frame::Goodbye => {}
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC);
        bytes[2] = VERSION;
        bytes[3] = self.frame.code();
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.credit.to_le_bytes());
        bytes[12..16].copy_from_slice(&fields.flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&fields.tag[0].to_le_bytes());
        bytes[32..40].copy_from_slice(&fields.tag[1].to_le_bytes());
        bytes[40..64].copy_from_slice(&fields.signature);
        bytes[64..72].copy_from_slice(&fields.total.to_le_bytes());
        bytes[72..80].copy_from_slice(&fields.target.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// What the bytes hold that no header does. Signatures are not looked into: see [`RawSignature::decode`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        if bytes[0..2] != MAGIC {
            return Err(FrameError::Magic { found: [bytes[0], bytes[1]] });
        }
        if bytes[2] != VERSION {
            return Err(FrameError::Version { found: bytes[2] });
        }
        let fields = Fields {
            flags: half_word(bytes, 12),
            tag: [word(bytes, 24), word(bytes, 32)],
            signature: std::array::from_fn(|i| bytes[40 + i]),
            total: word(bytes, 64),
            target: word(bytes, 72),
        };
        let tag = Tag { communicator: CommunicatorId(fields.tag[0]), sequence: fields.tag[1] };
        let signature = RawSignature(fields.signature);
        let frame = match bytes[3] {
            1 => Frame::Hello(Hello {
                lane: half_word(bytes, 64),
                lanes: half_word(bytes, 68),
                eager_limit: fields.tag[0],
                early_budget: fields.tag[1],
                segment_bytes: word(bytes, 40),
                announce_limit: word(bytes, 48),
                ready_limit: word(bytes, 56),
            }),
            2 => Frame::Eager { tag, signature },
            3 => Frame::Announce { tag, signature, total: fields.total },
            4 => Frame::Ready {
                tag,
                signature,
                total: fields.total,
                target: fields.target,
                answer: fields.flags & ANSWER != 0,
            },
            5 => Frame::Segment { target: fields.target, offset: fields.total },
            6 => Frame::Withdraw { tag },
            7 => Frame::Differs { tag, signature },
            8 => Frame::Credit,
            9 => Frame::Notice,
            10 => Frame::Goodbye,
            found => return Err(FrameError::Kind { found }),
        };
        fields.check_unused(&frame)?;
        let length = half_word(bytes, 4);
        let most = frame.longest_payload();
        if length > most {
            return Err(FrameError::Length { kind: frame.name(), found: length, most });
        }
        Ok(Self { generation: Generation(word(bytes, 16)), credit: half_word(bytes, 8), length, frame })
    }
}

impl Fields {
    /// That what the kind has no use for is zero.
    fn check_unused(&self, frame: &Frame) -> Result<(), FrameError> {
        // For each kind: the flags it may set, and whether it uses tag, signature, total and target.
        let (flags, tag, signature, total, target) = match frame {
            Frame::Hello(_) => (0, true, true, true, false),
            Frame::Eager { .. } | Frame::Differs { .. } => (0, true, true, false, false),
            Frame::Announce { .. } => (0, true, true, true, false),
            Frame::Ready { .. } => (ANSWER, true, true, true, true),
            Frame::Segment { .. } => (0, false, false, true, true),
            Frame::Withdraw { .. } => (0, true, false, false, false),
            Frame::Credit | Frame::Notice | Frame::Goodbye => (0, false, false, false, false),
        };
        let wrong = if self.flags & !flags != 0 {
            "flag"
        } else if !tag && self.tag != [0; 2] {
            "tag"
        } else if !signature && self.signature != [0; Signature::BYTES] {
            "signature"
        } else if !total && self.total != 0 {
            "total"
        } else if !target && self.target != 0 {
            "target"
        } else {
            return Ok(());
        };
        Err(FrameError::Unused { kind: frame.name(), field: wrong })
    }
}

fn word(bytes: &[u8; HEADER_BYTES], from: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[from + i]))
}

fn half_word(bytes: &[u8; HEADER_BYTES], from: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[from + i]))
}

#[cfg(test)]
mod tests;
