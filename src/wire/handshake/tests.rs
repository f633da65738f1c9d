//! Exchanges between an initiator and a responder, sound, wrong, damaged and hostile.

use super::*;
use crate::types::Generation;

const KEY: [u8; 32] = [7; 32];

fn key() -> JobKey {
    JobKey::from_bytes(KEY)
}

fn hello() -> Hello {
    Hello {
        job: key().job(),
        generation: Generation(3),
        from: 1,
        to: 2,
        purpose: Purpose::Tcp { lane: 1, lanes: 2 },
        attempt: 99,
        nonce: [1; 32],
    }
}

fn responder() -> Responder {
    Responder::new(&key(), Identity { job: key().job(), generation: Generation(3), rank: 2 }, [2; 32])
}

type Outcome = Result<(), HandshakeError>;

/// Feeds `bytes` in pieces of at most `piece`, never more than wanted; bytes beyond the end stay unread.
fn feed(bytes: &[u8], piece: usize, mut input: impl FnMut(&[u8]) -> (usize, Outcome)) -> Outcome {
    let mut left = bytes;
    loop {
        let (wanted, outcome) = input(&[]);
        outcome?;
        let now = left.len().min(piece).min(wanted);
        if now == 0 {
            return Ok(());
        }
        let (taken, later) = left.split_at(now);
        input(taken).1?;
        left = later;
    }
}

fn feed_responder(responder: &mut Responder, bytes: &[u8]) -> Outcome {
    feed(bytes, usize::MAX, |bytes| {
        let outcome = if bytes.is_empty() { Ok(()) } else { responder.handle_input(bytes) };
        (responder.wanted(), outcome)
    })
}

/// What came of an exchange.
struct End {
    initiator: Initiator,
    ours: Outcome,
    theirs: Outcome,
    /// Who the responder found proved, at any time.
    proved: Option<Hello>,
    messages: Vec<Vec<u8>>,
}

/// Carries messages to and fro in pieces until both sides are silent. `touch` may change the n-th message under way.
/// The responder gives `answer` to whoever proves itself.
fn exchange(
    mut initiator: Initiator,
    mut responder: Responder,
    piece: usize,
    answer: Option<Refusal>,
    touch: impl Fn(usize, &mut Vec<u8>),
) -> End {
    let (mut ours, mut theirs, mut proved, mut messages) = (Ok(()), Ok(()), None, Vec::new());
    loop {
        let mut moved = false;
        let mut there = initiator.poll_output();
        if !there.is_empty() {
            moved = true;
            touch(messages.len(), &mut there);
            messages.push(there.clone());
            if theirs.is_ok() {
                theirs = feed(&there, piece, |bytes| {
                    let outcome = if bytes.is_empty() { Ok(()) } else { responder.handle_input(bytes) };
                    (responder.wanted(), outcome)
                });
            }
        }
        if let Some(hello) = responder.to_decide() {
            proved = Some(hello);
            match answer {
                None => responder.accept(),
                Some(refusal) => responder.refuse(refusal),
            }
        }
        let mut back = responder.poll_output();
        if !back.is_empty() {
            moved = true;
            touch(messages.len(), &mut back);
            messages.push(back.clone());
            if ours.is_ok() {
                ours = feed(&back, piece, |bytes| {
                    let outcome = if bytes.is_empty() { Ok(()) } else { initiator.handle_input(bytes) };
                    (initiator.wanted(), outcome)
                });
            }
        }
        if !moved {
            return End { initiator, ours, theirs, proved, messages };
        }
    }
}

fn refused(hello: Hello, key: &JobKey) -> End {
    exchange(Initiator::new(key, &hello), responder(), usize::MAX, None, |_, _| ())
}

