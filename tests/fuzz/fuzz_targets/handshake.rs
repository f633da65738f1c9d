//! Both machines of the handshake, fed with anything, in pieces of any size. The first byte chooses the side and how far
//! the exchange has come before.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::types::Generation;
use phalanx::wire::handshake::{Hello, Identity, Initiator, JobKey, Purpose, Responder};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let key = JobKey::from_bytes([7; 32]);
    let hello = Hello {
        job: key.job(),
        generation: Generation(1),
        from: 0,
        to: 1,
        purpose: Purpose::Shm,
        attempt: 1,
        nonce: [1; 32],
    };
    let mut initiator = Initiator::new(&key, &hello);
    let identity = Identity { job: key.job(), generation: Generation(1), rank: 1 };
    let mut responder = Responder::new(&key, identity, [2; 32]);
    let piece = usize::from(choice >> 2) + 1;
    if choice & 2 != 0 {
        // The first message of each side is sound.
        let mut hello = &initiator.poll_output()[..];
        while !hello.is_empty() {
            let (now, later) = hello.split_at(responder.wanted().min(hello.len()));
            responder.handle_input(now).expect("a sound hello");
            hello = later;
        }
        let mut challenge = &responder.poll_output()[..];
        while !challenge.is_empty() {
            let (now, later) = challenge.split_at(initiator.wanted().min(challenge.len()));
            initiator.handle_input(now).expect("a sound challenge");
            challenge = later;
        }
    }
    let mut data = data;
    while !data.is_empty() {
        let wanted = if choice & 1 == 0 { responder.wanted() } else { initiator.wanted() };
        if wanted == 0 {
            break;
        }
        let (now, later) = data.split_at(piece.min(wanted).min(data.len()));
        let outcome = if choice & 1 == 0 { responder.handle_input(now) } else { initiator.handle_input(now) };
        if outcome.is_err() {
            break;
        }
        data = later;
    }
    assert!(responder.to_decide().is_none() && !initiator.is_accepted(), "proved without the key");
});
