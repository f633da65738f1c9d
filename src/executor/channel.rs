//! What a rank remembers of one communicator: who is in it, which operation comes next, which were given up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::types::{Error, Signature};

/// One communicator, as the engine sees it.
///
/// Point-to-point messages have channels of their own, one for each direction between two ranks and each user tag, so
/// that their numbers count alike on both sides.
pub(super) struct Channel {
    /// World ranks, in the order of the communicator's own ranks.
    pub members: Arc<[usize]>,
    /// This process's rank in the communicator.
    pub rank: usize,
    /// The number of the next operation that starts here.
    pub next_sequence: u64,
    /// Why nothing can be done in it any more: its view is over.
    pub over: Option<Error>,
    /// A cause that came after its operation had ended here, to be reported at the next call.
    pub late_failure: Option<Error>,
    /// Operations given up, by number, with their causes. The newest [`KEPT`](Self::KEPT).
    aborted: BTreeMap<u64, Error>,
    /// Messages that came before their operation started here: sender and call, by number.
    early: BTreeMap<u64, Vec<(usize, Signature)>>,
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
            rank,
            next_sequence: 0,
            over: None,
            late_failure: None,
            aborted: BTreeMap::new(),
            early: BTreeMap::new(),
            ended: VecDeque::new(),
        }
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
        self.aborted.insert(sequence, cause.clone());
        self.early.remove(&sequence);
        true
    }

    /// Why an operation was given up, if it was.
    pub fn abort_cause(&self, sequence: u64) -> Option<&Error> {
        self.aborted.get(&sequence)
    }

    /// Every remembered abort, for a peer that connects late.
    pub fn aborts(&self) -> impl Iterator<Item = (u64, &Error)> {
        self.aborted.iter().map(|(&sequence, cause)| (sequence, cause))
    }

    /// Remembers a message that came before its operation.
    pub fn remember_early(&mut self, sequence: u64, from: usize, signature: Signature) {
        if sequence <= self.next_sequence.saturating_add(Self::AHEAD) && self.early.len() < Self::KEPT {
            self.early.entry(sequence).or_default().push((from, signature));
        }
    }

    /// Takes the early messages of an operation that starts now.
    pub fn take_early(&mut self, sequence: u64) -> Vec<(usize, Signature)> {
        if self.early.is_empty() { Vec::new() } else { self.early.remove(&sequence).unwrap_or_default() }
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
