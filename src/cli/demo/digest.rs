//! Digests, by which weights are compared without moving them.

use sha2::{Digest, Sha256};

/// The SHA-256 of the weights' bits, little-endian.
pub fn of_weights(weights: &[f32]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for weight in weights {
        hasher.update(weight.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a person compares: the first 16 digits.
pub fn short(digest: &[u8]) -> String {
    hex(&digest[..digest.len().min(8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_makes_another_digest() {
        assert_eq!(short(&of_weights(&[])), "e3b0c44298fc1c14");
        assert_ne!(of_weights(&[0.0]), of_weights(&[-0.0]));
        assert_eq!(of_weights(&[1.5, 2.0]), of_weights(&[1.5, 2.0]));
    }
}
