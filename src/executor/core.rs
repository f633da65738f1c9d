//! The state of the engine, and what every event does to it. Always behind the engine's lock.

mod boards;
mod given_up;
mod late;
mod peers;
mod token;
mod views;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::channel::{Channel, Early, InHostWay};
use super::completion::Completion;
use super::engine::Dial;
use super::in_host::InHost;
use super::operation::{Message, Operation, Work};
use super::scratch::ScratchPool;
use super::waits::Answer;
use crate::sys::points::{Point, reach};
use crate::transport::board::Board;
use crate::transport::hashing::Seeded;
use crate::transport::{Endpoint, Event, Notice as Frame, RecvRequest, SendRequest, Token};
use crate::types::{Collective, CommunicatorId, Error, Result, Signature, Tag};
use crate::wire::notice::Notice;

pub use self::boards::Now;
pub(super) use self::boards::Outcome;
use self::views::Judged;
pub use self::views::Lost;
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
    /// Whether the peer is connected to hear what was given up, which whoever connects is told.
    to_tell: bool,
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
pub(super) struct Slot {
    uses: u32,
    pub operation: Option<Operation>,
}

/// Everything the engine knows.
pub(super) struct Core {
    rank: usize,
    peers: Vec<Peer>,
    dial: Box<dyn Dial>,
    /// The communicators whose calls go over boards. They go before the operations, whose memory others may be reading.
    in_hosts: Vec<Option<Box<InHost>>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_tag: HashMap<Tag, usize, Seeded>,
    channels: HashMap<CommunicatorId, Channel, Seeded>,
    /// Notices and early messages for communicators that do not exist here yet, oldest first.
    unknown: Vec<(usize, Unknown)>,
    pool: ScratchPool,
    events: Vec<Event>,
    messages: Vec<(usize, Message)>,
    /// How often the endpoints were moved on.
    rounds: u32,
    /// Operations in flight.
    pub active: usize,
    /// Set whenever an operation ended; cleared by the engine when it has woken the waiting threads.
    pub ended: bool,
    /// Set when a notice was queued; cleared when all are seen to be with the carriers.
    untold: bool,
    /// Whether carriers keep bytes of operations that have ended, and move them only when they are driven.
    lags: bool,
    /// Set once goodbye was said.
    closed: bool,
    /// Set in an elastic world.
    judged: Option<Judged>,
    /// What this process shows to its peers on the same host.
    board: Box<dyn Fn() -> Option<Arc<Board>> + Send>,
}

/// One time in so many, the endpoints are looked at over which nothing is under way: a peer may have something to say
/// unasked. Each look over TCP is a system call.
const ROUNDS_PER_LOOK: u32 = 8;

enum Unknown {
    Early(Tag, Signature),
    Abort(Tag, Error),
}

impl Core {
    /// How much is remembered for communicators that do not exist here yet.
    const MAX_UNKNOWN: usize = 1024;

    pub fn new(
        rank: usize,
        size: usize,
        dial: Box<dyn Dial>,
        board: Box<dyn Fn() -> Option<Arc<Board>> + Send>,
    ) -> Self {
        Self {
            rank,
            peers: (0..size).map(|_| Peer::Unconnected).collect(),
            dial,
            slots: Vec::new(),
            free: Vec::new(),
            by_tag: HashMap::default(),
            channels: HashMap::default(),
            unknown: Vec::new(),
            pool: ScratchPool::default(),
            events: Vec::new(),
            messages: Vec::new(),
            rounds: 0,
            active: 0,
            ended: false,
            untold: false,
            lags: false,
            closed: false,
            judged: None,
            board,
            in_hosts: Vec::new(),
        }
    }

    /// Adds a communicator. What peers said of it before is heard now.
    pub fn add_channel(&mut self, id: CommunicatorId, mut channel: Channel) -> Result<()> {
        if self.channels.contains_key(&id) {
            return Err(Error::internal(format_args!("two communicators with the id {:#x}", id.0)));
        }
        channel.over = self.is_over(id);
        self.channels.insert(id, channel);
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
        if let Some(channel) = self.channels.remove(&id) {
            self.leave_boards(channel.in_host);
        }
    }

