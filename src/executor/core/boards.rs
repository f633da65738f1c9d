//! Calls that go over the boards of ranks on one host: how the engine carries them.

use std::sync::Arc;
use std::time::Instant;

use super::{Core, Early, Peer};
use crate::executor::channel::InHostWay;
use crate::executor::completion::Completion;
use crate::executor::in_host::{Ended, InHost, Layout, Memory, Run, SetUp, Trouble, words};
use crate::executor::operation::{Operation, Work};
use crate::types::{CommunicatorId, DataType, Error, Finish, ReduceOp, Reduction, Signature, Tag};

/// How many calls that have ended here are given up with one before them. A rank cannot be further ahead of the others
/// over boards, where none writes a line before all have written the one before.
const MOST_AHEAD: u64 = 4;

/// A call to run at once.
pub struct Now<'a> {
    /// Its communicator.
    pub communicator: CommunicatorId,
    /// As in [`Work`].
    pub signature: Signature,
    /// How it lies in memory.
    pub layout: Layout,
    /// As in [`Work`].
    pub dtype: DataType,
    /// As in [`Work`], without prescale.
    pub reduction: &'a Reduction,
    /// As in [`Work`].
    pub input: *const u8,
    /// As in [`Work`].
    pub output: *mut u8,
}

/// How far a call has come at once.
pub(in crate::executor) enum Outcome {
    /// It has ended well.
    Done,
    /// It is under way.
    Pending(Box<Begun>),
    /// It goes the usual way.
    NotBegun,
}

/// A call that is under way.
pub(in crate::executor) struct Begun {
    tag: Tag,
    run: Run,
    boards: usize,
}

impl Core {
    /// With the first call of a communicator whose ranks share a host: begins to find out whether all see each other's
    /// boards. Returns why not even that can be done, if it has been given up already.
    pub(super) fn set_up(&mut self, work: &Work, now: Instant) -> Option<Error> {
        let board = (self.board)();
        let channel = self.channels.get_mut(&work.tag.communicator)?;
        let (rank, members, first) = (channel.rank, channel.members.clone(), channel.next_sequence);
        let set_up = SetUp::new(rank, members, board, work.signature, work.deadline, first);
        channel.next_sequence += SetUp::OPERATIONS;
        channel.own_operations = SetUp::OPERATIONS;
        if (first..first + SetUp::OPERATIONS).any(|sequence| channel.abort_cause(sequence).is_some()) {
            channel.in_host = InHostWay::Never;
        } else {
            channel.in_host = InHostWay::SettingUp(Box::new(set_up));
            self.start_round(work.tag.communicator, now);
        }
        // It may have ended at once.
        let channel = self.channels.get(&work.tag.communicator)?;
        (first..first + SetUp::OPERATIONS).find_map(|sequence| channel.abort_cause(sequence)).cloned()
    }

    fn start_round(&mut self, communicator: CommunicatorId, now: Instant) {
        let Some(channel) = self.channels.get_mut(&communicator) else { return };
        let InHostWay::SettingUp(set_up) = &mut channel.in_host else { return };
        let tag = Tag { communicator, sequence: set_up.sequence() };
        let (work, completion) = match set_up.work(tag) {
            Ok(work) => (work, set_up.completion.clone()),
            Err(error) => return self.set_up_ended(communicator, Some(error)),
        };
        let early = channel.take_early(tag.sequence);
        // SAFETY: the work keeps its memory alive itself, and nobody else reaches it until it has ended.
        let mut operation = unsafe { Operation::new(work, tag, completion, now) };
        operation.sets_up = true;
        let differs = early.into_iter().find(|message| !operation.agrees_with(&message.call));
        let slot = self.put(operation);
        match differs {
            Some(message) => self.fail_with_mismatch(slot, message),
            None => self.begin(slot),
        }
    }

