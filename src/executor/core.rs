//! The state of the engine, and what every event does to it. Always behind the engine's lock.

mod views;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::completion::Completion;
use super::engine::Dial;
use super::operation::{Message, Operation, Work};
use super::scratch::ScratchPool;
use crate::transport::{Endpoint, Event, Notice as Frame, RecvRequest, SendRequest, Token};
use crate::types::{Collective, CommunicatorId, Error, Result, Signature, Tag, TransportKind};
use crate::wire::notice::Notice;

use self::views::Judged;
pub(super) use self::views::OnLost;

/// A peer, by world rank.
enum Peer {
    /// No connection yet: nobody needed one.
    Unconnected,
    /// Being connected. What is to go to it waits here.
    Dialling(Queue),
    /// Connected. The flag says that it said goodbye.
    Connected { endpoint: Box<dyn Endpoint>, left: bool },
    /// Gone, and why.
    Gone(Arc<str>),
}

#[derive(Default)]
struct Queue {
    requests: Vec<Request>,
    notices: Vec<Frame>,
}

enum Request {
    Send(SendRequest),
    Recv(RecvRequest),
}

// SAFETY: the pointers in a request are to an operation's memory, which belongs to no thread.
unsafe impl Send for Request {}

impl Request {
    fn tag(&self) -> Tag {
        match self {
            Request::Send(request) => request.tag,
            Request::Recv(request) => request.tag,
        }
    }
}

/// An operation's place, and how often the place has been used, so that late events for an earlier one are known.
#[derive(Default)]
struct Slot {
    uses: u32,
    operation: Option<Operation>,
}

/// How long a step may wait before the peers it waits for are told. Ranks are often a few milliseconds apart; one that is
/// this late may be in another call, where nobody would send a message to show it.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// A token is a slot (20 bits), its uses (24 bits) and an instruction number (20 bits).
mod token {
    use crate::transport::Token;

    pub const MAX_SLOTS: usize = 1 << 20;
    pub const MAX_INSTRUCTIONS: usize = 1 << 20;

    pub fn new(slot: usize, uses: u32, instruction: usize) -> Token {
        Token((slot as u64) << 44 | u64::from(uses & 0xff_ffff) << 20 | instruction as u64)
    }

    pub fn parts(token: Token) -> (usize, u32, usize) {
        ((token.0 >> 44) as usize, (token.0 >> 20) as u32 & 0xff_ffff, token.0 as usize & 0xf_ffff)
    }
}

/// Everything the engine knows.
pub(super) struct Core {
    rank: usize,
    peers: Vec<Peer>,
    dial: Box<dyn Dial>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_tag: HashMap<Tag, usize>,
    channels: HashMap<CommunicatorId, Channel>,
    /// Notices and early messages for communicators that do not exist here yet, oldest first.
    unknown: Vec<(usize, Unknown)>,
    pool: ScratchPool,
    events: Vec<Event>,
    messages: Vec<(usize, Message)>,
    /// Operations in flight.
    pub active: usize,
    /// Set whenever an operation ended; cleared by the engine when it has woken the waiting threads.
    pub ended: bool,
    /// Set when a notice was queued; cleared when all are seen to be with the carriers.
    untold: bool,
    /// Set once goodbye was said.
    closed: bool,
    /// Set in an elastic world.
    judged: Option<Judged>,
}

enum Unknown {
    Early(Tag, Signature),
    Abort(Tag, Error),
}

impl Core {
    /// How much is remembered for communicators that do not exist here yet.
    const MAX_UNKNOWN: usize = 1024;

    pub fn new(rank: usize, size: usize, dial: Box<dyn Dial>) -> Self {
        Self {
            rank,
            peers: (0..size).map(|_| Peer::Unconnected).collect(),
            dial,
            slots: Vec::new(),
            free: Vec::new(),
            by_tag: HashMap::new(),
            channels: HashMap::new(),
            unknown: Vec::new(),
            pool: ScratchPool::default(),
            events: Vec::new(),
            messages: Vec::new(),
            active: 0,
            ended: false,
            untold: false,
            closed: false,
            judged: None,
        }
    }