#[test]
fn members_meet_whatever_the_pieces() {
    for piece in [1, 2, 7, 11, 12, 13, 100, usize::MAX] {
        for purpose in [
            Purpose::Tcp { lane: 0, lanes: 1 },
            Purpose::Tcp { lane: 15, lanes: 16 },
            Purpose::Rdma { lane: 1, lanes: 2 },
            Purpose::Shm,
        ] {
            let hello = Hello { purpose, ..hello() };
            let end = exchange(Initiator::new(&key(), &hello), responder(), piece, None, |_, _| ());
            assert_eq!((end.ours, end.theirs), (Ok(()), Ok(())));
            assert!(end.initiator.is_accepted());
            assert_eq!(end.proved, Some(hello));
            assert_eq!(end.initiator.wanted(), 0, "not a byte beyond the handshake");
        }
    }
}

#[test]
fn a_busy_responder_says_so_with_proof() {
    let end = exchange(Initiator::new(&key(), &hello()), responder(), 5, Some(Refusal::Busy), |_, _| ());
    assert_eq!(end.ours, Err(HandshakeError { refusal: Refusal::Busy, by_peer: true }));
    assert!(!end.initiator.is_accepted());
    // The same answer, forged.
    let forged = exchange(Initiator::new(&key(), &hello()), responder(), 5, None, |number, bytes| {
        if number == 3 {
            bytes[12] = 6;
        }
    });
    assert_eq!(forged.ours, Err(HandshakeError { refusal: Refusal::WrongKey, by_peer: false }));
}

#[test]
fn both_sides_say_why() {
    let told = |refusal| Err(HandshakeError { refusal, by_peer: true });
    let found = |refusal| Err(HandshakeError { refusal, by_peer: false });

    let other = JobKey::from_bytes([8; 32]);
    let end = refused(Hello { job: other.job(), ..hello() }, &other);
    assert_eq!((end.ours, end.theirs, end.proved), (told(Refusal::WrongJob), found(Refusal::WrongJob), None));

    // The job's digest is no secret; the key is.
    let end = refused(hello(), &other);
    assert_eq!((end.ours, end.theirs, end.proved), (found(Refusal::WrongKey), told(Refusal::WrongKey), None));

    let refusal = Refusal::WrongGeneration { asked: 2, serving: 3 };
    let end = refused(Hello { generation: Generation(2), ..hello() }, &key());
    assert_eq!((end.ours, end.theirs), (told(refusal), found(refusal)));
    assert_eq!(refusal.to_string(), "generation 2 was asked for; the other side serves generation 3");

    let refusal = Refusal::WrongRank { asked: 5, serving: 2 };
    let end = refused(Hello { to: 5, ..hello() }, &key());
    assert_eq!((end.ours, end.theirs), (told(refusal), found(refusal)));
    assert!(refused(Hello { from: 2, ..hello() }, &key()).ours.is_err(), "nobody dials itself");
}

#[test]
fn an_initiator_that_knows_no_key_is_found_out() {
    // It skips what the responder must prove, and makes up its own proof.
    let end = exchange(Initiator::new(&key(), &hello()), responder(), usize::MAX, None, |number, bytes| {
        if number == 2 {
            bytes[20] ^= 1;
        }
    });
    assert_eq!(end.proved, None);
    assert_eq!(end.ours, Err(HandshakeError { refusal: Refusal::WrongKey, by_peer: true }));
}

#[test]
fn versions_tell_each_other() {
    let other_version = |bytes: &mut Vec<u8>| bytes[8..10].copy_from_slice(&7u16.to_le_bytes());
    let refusal = Refusal::Version { initiator: 7, responder: VERSION };
    let end = exchange(Initiator::new(&key(), &hello()), responder(), usize::MAX, None, |number, bytes| {
        if number == 0 {
            other_version(bytes);
        }
    });
    assert_eq!(end.theirs, Err(HandshakeError { refusal, by_peer: false }));
    assert_eq!(end.ours, Err(HandshakeError { refusal, by_peer: true }));
    assert!(refusal.to_string().contains("protocol versions differ: 7 dialled 1"));

    let end = exchange(Initiator::new(&key(), &hello()), responder(), usize::MAX, None, |number, bytes| {
        if number == 1 {
            other_version(bytes);
        }
    });
    assert_eq!(
        end.ours,
        Err(HandshakeError { refusal: Refusal::Version { initiator: VERSION, responder: 7 }, by_peer: false })
    );
}