    /// One of the two operations of a setting-up has ended.
    pub(super) fn set_up_ended(&mut self, communicator: CommunicatorId, cause: Option<Error>) {
        let peers = &self.peers;
        let Some(channel) = self.channels.get_mut(&communicator) else { return };
        let InHostWay::SettingUp(set_up) = &mut channel.in_host else { return };
        if cause.is_none() {
            set_up.learn(|member| match peers.get(member) {
                Some(Peer::Connected { endpoint, .. }) => endpoint.neighbour().cloned(),
                _ => None,
            });
            if set_up.next_round() {
                return self.start_round(communicator, Instant::now());
            }
        }
        let InHostWay::SettingUp(set_up) = std::mem::replace(&mut channel.in_host, InHostWay::Never) else { return };
        // Where a call was given up meanwhile, the others forgo the boards too, as soon as they hear of it.
        let (in_host, held) = set_up.finish(cause.is_none() && !channel.has_given_up());
        let single_copy = in_host.as_ref().is_some_and(InHost::has_single_copy);
        if let Some(in_host) = in_host {
            let index = self.in_hosts.iter().position(Option::is_none).unwrap_or_else(|| {
                self.in_hosts.push(None);
                self.in_hosts.len() - 1
            });
            self.in_hosts[index] = Some(Box::new(in_host));
            channel.in_host = InHostWay::Over(index);
        }
        let over_boards = matches!(channel.in_host, InHostWay::Over(_));
        tracing::debug!(over_boards, single_copy, "a communicator on one host");
        for slot in held {
            let Some(operation) = &mut self.slots[slot].operation else { continue };
            operation.held = false;
            match &cause {
                Some(cause) => self.fail(slot, cause.clone(), true),
                None => self.begin(slot),
            }
        }
    }

    /// Runs a call at once where nothing else is under way and it is short, without making an operation of it.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit), for as long as it is under way.
    pub unsafe fn run_now(&mut self, call: &Now<'_>, patience: &mut dyn FnMut() -> bool) -> Outcome {
        if self.active > 0 || self.closed {
            return Outcome::NotBegun;
        }
        let Some(channel) = self.channels.get_mut(&call.communicator) else { return Outcome::NotBegun };
        let InHostWay::Over(boards) = channel.in_host else { return Outcome::NotBegun };
        let Some(Some(in_host)) = self.in_hosts.get_mut(boards) else { return Outcome::NotBegun };
        let is_given_up = channel.has_given_up() && channel.abort_cause(channel.next_sequence).is_some();
        if is_given_up || channel.over.is_some() || channel.late_failure.is_some() || channel.has_early() {
            return Outcome::NotBegun;
        }
        let tag = Tag { communicator: call.communicator, sequence: channel.next_sequence };
        let mut run = Run::new(call.layout.clone(), words(&call.signature));
        let divisor = if call.reduction.op == ReduceOp::Average { call.layout.size as u64 } else { 1 };
        let finish = Finish { divisor, factor: call.reduction.postscale };
        let (from, to) = (if run.reads_output() { call.output.cast_const() } else { call.input }, call.output);
        let memory = Memory { from, to, dtype: call.dtype, reduction: call.reduction, finish };
        match in_host.run_now(&mut run, &memory, (tag, call.signature), patience) {
            None => return Outcome::NotBegun,
            Some(true) => channel.remember_ended(tag.sequence, call.signature),
            Some(false) => {
                channel.next_sequence += 1;
                return Outcome::Pending(Box::new(Begun { tag, run, boards }));
            }
        }
        channel.next_sequence += 1;
        Outcome::Done
    }

    /// Goes on with what [`run_now`](Self::run_now) has begun, as an operation.
    ///
    /// # Safety
    ///
    /// As [`submit`](Self::submit); `work` is that same call.
    pub unsafe fn go_on_with(&mut self, begun: Begun, work: Work, completion: &Arc<Completion>, now: Instant) {
        let Begun { tag, run, boards } = begun;
        // SAFETY: the caller's promise.
        let mut operation = unsafe { Operation::new(work, tag, completion.clone(), now) };
        (operation.run, operation.boards) = (Some(run), boards);
        let slot = self.put(operation);
        if let Some(Some(in_host)) = self.in_hosts.get_mut(boards) {
            in_host.go_on_with(slot);
        }
    }

    /// An operation has ended before it was known which way it goes. Its place may be another's now.
    pub(super) fn hold_no_more(&mut self, communicator: CommunicatorId, slot: usize) {
        let channel = self.channels.get_mut(&communicator);
        if let Some(InHostWay::SettingUp(set_up)) = channel.map(|channel| &mut channel.in_host) {
            set_up.held.retain(|held| *held != slot);
        }
    }

