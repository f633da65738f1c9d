//! Operations that do not move: deadlines, departed peers, and asking who waits for whom.

use std::time::{Duration, Instant};

use super::{Core, Peer, frame};
use crate::executor::operation::Operation;
use crate::executor::waits::{Answer, Waits};
use crate::types::{Error, Tag};
use crate::wire::notice::Notice;

/// How long a step may wait before the peers it waits for are told. Ranks are often a few milliseconds apart; one that is
/// this late may be in another call, where nobody would send a message to show it.
const TELL_AFTER: Duration = Duration::from_millis(100);

impl Core {
    /// Looks after operations that do not move: fails those past their deadline and those that wait for a peer that
    /// said goodbye; tells peers that have been waited for long. Called when nothing moves.
    pub fn check(&mut self, now: Instant) {
        for slot in 0..self.slots.len() {
            let Some(operation) = &self.slots[slot].operation else { continue };
            // What waits for the setting-up ends with it.
            if operation.held {
                continue;
            }
            let waiting_for = self.waiting_for(operation);
            let Some(operation) = &mut self.slots[slot].operation else { continue };
            let Some(channel) = self.channels.get(&operation.tag.communicator) else { continue };
            let since = *operation.step_seen.get_or_insert(now);
            let departed = waiting_for
                .into_iter()
                .find(|&rank| matches!(self.peers[channel.members[rank]], Peer::Connected { left: true, .. }));
            if let Some(rank) = departed {
                let lost = self.peers.iter().enumerate().find_map(|(rank, peer)| match peer {
                    Peer::Gone(why) => Some(format!(", after rank {rank} of the world was lost: {why}")),
                    _ => None,
                });
                let detail = "it shut its communicator down without taking part";
                let detail = format!("{detail}{}", lost.unwrap_or_default());
                let failure = channel.failure(rank, &operation.signature, &detail);
                self.fail(slot, failure, true);
            } else if operation.deadline.has_passed(now) {
                let cause = self.timeout(slot, now);
                self.fail(slot, cause, true);
            } else if !operation.last_asked && operation.deadline.remaining(now) <= operation.last_ask_before() {
                operation.last_asked = true;
                operation.waits.begin(Waits::LAST);
                self.ask(slot);
            } else if !operation.step_told && now.duration_since(since) >= TELL_AFTER {
                self.ask(slot);
            }
        }
    }

    /// Asks the ranks that an operation waits for whether they wait too, and tells those that asked for whom this one
    /// does.
    fn ask(&mut self, slot: usize) {
        let Some(operation) = &mut self.slots[slot].operation else { return };
        let Some(channel) = self.channels.get(&operation.tag.communicator) else { return };
        operation.step_told = true;
        if operation.tag.communicator.is_point_to_point() {
            return;
        }
        let (tag, signature, round, own) = (operation.tag, operation.signature, operation.waits.round(), channel.rank);
        let step = operation.step_number();
        let Some(operation) = &self.slots[slot].operation else { return };
        let answer = Answer { step, waiting_for: self.waiting_for(operation) };
        let Some(channel) = self.channels.get(&tag.communicator) else { return };
        let peers: Vec<_> = answer.waiting_for.iter().map(|&rank| channel.members[rank]).collect();
        self.tell_answer(slot, round, own, answer);
        let notice = frame(&Notice::Waiting { tag, signature, round }, own);
        peers.into_iter().for_each(|peer| self.notify(peer, notice.clone()));
    }

