//! Frames survive the wire, and nothing else is taken for one.

use proptest::prelude::*;

use super::*;
use crate::types::{Algorithm, Collective, DataType, ReduceOp};

fn signatures() -> impl Strategy<Value = Signature> {
    let choice = (0..Collective::ALL.len(), 0..DataType::ALL.len(), 0..=10_u8, 0..Algorithm::ALL.len());
    (choice, any::<bool>(), proptest::option::of(0..u32::MAX), any::<u64>(), any::<u64>()).prop_map(
        |((collective, dtype, op, algorithm), reduces, root, count, digest)| Signature {
            collective: Collective::ALL[collective],
            dtype: DataType::ALL[dtype],
            op: if reduces { ReduceOp::from_code(op) } else { None },
            algorithm: Algorithm::ALL[algorithm],
            root,
            count,
            digest,
        },
    )
}

fn frames() -> impl Strategy<Value = (Frame, u32)> {
    let tag = (any::<u64>(), any::<u64>())
        .prop_map(|(communicator, sequence)| Tag { communicator: CommunicatorId(communicator), sequence });
    let signature = signatures().prop_map(|signature| RawSignature::from(&signature));
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (0..10_u8, tag, signature, numbers, any::<u32>(), any::<bool>()).prop_map(
        |(kind, tag, signature, (total, target, a, b, c), length, answer)| match kind {
            0 => {
                let hello = Hello {
                    lane: length,
                    lanes: length ^ 5,
                    eager_limit: total,
                    early_budget: target,
                    segment_bytes: a,
                    announce_limit: b,
                    ready_limit: c,
                };
                (Frame::Hello(hello), 0)
            }
            1 => (Frame::Eager { tag, signature }, length),
            2 => (Frame::Announce { tag, signature, total }, 0),
            3 => (Frame::Ready { tag, signature, total, target, answer }, 0),
            4 => (Frame::Segment { target, offset: total }, length),
            5 => (Frame::Withdraw { tag }, 0),
            6 => (Frame::Differs { tag, signature }, 0),
            7 => (Frame::Credit, 0),
            8 => (Frame::Notice, length % (NOTICE_BYTES as u32 + 1)),
            _ => (Frame::Goodbye, 0),
        },
    )
}

proptest! {
    #[test]
    fn a_header_survives_the_wire((frame, length) in frames(), generation: u64, credit: u32) {
        let header = Header { generation: Generation(generation), credit, length, frame };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_signature_survives_the_wire(signature in signatures()) {
        prop_assert_eq!(RawSignature::from(&signature).decode(), Ok(signature));
    }

    #[test]
    fn what_decodes_has_one_encoding(
        (frame, length) in frames(),
        changes in proptest::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..6),
    ) {
        let mut bytes = Header { generation: Generation(3), credit: 0, length, frame }.encode();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }
}

/// A generator that needs no state but a number: enough to make bytes that look like nothing in particular.
fn scramble(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

#[test]
fn no_bytes_make_the_decoder_panic_or_disagree_with_itself() {
    let mut seed = 1;
    let mut accepted = 0;
    for round in 0..200_000_u32 {
        let mut bytes: [u8; HEADER_BYTES] = std::array::from_fn(|_| scramble(&mut seed) as u8);
        // Most rounds get past the first checks, and many leave the unused fields zero.
        if round % 8 != 0 {
            bytes[0..2].copy_from_slice(&MAGIC);
            bytes[2] = VERSION;
            bytes[3] %= 12;
            for range in [4..8, 12..16, 24..40, 40..64, 64..72, 72..80] {
                if !scramble(&mut seed).is_multiple_of(3) {
                    bytes[range].fill(0);
                }
            }
        }
        if let Ok(header) = Header::decode(&bytes) {
            accepted += 1;
            assert_eq!(header.encode(), bytes, "round {round}");
        }
    }
    assert!(accepted > 10_000, "only {accepted} headers got through: the test looks at nothing");
}

#[test]
fn errors_say_what_was_found() {
    let good = Header { generation: Generation(1), credit: 0, length: 0, frame: Frame::Goodbye };
    let change = |at: usize, byte: u8| {
        let mut bytes = good.encode();
        bytes[at] = byte;
        Header::decode(&bytes).unwrap_err()
    };
    assert_eq!(change(0, b'G'), FrameError::Magic { found: *b"GX" });
    assert_eq!(change(2, 9), FrameError::Version { found: 9 });
    assert_eq!(change(3, 11), FrameError::Kind { found: 11 });
    assert_eq!(change(4, 1), FrameError::Length { kind: "goodbye", found: 1, most: 0 });
    for (at, field) in [(12, "flag"), (24, "tag"), (39, "tag"), (40, "signature"), (64, "total"), (79, "target")] {
        assert_eq!(change(at, 1), FrameError::Unused { kind: "goodbye", field });
    }
    assert_eq!(change(2, 9).to_string(), "frame version 9, expected 1");
    let notice = Header { frame: Frame::Notice, length: NOTICE_BYTES as u32 + 1, ..good };
    assert_eq!(
        Header::decode(&notice.encode()).unwrap_err().to_string(),
        "a notice frame with 4097 bytes of payload, expected at most 4096"
    );
    let nonsense = RawSignature([0xee; Signature::BYTES]);
    assert_eq!(nonsense.decode(), Err(FrameError::Signature { found: [0xee; Signature::BYTES] }));
}

#[test]
fn the_layout_is_the_documented_one() {
    let tag = Tag { communicator: CommunicatorId(0x0102_0304_0506_0708), sequence: 0x1112_1314_1516_1718 };
    let signature = RawSignature(std::array::from_fn(|i| 0xa0 + i as u8));
    let frame = Frame::Ready { tag, signature, total: 0x21, target: 0x22, answer: true };
    let bytes = Header { generation: Generation(7), credit: 5, length: 0, frame }.encode();
    let expected: Vec<u8> = [
        &b"PX\x01\x04"[..],
        &[0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
        &[8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
        &signature.0,
        &[0x21, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(bytes[..], expected);
}
