//! The messages byte for byte, and the collector that puts them together from pieces. All numbers are little-endian.

use super::key::{JobDigest, Proof};
use super::refusal::{HandshakeError, Refusal};
use crate::types::Generation;

/// The version of this protocol: handshake and frames.
pub const VERSION: u16 = 1;

/// The most lanes that one peer may have.
pub const MAX_LANES: u8 = 16;

/// 32 fresh random bytes.
pub type Nonce = [u8; 32];

const MAGIC: [u8; 8] = *b"PHALANX\n";

/// Magic, version, kind, and a byte that is zero.
const PREAMBLE_BYTES: usize = 12;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// One of the TCP lanes between two ranks.
    Tcp {
        /// Its number.
        lane: u8,
        /// How many there are, 1 to [`MAX_LANES`].
        lanes: u8,
    },
    /// The socket over which shared memory is passed.
    Shm,
    /// The connection beside one of the RDMA lanes between two ranks.
    Rdma {
        /// Its number, which is that of its rail.
        lane: u8,
        /// How many there are, 1 to [`MAX_LANES`].
        lanes: u8,
    },
    /// Meeting the other members: the responder is the rendezvous server.
    Rendezvous,
    /// Talking to the registry of an elastic job.
    Registry,
}

/// What the initiator says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The job it belongs to.
    pub job: JobDigest,
    /// The generation it belongs to.
    pub generation: Generation,
    /// Its rank.
    pub from: u32,
    /// The rank it wants.
    pub to: u32,
    /// What the connection is for.
    pub purpose: Purpose,
    /// Random; the same for all lanes that belong together.
    pub attempt: u64,
    /// Fresh random.
    pub nonce: Nonce,
}

/// What the responder decided about an initiator that has proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    Refused(Refusal),
}

/// A whole message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: Body,
    /// As it came, preamble included.
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Hello(Hello),
    Challenge { nonce: Nonce, proof: Proof },
    Proof(Proof),
    Verdict(Verdict, Proof),
    Refusal(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Verdict = 4,
    Refusal = 5,
}

const REFUSAL_BYTES: usize = 1 + 8 + 8;

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        [Kind::Hello, Kind::Challenge, Kind::Proof, Kind::Verdict, Kind::Refusal]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }

    fn body_bytes(self) -> usize {
        match self {
            Kind::Hello => 32 + 8 + 4 + 4 + 4 + 8 + 32,
            Kind::Challenge => 32 + 32,
            Kind::Proof => 32,
            Kind::Verdict => REFUSAL_BYTES + 32,
            Kind::Refusal => REFUSAL_BYTES,
        }
    }
}

fn begin(kind: Kind) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + kind.body_bytes());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0]);
    bytes
}

pub(super) fn encode_hello(hello: &Hello) -> Vec<u8> {
    let mut bytes = begin(Kind::Hello);
    bytes.extend_from_slice(&hello.job.0);
    bytes.extend_from_slice(&hello.generation.0.to_le_bytes());
    bytes.extend_from_slice(&hello.from.to_le_bytes());
    bytes.extend_from_slice(&hello.to.to_le_bytes());
    bytes.extend_from_slice(&match hello.purpose {
        Purpose::Tcp { lane, lanes } => [0, lane, lanes, 0],
        Purpose::Shm => [1, 0, 1, 0],
        Purpose::Rendezvous => [2, 0, 1, 0],
        Purpose::Registry => [3, 0, 1, 0],
        Purpose::Rdma { lane, lanes } => [4, lane, lanes, 0],
    });
    bytes.extend_from_slice(&hello.attempt.to_le_bytes());
    bytes.extend_from_slice(&hello.nonce);
    bytes
}

pub(super) fn encode_challenge(nonce: &Nonce, proof: &Proof) -> Vec<u8> {
    let mut bytes = begin(Kind::Challenge);
    bytes.extend_from_slice(nonce);
    bytes.extend_from_slice(proof);
    bytes
}

pub(super) fn encode_proof(proof: &Proof) -> Vec<u8> {
    let mut bytes = begin(Kind::Proof);
    bytes.extend_from_slice(proof);
    bytes
}

fn refusal_body(code: u8, first: u64, second: u64) -> [u8; REFUSAL_BYTES] {
    let mut body = [0; REFUSAL_BYTES];
    body[0] = code;
    body[1..9].copy_from_slice(&first.to_le_bytes());
    body[9..].copy_from_slice(&second.to_le_bytes());
    body
}

pub(super) fn encode_refusal(refusal: Refusal) -> Vec<u8> {
    let (code, first, second) = refusal.to_wire();
    let mut bytes = begin(Kind::Refusal);
    bytes.extend_from_slice(&refusal_body(code, first, second));
    bytes
}

/// The part of a verdict that its proof covers.
pub(super) fn encode_verdict_body(verdict: Verdict) -> [u8; REFUSAL_BYTES] {
    match verdict {
        Verdict::Accepted => refusal_body(0, 0, 0),
        Verdict::Refused(refusal) => {
            let (code, first, second) = refusal.to_wire();
            refusal_body(code, first, second)
        }
    }
}

