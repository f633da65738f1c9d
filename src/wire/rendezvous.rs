//! What a member and the rendezvous server say to each other.
//!
//! Every message is a frame: its length in 4 bytes (the kind included), its kind in 1, its fields. Numbers are
//! little-endian. Lengths are checked against limits before anything is kept, so that a peer cannot make this process
//! allocate more than a stated number of bytes. Frames travel only on connections that both ends have authenticated.
//!
//! | kind | message | from | fields |
//! |---|---|---|---|
//! | 1 | join | member | version u16, size u32, patience in ms u64, session 16 bytes, member |
//! | 2 | table | server | generation u64, count u32, members in the order of ranks |
//! | 3 | rejection | server | reason u8, waited in ms u64, ranks (count u32, each u32), what and hint (each length u16, UTF-8) |
//!
//! A member is: rank u32, pid u32, host identity, host name, addresses; the last three each a length u16 and bytes.

use std::time::Duration;

pub use super::fields::{Frames, Malformed};
use super::fields::{Input, frame, put_bytes, put_millis, put_text, put_u32};

/// The version of these messages.
pub const VERSION: u16 = 1;

/// The most bytes that a member's addresses may have.
pub const MAX_ADDRESSES: usize = 4096;

/// The most bytes of a host's identity, and of its name.
pub const MAX_HOST: usize = 256;

/// The most bytes of a rejection's texts, each.
pub const MAX_TEXT: usize = 1024;

/// The most bytes a member takes in a frame.
const MAX_MEMBER: usize = 4 + 4 + 3 * 2 + 2 * MAX_HOST + MAX_ADDRESSES;

/// The most bytes of a frame from a member: a join.
pub const MAX_JOIN_FRAME: usize = 1 + 2 + 4 + 8 + 16 + MAX_MEMBER;

const JOIN: u8 = 1;
const TABLE: u8 = 2;
const REJECTION: u8 = 3;

/// The most bytes of a frame from the server of a world of `size`.
pub const fn max_answer_frame(size: usize) -> usize {
    let table = 1 + 8 + 4 + size.saturating_mul(MAX_MEMBER);
    let rejection = 1 + 1 + 8 + 4 + size.saturating_mul(4) + 2 * (2 + MAX_TEXT);
    if table > rejection { table } else { rejection }
}

/// Tells one attempt to meet from an earlier one at the same place. All zeros where nobody can give one out.
pub type Session = [u8; 16];

/// What one member tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its rank.
    pub rank: usize,
    /// Its process on its host, for messages.
    pub pid: u32,
    /// Equal for two members exactly when they share a host. Opaque.
    pub host: Vec<u8>,
    /// The host's name, for messages.
    pub host_name: String,
    /// Where it listens. Opaque here.
    pub addresses: Vec<u8>,
}

/// A member asks to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The version of the messages it speaks.
    pub version: u16,
    /// The size of the world it expects.
    pub size: usize,
    /// How long it is going to wait for an answer.
    pub patience: Duration,
    /// Which attempt it means to join.
    pub session: Session,
    /// Itself.
    pub member: MemberRecord,
}

/// Why the ranks did not come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What members say of themselves cannot be true together.
    Conflict,
    /// Some did not come in time.
    Missing,
    /// One came, and left before all were there.
    Lost,
    /// The asker means another attempt than the server's.
    Stale,
}

impl Reason {
    const ALL: [Reason; 4] = [Reason::Conflict, Reason::Missing, Reason::Lost, Reason::Stale];
}

/// The server's answer when there will be no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: Reason,
    /// How long the server had been waiting.
    pub waited: Duration,
    /// The ranks it is about.
    pub ranks: Vec<usize>,
    /// What was compared.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// A message of the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A member asks to be let in.
    Join(Join),
    /// All are there.
    Table {
        /// The number of the view.
        generation: u64,
        /// All members, by rank.
        members: Vec<MemberRecord>,
    },
    /// There will be no table.
    Rejection(Rejection),
}

impl Message {
    /// The message as a frame. Texts that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        frame(|out| match self {
            Message::Join(join) => {
                out.push(JOIN);
                out.extend(join.version.to_le_bytes());
                put_u32(out, join.size);
                put_millis(out, join.patience);
                out.extend(join.session);
                put_member(out, &join.member);
            }
            Message::Table { generation, members } => {
                out.push(TABLE);
                out.extend(generation.to_le_bytes());
                put_u32(out, members.len());
                members.iter().for_each(|member| put_member(out, member));
            }
            Message::Rejection(Rejection { reason, waited, ranks, what, hint }) => {
                out.push(REJECTION);
                out.push(*reason as u8);
                put_millis(out, *waited);
                put_u32(out, ranks.len());
                ranks.iter().for_each(|rank| put_u32(out, *rank));
                put_text(out, what, MAX_TEXT);
                put_text(out, hint, MAX_TEXT);
            }
        })
    }

    /// The message in a frame, without its length. `max_size` bounds the number of ranks in it.
    pub fn decode(frame: &[u8], max_size: usize) -> Result<Message, Malformed> {
        let mut input = Input(frame);
        let message = match input.u8()? {
            JOIN => Message::Join(Join {
                version: u16::from_le_bytes(input.array()?),
                size: input.u32()?,
                patience: input.millis()?,
                session: input.array()?,
                member: member(&mut input)?,
            }),
            TABLE => Message::Table { generation: input.u64()?, members: input.list(max_size, member)? },
            REJECTION => {
                let reason = input.u8()?;
                Message::Rejection(Rejection {
                    reason: *Reason::ALL.get(reason as usize).ok_or(Malformed("unknown reason"))?,
                    waited: input.millis()?,
                    ranks: input.list(max_size, Input::u32)?,
                    what: input.text(MAX_TEXT)?,
                    hint: input.text(MAX_TEXT)?,
                })
            }
            _ => return Err(Malformed("unknown kind")),
        };
        input.end()?;
        Ok(message)
    }
}