    /// Adds a communicator. What peers said of it before is heard now.
    pub fn add_channel(&mut self, id: CommunicatorId, members: Arc<[usize]>, rank: usize) -> Result<()> {
        if self.channels.contains_key(&id) {
            return Err(Error::internal(format_args!("two communicators with the id {:#x}", id.0)));
        }
        self.channels.insert(id, Channel::new(members, rank));
        let (mine, others) = std::mem::take(&mut self.unknown).into_iter().partition(|(_, said)| {
            let (Unknown::Early(tag, _) | Unknown::Abort(tag, _)) = said;
            tag.communicator == id
        });
        self.unknown = others;
        for (peer, said) in mine {
            match said {
                Unknown::Early(tag, signature) => self.handle_early(peer, tag, signature),
                Unknown::Abort(tag, cause) => self.handle_abort(peer, tag, cause),
            }
        }
        Ok(())
    }

    /// Forgets a communicator, once its last operation has ended.
    pub fn remove_channel(&mut self, id: CommunicatorId) {
        self.channels.remove(&id);
    }

    /// Starts an operation. `point_to_point` says that `work.tag` carries its number already.
    ///
    /// # Safety
    ///
    /// As [`Operation::new`].
    pub unsafe fn submit(&mut self, mut work: Work, completion: &Arc<Completion>, now: Instant) {
        let mut tag = work.tag;
        if self.closed {
            let what = Arc::from(work.signature.to_string());
            return completion.finish(Err(Error::Closed { what }), work.keep.take());
        }
        let Some(channel) = self.channels.get_mut(&tag.communicator) else {
            let error = Error::internal("an operation on a communicator that the engine does not know");
            return completion.finish(Err(error), work.keep.take());
        };
        if let Some(cause) = &channel.over {
            return completion.finish(Err(cause.clone()), work.keep.take());
        }
        let mut refusal = None;
        let mut early = Vec::new();
        if !tag.communicator.is_point_to_point() {
            tag.sequence = channel.next_sequence;
            channel.next_sequence += 1;
            early = channel.take_early(tag.sequence);
            refusal = channel.abort_cause(tag.sequence).cloned().or_else(|| channel.late_failure.take());
        }
        let oversized = work.schedule.steps.iter().any(|step| step.instructions.len() > token::MAX_INSTRUCTIONS);
        if oversized || (self.free.is_empty() && self.slots.len() == token::MAX_SLOTS) {
            refusal = Some(Error::invalid("too many operations in flight, or too many ranks in one step"));
        }
        if let Some(cause) = refusal {
            // Known from now on, so that the others' echo of it is no news.
            channel.abort(tag.sequence, &cause);
            completion.finish(Err(cause.clone()), work.keep.take());
            return self.tell_abort(tag, &cause);
        }
        // SAFETY: the caller's promise.
        let operation = unsafe { Operation::new(work, tag, completion.clone(), now, &mut self.pool) };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[slot].uses = self.slots[slot].uses.wrapping_add(1) & 0xff_ffff;
        let differs = early.into_iter().find(|(_, theirs)| !operation.agrees_with(theirs));
        self.slots[slot].operation = Some(operation);
        self.by_tag.insert(tag, slot);
        self.active += 1;
        if let Some((from, theirs)) = differs {
            return self.fail_with_mismatch(slot, from, theirs);
        }
        self.run_steps(slot);
    }

    /// Posts the current step of an operation, and moves on through steps that need no message.
    fn run_steps(&mut self, slot: usize) {
        loop {
            let Some(operation) = &mut self.slots[slot].operation else {
                return;
            };
            if operation.is_spoilt() {
                return self.fail(slot, Error::invalid("the user's reduction function panicked"), true);
            }
            if operation.is_finished() {
                return self.end(slot, Ok(()));
            }
            let mut messages = std::mem::take(&mut self.messages);
            operation.messages(&mut messages);
            let posted = messages.drain(..).try_for_each(|(number, message)| self.post(slot, number, message));
            self.messages = messages;
            if let Err(error) = posted {
                return self.fail(slot, error, true);
            }
            let Some(operation) = &mut self.slots[slot].operation else {
                return;
            };
            operation.work_locally();
            if operation.outstanding > 0 {
                return;
            }
            operation.next_step();
        }
    }

