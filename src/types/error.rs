//! What can go wrong, whose fault it is, and what to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Generation, Signature};

/// A result with the library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The call was wrong: the same call will fail again.
    Caller,
    /// Another rank died, was silent or broke the protocol.
    Peer,
    /// The machine, the network, the launcher or the environment variables.
    Environment,
    /// A defect of Phalanx.
    Bug,
}

/// An error of a call, with the values that were compared. Cheap to clone: one failure is told to many waiters.
///
/// Its `Debug` form is the same sentence as its `Display` form: it is what `fn main() -> phalanx::Result<()>`, `unwrap` and
/// `expect` show.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument cannot be used. Nothing was sent; the communicator is unharmed.
    InvalidArgument {
        /// What was given, what was expected.
        what: Arc<str>,
    },
    /// Two ranks made different calls at the same place in their programs.
    Mismatch {
        /// The number of the operation in its communicator.
        sequence: u64,
        /// One rank, and its call.
        ours: (usize, Signature),
        /// The other rank, and its call.
        theirs: (usize, Signature),
    },
    /// A rank that the operation needs is gone, or did what no sound peer does.
    PeerFailed {
        /// The rank, in the communicator of the operation.
        rank: usize,
        /// The operation, as `allreduce(...)`, or what was being done.
        operation: Arc<str>,
        /// How it was noticed, over which link.
        detail: Arc<str>,
    },
    /// The deadline passed.
    Timeout {
        /// The operation, as `allreduce(...)`, or what was being done.
        operation: Arc<str>,
        /// The ranks that were being waited for.
        waiting_for: Vec<usize>,
        /// How long the operation had been waiting.
        waited: Duration,
        /// Over which links.
        detail: Arc<str>,
    },
    /// The view in which the call was made is over, and the step that it belongs to does not count, on any rank.
    ViewChanged {
        /// The generation of the next view, or of the one that ended if the next has not come.
        generation: Generation,
        /// Why it ended.
        cause: Arc<str>,
    },
    /// The others went on without this rank. What it does has no effect on them.
    Evicted {
        /// The first view without it.
        generation: Generation,
        /// Why it is out.
        reason: Arc<str>,
    },
    /// Ranks that should have the same state have not.
    StateDiffers {
        /// Two of them.
        ranks: [usize; 2],
    },
    /// The communicator was shut down on this rank while the operation was pending or before it began.
    Closed {
        /// What was asked for.
        what: Arc<str>,
    },
    /// The machine, the network, the launcher or an environment variable.
    Environment {
        /// What was given or found, what was expected.
        what: Arc<str>,
        /// What to do about it.
        hint: Arc<str>,
    },
    /// A defect of Phalanx. Please report it.
    Internal {
        /// What should not have happened.
        what: Arc<str>,
    },
}

impl Error {
    /// An argument that cannot be used.
    pub fn invalid(what: impl fmt::Display) -> Self {
        Self::InvalidArgument { what: what.to_string().into() }
    }

    /// Something about the machine or the environment, and what to do about it.
    pub fn environment(what: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::Environment { what: what.to_string().into(), hint: hint.to_string().into() }
    }

    /// A defect.
    pub fn internal(what: impl fmt::Display) -> Self {
        Self::Internal { what: what.to_string().into() }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::InvalidArgument { .. } | Self::Mismatch { .. } | Self::Closed { .. } | Self::StateDiffers { .. } => {
                Fault::Caller
            }
            Self::PeerFailed { .. } | Self::Timeout { .. } | Self::ViewChanged { .. } | Self::Evicted { .. } => {
                Fault::Peer
            }
            Self::Environment { .. } => Fault::Environment,
            Self::Internal { .. } => Fault::Bug,
        }
    }

    /// Whether the same call may succeed when tried again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Environment { .. } | Self::ViewChanged { .. })
    }

    /// What to do about it.
    pub fn hint(&self) -> &str {
        match self {
            Self::InvalidArgument { .. } => "correct the argument",
            Self::Mismatch { .. } => {
                "every rank must make the same calls in the same order with the same counts, types, ops and roots"
            }
            Self::PeerFailed { .. } => "look at the output of the rank that failed; restart the job",
            Self::Timeout { .. } => {
                "look at what the ranks waited for are doing; PHALANX_TIMEOUT (while ranks meet: PHALANX_START_TIMEOUT) sets the limit"
            }
            Self::ViewChanged { .. } => {
                "restore the state of the last commit, and go on in the new view, with groups made anew"
            }
            Self::Evicted { .. } => "exit, or join again as a newcomer; the others have the state",
            Self::StateDiffers { .. } => {
                "keep in the state only what every rank computes alike, and start all ranks from the same checkpoint"
            }
            Self::Closed { .. } => "make no calls on a communicator after shutdown",
            Self::Environment { hint, .. } => hint,
            Self::Internal { .. } => "please report this with the log",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument { what } => write!(f, "{what}"),
            Self::Mismatch { sequence, ours, theirs } => write!(
                f,
                "mismatched calls at operation {sequence}: rank {} called {}, rank {} called {}{}",
                ours.0,
                ours.1,
                theirs.0,
                theirs.1,
                if ours.1 == (Signature { digest: ours.1.digest, ..theirs.1 }) {
                    " (block lengths, scale factors or the user function differ)"
                } else {
                    ""
                }
            ),
            Self::PeerFailed { rank, operation, detail } => {
                write!(f, "rank {rank} failed during {operation}: {detail}")
            }
            Self::Timeout { operation, waiting_for, waited, detail } => {
                let ranks: Vec<_> = waiting_for.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{operation} timed out after {:.3} s waiting for rank{} {}",
                    waited.as_secs_f64(),
                    if ranks.len() == 1 { "" } else { "s" },
                    ranks.join(", ")
                )?;
                if detail.is_empty() { Ok(()) } else { write!(f, " ({detail})") }
            }
            Self::ViewChanged { generation, cause } => write!(f, "the view ended ({cause}; {generation})"),
            Self::Evicted { generation, reason } => {
                write!(f, "the others went on without this rank ({reason}; {generation} is the first without it)")
            }
            Self::StateDiffers { ranks: [one, other] } => {
                write!(f, "the states of rank {one} and rank {other} differ, though they should be equal")
            }
            Self::Closed { what } => write!(f, "{what}: the communicator was shut down"),
            Self::Environment { what, .. } => write!(f, "{what}"),
            Self::Internal { what } => write!(f, "defect in Phalanx: {what}"),
        }?;
        match self {
            // What was expected has been said.
            Self::InvalidArgument { .. } => Ok(()),
            _ => write!(f, "; {}", self.hint()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_shows_of_an_error_is_a_sentence() {
        let error = Error::environment("only half is set: A=0, B (not set)", "set both");
        assert_eq!(format!("{error:?}"), "only half is set: A=0, B (not set); set both");
        let error = Error::invalid("root 7 given, but ranks are 0 to 3");
        assert_eq!(
            format!("{error} {error:?}"),
            "root 7 given, but ranks are 0 to 3 root 7 given, but ranks are 0 to 3"
        );
        assert_eq!(error.hint(), "correct the argument");
    }
}
