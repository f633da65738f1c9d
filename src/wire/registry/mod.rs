//! What the members of an elastic job, and its operators, say to the registry, and what it says to them.
//!
//! Frames as in [`rendezvous`](super::rendezvous): length u32 (the kind included), kind u8, fields; numbers are
//! little-endian; every length and count is checked against a limit before anything is kept. They travel only on
//! connections that both ends have authenticated, in order, and a connection that breaks loses no more than what was on
//! its way: after a break both sides say again what still holds. `docs/wire.md` has the fields.
//!
//! | kind | to the registry | | kind | from the registry |
//! |---|---|---|---|---|
//! | 1 | [`Register`] | | 65 | welcome |
//! | 2 | heartbeat | | 66 | wanted |
//! | 3 | suspect | | 67 | prepare |
//! | 4 | [`Report`] | | 68 | [`ViewMessage`] |
//! | 5 | leave | | 69 | evicted |
//! | 6 | status, please | | 70 | end |
//! | 7 | evict | | 71 | waiting |
//! | | | | 72 | [`Status`] |
//! | | | | 73 | goodbye |
//! | | | | 74 | probe |
//! | | | | 75 | refused |
//! | | | | 76 | done |

mod codec;
mod status;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use super::fields::{Frames, Malformed};
pub use super::rendezvous::{MAX_ADDRESSES, MAX_HOST};
pub use codec::{MAX_ANSWER_FRAME, MAX_REQUEST_FRAME};
pub(crate) use codec::{gone, process, put_gone, put_process};
pub use status::{Condition, MemberStatus, Phase, Status};

use crate::types::Generation;

/// The version of these messages.
pub const VERSION: u16 = 1;

/// The most members that a view may have, and the most that any list here may have.
pub const MAX_MEMBERS: usize = 16_384;

/// The most bytes of a text: a reason, a detail. Longer ones are cut.
pub const MAX_TEXT: usize = 512;

/// A member's number for the life of the job. Given by the registry, never used twice. The members of the first view
/// have their rank as slot.
pub type Slot = usize;

/// Chosen at random by each process when it starts: tells it from every other, also after a broken connection.
pub type Token = [u8; 16];

/// What a process tells about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Its number on its host.
    pub pid: u32,
    /// Equal for two processes exactly when they share a host. Opaque.
    pub host: Vec<u8>,
    /// The host's name, for messages.
    pub host_name: String,
    /// Where it listens for its peers. Opaque here.
    pub addresses: Vec<u8>,
}

impl fmt::Display for ProcessRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host_name)
    }
}

/// The place that a member says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Its slot.
    pub slot: Slot,
    /// The view that it has.
    pub generation: Generation,
}

/// A process asks to be let in, or says again who it is after its connection broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The version of the messages it speaks.
    pub version: u16,
    /// Which process.
    pub token: Token,
    /// How long it is going to wait for its first view.
    pub patience: Duration,
    /// The rank that the launcher wants it to have in the first view.
    pub wish: Option<usize>,
    /// Itself.
    pub process: ProcessRecord,
    /// Its place, if it has one.
    pub resume: Option<Resume>,
}

/// How far a member has come in a view, when it has stopped there. It is frozen: from the moment of the report it enters
/// and passes no commit until the next view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The view.
    pub generation: Generation,
    /// How many commits it has passed in the life of the job.
    pub counted: u64,
    /// Whether it has entered the commit of step `counted + 1`: all that step's results are here.
    pub holds: bool,
    /// Whether it stopped right after a commit, because all members agreed to stop there. Nothing of the next step
    /// has begun.
    pub boundary: bool,
    /// Whether nobody may come in behind the step whose commit it has entered: newcomers wait for a later one. False
    /// where it has entered none.
    pub closed: bool,
}

/// Whom an operator means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The member in a slot.
    Slot(Slot),
    /// The member with a rank in the view that is.
    Rank(usize),
}

/// What a member that goes says of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parting {
    /// It is done, as that of the others is about to be.
    Done,
    /// It is not: the member was asked to go, and the others go on.
    Asked,
    /// Nothing: how its process ends says whether it is done.
    Unsaid,
}

impl Parting {
    pub(crate) const ALL: [Parting; 3] = [Parting::Done, Parting::Asked, Parting::Unsaid];
}

/// What members and operators say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToRegistry {
    /// The first message on a member's connection.
    Register(Register),
    /// It lives.
    Heartbeat {
        /// Grows with each.
        number: u64,
        /// How many operations it has begun: whether that grows tells one that is stuck from one that works.
        progress: u64,
        /// Whether operations are in flight: tells one that waits for others from one that is waited for.
        is_waiting: bool,
        /// How many steps count as far as it knows: between two views the registry knows no other way.
        counted: u64,
    },
    /// Its link to another member is lost.
    Suspect {
        /// In which view.
        generation: Generation,
        /// The other.
        slot: Slot,
        /// How that was noticed.
        detail: String,
    },
    /// It has stopped: as it was told to, or at a boundary.
    Report(Report),
    /// It goes. From now on the end of its connection is no failure.
    Leave {
        /// What that says of its work.
        parting: Parting,
        /// Why.
        reason: String,
    },
    /// An operator asks how things are.
    StatusRequest,
    /// An operator wants a member out.
    Evict {
        /// Whom.
        whom: Whom,
        /// Why.
        reason: String,
    },
}

