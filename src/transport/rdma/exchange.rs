//! The messages by which two authenticated members connect their queue pairs: offer, reply, commit.
//!
//! All have [`MESSAGE_BYTES`] bytes, little-endian: `PHRD`, kind, whether it is a failure, the version, whether the link is
//! Ethernet; then, in an offer and a reply, the number of the queue pair (4), of its first packet (4), the LID (2), the code
//! of the MTU (1), zero (1), how many messages may be under way (4), the GID (16), the address of the ring (8), the key to it
//! (4) and its size (4); zeros elsewhere.

/// The size of each message.
pub(in crate::transport) const MESSAGE_BYTES: usize = 56;

/// The version of the messages, and of what travels over the link.
const VERSION: u8 = 2;

/// What one side says of its end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Card {
    /// Whether its link is Ethernet.
    pub(super) ethernet: bool,
    /// The number of its queue pair.
    pub(super) queue_pair: u32,
    /// The number of its first packet.
    pub(super) first_packet: u32,
    /// Its address on an InfiniBand link.
    pub(super) lid: u16,
    /// The largest packet that its port carries, as the code of the specification.
    pub(super) mtu: u8,
    /// How many messages may be under way to it.
    pub(super) messages: u32,
    /// Its global identifier.
    pub(super) gid: [u8; 16],
    /// The start of its ring.
    pub(super) address: u64,
    /// The key to its ring.
    pub(super) key: u32,
    /// The size of its ring.
    pub(super) ring_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Message {
    /// The dialler's end.
    Offer(Card),
    /// The dialler has no end to offer.
    NoOffer,
    /// The other end, which is connected.
    Reply(Card),
    /// The other side cannot use the offer.
    NoReply,
    /// The dialler's end is connected, too, and a packet went each way.
    Commit,
    /// No packet did.
    NoCommit,
}

impl Message {
    pub(in crate::transport) fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (kind, failed, card) = match self {
            Message::Offer(card) => (1, 0, Some(card)),
            Message::NoOffer => (1, 1, None),
            Message::Reply(card) => (2, 0, Some(card)),
            Message::NoReply => (2, 1, None),
            Message::Commit => (3, 0, None),
            Message::NoCommit => (3, 1, None),
        };
        let ethernet = card.is_some_and(|card| card.ethernet);
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&[b'P', b'H', b'R', b'D', kind, failed, VERSION, ethernet.into()]);
        if let Some(card) = card {
            bytes[8..12].copy_from_slice(&card.queue_pair.to_le_bytes());
            bytes[12..16].copy_from_slice(&card.first_packet.to_le_bytes());
            bytes[16..18].copy_from_slice(&card.lid.to_le_bytes());
            bytes[18] = card.mtu;
            bytes[20..24].copy_from_slice(&card.messages.to_le_bytes());
            bytes[24..40].copy_from_slice(&card.gid);
            bytes[40..48].copy_from_slice(&card.address.to_le_bytes());
            bytes[48..52].copy_from_slice(&card.key.to_le_bytes());
            bytes[52..56].copy_from_slice(&card.ring_bytes.to_le_bytes());
        }
        bytes
    }

    /// From bytes of a peer: nothing if they are no message.
    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let [b'P', b'H', b'R', b'D', kind, failed, VERSION, ethernet] = *head else { return None };
        let four = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(four)
        };
        let message = match (kind, failed) {
            (1 | 2, 0) => {
                let mut gid = [0; 16];
                gid.copy_from_slice(&bytes[24..40]);
                let card = Card {
                    ethernet: ethernet == 1,
                    queue_pair: four(8),
                    first_packet: four(12),
                    lid: u16::from_le_bytes([bytes[16], bytes[17]]),
                    mtu: bytes[18],
                    messages: four(20),
                    gid,
                    address: u64::from(four(40)) | u64::from(four(44)) << 32,
                    key: four(48),
                    ring_bytes: four(52),
                };
                if kind == 1 { Message::Offer(card) } else { Message::Reply(card) }
            }
            _ if ethernet != 0 || rest.iter().any(|byte| *byte != 0) => return None,
            (1, 1) => Message::NoOffer,
            (2, 1) => Message::NoReply,
            (3, 0) => Message::Commit,
            (3, 1) => Message::NoCommit,
            _ => return None,
        };
        // Numbers have 24 bits, codes of packets go from 1 to 5, and what is not used is zero.
        match message {
            Message::Offer(card) | Message::Reply(card)
                if card.queue_pair >> 24 != 0
                    || card.first_packet >> 24 != 0
                    || !(1..=5).contains(&card.mtu)
                    || ethernet > 1
                    || bytes[19] != 0 =>
            {
                None
            }
            _ => Some(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_both_ways() {
        let card = Card {
            ethernet: true,
            queue_pair: 0x12_3456,
            first_packet: 0xab_cdef,
            lid: 0x1234,
            mtu: 3,
            messages: 256,
            gid: [9; 16],
            address: 0x1122_3344_5566_7788,
            key: 0x99aa_bbcc,
            ring_bytes: 1 << 19,
        };
        let ib = Card { ethernet: false, ..card };
        use Message::*;
        for message in [Offer(card), Offer(ib), NoOffer, Reply(card), NoReply, Commit, NoCommit] {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            for bit in 0..8 * MESSAGE_BYTES {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Message::decode(&changed), Some(message), "bit {bit}");
            }
        }
        for wrong in [
            Card { queue_pair: 1 << 24, ..card },
            Card { first_packet: 1 << 24, ..card },
            Card { mtu: 0, ..card },
            Card { mtu: 6, ..card },
        ] {
            assert_eq!(Message::decode(&Offer(wrong).encode()), None, "{wrong:?}");
        }
        assert_eq!(Message::decode(&[0; MESSAGE_BYTES - 1]), None);
        assert_eq!(Message::decode(&[]), None);
    }
}
