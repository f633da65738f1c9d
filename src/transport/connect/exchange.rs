//! The three messages by which two authenticated members share memory: offer, reply, commit.
//!
//! The maker offers a segment, its doorbell and its board; the taker maps them and replies with its own doorbell and
//! board; the maker maps those and commits. Only then does either side use the link, so that a failure at any point leaves both free to try
//! another way. A message is 16 bytes: `PHSM`, kind, whether it is a failure, two zeros, and the size of a ring.

use std::os::fd::OwnedFd;

/// The size of each message.
pub(super) const MESSAGE_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmMessage {
    /// With three descriptors or four: segment, doorbell, event, and the board where there is memory for one.
    Offer {
        ring_bytes: u64,
    },
    /// The maker has no memory to offer.
    NoOffer,
    /// With two descriptors or three: doorbell, event, and the board where there is memory for one.
    Reply,
    /// The taker cannot use the offer.
    NoReply,
    Commit,
}

impl ShmMessage {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (kind, failed, value) = match self {
            ShmMessage::Offer { ring_bytes } => (1, 0, ring_bytes),
            ShmMessage::NoOffer => (1, 1, 0),
            ShmMessage::Reply => (2, 0, 0),
            ShmMessage::NoReply => (2, 1, 0),
            ShmMessage::Commit => (3, 0, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&[b'P', b'H', b'S', b'M', kind, failed, 0, 0]);
        bytes[8..].copy_from_slice(&u64::to_le_bytes(value));
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, value) = bytes.split_first_chunk::<8>()?;
        let value = u64::from_le_bytes(value.try_into().ok()?);
        Some(match (head, value) {
            (b"PHSM\x01\0\0\0", ring_bytes) => ShmMessage::Offer { ring_bytes },
            (b"PHSM\x01\x01\0\0", 0) => ShmMessage::NoOffer,
            (b"PHSM\x02\0\0\0", 0) => ShmMessage::Reply,
            (b"PHSM\x02\x01\0\0", 0) => ShmMessage::NoReply,
            (b"PHSM\x03\0\0\0", 0) => ShmMessage::Commit,
            _ => return None,
        })
    }
}

/// Exactly `N` descriptors, and a board's if there is one more; or none of them.
pub(super) fn with_board<const N: usize>(descriptors: &mut Vec<OwnedFd>) -> Option<([OwnedFd; N], Option<OwnedFd>)> {
    let mut descriptors = std::mem::take(descriptors);
    let board = if descriptors.len() > N { descriptors.pop() } else { None };
    Some((descriptors.try_into().ok()?, board))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_both_ways() {
        use ShmMessage::*;
        for message in [Offer { ring_bytes: 1 << 20 }, NoOffer, Reply, NoReply, Commit] {
            let bytes = message.encode();
            assert_eq!(ShmMessage::decode(&bytes), Some(message));
            for bit in 0..64 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(ShmMessage::decode(&changed), Some(message));
            }
        }
        assert_eq!(ShmMessage::decode(&[0; 15]), None);
        assert_eq!(ShmMessage::decode(&[]), None);
    }
}
