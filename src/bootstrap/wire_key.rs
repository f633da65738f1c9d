//! The job's key, as the server hands it to members over a Unix socket, before anything else.
//!
//! Only there: the kernel says which user the other end belongs to, and no byte leaves the host.

use crate::wire::handshake::JobKey;

const MAGIC: [u8; 4] = *b"PHK1";

/// How many bytes that takes.
pub(super) const BYTES: usize = 36;

pub(super) fn encode(key: &JobKey) -> Vec<u8> {
    [&MAGIC[..], key.as_bytes()].concat()
}

pub(super) fn decode(bytes: &[u8; BYTES]) -> Option<JobKey> {
    bytes.strip_prefix(&MAGIC)?.try_into().ok().map(JobKey::from_bytes)
}
