//! A quick hash for the engine's own keys, which are numbers that no stranger chooses.

use std::hash::{BuildHasherDefault, Hasher};

/// Makes [`Mixer`]s.
pub type Hashing = BuildHasherDefault<Mixer>;

/// Multiplies each word in and folds the halves of the product, as wyhash does (Wang Yi, public domain).
#[derive(Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