    /// Starts an operation. `point_to_point` says that `work.tag` carries its number already.
    ///
    /// # Safety
    ///
    /// As [`Operation::new`].
    pub unsafe fn submit(&mut self, mut work: Work, completion: &Arc<Completion>, now: Instant) {
        let mut tag = work.tag;
        // Why its view is over says more than that the connections are closed for it.
        let over = self.channels.get(&tag.communicator).and_then(|channel| channel.over.clone());
        let what = || Error::Closed { what: work.signature.to_string().into() };
        if let Some(cause) = over.or_else(|| self.closed.then(what)) {
            return completion.finish(Err(cause), work.keep.take());
        }
        let Some(channel) = self.channels.get_mut(&tag.communicator) else {
            let error = Error::internal("an operation on a communicator that the engine does not know");
            return completion.finish(Err(error), work.keep.take());
        };
        let mut early = Vec::new();
        let mut refusal = None;
        if matches!(channel.in_host, InHostWay::Unknown) {
            refusal = self.set_up(&work, now);
        }
        let Some(channel) = self.channels.get_mut(&tag.communicator) else { return };
        if tag.communicator.is_point_to_point() {
            // Numbered by the caller; two threads may come out of order.
            channel.next_sequence = channel.next_sequence.max(tag.sequence + 1);
        } else {
            tag.sequence = channel.next_sequence;
            channel.next_sequence += 1;
            early = channel.take_early(tag.sequence);
        }
        let known = channel.abort_cause(tag.sequence).cloned().or_else(|| channel.late_failure.take());
        refusal = refusal.or(known);
        let oversized = work.schedule.steps.iter().any(|step| step.instructions.len() > token::MAX_INSTRUCTIONS);
        if oversized || (self.free.is_empty() && self.slots.len() == token::MAX_SLOTS) {
            refusal = Some(Error::invalid("too many operations in flight, or too many ranks in one step"));
        }
        if let Some(cause) = refusal {
            // Known from now on, so that the others' echo of it is no news.
            channel.abort(tag.sequence, &cause);
            completion.finish(Err(self.seen(tag.communicator, cause.clone())), work.keep.take());
            self.tell_abort(tag, &cause);
            return self.forgo_boards(tag, &cause, true);
        }
        // SAFETY: the caller's promise.
        let operation = unsafe { Operation::new(work, tag, completion.clone(), now) };
        let differs = early.into_iter().find(|message| !operation.agrees_with(&message.call));
        let slot = self.put(operation);
        match differs {
            Some(message) => self.fail_with_mismatch(slot, message),
            None => self.begin(slot),
        }
    }