    fn post(&mut self, slot: usize, number: usize, message: Message) -> Result<()> {
        let uses = self.slots[slot].uses;
        let Some(operation) = &self.slots[slot].operation else {
            return Ok(());
        };
        let (Message::Send { bytes, .. } | Message::Recv { bytes, .. }) = &message;
        let (tag, token) = (operation.tag, token::new(slot, uses, number));
        let signature = operation.message_signature(*bytes);
        let (peer, request) = match message {
            Message::Send { peer, source, bytes } => {
                (peer, Request::Send(SendRequest { tag, signature, source, bytes, token }))
            }
            Message::Recv { peer, target, bytes, mode } => {
                (peer, Request::Recv(RecvRequest { tag, signature, target, bytes, mode, token }))
            }
        };
        let Some(&world) = self.channels.get(&tag.communicator).and_then(|channel| channel.members.get(peer)) else {
            return Err(Error::internal(format_args!("a schedule names rank {peer}, which does not exist")));
        };
        match &mut self.peers[world] {
            Peer::Connected { endpoint, .. } => hand_over(endpoint.as_mut(), request),
            Peer::Dialling(queue) => queue.requests.push(request),
            state @ Peer::Unconnected => {
                *state = Peer::Dialling(Queue { requests: vec![request], notices: Vec::new() });
                self.dial.dial(world);
            }
            Peer::Gone(detail) => {
                return Err(Error::PeerFailed {
                    rank: peer,
                    operation: signature.to_string().into(),
                    detail: detail.clone(),
                });
            }
        }
        Ok(())
    }

    /// A connection has come into being, or could not.
    pub fn handle_connection(&mut self, peer: usize, outcome: Result<Box<dyn Endpoint>>) {
        let mut endpoint = match outcome {
            Ok(endpoint) => endpoint,
            Err(error) => return self.lose(peer, error.to_string().into(), true),
        };
        let queue = match std::mem::replace(&mut self.peers[peer], Peer::Unconnected) {
            Peer::Dialling(queue) => queue,
            Peer::Unconnected => Queue::default(),
            // A second connection, or one from a rank that was given up: the first word stands.
            state @ (Peer::Connected { .. } | Peer::Gone(_)) => {
                self.peers[peer] = state;
                return;
            }
        };
        // Whoever connects late learns what was given up, and who is gone, before anything else.
        for (rank, state) in self.peers.iter().enumerate() {
            if let (Peer::Gone(detail), None) = (state, &self.judged) {
                endpoint.notify(frame(&Notice::PeerFailed { rank, detail: detail.to_string() }, self.rank));
            }
        }
        for (&communicator, channel) in &self.channels {
            if channel.rank_of(peer).is_some() && channel.over.is_none() {
                for (sequence, cause) in channel.aborts() {
                    let tag = Tag { communicator, sequence };
                    endpoint.notify(frame(&Notice::Abort { tag, cause: cause.clone() }, channel.rank));
                }
            }
        }
        queue.notices.into_iter().for_each(|notice| endpoint.notify(notice));
        self.untold = true;
        queue.requests.into_iter().for_each(|request| hand_over(endpoint.as_mut(), request));
        self.peers[peer] = Peer::Connected { endpoint, left: false };
    }

    /// Whether there is something to move: operations, or notices that have not left. Who gives an operation up returns
    /// at once, and must not keep the news from the others.
    pub fn needs_driving(&mut self) -> bool {
        self.untold = self.untold && !self.is_drained();
        self.active > 0 || self.untold
    }

    /// Moves every endpoint on. Returns whether anything moved.
    pub fn progress(&mut self) -> bool {
        let mut moved = false;
        for peer in 0..self.peers.len() {
            let Peer::Connected { endpoint, .. } = &mut self.peers[peer] else {
                continue;
            };
            let mut events = std::mem::take(&mut self.events);
            moved |= endpoint.progress(&mut events);
            moved |= !events.is_empty();
            for event in events.drain(..) {
                self.handle_event(peer, event);
            }
            self.events = events;
        }
        moved
    }

