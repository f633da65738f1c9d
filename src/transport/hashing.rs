//! A quick hash for tags and communicators.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A hash for keys of a few words, seeded so that a peer cannot choose tags that fall together.
pub struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0) | 1)
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding { state: self.0, factor: self.0 }
    }
}

/// Multiplies into twice the width and folds the halves together.
pub struct Folding {
    state: u64,
    factor: u64,
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor ^ 0x9e37_79b9_7f4a_7c15);
        self.state = (product as u64) ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.state
    }
}
