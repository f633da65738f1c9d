//! The messages survive the wire, and nothing else passes for one.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn process() -> impl Strategy<Value = ProcessRecord> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..=max);
    (any::<u32>(), bytes(MAX_HOST), "[a-zé.-]{0,60}", bytes(MAX_ADDRESSES))
        .prop_map(|(pid, host, host_name, addresses)| ProcessRecord { pid, host, host_name, addresses })
}

fn millis() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_millis)
}

fn slot() -> impl Strategy<Value = Slot> {
    any::<u32>().prop_map(|slot| slot as usize)
}

fn generation() -> impl Strategy<Value = Generation> {
    any::<u64>().prop_map(Generation)
}

const TEXT: &str = "[ -~é]{0,200}";

fn to_registry() -> impl Strategy<Value = ToRegistry> {
    let resume = (slot(), generation()).prop_map(|(slot, generation)| Resume { slot, generation });
    let register =
        ((any::<u16>(), any::<Token>(), millis()), (prop::option::of(slot()), process(), prop::option::of(resume)))
            .prop_map(|((version, token, patience), (wish, process, resume))| {
                ToRegistry::Register(Register { version, token, patience, wish, process, resume })
            });
    prop_oneof![
        register,
        any::<(u64, u64, bool, u64)>().prop_map(|(number, progress, is_waiting, counted)| ToRegistry::Heartbeat {
            number,
            progress,
            is_waiting,
            counted,
        }),
        (generation(), slot(), TEXT).prop_map(|(generation, slot, detail)| ToRegistry::Suspect {
            generation,
            slot,
            detail
        }),
        (generation(), any::<(u64, bool, bool, bool)>()).prop_map(
            |(generation, (counted, holds, boundary, closed))| {
                ToRegistry::Report(Report { generation, counted, holds, boundary, closed })
            }
        ),
        (prop::sample::select(&Parting::ALL[..]), TEXT)
            .prop_map(|(parting, reason)| ToRegistry::Leave { parting, reason }),
        Just(ToRegistry::StatusRequest),
        (any::<bool>(), slot(), TEXT).prop_map(|(is_rank, number, reason)| ToRegistry::Evict {
            whom: if is_rank { Whom::Rank(number) } else { Whom::Slot(number) },
            reason,
        }),
    ]
}

fn gone() -> impl Strategy<Value = Gone> {
    (slot(), prop::sample::select(&Why::ALL[..]), TEXT).prop_map(|(slot, why, detail)| Gone { slot, why, detail })
}

fn view() -> impl Strategy<Value = ViewMessage> {
    (
        (generation(), any::<u64>(), any::<bool>()),
        prop::collection::vec((slot(), process().prop_map(Arc::new)), 0..4),
        prop::collection::vec(gone(), 0..4),
        prop::collection::vec((slot(), slot()), 0..4),
        prop::collection::vec(slot(), 0..4),
    )
        .prop_map(|((generation, counted, is_change), members, gone, broken, newcomers)| ViewMessage {
            generation,
            counted,
            members: if is_change { Members::Change(members) } else { Members::All(members) },
            gone,
            broken,
            newcomers,
        })
}

fn status() -> impl Strategy<Value = Status> {
    let member =
        (
            (slot(), prop::option::of(slot()), process().prop_map(Arc::new)),
            (prop::sample::select(&Condition::ALL[..]), millis(), any::<u64>(), millis(), any::<bool>()),
        )
            .prop_map(|((slot, rank, process), (condition, quiet, progress, idle, has_reported))| {
                MemberStatus { slot, rank, process, condition, quiet, progress, idle, has_reported }
            });
    (
        (prop::sample::select(&Phase::ALL[..]), generation(), any::<(u64, u64)>()),
        (slot(), slot(), TEXT),
        prop::collection::vec(member, 0..4),
    )
        .prop_map(|((phase, generation, (counted, changes)), (min_np, max_np, waits_for), members)| Status {
            phase,
            generation,
            counted,
            changes,
            min_np,
            max_np,
            waits_for,
            members,
        })
}

fn from_registry() -> impl Strategy<Value = FromRegistry> {
    prop_oneof![
        (slot(), millis(), millis(), millis()).prop_map(
            |(slot, heartbeat_interval, heartbeat_limit, elastic_timeout)| FromRegistry::Welcome {
                slot,
                heartbeat_interval,
                heartbeat_limit,
                elastic_timeout
            }
        ),
        generation().prop_map(|generation| FromRegistry::Wanted { generation }),
        (generation(), prop::collection::vec(gone(), 0..4))
            .prop_map(|(generation, gone)| FromRegistry::Prepare { generation, gone }),
        view().prop_map(FromRegistry::View),
        (generation(), TEXT).prop_map(|(generation, reason)| FromRegistry::Evicted { generation, reason }),
        TEXT.prop_map(|reason| FromRegistry::End { reason }),
        (slot(), slot(), millis()).prop_map(|(have, need, remaining)| FromRegistry::Waiting { have, need, remaining }),
        status().prop_map(FromRegistry::Status),
        Just(FromRegistry::Goodbye),
        Just(FromRegistry::Probe),
        (TEXT, TEXT).prop_map(|(what, hint)| FromRegistry::Refused { what, hint }),
        TEXT.prop_map(|what| FromRegistry::Done { what }),
    ]
}

