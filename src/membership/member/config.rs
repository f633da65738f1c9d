//! What a member is told, and why each default is what it is.

use std::time::Duration;

use crate::wire::registry::{ProcessRecord, Token};

/// The settings of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// Random, of this process and this attempt to be a member alone.
    pub token: Token,
    /// This process.
    pub process: ProcessRecord,
    /// The rank that the launcher wants it to have in the first view.
    pub wish: Option<usize>,
    /// How long it waits for a view with it in.
    pub patience: Duration,
    /// The time between the first two attempts to reach the registry; it doubles from there. Ten milliseconds: a
    /// connection that broke by accident is back before anybody acts on it.
    pub first_retry: Duration,
    /// The longest time between two attempts. A second: no registry is hurt by that, even by thousands.
    pub last_retry: Duration,
    /// How long one that was stopped itself when it was about to give up tries to reach the registry. Five seconds: an
    /// attempt, a pause and another attempt.
    pub last_excuse: Duration,
    /// How long a goodbye waits to be heard.
    pub leave_timeout: Duration,
}

impl MemberConfig {
    /// The settings of a process with the defaults.
    pub fn new(token: Token, process: ProcessRecord) -> Self {
        Self {
            token,
            process,
            wish: None,
            patience: Duration::from_secs(600),
            first_retry: Duration::from_millis(10),
            last_retry: Duration::from_secs(1),
            last_excuse: Duration::from_secs(5),
            leave_timeout: Duration::from_secs(2),
        }
    }
}