    fn handle_event(&mut self, peer: usize, event: Event) {
        match event {
            Event::Sent(token) | Event::Received(token) => self.handle_complete(token),
            Event::Early { tag, signature } => self.handle_early(peer, tag, signature),
            Event::Mismatch { tag, theirs } => {
                match self.by_tag.get(&tag) {
                    Some(&slot) => self.fail_with_mismatch(slot, peer, theirs),
                    // The operation has ended here since.
                    None => self.handle_early(peer, tag, theirs),
                }
            }
            Event::Notice(frame) => match Notice::decode(&frame.0) {
                Some(Notice::Abort { tag, cause }) => self.handle_abort(peer, tag, cause),
                // What one rank thinks of another is for the registry to judge.
                Some(Notice::PeerFailed { .. }) if self.judged.is_some() => {}
                Some(Notice::PeerFailed { rank, detail }) if rank < self.peers.len() && rank != self.rank => {
                    self.lose(rank, format!("{detail} (as rank {peer} noticed)").into(), true);
                }
                // The others have given this process up. It learns who said so.
                Some(Notice::PeerFailed { detail, .. }) => {
                    self.lose(peer, format!("it gave this rank up: {detail}").into(), false);
                }
                Some(Notice::Waiting { tag, signature }) => self.handle_early(peer, tag, signature),
                None => self.lose(peer, "it sent a garbled notice".into(), true),
            },
            Event::Goodbye => {
                if let Peer::Connected { left, .. } = &mut self.peers[peer] {
                    *left = true;
                }
            }
            Event::Failed(detail) => self.lose(peer, detail, true),
        }
    }

    fn handle_complete(&mut self, token: Token) {
        let (slot, uses, number) = token::parts(token);
        let Some(place) = self.slots.get_mut(slot) else {
            return;
        };
        if place.uses != uses {
            return;
        }
        if let Some(operation) = &mut place.operation
            && operation.complete(number)
        {
            operation.next_step();
            self.run_steps(slot);
        }
    }

    fn handle_early(&mut self, peer: usize, tag: Tag, signature: Signature) {
        if self.is_stale(tag.communicator) {
            if let Peer::Connected { endpoint, .. } = &mut self.peers[peer] {
                endpoint.cancel(tag);
            }
            return;
        }
        if tag.communicator.is_point_to_point() {
            return;
        }
        let Some(channel) = self.channels.get_mut(&tag.communicator) else {
            return self.remember_unknown(peer, Unknown::Early(tag, signature));
        };
        let Some(from) = channel.rank_of(peer) else {
            return;
        };
        if let Some(cause) = channel.abort_cause(tag.sequence).cloned() {
            let notice = frame(&Notice::Abort { tag, cause }, channel.rank);
            return self.notify(peer, notice);
        }
        if let Some(&slot) = self.by_tag.get(&tag) {
            let matches = self.slots[slot].operation.as_ref().is_none_or(|here| here.agrees_with(&signature));
            if !matches {
                self.fail_with_mismatch(slot, peer, signature);
            }
        } else if tag.sequence >= channel.next_sequence {
            channel.remember_early(tag.sequence, peer, signature);
        } else if let Some(ours) = channel.ended_call(tag.sequence)
            // The counts of an alltoall may be those of single exchanges.
            && ours != (if ours.collective == Collective::Alltoall {
                Signature { count: ours.count, ..signature }
            } else {
                signature
            })
        {
            let cause =
                Error::Mismatch { sequence: tag.sequence, ours: (channel.rank, ours), theirs: (from, signature) };
            self.handle_abort(peer, tag, cause);
        }
    }

    /// Some rank gave the operation up.
    fn handle_abort(&mut self, peer: usize, tag: Tag, cause: Error) {
        if self.is_stale(tag.communicator) {
            return;
        }
        if tag.communicator.is_point_to_point() {
            if let Some(&slot) = self.by_tag.get(&tag) {
                self.fail(slot, cause, false);
            }
            return;
        }
        let Some(channel) = self.channels.get_mut(&tag.communicator) else {
            return self.remember_unknown(peer, Unknown::Abort(tag, cause));
        };
        if channel.rank_of(peer).is_none() || channel.over.is_some() {
            return;
        }
        if let Some(&slot) = self.by_tag.get(&tag) {
            return self.fail(slot, cause, true);
        }
        if channel.abort(tag.sequence, &cause) {
            if tag.sequence < channel.next_sequence {
                channel.late_failure = Some(cause.clone());
            }
            self.tell_abort(tag, &cause);
        }
    }