/// Cuts `stream` into frames, arriving in pieces of at most `piece` bytes.
fn frames(stream: &[u8], piece: usize, max_frame: usize) -> Vec<Vec<u8>> {
    let mut frames = Frames::new(max_frame);
    let mut rest = stream;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let count = frames.wanted().expect("a sound length").min(piece).min(rest.len());
        assert!(count > 0);
        frames.push(&rest[..count]);
        rest = &rest[count..];
        found.extend(frames.next_frame().expect("a sound length"));
    }
    found
}

proptest! {
    #[test]
    fn what_is_said_to_the_registry_is_heard_however_it_arrives(
        messages in prop::collection::vec(to_registry(), 1..5), piece in 1..700usize
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(ToRegistry::encode).collect();
        let decoded: Result<Vec<_>, _> =
            frames(&stream, piece, MAX_REQUEST_FRAME).iter().map(|frame| ToRegistry::decode(frame)).collect();
        prop_assert_eq!(decoded, Ok(messages));
    }

    #[test]
    fn what_the_registry_says_is_heard_however_it_arrives(
        messages in prop::collection::vec(from_registry(), 1..5), piece in 1..700usize
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(FromRegistry::encode).collect();
        let decoded: Result<Vec<_>, _> =
            frames(&stream, piece, MAX_ANSWER_FRAME).iter().map(|frame| FromRegistry::decode(frame)).collect();
        prop_assert_eq!(decoded, Ok(messages));
    }

    #[test]
    fn garbage_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = ToRegistry::decode(&bytes);
        let _ = FromRegistry::decode(&bytes);
    }

    #[test]
    fn a_bit_that_flips_never_panics_and_a_cut_is_refused(
        message in from_registry(), other in to_registry(), at in any::<prop::sample::Index>(), bit in 0..8
    ) {
        for mut frame in [message.encode(), other.encode()] {
            frame.drain(..4);
            let at = at.index(frame.len());
            prop_assert!(FromRegistry::decode(&frame[..at]).is_err() && ToRegistry::decode(&frame[..at]).is_err());
            frame[at] ^= 1u8 << bit;
            let _ = FromRegistry::decode(&frame);
            let _ = ToRegistry::decode(&frame);
        }
    }
}

#[test]
fn texts_are_cut_to_fit_and_cannot_move_the_cursor() {
    let frame = ToRegistry::Leave { parting: Parting::Done, reason: "ä\u{1b}[2J".repeat(500) }.encode();
    assert!(frame.len() - 4 <= MAX_REQUEST_FRAME);
    let Ok(ToRegistry::Leave { reason, .. }) = ToRegistry::decode(&frame[4..]) else { panic!("not a leave") };
    assert!(reason.len() <= MAX_TEXT && reason.starts_with("ä [2J"), "{reason}");
}

#[test]
fn a_list_that_no_view_has_is_refused_before_anything_is_kept() {
    let mut frame = FromRegistry::Prepare { generation: Generation(1), gone: vec![] }.encode();
    let count = frame.len() - 4;
    frame[count..].copy_from_slice(&(MAX_MEMBERS as u32 + 1).to_le_bytes());
    assert_eq!(FromRegistry::decode(&frame[4..]), Err(Malformed("too many items")));
}

#[test]
fn the_longest_view_keeps_within_the_limit() {
    let process = ProcessRecord {
        pid: 1,
        host: vec![1; MAX_HOST],
        host_name: "h".repeat(MAX_HOST),
        addresses: vec![2; MAX_ADDRESSES],
    };
    let view = |count: usize| ViewMessage {
        generation: Generation(1),
        counted: 1,
        members: Members::All(vec![(1, Arc::new(process.clone())); count]),
        gone: vec![Gone { slot: 1, why: Why::Left, detail: "d".repeat(MAX_TEXT) }; count],
        broken: vec![(1, 2); count],
        newcomers: vec![1; count],
    };
    let (none, one) = (FromRegistry::View(view(0)).encode().len(), FromRegistry::View(view(1)).encode().len());
    assert!(none - 4 + MAX_MEMBERS * (one - none) <= MAX_ANSWER_FRAME);
}
