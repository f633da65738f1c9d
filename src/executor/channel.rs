//! What a rank remembers of one communicator: who is in it, which operation comes next, which were given up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::in_host::SetUp;
use crate::types::{Collective, Error, Signature};

/// An operation that was given up.
struct GivenUp {
    cause: Error,
    /// The ranks that are known to know. What another one sent, it sent unaware.
    aware: Vec<usize>,
    /// The number of the next operation here when this rank learnt of it: those before were begun unaware.
    next: u64,
}

/// A message that came before its operation started here.
pub(super) struct Early {
    /// The sender's rank in the communicator.
    pub from: usize,
    /// Its call.
    pub call: Signature,
    /// Why an earlier operation was given up, when the sender is known to have learnt of that only later.
    pub unaware: Option<Error>,
}

/// Whether a communicator's calls go over the boards of ranks on one host.
pub(super) enum InHostWay {
    /// They do not.
    Never,
    /// That is found out with the first call.
    Unknown,
    /// It is being found out.
    SettingUp(Box<SetUp>),
    /// They do: where in the engine's list.
    Over(usize),
}

/// One communicator, as the engine sees it.
///
/// Point-to-point messages have channels of their own, one for each direction between two ranks and each user tag, so
/// that their numbers count alike on both sides.
pub(super) struct Channel {
    /// World ranks, in the order of the communicator's own ranks.
    pub members: Arc<[usize]>,
    /// What each member is called in errors: its rank in the communicator on which the user made the call.
    names: Option<[usize; 2]>,
    /// This process's rank in the communicator.
    pub rank: usize,
    /// The number of the next operation that starts here.
    pub next_sequence: u64,
    /// A cause that came after its operation had ended here, to be reported at the next call.
    pub late_failure: Option<Error>,
    /// Why nothing can be done in it any more: its view is over.
    pub over: Option<Error>,
    /// Whether its calls go over the boards of ranks on one host.
    pub in_host: InHostWay,
    /// How many of the operations so far were the engine's own. They are not counted in what users see.
    pub own_operations: u64,
    /// Operations given up, by number, with their causes. The newest [`KEPT`](Self::KEPT).
    aborted: BTreeMap<u64, GivenUp>,
    /// Messages that came before their operation started here, by number.
    early: BTreeMap<u64, Vec<Early>>,
    /// The newest operations that ended here well.
    ended: VecDeque<(u64, Signature)>,
}

impl Channel {
    /// How many given-up and ended operations are remembered. Ranks are never that many operations apart: the
    /// limit on early messages stops them long before.
    const KEPT: usize = 1024;

    /// How far ahead of this rank's next operation a peer's early message may be and still be remembered.
    const AHEAD: u64 = 1 << 20;