    /// Finds a place for an operation.
    fn put(&mut self, operation: Operation) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.by_tag.insert(operation.tag, slot);
        self.slots[slot].uses = self.slots[slot].uses.wrapping_add(1) & 0xff_ffff;
        self.slots[slot].operation = Some(operation);
        self.active += 1;
        slot
    }

    /// Sets an operation going, the way that its communicator's calls go.
    fn begin(&mut self, slot: usize) {
        let Some(operation) = &mut self.slots[slot].operation else { return };
        let channel = self.channels.get_mut(&operation.tag.communicator).filter(|_| !operation.sets_up);
        match channel.map(|channel| &mut channel.in_host) {
            Some(InHostWay::SettingUp(set_up)) => {
                operation.held = true;
                set_up.held.push(slot);
            }
            Some(&mut InHostWay::Over(index)) if operation.has_layout() => {
                operation.prepare_in_host(index, &mut self.pool);
                if let Some(Some(in_host)) = self.in_hosts.get_mut(index) {
                    in_host.push(slot);
                }
                self.advance_in_host(index);
            }
            _ => {
                operation.prepare_schedule(&mut self.pool);
                self.run_steps(slot);
            }
        }
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
            if self.slots[slot].operation.as_ref().is_some_and(|here| here.outstanding > 0 && here.has_local_work()) {
                self.push();
            }
            let Some(operation) = &mut self.slots[slot].operation else {
                return;
            };
            operation.work_locally();
            if operation.outstanding > 0 {
                return self.look_ahead(slot);
            }
            operation.next_step();
        }
    }

    /// Posts what can be posted of a later step.
    fn look_ahead(&mut self, slot: usize) {
        let Some(operation) = &mut self.slots[slot].operation else { return };
        let mut messages = std::mem::take(&mut self.messages);
        operation.messages_ahead(&mut messages);
        let posted = messages.drain(..).try_for_each(|(number, message)| self.post(slot, number, message));
        self.messages = messages;
        if let Err(error) = posted {
            self.fail(slot, error, true);
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
                *state = Peer::Dialling(Queue { requests: vec![request], ..Queue::default() });
                self.dial.dial(world);
                // There may be a connection at once.
                self.rounds = 0;
            }
            Peer::Gone(detail) => {
                let channel = self.channels.get(&tag.communicator);
                let failure = channel.map(|channel| channel.failure(peer, &signature, detail));
                return Err(failure.unwrap_or_else(|| Error::internal("a peer without a communicator")));
            }
        }
        Ok(())
    }

    /// Whether there is something to move: operations, notices that have not left, or links that may be lost. Who gives an operation up returns
    /// at once, and must not keep the news from the others.
    pub fn needs_driving(&mut self) -> bool {
        self.untold = self.untold && !self.is_drained();
        self.active > 0 || self.untold || self.is_looking()
    }

    /// Moves the endpoints on: those over which something is under way, and now and then all. Returns whether anything
    /// moved.
    pub fn progress(&mut self) -> bool {
        let mut moved = false;
        let all = self.rounds.is_multiple_of(ROUNDS_PER_LOOK);
        self.rounds = self.rounds.wrapping_add(1);
        if all {
            moved |= self.connect_the_connected();
        }
        for peer in 0..self.peers.len() {
            let Peer::Connected { endpoint, .. } = &mut self.peers[peer] else {
                continue;
            };
            if !all && endpoint.is_idle() {
                continue;
            }
            let mut events = std::mem::take(&mut self.events);
            moved |= endpoint.progress(&mut events);
            moved |= !events.is_empty();
            for event in events.drain(..) {
                self.handle_event(peer, event);
            }
            self.events = events;
        }
        for index in 0..self.in_hosts.len() {
            moved |= self.advance_in_host(index);
        }
        moved
    }

    /// Hands what was posted to the carriers, which move it while this thread works.
    fn push(&mut self) {
        for peer in &mut self.peers {
            if let Peer::Connected { endpoint, .. } = peer {
                endpoint.push();
            }
        }
    }

    fn handle_event(&mut self, peer: usize, event: Event) {
        match event {
            Event::Sent(token) | Event::Received(token) => self.handle_complete(token),
            Event::Early { tag, signature } => self.handle_early(peer, tag, signature),
            Event::Mismatch { tag, theirs } => {
                let channel = self.channels.get(&tag.communicator);
                match (self.by_tag.get(&tag), channel.and_then(|channel| channel.rank_of(peer))) {
                    (Some(&slot), Some(from)) => {
                        let unaware = channel.and_then(|channel| channel.unaware(from, tag.sequence)).cloned();
                        self.fail_with_mismatch(slot, Early { from, call: theirs, unaware });
                    }
                    // The operation has ended here since.
                    _ => self.handle_early(peer, tag, theirs),
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
                Some(Notice::Waiting { tag, signature, round }) => {
                    self.handle_early(peer, tag, signature);
                    self.handle_question(peer, tag, round);
                }
                Some(Notice::Stuck { tag, round, rank, step, waiting_for }) => {
                    self.handle_answer(peer, tag, round, rank, Answer { step, waiting_for });
                }
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
        if let Some(operation) = &mut place.operation {
            let was_sending = !operation.only_receives();
            let ends_step = operation.complete(number);
            let may_look_ahead = was_sending && operation.only_receives();
            if ends_step {
                operation.next_step();
            }
            if !operation.is_finished() {
                reach(Point::Half);
            }
            if ends_step {
                self.run_steps(slot);
            } else if may_look_ahead {
                self.look_ahead(slot);
            }
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
                let unaware = channel.unaware(from, tag.sequence).cloned();
                self.fail_with_mismatch(slot, Early { from, call: signature, unaware });
            }
        } else if tag.sequence >= channel.next_sequence {
            channel.remember_early(tag.sequence, from, signature);
        } else if let Some(ours) = channel.ended_call(tag.sequence)
            // The counts of an alltoall may be those of single exchanges.
            && ours != (if ours.collective == Collective::Alltoall {
                Signature { count: ours.count, ..signature }
            } else {
                signature
            })
        {
            let mismatch = Error::Mismatch {
                sequence: channel.users_number(tag.sequence),
                ours: (channel.rank, ours),
                theirs: (from, signature),
            };
            let cause = channel.unaware(from, tag.sequence).cloned().unwrap_or(mismatch);
            self.give_up_ended(tag, cause);
        }
    }

    fn end(&mut self, slot: usize, outcome: Result<()>) {
        let Some(operation) = self.slots[slot].operation.take() else {
            return;
        };
        let (tag, signature, sets_up) = (operation.tag, operation.signature, operation.sets_up);
        if operation.held {
            self.hold_no_more(tag.communicator, slot);
        }
        self.free.push(slot);
        self.by_tag.remove(&tag);
        self.active -= 1;
        self.ended = true;
        self.untold |= self.lags;
        if outcome.is_ok()
            && !tag.communicator.is_point_to_point()
            && let Some(channel) = self.channels.get_mut(&tag.communicator)
        {
            channel.remember_ended(tag.sequence, signature);
        }
        if !sets_up {
            return operation.end(outcome, &mut self.pool);
        }
        let cause = outcome.clone().err();
        operation.end(outcome, &mut self.pool);
        self.set_up_ended(tag.communicator, cause);
    }

    fn notify(&mut self, peer: usize, notice: Frame) {
        self.untold = true;
        match &mut self.peers[peer] {
            Peer::Connected { endpoint, left: false } => endpoint.notify(notice),
            Peer::Dialling(queue) => queue.notices.push(notice),
            Peer::Connected { .. } | Peer::Unconnected | Peer::Gone(_) => {}
        }
    }

    /// Whether nothing can move until a peer acts.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut quiet = true;
        for peer in &mut self.peers {
            if let Peer::Connected { endpoint, .. } = peer {
                quiet &= endpoint.prepare_sleep();
            }
        }
        // After the doorbell is armed: what is written from here on rings.
        for index in 0..self.in_hosts.len() {
            quiet &= !self.advance_in_host(index);
        }
        if !quiet {
            // Whichever endpoint it is.
            self.rounds = 0;
        }
        quiet
    }

    /// Whether everything said has been handed to the carriers. A peer that said goodbye has no operation left that
    /// waits for anything, and may have stopped reading.
    pub fn is_drained(&self) -> bool {
        self.peers.iter().all(|peer| match peer {
            Peer::Connected { endpoint, left } => *left || (endpoint.is_drained() && endpoint.is_flushed()),
            _ => true,
        })
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
