//! The frame decoder: it never panics, and what it accepts has exactly one encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::wire::frame::{Frame, HEADER_BYTES, Header};

fuzz_target!(|data: &[u8]| {
    for bytes in data.chunks_exact(HEADER_BYTES) {
        let Ok(bytes) = <&[u8; HEADER_BYTES]>::try_from(bytes) else { continue };
        let Ok(header) = Header::decode(bytes) else { continue };
        assert_eq!(&header.encode(), bytes);
        if let Frame::Eager { signature, .. } | Frame::Announce { signature, .. } = header.frame {
            let _ = signature.decode();
        }
    }
});