    /// Moves one communicator's calls over boards. Returns whether anything moved.
    pub(super) fn advance_in_host(&mut self, index: usize) -> bool {
        let Some(Some(in_host)) = self.in_hosts.get_mut(index) else { return false };
        if !in_host.is_active() {
            return false;
        }
        let mut ended = Ended::new();
        let moved = in_host.advance(&mut ended, &mut self.slots);
        for (slot, outcome) in ended {
            match outcome {
                Ok(()) => self.end(slot, Ok(())),
                Err(Trouble::Differs(from, call)) => {
                    let channel = self.slots[slot].operation.as_ref().and_then(|one| {
                        let channel = self.channels.get(&one.tag.communicator)?;
                        Some((channel, one.tag.sequence))
                    });
                    let unaware = channel.and_then(|(channel, sequence)| channel.unaware(from, sequence)).cloned();
                    self.fail_with_mismatch(slot, Early { from, call, unaware });
                }
                Err(Trouble::Differed(from, call, (tag, signature))) => {
                    let Some(channel) = self.channels.get(&tag.communicator) else { continue };
                    let (sequence, own) = (channel.users_number(tag.sequence), channel.rank);
                    let mismatch = Error::Mismatch { sequence, ours: (own, signature), theirs: (from, call) };
                    let cause = channel.unaware(from, tag.sequence).cloned().unwrap_or(mismatch);
                    self.give_up_ended(tag, cause.clone());
                    // Should that have been given up before, this call has been waiting for nothing.
                    self.fail(slot, cause, true);
                }
                Err(trouble @ (Trouble::Broken(from) | Trouble::Unreadable(from))) => {
                    let Some(operation) = &self.slots[slot].operation else { continue };
                    let Some(channel) = self.channels.get(&operation.tag.communicator) else { continue };
                    let detail = match trouble {
                        Trouble::Unreadable(_) => {
                            "its memory cannot be read any more; PHALANX_SINGLE_COPY=0 does without"
                        }
                        _ => "it left the communicator's shared memory in the middle of a call",
                    };
                    let failure = channel.failure(from, &operation.signature, detail);
                    self.fail(slot, failure, true);
                }
            }
        }
        self.forget_if_over(index);
        moved
    }

    /// Gives a communicator's part of the board back after its last call.
    fn forget_if_over(&mut self, index: usize) {
        if let Some(place) = self.in_hosts.get_mut(index)
            && place.as_ref().is_some_and(|in_host| in_host.is_over())
        {
            *place = None;
        }
    }

    /// A call of a communicator was given up, here or elsewhere: those that follow go over boards no more. What this rank
    /// has in flight there fails if it comes after it, and so does, for the others, what it has ended since.
    pub(super) fn forgo_boards(&mut self, tag: Tag, cause: &Error, tell: bool) {
        let Some(channel) = self.channels.get_mut(&tag.communicator) else { return };
        let InHostWay::Over(index) = channel.in_host else { return };
        // Calls before it that this rank has not begun are on the boards of others that have. When its own turn comes, it
        // is refused, and the boards with it.
        if tag.sequence > channel.next_sequence {
            return;
        }
        channel.in_host = InHostWay::Never;
        let Some(Some(in_host)) = self.in_hosts.get_mut(index) else { return };
        in_host.close();
        in_host.give_up(None);
        for slot in in_host.operations() {
            if self.slots[slot].operation.as_ref().is_some_and(|operation| operation.tag.sequence > tag.sequence) {
                self.fail(slot, cause.clone(), tell);
            }
        }
        self.forget_if_over(index);
        let Some(channel) = self.channels.get(&tag.communicator).filter(|_| tell) else { return };
        let end = channel.next_sequence.min(tag.sequence.saturating_add(1 + MOST_AHEAD));
        for sequence in tag.sequence.saturating_add(1)..end {
            let tag = Tag { sequence, ..tag };
            let Some(channel) = self.channels.get_mut(&tag.communicator) else { return };
            if !self.by_tag.contains_key(&tag) && channel.abort(sequence, cause) {
                self.tell_abort(tag, cause);
            }
        }
    }

    /// A communicator is not used any more; what it has in flight ends as it would.
    pub(super) fn leave_boards(&mut self, way: InHostWay) {
        if let InHostWay::Over(index) = way {
            if let Some(Some(in_host)) = self.in_hosts.get_mut(index) {
                in_host.close();
            }
            self.forget_if_over(index);
        }
    }

    /// The ranks that an operation waits for.
    pub(super) fn waiting_for(&self, operation: &Operation) -> Vec<usize> {
        match (&operation.run, self.in_hosts.get(operation.boards)) {
            (Some(run), Some(Some(in_host))) => in_host.waiting_for(run),
            (Some(_), _) => Vec::new(),
            (None, _) => operation.waiting_for(),
        }
    }
}