fn put_member(out: &mut Vec<u8>, member: &MemberRecord) {
    put_u32(out, member.rank);
    out.extend(member.pid.to_le_bytes());
    put_bytes(out, &member.host);
    put_text(out, &member.host_name, MAX_HOST);
    put_bytes(out, &member.addresses);
}

fn member(input: &mut Input<'_>) -> Result<MemberRecord, Malformed> {
    Ok(MemberRecord {
        rank: input.u32()?,
        pid: u32::from_le_bytes(input.array()?),
        host: input.bytes(MAX_HOST)?.to_vec(),
        host_name: input.text(MAX_HOST)?,
        addresses: input.bytes(MAX_ADDRESSES)?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member() -> impl Strategy<Value = MemberRecord> {
        (
            0..1000usize,
            any::<u32>(),
            prop::collection::vec(any::<u8>(), 0..MAX_HOST),
            "[a-zé.-]{0,60}",
            prop::collection::vec(any::<u8>(), 0..MAX_ADDRESSES),
        )
            .prop_map(|(rank, pid, host, host_name, addresses)| MemberRecord {
                rank,
                pid,
                host,
                host_name,
                addresses,
            })
    }

    fn message() -> impl Strategy<Value = Message> {
        let millis = (0..u64::MAX).prop_map(Duration::from_millis);
        prop_oneof![
            (any::<u16>(), 0..1000usize, millis.clone(), any::<Session>(), member()).prop_map(
                |(version, size, patience, session, member)| Message::Join(Join {
                    version,
                    size,
                    patience,
                    session,
                    member
                })
            ),
            (any::<u64>(), prop::collection::vec(member(), 0..8))
                .prop_map(|(generation, members)| Message::Table { generation, members }),
            (0..4usize, millis, prop::collection::vec(0..1000usize, 0..40), "[ -~é]{0,300}", "[ -~]{0,300}").prop_map(
                |(reason, waited, ranks, what, hint)| Message::Rejection(Rejection {
                    reason: Reason::ALL[reason],
                    waited,
                    ranks,
                    what,
                    hint
                })
            ),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_however_it_arrives(messages in prop::collection::vec(message(), 1..4), piece in 1..700usize) {
            let stream: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
            let mut frames = Frames::new(max_answer_frame(1000));
            let mut rest = &stream[..];
            let mut decoded = Vec::new();
            while !rest.is_empty() {
                let count = frames.wanted().unwrap().min(piece).min(rest.len());
                prop_assert!(count > 0);
                frames.push(&rest[..count]);
                rest = &rest[count..];
                if let Some(frame) = frames.next_frame().unwrap() {
                    decoded.push(Message::decode(&frame, 1000).unwrap());
                }
            }
            prop_assert_eq!(decoded, messages);
        }

        #[test]
        fn garbage_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Message::decode(&bytes, 16);
        }

        #[test]
        fn a_bit_that_flips_never_panics(message in message(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut frame = message.encode();
            let at = at.index(frame.len());
            frame[at] ^= 1u8 << bit;
            let _ = Message::decode(&frame[4..], 1000);
        }

        #[test]
        fn a_join_and_an_answer_keep_within_their_limits(message in message()) {
            let frame = message.encode();
            let max = if matches!(message, Message::Join(_)) { MAX_JOIN_FRAME } else { max_answer_frame(1000) };
            prop_assert!(frame.len() - 4 <= max);
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_kept() {
        for length in [0u32, 101, u32::MAX] {
            let mut frames = Frames::new(100);
            frames.push(&length.to_le_bytes());
            assert!(frames.wanted().is_err() && frames.next_frame().is_err(), "{length}");
        }
    }

    #[test]
    fn more_ranks_than_the_world_has_are_refused() {
        let ranks = (0..17).collect();
        let rejection = Rejection {
            reason: Reason::Missing,
            waited: Duration::ZERO,
            ranks,
            what: String::new(),
            hint: String::new(),
        };
        let frame = Message::Rejection(rejection).encode();
        assert_eq!(Message::decode(&frame[4..], 16), Err(Malformed("too many items")));
        assert!(Message::decode(&frame[4..], 17).is_ok());
    }

    #[test]
    fn a_text_cannot_move_the_cursor() {
        let what = "rank\u{1b}[2J\n0".to_string();
        let frame = Message::Rejection(Rejection {
            reason: Reason::Conflict,
            waited: Duration::ZERO,
            ranks: vec![],
            what,
            hint: String::new(),
        })
        .encode();
        let Ok(Message::Rejection(rejection)) = Message::decode(&frame[4..], 1) else { panic!() };
        assert_eq!(rejection.what, "rank [2J 0");
    }
}
