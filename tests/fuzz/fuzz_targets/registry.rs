//! The messages between members and the registry: decoding never panics, and what is accepted means the same when it is
//! sent on. The first byte chooses the direction.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::membership::registry::State;
use phalanx::wire::registry::{FromRegistry, ToRegistry};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, frame)) = data.split_first() else { return };
    match choice % 3 {
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
        _ => {
            if let Ok(state) = State::decode(frame) {
                assert_eq!(State::decode(&state.encode()), Ok(state));
            }
        }
    }
});