/// By what evidence a member is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// It said goodbye.
    Left,
    /// Its process ended without a goodbye.
    Exited,
    /// Its connection to the registry ended and it did not come back.
    Closed,
    /// Its host does not answer.
    Unreachable,
    /// Its host answers, but it gave no sign of life for longer than the policy allows.
    Silent,
    /// An operator wanted it out.
    Evicted,
    /// It and another member lost their link again and again.
    Link,
    /// It did not come back after the registry was restarted.
    Missing,
    /// What it said cannot be true.
    Defect,
}

impl Why {
    pub(crate) const ALL: [Why; 9] = [
        Why::Left,
        Why::Exited,
        Why::Closed,
        Why::Unreachable,
        Why::Silent,
        Why::Evicted,
        Why::Link,
        Why::Missing,
        Why::Defect,
    ];

    /// In a word, for messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Why::Left => "left",
            Why::Exited => "exited",
            Why::Closed => "closed",
            Why::Unreachable => "unreachable",
            Why::Silent => "silent",
            Why::Evicted => "evicted",
            Why::Link => "link",
            Why::Missing => "missing",
            Why::Defect => "defect",
        }
    }
}

/// A member that is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its slot.
    pub slot: Slot,
    /// By what evidence.
    pub why: Why,
    /// What was seen, in words.
    pub detail: String,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gone { slot, why, detail } = self;
        match why {
            Why::Left => write!(f, "slot {slot} left"),
            // One death has two witnesses, and the faster is heard.
            Why::Exited | Why::Closed | Why::Missing => write!(f, "slot {slot} is gone: {detail}"),
            Why::Unreachable => write!(f, "slot {slot} is unreachable: {detail}"),
            Why::Silent => write!(f, "slot {slot} is silent: {detail}"),
            Why::Evicted => write!(f, "slot {slot} was evicted: {detail}"),
            Why::Link | Why::Defect => write!(f, "slot {slot} is out: {detail}"),
        }
    }
}

/// The members of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// All, in the order of ranks.
    All(Vec<(Slot, Arc<ProcessRecord>)>),
    /// Those of the view before without the gone ones, in their order, and these after them.
    Change(Vec<(Slot, Arc<ProcessRecord>)>),
}

/// A view, and the verdict on the step that was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewMessage {
    /// Its number.
    pub generation: Generation,
    /// How many steps count.
    pub counted: u64,
    /// Who is in it.
    pub members: Members,
    /// Who was in the view before and is not in this one.
    pub gone: Vec<Gone>,
    /// Links between members of this view that are to be made again: one side has lost them.
    pub broken: Vec<(Slot, Slot)>,
    /// Members that no step has counted with yet: they need the state of the others.
    pub newcomers: Vec<Slot>,
}

/// What the registry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromRegistry {
    /// The answer to [`Register`]. Until the first view a later one replaces an earlier one.
    Welcome {
        /// The member's number.
        slot: Slot,
        /// How often it is to give a sign of life.
        heartbeat_interval: Duration,
        /// After how long without an answer from its host it is out.
        heartbeat_limit: Duration,
        /// How long it is to wait for the registry when it cannot go on without.
        elastic_timeout: Duration,
    },
    /// The view is to change between two steps.
    Wanted {
        /// The view.
        generation: Generation,
    },
    /// Stop what is in flight in this view, and report.
    Prepare {
        /// The view.
        generation: Generation,
        /// Who is out, so far.
        gone: Vec<Gone>,
    },
    /// The next view.
    View(ViewMessage),
    /// The receiver is out. Nothing it says counts any more.
    Evicted {
        /// The first view without it, or the one that the others are at.
        generation: Generation,
        /// Why.
        reason: String,
    },
    /// The job is over for all.
    End {
        /// Why.
        reason: String,
    },
    /// There are fewer members than the job needs.
    Waiting {
        /// How many there are.
        have: usize,
        /// How many it needs.
        need: usize,
        /// How long the registry is going to wait for more.
        remaining: Duration,
    },
    /// How things are.
    Status(Status),
    /// The answer to a leave: it was heard, the connection can be closed.
    Goodbye,
    /// A sign of life, please.
    Probe,
    /// What was asked for cannot be.
    Refused {
        /// What was compared.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// What an operator asked for is done.
    Done {
        /// What.
        what: String,
    },
}
