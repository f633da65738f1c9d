//! Proof that both ends of a connection know the job's key.
//!
//! The member sends a greeting with a nonce of its own; the server answers with its nonce and a proof over both; the
//! member sends its proof. The proofs carry different labels, so that neither end can be made to answer for the other.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The secret that all members of a job share. Not printed.
#[derive(Clone)]
pub struct JobKey([u8; 32]);

impl JobKey {
    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        JobKey(bytes)
    }

    /// The bytes, to hand them to a member.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn proof(&self, label: &[u8], first: &[u8; 32], second: &[u8; 32]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!("any length of key does"));
        mac.update(label);
        mac.update(first);
        mac.update(second);
        mac.finalize().into_bytes().into()
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
        f.write_str("JobKey(hidden)")
    }
}

/// The length of the member's greeting.
pub const GREETING: usize = 8 + 32;
/// The length of the server's answer.
pub const ANSWER: usize = 64;
/// The length of the member's proof.
pub const PROOF: usize = 32;

const MAGIC: [u8; 8] = *b"PHALANX\x01";
const SERVER: &[u8] = b"phalanx server";
const MEMBER: &[u8] = b"phalanx member";

/// The member's greeting.
pub fn greeting(nonce: &[u8; 32]) -> Vec<u8> {
    [&MAGIC[..], nonce].concat()
}

/// The server's answer to a greeting, and the proof it then expects. None if the greeting is none.
pub fn answer(key: &JobKey, greeting: &[u8], nonce: &[u8; 32]) -> Option<(Vec<u8>, [u8; 32])> {
    let theirs: &[u8; 32] = greeting.strip_prefix(&MAGIC)?.try_into().ok()?;
    let ours = [&nonce[..], &key.proof(SERVER, theirs, nonce)].concat();
    Some((ours, key.proof(MEMBER, nonce, theirs)))
}

/// The member's proof, if the server's answer shows that it knows the key.
pub fn proof(key: &JobKey, nonce: &[u8; 32], answer: &[u8]) -> Option<[u8; 32]> {
    let (theirs, shown) = answer.split_at_checked(32)?;
    let theirs: &[u8; 32] = theirs.try_into().ok()?;
    bool::from(key.proof(SERVER, nonce, theirs).ct_eq(shown)).then(|| key.proof(MEMBER, theirs, nonce))
}

/// Whether the member's proof is the expected one.
pub fn is_proven(expected: &[u8; 32], shown: &[u8]) -> bool {
    expected.ct_eq(shown).into()
}