    fn remember_unknown(&mut self, peer: usize, said: Unknown) {
        if self.unknown.len() < Self::MAX_UNKNOWN {
            self.unknown.push((peer, said));
        }
    }

    fn fail_with_mismatch(&mut self, slot: usize, peer: usize, theirs: Signature) {
        let Some(operation) = &self.slots[slot].operation else {
            return;
        };
        let Some(channel) = self.channels.get(&operation.tag.communicator) else {
            return;
        };
        let from = channel.rank_of(peer).unwrap_or(peer);
        let cause = Error::Mismatch {
            sequence: operation.tag.sequence,
            ours: (channel.rank, operation.call_towards(from)),
            theirs: (from, theirs),
        };
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
        self.end(slot, Err(cause.clone()));
        if tell {
            self.tell_abort(tag, &cause);
        }
    }

    fn end(&mut self, slot: usize, outcome: Result<()>) {
        let Some(operation) = self.slots[slot].operation.take() else {
            return;
        };
        let (tag, signature) = (operation.tag, operation.signature);
        self.free.push(slot);
        self.by_tag.remove(&tag);
        self.active -= 1;
        self.ended = true;
        if outcome.is_ok()
            && !tag.communicator.is_point_to_point()
            && let Some(channel) = self.channels.get_mut(&tag.communicator)
        {
            channel.remember_ended(tag.sequence, signature);
        }
        operation.end(outcome, &mut self.pool);
    }

    /// Tells every connected member of the communicator that an operation is given up.
    fn tell_abort(&mut self, tag: Tag, cause: &Error) {
        let Some(channel) = self.channels.get(&tag.communicator) else {
            return;
        };
        let (members, own) = (channel.members.clone(), channel.rank);
        let notice = frame(&Notice::Abort { tag, cause: cause.clone() }, own);
        for &member in members.iter() {
            self.notify(member, notice.clone());
        }
    }

    fn notify(&mut self, peer: usize, notice: Frame) {
        self.untold = true;
        match &mut self.peers[peer] {
            Peer::Connected { endpoint, left: false } => endpoint.notify(notice),
            Peer::Dialling(queue) => queue.notices.push(notice),
            Peer::Connected { .. } | Peer::Unconnected | Peer::Gone(_) => {}
        }
    }

    /// A peer is gone: every operation that it is part of fails, here and, with `tell`, everywhere.
    fn lose(&mut self, peer: usize, detail: Arc<str>, tell: bool) {
        if matches!(self.peers[peer], Peer::Gone(_)) {
            return;
        }
        tracing::debug!(peer, %detail, "lost a peer");
        // Dropping the endpoint first gives the memory of everything posted on it back.
        self.peers[peer] = Peer::Gone(detail.clone());
        if let Some(judged) = &self.judged {
            (judged.on_lost)(peer, detail.clone());
        } else if tell {
            let notice = frame(&Notice::PeerFailed { rank: peer, detail: detail.to_string() }, self.rank);
            for other in 0..self.peers.len() {
                self.notify(other, notice.clone());
            }
        }
        for slot in 0..self.slots.len() {
            let Some(operation) = &self.slots[slot].operation else {
                continue;
            };
            let Some(channel) = self.channels.get(&operation.tag.communicator) else {
                continue;
            };
            if let Some(rank) = channel.rank_of(peer) {
                let operation = operation.signature.to_string().into();
                self.fail(slot, Error::PeerFailed { rank, operation, detail: detail.clone() }, true);
            }
        }
    }

