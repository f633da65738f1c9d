//! The secret that the members of a job share.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// An HMAC-SHA256 code.
pub type Proof = [u8; 32];

/// A job's key: 32 random bytes that its members share and nobody else has. It is never printed.
#[derive(Clone)]
pub struct JobKey([u8; 32]);

impl JobKey {
    /// The key's size in bytes.
    pub const BYTES: usize = 32;

    /// A key of given bytes, which must be random.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to hand them to a member.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A new key from the kernel's random source. Fails only where there is none.
    pub fn generate() -> Result<Self, String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers for the job key: {error}"))?;
        Ok(Self(bytes))
    }

    /// Reads 64 hexadecimal digits. The error says what is wrong, and nothing of the text.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let digits: &[u8] = text.trim().as_bytes();
        if digits.len() != 2 * Self::BYTES {
            return Err(format!("a job key has {} hexadecimal digits; found {}", 2 * Self::BYTES, digits.len()));
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: u8| char::from(digit).to_digit(16);
            match (value(pair[0]), value(pair[1])) {
                (Some(high), Some(low)) => *byte = (high << 4 | low) as u8,
                _ => return Err("a job key has hexadecimal digits only".into()),
            }
        }
        Ok(Self(bytes))
    }

    /// The key as 64 hexadecimal digits, to hand to a member. Keep it off command lines and out of logs.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What tells jobs apart without telling their keys.
    pub fn job(&self) -> JobDigest {
        let mut hash = Sha256::new();
        hash.update(b"phalanx job digest");
        hash.update(self.0);
        JobDigest(hash.finalize().into())
    }

    fn code(&self, label: &str, transcript: &[u8]) -> Proof {
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&self.0.padded());
        mac.update(label.as_bytes());
        mac.update(&[0]);
        mac.update(transcript);
        mac.finalize().into_bytes().into()
    }

    /// The proof, of the role that `label` names, that its sender knows the key and has seen `transcript`.
    pub fn prove(&self, label: &str, transcript: &[u8]) -> Proof {
        self.code(label, transcript)
    }

    /// Whether `proof` is that proof, found out in constant time.
    pub fn verify(&self, label: &str, transcript: &[u8], proof: &Proof) -> bool {
        self.code(label, transcript).ct_eq(proof).into()
    }
}

/// HMAC pads keys to the hash's block of 64 bytes with zeros; doing it here makes the construction infallible.
trait Padded {
    fn padded(&self) -> hmac::digest::Key<Hmac<Sha256>>;
}

impl Padded for [u8; 32] {
    fn padded(&self) -> hmac::digest::Key<Hmac<Sha256>> {
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..self.len()].copy_from_slice(self);
        block
    }
}

impl PartialEq for JobKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for JobKey {}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// What tells jobs apart: a hash of the key, which says nothing about the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobDigest(pub [u8; 32]);

/// As people tell jobs apart: `job 09ab12cd`.
impl fmt::Display for JobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three, four, ..] = self.0;
        write!(f, "job {one:02x}{two:02x}{three:02x}{four:02x}")
    }
}

impl fmt::Debug for JobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobDigest({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        let key = JobKey::generate().unwrap();
        let again = JobKey::from_hex(&format!(" {}\n", key.to_hex().to_uppercase())).unwrap();
        assert_eq!(again.0, key.0);
        assert_ne!(JobKey::generate().unwrap().0, key.0);
        assert!(JobKey::from_hex("12").unwrap_err().contains("64 hexadecimal digits; found 2"));
        let wrong = "g".repeat(64);
        assert!(!JobKey::from_hex(&wrong).unwrap_err().contains('g'.to_string().repeat(3).as_str()));
        assert!(JobKey::from_hex(&"é".repeat(32)).is_err());
    }

    #[test]
    fn the_key_is_not_printed() {
        let key = JobKey::from_bytes([0x5a; 32]);
        let printed = format!("{key:?} {:?}", key.job());
        assert!(!printed.contains("5a5a") && !printed.contains("90, 90"), "{printed}");
    }

    /// RFC 4231, test case 1 with the zero bytes that the padding adds anyway, checks that the padded key is HMAC's.
    #[test]
    fn the_code_is_hmac() {
        let key = JobKey::from_bytes([0x0b; 32]);
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&[0x0b; 32]).unwrap();
        mac.update(b"label\0text");
        assert_eq!(key.prove("label", b"text"), <[u8; 32]>::from(mac.finalize().into_bytes()));
        assert!(key.verify("label", b"text", &key.prove("label", b"text")));
        assert!(!key.verify("other", b"text", &key.prove("label", b"text")));
    }
}
