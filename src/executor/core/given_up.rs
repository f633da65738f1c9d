//! Operations that are given up: because calls differ, a peer is lost, time is up, or another rank says so.

use std::sync::Arc;

use super::{Core, Early, Peer, Unknown, frame};
use crate::executor::completion::Completion;
use crate::executor::in_host::Run;
use crate::types::{Error, Tag};
use crate::wire::notice::Notice;

impl Core {
    /// Some rank gave the operation up.
    pub(super) fn handle_abort(&mut self, peer: usize, tag: Tag, cause: Error) {
        if self.is_stale(tag.communicator) {
            return;
        }
        let Some(channel) = self.channels.get_mut(&tag.communicator) else {
            return self.remember_unknown(peer, Unknown::Abort(tag, cause));
        };
        let Some(from) = channel.rank_of(peer).filter(|_| channel.over.is_none()) else {
            return;
        };
        if tag.communicator.is_point_to_point() {
            match self.by_tag.get(&tag) {
                Some(&slot) => self.fail(slot, cause, false),
                // Whoever starts the other half of this message later is told then. If that half has ended, as a short
                // send does once it is on the way, the next one of this channel is the place to tell of the mismatch.
                None => {
                    let has_ended = tag.sequence < channel.next_sequence && !channel.knows(&cause);
                    if channel.abort(tag.sequence, &cause) && has_ended && matches!(cause, Error::Mismatch { .. }) {
                        channel.late_failure = Some(cause);
                    }
                }
            }
            return;
        }
        match self.by_tag.get(&tag) {
            Some(&slot) => self.fail(slot, cause, true),
            None => self.give_up_ended(tag, cause),
        }
        if let Some(channel) = self.channels.get_mut(&tag.communicator) {
            channel.hear(tag.sequence, from);
        }
    }

    /// An operation that is not in flight here, any more or yet, was given up.
    pub(super) fn give_up_ended(&mut self, tag: Tag, cause: Error) {
        let Some(channel) = self.channels.get_mut(&tag.communicator) else {
            return;
        };
        let passed = tag.sequence < channel.next_sequence && !channel.knows(&cause);
        if !channel.abort(tag.sequence, &cause) {
            return;
        }
        self.tell_abort(tag, &cause);
        self.forgo_boards(tag, &cause, true);
        if passed {
            // It ended well here, and this rank went on. Those that gave it up went on to another call, perhaps, and
            // what this one waits for may never come.
            match self.next_in_flight(tag) {
                Some(slot) => self.fail(slot, cause, true),
                None => {
                    if let Some(channel) = self.channels.get_mut(&tag.communicator) {
                        channel.late_failure = Some(cause);
                    }
                }
            }
        }
    }

    /// The oldest operation in flight that comes after one on the same communicator.
    pub(super) fn next_in_flight(&self, tag: Tag) -> Option<usize> {
        let later = self.by_tag.iter().filter(|(other, _)| other.communicator == tag.communicator);
        let later = later.filter(|(other, _)| other.sequence > tag.sequence);
        later.min_by_key(|(other, _)| other.sequence).map(|(_, &slot)| slot)
    }

    pub(super) fn remember_unknown(&mut self, peer: usize, said: Unknown) {
        if self.unknown.len() < Self::MAX_UNKNOWN {
            self.unknown.push((peer, said));
        }
    }

    /// A peer's message belongs to another call. If it did not know yet that an operation before was given up, that is
    /// the cause: the ranks that knew went on, and it will hear.
    pub(super) fn fail_with_mismatch(&mut self, slot: usize, message: Early) {
        let Early { from, call, unaware } = message;
        let Some(operation) = &self.slots[slot].operation else {
            return;
        };
        let Some(channel) = self.channels.get(&operation.tag.communicator) else {
            return;
        };
        let mismatch = || Error::Mismatch {
            sequence: channel.users_number(operation.tag.sequence),
            ours: (channel.name(channel.rank), operation.call_towards(from)),
            theirs: (channel.name(from), call),
        };
        let cause = unaware.unwrap_or_else(mismatch);
        self.fail(slot, cause, true);
    }