    /// A peer asks whether this rank waits in an operation. If it is not in it, silence is the answer.
    pub(super) fn handle_question(&mut self, peer: usize, tag: Tag, round: u32) {
        let from = self.channels.get(&tag.communicator).and_then(|channel| channel.rank_of(peer));
        let (Some(&slot), Some(from)) = (self.by_tag.get(&tag), from) else { return };
        let Some(operation) = &mut self.slots[slot].operation else { return };
        if operation.waits.begin(round) || !operation.step_told {
            self.ask(slot);
        }
        let Some(operation) = &mut self.slots[slot].operation else { return };
        if operation.waits.ask(round, from) {
            let stuck = |(rank, answer): (usize, &Answer)| {
                let (step, waiting_for) = (answer.step, answer.waiting_for.clone());
                frame(&Notice::Stuck { tag, round: operation.waits.round(), rank, step, waiting_for }, from)
            };
            let notices: Vec<_> = operation.waits.answers().map(stuck).collect();
            notices.into_iter().for_each(|notice| self.notify(peer, notice));
        }
    }

    /// A peer tells that a rank waits in an operation.
    pub(super) fn handle_answer(&mut self, peer: usize, tag: Tag, round: u32, rank: usize, answer: Answer) {
        let Some(channel) = self.channels.get(&tag.communicator) else { return };
        let is_member = |rank: &usize| *rank < channel.members.len();
        let makes_sense = is_member(&rank) && answer.waiting_for.iter().all(is_member);
        if makes_sense
            && channel.rank_of(peer).is_some()
            && let Some(&slot) = self.by_tag.get(&tag)
        {
            self.tell_answer(slot, round, rank, answer);
        }
    }

    /// Remembers an answer, and if it is news, passes it on to those that asked this rank.
    fn tell_answer(&mut self, slot: usize, round: u32, rank: usize, answer: Answer) {
        let Some(operation) = &mut self.slots[slot].operation else { return };
        let Some(channel) = self.channels.get(&operation.tag.communicator) else { return };
        if !operation.waits.learn(round, rank, answer.clone()) {
            return;
        }
        let Answer { step, waiting_for } = answer;
        let notice = frame(&Notice::Stuck { tag: operation.tag, round, rank, step, waiting_for }, channel.rank);
        let askers: Vec<_> = operation.waits.askers().iter().map(|&asker| channel.members[asker]).collect();
        askers.into_iter().for_each(|peer| self.notify(peer, notice.clone()));
    }

    /// The error of an operation whose deadline has passed.
    fn timeout(&self, slot: usize, now: Instant) -> Error {
        let Some(operation) = &self.slots[slot].operation else { return Error::internal("no operation to time out") };
        let channel = self.channels.get(&operation.tag.communicator);
        let own = channel.map_or(self.rank, |channel| channel.rank);
        let name = |rank: usize| channel.map_or(rank, |channel| channel.name(rank));
        let silent = operation.waits.silent(own, &self.waiting_for(operation));
        let how = |&(rank, waiting): &(usize, usize)| {
            if waiting != own {
                return format!("for which rank {} waits", name(waiting));
            }
            let Some(&member) = channel.and_then(|channel| channel.members.get(rank)) else { return String::new() };
            match &self.peers[member] {
                Peer::Connected { endpoint, .. } => endpoint.link().to_string(),
                Peer::Dialling(_) => format!("rank {member} of the world, not connected yet"),
                _ => format!("no link to rank {member} of the world"),
            }
        };
        let links: Vec<_> = silent.iter().take(8).map(how).collect();
        Error::Timeout {
            operation: operation.signature.to_string().into(),
            waited: now.saturating_duration_since(operation.started),
            waiting_for: silent.iter().map(|&(rank, _)| name(rank)).collect(),
            detail: links.join(", ").into(),
        }
    }

    /// How long nothing may happen before [`check`](Self::check) has something to do; `None`: for ever.
    pub fn time_to_check(&self, now: Instant) -> Option<Duration> {
        let time = |operation: &Operation| {
            let deadline = operation.deadline.remaining(now);
            let last_ask = (!operation.last_asked).then(|| deadline.saturating_sub(operation.last_ask_before()));
            let tell = (!operation.step_told).then_some(TELL_AFTER);
            [last_ask, tell].into_iter().flatten().fold(deadline, Duration::min)
        };
        let operations = self.slots.iter().filter_map(|slot| slot.operation.as_ref());
        operations.filter(|operation| !operation.held).map(time).min()
    }
}