    /// Looks after operations that do not move: fails those past their deadline and those that wait for a peer that
    /// said goodbye; tells peers that have been waited for long. Called when nothing moves.
    pub fn check(&mut self, now: Instant) {
        for slot in 0..self.slots.len() {
            let Some(operation) = &mut self.slots[slot].operation else { continue };
            let Some(channel) = self.channels.get(&operation.tag.communicator) else { continue };
            let since = *operation.step_seen.get_or_insert(now);
            let departed = operation
                .waiting_for()
                .into_iter()
                .find(|&rank| matches!(self.peers[channel.members[rank]], Peer::Connected { left: true, .. }));
            if let Some(rank) = departed {
                let operation = operation.signature.to_string().into();
                let detail = "it shut its communicator down without taking part".into();
                self.fail(slot, Error::PeerFailed { rank, operation, detail }, true);
            } else if operation.deadline.has_passed(now) {
                let cause = self.timeout(slot, now);
                self.fail(slot, cause, true);
            } else if !operation.step_told && now.duration_since(since) >= TELL_AFTER {
                operation.step_told = true;
                let (tag, signature, own) = (operation.tag, operation.signature, channel.rank);
                let peers: Vec<_> = operation.waiting_for().iter().map(|&rank| channel.members[rank]).collect();
                let notice = frame(&Notice::Waiting { tag, signature }, own);
                peers.into_iter().for_each(|peer| self.notify(peer, notice.clone()));
            }
        }
    }

    /// The error of an operation whose deadline has passed.
    fn timeout(&self, slot: usize, now: Instant) -> Error {
        let Some(operation) = &self.slots[slot].operation else { return Error::internal("no operation to time out") };
        let waiting_for = operation.waiting_for();
        let members = self.channels.get(&operation.tag.communicator).map(|channel| channel.members.clone());
        let link = |rank: usize| match members.as_ref().map(|members| &self.peers[members[rank]]) {
            Some(Peer::Connected { endpoint, .. }) => endpoint.link().to_string(),
            Some(Peer::Dialling(_)) => "not connected yet".into(),
            _ => "no link".into(),
        };
        let links: Vec<_> = waiting_for.iter().take(8).map(|&rank| link(rank)).collect();
        Error::Timeout {
            operation: operation.signature.to_string().into(),
            waited: now.saturating_duration_since(operation.started),
            waiting_for,
            detail: links.join(", ").into(),
        }
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

    /// How long nothing may happen before [`check`](Self::check) has something to do; `None`: for ever.
    pub fn time_to_check(&self, now: Instant) -> Option<Duration> {
        let time = |operation: &Operation| {
            let deadline = operation.deadline.remaining(now);
            if operation.step_told { deadline } else { deadline.min(TELL_AFTER) }
        };
        self.slots.iter().filter_map(|slot| slot.operation.as_ref()).map(time).min()
    }

    /// Whether nothing can move until a peer acts.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut quiet = true;
        for peer in &mut self.peers {
            if let Peer::Connected { endpoint, .. } = peer {
                quiet &= endpoint.prepare_sleep();
            }
        }
        quiet
    }

    /// Says goodbye to every connected peer; no operation starts after it.
    pub fn close(&mut self) {
        self.closed = true;
        for peer in &mut self.peers {
            if let Peer::Connected { endpoint, .. } = peer {
                endpoint.say_goodbye();
            }
        }
    }

    /// Drops every connection without a word.
    pub fn vanish(&mut self) {
        self.closed = true;
        for peer in 0..self.peers.len() {
            self.lose(peer, "this rank vanished".into(), false);
        }
    }

    /// Whether everything said has been handed to the carriers. A peer that said goodbye has no operation left that
    /// waits for anything, and may have stopped reading.
    pub fn is_drained(&self) -> bool {
        self.peers.iter().all(|peer| match peer {
            Peer::Connected { endpoint, left } => *left || endpoint.is_drained(),
            _ => true,
        })
    }

    /// The carrier to each connected peer.
    pub fn links(&self) -> Vec<(usize, TransportKind)> {
        let kinds = self.peers.iter().enumerate().filter_map(|(rank, peer)| match peer {
            Peer::Connected { endpoint, .. } => Some((rank, endpoint.kind())),
            _ => None,
        });
        kinds.collect()
    }
}

/// Hands a request to a connected endpoint.
fn hand_over(endpoint: &mut dyn Endpoint, request: Request) {
    // SAFETY: requests are made from an operation in flight, whose memory stays valid until it ends; it ends only when
    // all its requests are complete, or cancelled, or the endpoint is dropped.
    unsafe {
        match request {
            Request::Send(request) => endpoint.post_send(request),
            Request::Recv(request) => endpoint.post_recv(request),
        }
    }
}

fn frame(notice: &Notice, teller: usize) -> Frame {
    Frame(notice.encode(teller).into())
}