    pub fn new(members: Arc<[usize]>, rank: usize) -> Self {
        Self {
            members,
            names: None,
            rank,
            next_sequence: 0,
            late_failure: None,
            over: None,
            in_host: InHostWay::Never,
            own_operations: 0,
            aborted: BTreeMap::new(),
            early: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// The channel of messages between two ranks, which are called by `names`.
    pub fn link(members: [usize; 2], names: [usize; 2], rank: usize) -> Self {
        Self { names: Some(names), ..Self::new(members.into(), rank) }
    }

    /// The number of a call as users count them.
    pub fn users_number(&self, sequence: u64) -> u64 {
        sequence.saturating_sub(self.own_operations)
    }

    /// What a member is called in errors.
    pub fn name(&self, rank: usize) -> usize {
        self.names.and_then(|names| names.get(rank).copied()).unwrap_or(rank)
    }

    /// That a member is gone, or did not take part. In a group its name is not the one that the job's output shows.
    pub fn failure(&self, rank: usize, operation: &Signature, detail: &str) -> Error {
        let (name, member) = (self.name(rank), self.members.get(rank).copied());
        let detail = match member.filter(|&member| member != name) {
            Some(member) => format!("rank {member} of the world: {detail}").into(),
            None => Arc::from(detail),
        };
        Error::PeerFailed { rank: name, operation: operation.to_string().into(), detail }
    }

    /// The world rank of the member that errors call so.
    pub fn member_named(&self, name: usize) -> Option<usize> {
        let rank = match self.names {
            Some(names) => names.iter().position(|known| *known == name)?,
            None => name,
        };
        self.members.get(rank).copied()
    }

    /// The rank in this communicator of a world rank.
    pub fn rank_of(&self, world_rank: usize) -> Option<usize> {
        self.members.iter().position(|&member| member == world_rank)
    }

    /// Remembers that an operation was given up. Returns whether that is news.
    pub fn abort(&mut self, sequence: u64, cause: &Error) -> bool {
        if self.aborted.contains_key(&sequence) || sequence > self.next_sequence.saturating_add(Self::AHEAD) {
            return false;
        }
        if self.aborted.len() == Self::KEPT {
            self.aborted.pop_first();
        }
        let given_up = GivenUp { cause: cause.clone(), aware: Vec::new(), next: self.next_sequence };
        self.aborted.insert(sequence, given_up);
        self.early.remove(&sequence);
        true
    }

    /// Whether this rank has told its caller of a cause, or will when it makes the call that was given up.
    pub fn knows(&self, cause: &Error) -> bool {
        // What this rank alone knew, the others know as its failure.
        let own = matches!(cause, Error::PeerFailed { rank, .. } if *rank == self.name(self.rank));
        own || self.aborted.values().any(|known| is_same(&known.cause, cause))
    }

    /// Remembers that a rank told of an operation that was given up.
    pub fn hear(&mut self, sequence: u64, from: usize) {
        let Some(given_up) = self.aborted.get_mut(&sequence).filter(|known| !known.aware.contains(&from)) else {
            return;
        };
        given_up.aware.push(from);
        // What it had sent before, it sent unaware.
        let later = self.early.range_mut(sequence + 1..).flat_map(|(_, messages)| messages);
        for message in later.filter(|message| message.from == from && message.unaware.is_none()) {
            message.unaware = Some(given_up.cause.clone());
        }
    }

    /// Why the newest operation before `sequence` was given up of which a rank does not know yet, or of which this one
    /// did not know when it made its call `sequence`. The two may be in different calls for that reason alone: whoever
    /// knew went on to another, and every rank tells of what it hears before anything else that it sends then.
    pub fn unaware(&self, from: usize, sequence: u64) -> Option<&Error> {
        let before = self.aborted.range(..sequence).rev().map(|(_, given_up)| given_up);
        let mut unknown = before.filter(|known| known.next > sequence || !known.aware.contains(&from));
        unknown.next().map(|given_up| &given_up.cause)
    }

    /// Why an operation was given up, if it was.
    pub fn abort_cause(&self, sequence: u64) -> Option<&Error> {
        self.aborted.get(&sequence).map(|given_up| &given_up.cause)
    }

    /// Whether there may be ranks that have not heard of an operation that was given up. When all have taken part in one
    /// since, there are none.
    pub fn has_news(&self) -> bool {
        let Some((&newest, _)) = self.aborted.last_key_value() else {
            return false;
        };
        let takes_all = |call: &Signature| {
            !matches!(
                call.collective,
                Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
            )
        };
        !self.ended.iter().any(|(sequence, call)| *sequence > newest && takes_all(call))
    }

    /// Every remembered abort, for a peer that connects late.
    pub fn aborts(&self) -> impl Iterator<Item = (u64, &Error)> {
        self.aborted.iter().map(|(&sequence, given_up)| (sequence, &given_up.cause))
    }

    /// Remembers a message that came before its operation.
    pub fn remember_early(&mut self, sequence: u64, from: usize, call: Signature) {
        if sequence <= self.next_sequence.saturating_add(Self::AHEAD) && self.early.len() < Self::KEPT {
            self.early.entry(sequence).or_default().push(Early { from, call, unaware: None });
        }
    }

    /// Takes the early messages of an operation that starts now.
    pub fn take_early(&mut self, sequence: u64) -> Vec<Early> {
        if self.early.is_empty() {
            return Vec::new();
        }
        let mut early = self.early.remove(&sequence).unwrap_or_default();
        for message in early.iter_mut().filter(|message| message.unaware.is_none()) {
            message.unaware = self.unaware(message.from, sequence).cloned();
        }
        early
    }

    /// Whether any operation was given up.
    pub fn has_given_up(&self) -> bool {
        !self.aborted.is_empty()
    }

    /// Whether messages came of operations that have not started here.
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Remembers an operation that ended well.
    pub fn remember_ended(&mut self, sequence: u64, signature: Signature) {
        if self.ended.len() == Self::KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back((sequence, signature));
    }

    /// The call of an operation that ended well, if it is still remembered.
    pub fn ended_call(&self, sequence: u64) -> Option<Signature> {
        self.ended.iter().rev().find(|(number, _)| *number == sequence).map(|(_, signature)| *signature)
    }
}

/// Whether two causes are one, of which one may have travelled.
fn is_same(one: &Error, other: &Error) -> bool {
    match (one, other) {
        (Error::Timeout { operation, waited, .. }, Error::Timeout { operation: other, waited: others, .. }) => {
            // Notices tell milliseconds.
            operation == other && waited.as_millis() == others.as_millis()
        }
        (
            Error::PeerFailed { rank, operation, .. },
            Error::PeerFailed { rank: other_rank, operation: other_operation, .. },
        ) => rank == other_rank && operation == other_operation,
        _ => one == other,
    }
}
