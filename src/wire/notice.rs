//! What executors tell each other besides data: that an operation is given up, and that a rank is gone.
//!
//! A notice travels in one frame of at most 4,096 bytes. Lists and texts are cut to fit.

use std::time::Duration;

use crate::types::{CommunicatorId, Error, Signature, Tag};

/// The most ranks that one notice names.
const MAX_RANKS: usize = 256;

/// The most bytes of a text in a notice.
const MAX_TEXT: usize = 512;

const ABORT: u8 = 1;
const PEER_FAILED: u8 = 2;
const WAITING: u8 = 3;
const STUCK: u8 = 4;

const MISMATCH: u8 = 0;
const FAILED: u8 = 1;
const TIMEOUT: u8 = 2;

/// A control message between executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An operation is given up on every rank. Ranks in the error are ranks of the operation's communicator.
    Abort {
        /// The operation.
        tag: Tag,
        /// Why: a mismatch, a failed peer or a timeout. Other errors are told as a failed peer.
        cause: Error,
    },
    /// A member of the world is gone.
    PeerFailed {
        /// Its world rank.
        rank: usize,
        /// How that was noticed.
        detail: String,
    },
    /// The sender has been waiting for the receiver in an operation for a while. Tells the call, in case that the
    /// two are in different ones, and asks whether the receiver waits for others.
    Waiting {
        /// The operation.
        tag: Tag,
        /// The sender's call.
        signature: Signature,
        /// Which round of asking this is. Later rounds make answers of earlier ones void.
        round: u32,
    },
    /// The answer to `Waiting`, of the sender or of a rank that answered it: a rank is in the operation, and waits for
    /// others. Ranks are those of the operation's communicator.
    Stuck {
        /// The operation.
        tag: Tag,
        /// The round of asking.
        round: u32,
        /// The rank that is in the operation.
        rank: usize,
        /// How many steps it has done there.
        step: u32,
        /// Whom it waits for.
        waiting_for: Vec<usize>,
    },
}