#[test]
fn a_recording_proves_nothing() {
    let recorded = exchange(Initiator::new(&key(), &hello()), responder(), usize::MAX, None, |_, _| ()).messages;
    let mut fresh = Responder::new(&key(), responder().identity, [3; 32]);
    feed_responder(&mut fresh, &recorded[0]).unwrap();
    fresh.poll_output();
    let outcome = feed_responder(&mut fresh, &recorded[2]);
    assert_eq!(outcome, Err(HandshakeError { refusal: Refusal::WrongKey, by_peer: false }));

    // And an answer recorded from a responder does not fit another hello.
    let mut fresh = Initiator::new(&key(), &Hello { nonce: [9; 32], ..hello() });
    fresh.handle_input(&recorded[1][..12]).unwrap();
    assert_eq!(fresh.handle_input(&recorded[1][12..]).unwrap_err().refusal, Refusal::WrongKey);
}

#[test]
fn a_reflection_proves_nothing() {
    // The responder's own proof, sent back to it as if it were the initiator's.
    let mut responder = responder();
    feed_responder(&mut responder, &messages::encode_hello(&hello())).unwrap();
    let challenge = responder.poll_output();
    let mut proof = [0; 32];
    proof.copy_from_slice(&challenge[12 + 32..]);
    let outcome = feed_responder(&mut responder, &messages::encode_proof(&proof));
    assert_eq!(outcome.unwrap_err().refusal, Refusal::WrongKey);
}

#[test]
fn strangers_get_no_answer() {
    for text in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"\0", b"PHALANX\r"] {
        let mut responder = responder();
        let outcome = responder.handle_input(&text[..text.len().min(responder.wanted())]);
        assert!(matches!(outcome.unwrap_err().refusal, Refusal::Malformed(_)));
        assert_eq!((responder.poll_output(), responder.wanted()), (vec![], 0));
    }
    let mut responder = responder();
    let outcome = responder.handle_input(&[b'P'; 1000]);
    assert!(outcome.is_err(), "more than wanted");
}

#[test]
fn every_changed_bit_is_noticed() {
    let whole = exchange(Initiator::new(&key(), &hello()), responder(), usize::MAX, None, |_, _| ()).messages;
    assert_eq!(whole.len(), 4);
    for (changed, message) in whole.iter().enumerate() {
        for bit in 0..message.len() * 8 {
            let end = exchange(Initiator::new(&key(), &hello()), responder(), usize::MAX, None, |number, bytes| {
                if number == changed {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            });
            assert!(!end.initiator.is_accepted(), "message {changed}, bit {bit}");
            assert!(changed == 3 || end.proved.is_none(), "message {changed}, bit {bit}");
        }
    }
}

/// A small generator: a failing run is repeated by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % below
    }
}

#[test]
fn random_damage_neither_panics_nor_proves() {
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let (target, piece) = (random.next(4), 1 + random.next(64));
        let cuts: Vec<usize> = (0..4).map(|_| random.next(1 << 16)).collect();
        let end = exchange(Initiator::new(&key(), &hello()), responder(), piece, None, |number, bytes| {
            if number != target {
                return;
            }
            match cuts[0] % 4 {
                0 => bytes.truncate(cuts[1] % bytes.len()),
                1 => {
                    let at = cuts[1] % bytes.len();
                    bytes[at] = bytes[at].wrapping_add(1 + (cuts[2] % 255) as u8);
                }
                2 => bytes.iter_mut().skip(8).enumerate().for_each(|(at, byte)| *byte = (cuts[3] >> (at % 13)) as u8),
                _ => {
                    let at = cuts[1] % bytes.len();
                    bytes.insert(at, !bytes[at]);
                }
            }
        });
        assert!(!end.initiator.is_accepted(), "seed {seed}");
        assert!(target == 3 || end.proved.is_none(), "seed {seed}");
    }
}
