//! The job's key, as the server hands it to members over a Unix socket, before anything else.
//!
//! Only there: the kernel says which user the other end belongs to, and no byte leaves the host.

use crate::wire::handshake::JobKey;

const MAGIC: &str = "PHK1";

/// How many bytes that takes.
pub(super) const BYTES: usize = 4 + 64;

pub(super) fn encode(key: &JobKey) -> Vec<u8> {
    format!("{MAGIC}{}", key.to_hex()).into_bytes()
}

pub(super) fn decode(bytes: &[u8; BYTES]) -> Option<JobKey> {
    JobKey::from_hex(std::str::from_utf8(bytes).ok()?.strip_prefix(MAGIC)?).ok()
}