pub(super) fn encode_verdict(verdict: Verdict, proof: &Proof) -> Vec<u8> {
    let mut bytes = begin(Kind::Verdict);
    bytes.extend_from_slice(&encode_verdict_body(verdict));
    bytes.extend_from_slice(proof);
    bytes
}

/// Reads values off the front of a message whose length has been checked against its kind; what is not there reads as
/// zero, which cannot happen.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((chunk, rest)) => {
                self.0 = rest;
                *chunk
            }
            None => [0; N],
        }
    }
}

/// Each verdict has one encoding: what its proof covers is what was sent.
fn decode_verdict(cursor: &mut Cursor<'_>) -> Option<Verdict> {
    let body: [u8; REFUSAL_BYTES] = cursor.take();
    let mut values = Cursor(&body);
    let [code] = values.take();
    let (first, second) = (u64::from_le_bytes(values.take()), u64::from_le_bytes(values.take()));
    let verdict = match code {
        0 => Verdict::Accepted,
        _ => Verdict::Refused(Refusal::from_wire(code, first, second)?),
    };
    (encode_verdict_body(verdict) == body).then_some(verdict)
}

fn decode(kind: Kind, body: &[u8]) -> Result<Body, Refusal> {
    let mut cursor = Cursor(body);
    Ok(match kind {
        Kind::Hello => {
            let job = JobDigest(cursor.take());
            let generation = Generation(u64::from_le_bytes(cursor.take()));
            let (from, to) = (u32::from_le_bytes(cursor.take()), u32::from_le_bytes(cursor.take()));
            let purpose = match cursor.take() {
                [0, lane, lanes, 0] if lane < lanes && lanes <= MAX_LANES => Purpose::Tcp { lane, lanes },
                [1, 0, 1, 0] => Purpose::Shm,
                [2, 0, 1, 0] => Purpose::Rendezvous,
                [3, 0, 1, 0] => Purpose::Registry,
                [4, lane, lanes, 0] if lane < lanes && lanes <= MAX_LANES => Purpose::Rdma { lane, lanes },
                _ => return Err(Refusal::Malformed("no such purpose")),
            };
            let attempt = u64::from_le_bytes(cursor.take());
            Body::Hello(Hello { job, generation, from, to, purpose, attempt, nonce: cursor.take() })
        }
        Kind::Challenge => Body::Challenge { nonce: cursor.take(), proof: cursor.take() },
        Kind::Proof => Body::Proof(cursor.take()),
        Kind::Verdict => {
            let verdict = decode_verdict(&mut cursor).ok_or(Refusal::Malformed("no such verdict"))?;
            Body::Verdict(verdict, cursor.take())
        }
        Kind::Refusal => match decode_verdict(&mut cursor) {
            Some(Verdict::Refused(refusal)) => Body::Refusal(refusal),
            _ => return Err(Refusal::Malformed("no such refusal")),
        },
    })
}

/// Puts messages together from pieces, one at a time, never holding more than one.
#[derive(Debug, Default)]
pub(super) struct Collector {
    bytes: Vec<u8>,
    kind: Option<Kind>,
}

impl Collector {
    /// How many bytes are missing, of the preamble or then of the body.
    pub(super) fn wanted(&self) -> usize {
        PREAMBLE_BYTES + self.kind.map_or(0, Kind::body_bytes) - self.bytes.len()
    }

    /// Takes no more than `wanted` bytes. Returns the message they complete, if they do.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Option<Message>, HandshakeError> {
        self.bytes.extend_from_slice(bytes);
        // A stranger is known by its first byte; there is no need to wait for twelve.
        let magic = self.bytes.len().min(MAGIC.len());
        if self.bytes[..magic] != MAGIC[..magic] {
            return Err(HandshakeError::found(Refusal::Malformed("it does not begin like one")));
        }
        if self.kind.is_none() && self.bytes.len() == PREAMBLE_BYTES {
            self.kind = Some(self.preamble()?);
        }
        match self.kind {
            Some(kind) if self.wanted() == 0 => {
                let bytes = std::mem::take(&mut self.bytes);
                self.kind = None;
                let body = decode(kind, &bytes[PREAMBLE_BYTES..]).map_err(HandshakeError::found)?;
                Ok(Some(Message { body, bytes }))
            }
            _ => Ok(None),
        }
    }

    fn preamble(&self) -> Result<Kind, HandshakeError> {
        let mut cursor = Cursor(&self.bytes[MAGIC.len()..]);
        let version = u16::from_le_bytes(cursor.take());
        let [code, zero] = cursor.take();
        match Kind::from_code(code) {
            // The same in all versions, and perhaps just what the version is about.
            Some(Kind::Refusal) => Ok(Kind::Refusal),
            Some(Kind::Hello) if version != VERSION => {
                Err(HandshakeError::found(Refusal::Version { initiator: version, responder: VERSION }))
            }
            _ if version != VERSION => {
                Err(HandshakeError::found(Refusal::Version { initiator: VERSION, responder: version }))
            }
            Some(kind) if zero == 0 => Ok(kind),
            _ => Err(HandshakeError::found(Refusal::Malformed("no such message"))),
        }
    }
}