impl Notice {
    /// The notice as it travels. `teller` is the rank, in the tag's communicator, that sends it: it stands for causes
    /// which only that rank can know.
    pub fn encode(&self, teller: usize) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(128));
        match self {
            Notice::Abort { tag, cause } => {
                out.u8(ABORT);
                out.u64(tag.communicator.0);
                out.u64(tag.sequence);
                match cause {
                    Error::Mismatch { sequence, ours, theirs } => {
                        out.u8(MISMATCH);
                        // Not the tag's where a rank that learnt of it late fails a later operation for it.
                        out.u64(*sequence);
                        for (rank, signature) in [ours, theirs] {
                            out.u32(*rank);
                            out.0.extend_from_slice(&signature.encode());
                        }
                    }
                    Error::Timeout { operation, waiting_for, waited, detail } => {
                        out.u8(TIMEOUT);
                        out.u64(waited.as_millis().try_into().unwrap_or(u64::MAX));
                        out.ranks(waiting_for);
                        out.text(operation);
                        out.text(detail);
                    }
                    Error::PeerFailed { rank, operation, detail } => {
                        out.u8(FAILED);
                        out.u32(*rank);
                        out.text(operation);
                        out.text(detail);
                    }
                    other => {
                        out.u8(FAILED);
                        out.u32(teller);
                        out.text("the operation");
                        out.text(&format!("it gave up: {other}"));
                    }
                }
            }
            Notice::PeerFailed { rank, detail } => {
                out.u8(PEER_FAILED);
                out.u32(*rank);
                out.text(detail);
            }
            Notice::Waiting { tag, signature, round } => {
                out.u8(WAITING);
                out.u64(tag.communicator.0);
                out.u64(tag.sequence);
                out.0.extend_from_slice(&signature.encode());
                out.0.extend_from_slice(&round.to_le_bytes());
            }
            Notice::Stuck { tag, round, rank, step, waiting_for } => {
                out.u8(STUCK);
                out.u64(tag.communicator.0);
                out.u64(tag.sequence);
                out.0.extend_from_slice(&round.to_le_bytes());
                out.u32(*rank);
                out.0.extend_from_slice(&step.to_le_bytes());
                out.ranks(waiting_for);
            }
        }
        out.0
    }

    /// Reads a notice; `None` when it is not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let notice = match from.u8()? {
            ABORT => {
                let tag = Tag { communicator: CommunicatorId(from.u64()?), sequence: from.u64()? };
                let cause = match from.u8()? {
                    MISMATCH => {
                        let sequence = from.u64()?;
                        let mut side = || Some((from.u32()?, Signature::decode(&from.array()?)?));
                        Error::Mismatch { sequence, ours: side()?, theirs: side()? }
                    }
                    FAILED => Error::PeerFailed { rank: from.u32()?, operation: from.text()?, detail: from.text()? },
                    TIMEOUT => {
                        let waited = Duration::from_millis(from.u64()?);
                        let waiting_for = from.ranks()?;
                        Error::Timeout { waiting_for, waited, operation: from.text()?, detail: from.text()? }
                    }
                    _ => return None,
                };
                Notice::Abort { tag, cause }
            }
            PEER_FAILED => Notice::PeerFailed { rank: from.u32()?, detail: from.text()?.to_string() },
            WAITING => Notice::Waiting {
                tag: Tag { communicator: CommunicatorId(from.u64()?), sequence: from.u64()? },
                signature: Signature::decode(&from.array()?)?,
                round: u32::from_le_bytes(from.array()?),
            },
            STUCK => Notice::Stuck {
                tag: Tag { communicator: CommunicatorId(from.u64()?), sequence: from.u64()? },
                round: u32::from_le_bytes(from.array()?),
                rank: from.u32()?,
                step: u32::from_le_bytes(from.array()?),
                waiting_for: from.ranks()?,
            },
            _ => return None,
        };
        from.0.is_empty().then_some(notice)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: usize) {
        self.0.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn ranks(&mut self, ranks: &[usize]) {
        let named = &ranks[..ranks.len().min(MAX_RANKS)];
        self.u32(named.len());
        named.iter().for_each(|&rank| self.u32(rank));
    }

    fn text(&mut self, text: &str) {
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u32(end);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]: [u8; 1]| byte)
    }

    fn u32(&mut self) -> Option<usize> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn ranks(&mut self) -> Option<Vec<usize>> {
        let named = self.u32()?;
        if named > MAX_RANKS {
            return None;
        }
        (0..named).map(|_| self.u32()).collect()
    }

    fn text(&mut self) -> Option<std::sync::Arc<str>> {
        let length = self.u32()?;
        if length > MAX_TEXT {
            return None;
        }
        Some(std::str::from_utf8(self.bytes(length)?).ok()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Algorithm, Collective, DataType, ReduceOp};

    fn examples() -> Vec<Notice> {
        let tag = Tag { communicator: CommunicatorId(9), sequence: 1 << 40 };
        let signature = Signature {
            collective: Collective::Allreduce,
            dtype: DataType::F32,
            op: Some(ReduceOp::Sum),
            algorithm: Algorithm::Ring,
            root: None,
            count: 12,
            digest: 1,
        };
        let theirs = Signature { count: 13, ..signature };
        vec![
            Notice::Abort { tag, cause: Error::Mismatch { sequence: 7, ours: (1, signature), theirs: (2, theirs) } },
            Notice::Abort {
                tag,
                cause: Error::Timeout {
                    operation: "barrier()".into(),
                    waiting_for: vec![3, 4],
                    waited: Duration::from_millis(1500),
                    detail: "tcp".into(),
                },
            },
            Notice::Abort { tag, cause: Error::PeerFailed { rank: 5, operation: "x".into(), detail: "closed".into() } },
            Notice::PeerFailed { rank: 7, detail: "connection reset".into() },
            Notice::Waiting { tag, signature, round: 1 },
            Notice::Stuck { tag, round: 1, rank: 3, step: 4, waiting_for: vec![0, 5] },
        ]
    }

    #[test]
    fn notices_survive_the_wire_and_cut_ones_are_refused() {
        for notice in examples() {
            let bytes = notice.encode(0);
            assert_eq!(Notice::decode(&bytes).as_ref(), Some(&notice));
            for end in 0..bytes.len() {
                assert_eq!(Notice::decode(&bytes[..end]), None);
            }
        }
    }

    #[test]
    fn causes_that_only_the_teller_knows_are_told_as_its_failure() {
        let tag = Tag { communicator: CommunicatorId::WORLD, sequence: 0 };
        let bytes = Notice::Abort { tag, cause: Error::invalid("the user function panicked") }.encode(6);
        let Some(Notice::Abort { cause: Error::PeerFailed { rank: 6, detail, .. }, .. }) = Notice::decode(&bytes)
        else {
            panic!("not told as rank 6's failure");
        };
        assert!(detail.contains("the user function panicked"));
    }

    #[test]
    fn long_lists_and_texts_are_cut_to_fit_one_frame() {
        let tag = Tag { communicator: CommunicatorId::WORLD, sequence: 0 };
        let cause = Error::Timeout {
            operation: "ä".repeat(3000).into(),
            waiting_for: (0..5000).collect(),
            waited: Duration::MAX,
            detail: "b".repeat(3000).into(),
        };
        let bytes = Notice::Abort { tag, cause }.encode(0);
        assert!(bytes.len() <= 4096, "{}", bytes.len());
        let Some(Notice::Abort { cause: Error::Timeout { waiting_for, .. }, .. }) = Notice::decode(&bytes) else {
            panic!("not a timeout");
        };
        assert_eq!(waiting_for.len(), MAX_RANKS);
    }
}
