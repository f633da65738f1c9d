//! The messages between members and the registry: decoding never panics, and what is accepted means the same when it is
//! sent on. The first byte chooses the direction, the state's file, or a whole stream as a socket brings it, in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::membership::registry::Kept;
use phalanx::wire::registry::{Frames, FromRegistry, MAX_REQUEST_FRAME, ToRegistry};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, frame)) = data.split_first() else { return };
    match choice % 4 {
        0 => {
            if let Ok(message) = ToRegistry::decode(frame) {
                assert_eq!(ToRegistry::decode(&message.encode()[4..]), Ok(message));
            }
        }
        1 => {
            if let Ok(message) = FromRegistry::decode(frame) {
                assert_eq!(FromRegistry::decode(&message.encode()[4..]), Ok(message));
            }
        }
        2 => {
            if let Ok(kept) = Kept::decode(frame) {
                assert_eq!(Kept::decode(&kept.encode()), Ok(kept));
            }
        }
        _ => stream(frame),
    }
});

/// Cuts a stream into frames, reading no more at once than is of use. The first byte says how much comes at a time.
fn stream(data: &[u8]) {
    let Some((&piece, mut bytes)) = data.split_first() else { return };
    let mut frames = Frames::new(MAX_REQUEST_FRAME);
    while let Ok(wanted) = frames.wanted() {
        let (now, later) = bytes.split_at(wanted.min(usize::from(piece).max(1)).min(bytes.len()));
        if now.is_empty() {
            return;
        }
        frames.push(now);
        bytes = later;
        match frames.next_frame() {
            Ok(Some(frame)) => {
                assert!((1..=MAX_REQUEST_FRAME).contains(&frame.len()));
                let _ = ToRegistry::decode(&frame);
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}