    /// Gives an operation up, and with `tell` lets the others know.
    pub fn fail(&mut self, slot: usize, cause: Error, tell: bool) {
        let Some(operation) = &self.slots[slot].operation else {
            return;
        };
        let tag = operation.tag;
        let members = self.channels.get(&tag.communicator).map(|channel| channel.members.clone());
        for &member in members.iter().flat_map(|members| members.iter()) {
            match &mut self.peers[member] {
                Peer::Connected { endpoint, .. } => endpoint.cancel(tag),
                Peer::Dialling(queue) => queue.requests.retain(|request| request.tag() != tag),
                Peer::Unconnected | Peer::Gone(_) => {}
            }
        }
        if let Some(channel) = self.channels.get_mut(&tag.communicator) {
            channel.abort(tag.sequence, &cause);
        }
        // Its line is taken back before its memory is the caller's again, so that nobody believes what he reads there.
        if let Some(line) = operation.run.as_ref().map(Run::line)
            && let Some(Some(in_host)) = self.in_hosts.get_mut(operation.boards)
        {
            in_host.remove(slot);
            in_host.give_up(Some(line));
        }
        self.end(slot, Err(self.seen(tag.communicator, cause.clone())));
        if tell {
            self.tell_abort(tag, &cause);
        }
        // Whichever way this one went: the others may go on to calls that this rank knows nothing of.
        self.forgo_boards(tag, &cause, tell);
    }

    /// Tells every connected member of the communicator that an operation is given up.
    pub(super) fn tell_abort(&mut self, tag: Tag, cause: &Error) {
        let Some(channel) = self.channels.get(&tag.communicator) else {
            return;
        };
        let (members, own) = (channel.members.clone(), channel.name(channel.rank));
        let notice = frame(&Notice::Abort { tag, cause: cause.clone() }, own);
        for &member in members.iter() {
            self.notify(member, notice.clone());
        }
    }

    /// Gives up the next operation of a communicator, which this rank cannot begin.
    #[cfg(feature = "cuda")]
    pub fn refuse(&mut self, communicator: crate::types::CommunicatorId, cause: &Error) {
        if self.closed {
            return;
        }
        let Some(channel) = self.channels.get_mut(&communicator).filter(|channel| channel.over.is_none()) else {
            return;
        };
        let tag = Tag { communicator, sequence: channel.next_sequence };
        channel.next_sequence += 1;
        // Messages of others for it are answered by the notice.
        drop(channel.take_early(tag.sequence));
        channel.abort(tag.sequence, cause);
        self.tell_abort(tag, cause);
        self.forgo_boards(tag, cause, true);
    }

    /// Why the next operation of a communicator would fail, if that is known: what `abandonment` says, or a member is gone.
    #[cfg(feature = "cuda")]
    pub fn refusal(&self, communicator: crate::types::CommunicatorId, call: &crate::types::Signature) -> Option<Error> {
        let lost = || {
            let channel = self.channels.get(&communicator)?;
            let gone = channel.members.iter().enumerate().find_map(|(rank, &member)| match &self.peers[member] {
                Peer::Gone(detail) => Some(channel.failure(rank, call, detail)),
                _ => None,
            });
            gone.map(|cause| self.seen(communicator, cause))
        };
        self.abandonment(communicator, call).or_else(lost)
    }

    /// Why the next operation of a communicator would fail, if that was told: its view is over, another rank gave it up or
    /// learnt late of one before.
    #[cfg(feature = "cuda")]
    pub fn abandonment(
        &self,
        communicator: crate::types::CommunicatorId,
        call: &crate::types::Signature,
    ) -> Option<Error> {
        let channel = self.channels.get(&communicator)?;
        if let Some(cause) = &channel.over {
            return Some(cause.clone());
        }
        if self.closed {
            return Some(Error::Closed { what: call.to_string().into() });
        }
        let given_up = channel.abort_cause(channel.next_sequence).or(channel.late_failure.as_ref()).cloned();
        given_up.map(|cause| self.seen(communicator, cause))
    }

    /// The number that the next operation of a communicator has.
    #[cfg(feature = "nccl")]
    pub fn next_number(&self, communicator: crate::types::CommunicatorId) -> u64 {
        self.channels.get(&communicator).map_or(0, |channel| channel.next_sequence)
    }

    /// Gives up the operation of this completion, if it is in flight.
    pub fn give_up(&mut self, completion: &Arc<Completion>, cause: Error) {
        let slot = self.slots.iter().position(|slot| {
            slot.operation.as_ref().is_some_and(|operation| Arc::ptr_eq(&operation.completion, completion))
        });
        if let Some(slot) = slot {
            self.fail(slot, cause, true);
        }
    }
}
