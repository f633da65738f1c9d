//! One rank's end of everything that travels over MPI in one world.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{PIECE_BYTES, PIECES, SHORT_BYTES};
use crate::sys::mpi::{Arrival, InUse, MpiError, Session, Transfer};
use crate::transport::LaneError;

/// How many messages are taken up in one look.
const ARRIVALS_PER_LOOK: usize = 16;

/// How many buffers of either length are kept for the next messages.
const KEPT: usize = 64;

/// What goes to, and comes from, one rank.
#[derive(Default)]
struct Peer {
    /// Messages that are there, the first of which are being received.
    arrivals: VecDeque<Arrival>,
    /// Messages being received, the oldest first.
    receiving: VecDeque<Transfer>,
    /// Messages being sent, the oldest first.
    sending: VecDeque<Transfer>,
    /// It said that it leaves.
    has_left: bool,
    /// It was told that this rank leaves.
    is_told: bool,
    /// A lane was made for it.
    has_lane: bool,
    /// What comes is for nobody any more.
    is_over: bool,
    /// It sent what no lane sends.
    is_wrong: bool,
}

struct State {
    peers: HashMap<usize, Peer>,
    /// Ranks that sent something, and have no lane.
    strangers: VecDeque<usize>,
    /// Buffers for short and for long messages.
    buffers: [Vec<Vec<u8>>; 2],
    /// Messages that belong to nobody any more, while MPI is not done with them.
    orphans: Vec<Transfer>,
    failed: Option<MpiError>,
    /// Dropped when this rank has left.
    in_use: Option<Arc<InUse>>,
}

/// One rank's end of everything in one world. See this module's story.
pub struct Port {
    session: Session,
    tag: c_int,
    state: Mutex<State>,
    /// Whether anything moved since `Nap` asked last.
    moved: AtomicBool,
}

impl Port {
    /// The end under `tag`. MPI is not ended before [`leave`](Self::leave).
    pub fn new(session: Session, tag: c_int, in_use: Arc<InUse>) -> Self {
        let state = State {
            peers: HashMap::new(),
            strangers: VecDeque::new(),
            buffers: [Vec::new(), Vec::new()],
            orphans: Vec::new(),
            failed: None,
            in_use: Some(in_use),
        };
        Self { session, tag, state: Mutex::new(state), moved: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this thread may call MPI, which runs. Where it may not, nothing moves.
    pub fn may_call(&self) -> bool {
        self.session.may_call()
    }

    /// Whether anything has moved since the last time this was asked.
    pub(super) fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// A rank that sent something and has no lane, if there is one.
    pub fn next_stranger(&self) -> Option<usize> {
        if self.may_call() {
            self.look(&mut self.lock());
        }
        let mut state = self.lock();
        loop {
            let rank = state.strangers.pop_front()?;
            if state.peers.get(&rank).is_some_and(|peer| !peer.has_lane && !peer.is_over) {
                return Some(rank);
            }
        }
    }

    /// Whether a lane was made for a rank. There is one in a world.
    pub fn has_lane(&self, rank: usize) -> bool {
        self.lock().peers.get(&rank).is_some_and(|peer| peer.has_lane)
    }

    /// A lane takes over what goes to and comes from a rank.
    pub(super) fn open(&self, rank: usize) {
        self.lock().peers.entry(rank).or_default().has_lane = true;
    }

    /// Its lane is gone. Under `to_tag` the rank is told, which leaves nothing for it to wait for.
    pub(super) fn close(&self, rank: usize, to_tag: c_int) {
        let may_call = self.may_call();
        let mut guard = self.lock();
        let state = &mut *guard;
        let peer = state.peers.entry(rank).or_default();
        peer.is_over = true;
        if may_call {
            tell(&self.session, peer, rank, to_tag);
        }
        state.orphans.extend(peer.sending.drain(..).chain(peer.receiving.drain(..)));
        if may_call {
            self.look(state);
        }
    }

    /// Tells every rank that this one leaves, and lets MPI be ended once nobody else needs it.
    pub fn leave(&self) {
        let may_call = self.may_call();
        let mut guard = self.lock();
        let state = &mut *guard;
        for rank in (0..self.session.size).filter(|&rank| rank != self.session.rank) {
            let peer = state.peers.entry(rank).or_default();
            peer.is_over = true;
            if may_call {
                tell(&self.session, peer, rank, self.tag);
            }
        }
        if may_call {
            self.look(state);
        }
        state.in_use = None;
    }

    /// Takes up what has arrived.
    fn look(&self, state: &mut State) {
        if state.failed.is_some() {
            return;
        }
        if let Err(error) = self.try_look(state) {
            state.failed = Some(error);
        }
    }

    fn try_look(&self, state: &mut State) -> Result<(), MpiError> {
        for _ in 0..ARRIVALS_PER_LOOK {
            let Some(arrival) = self.session.channel.next(self.tag)? else { break };
            self.moved.store(true, Ordering::Relaxed);
            let rank = arrival.source;
            let peer = state.peers.entry(rank).or_default();
            let is_first = peer.arrivals.is_empty();
            if arrival.bytes == 0 && peer.is_over {
                peer.has_left = true;
            }
            if peer.is_over || peer.is_wrong || arrival.bytes > PIECE_BYTES {
                // Nobody's, or of no sound peer's. It is received all the same, so that its sender does not wait.
                peer.is_wrong |= arrival.bytes > PIECE_BYTES;
                state.orphans.push(arrival.receive(Vec::new())?);
                continue;
            }
            if !peer.has_lane && is_first && arrival.bytes > 0 {
                state.strangers.push_back(rank);
            }
            peer.arrivals.push_back(arrival);
        }
        let mut at = 0;
        while let Some(orphan) = state.orphans.get_mut(at) {
            if orphan.is_done()? {
                drop(state.orphans.swap_remove(at));
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Replaces `buffer`, of which everything was read, by the bytes of the next message of a rank. Returns whether there was
    /// one.
    pub(super) fn receive(&self, rank: usize, buffer: &mut Vec<u8>) -> Result<bool, LaneError> {
        if !self.may_call() {
            return Ok(false);
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let outcome = self.try_receive(state, rank, buffer);
        let outcome = outcome.inspect_err(|error| state.failed = Some(error.clone()));
        let peer = state.peers.get(&rank);
        match (outcome, &state.failed) {
            (Ok(true), _) => Ok(true),
            (_, Some(error)) => Err(LaneError::Broken(error.to_string().into())),
            _ if peer.is_some_and(|peer| peer.has_left) => Err(LaneError::Closed),
            _ if peer.is_some_and(|peer| peer.is_wrong) => {
                Err(LaneError::Broken(format!("a message of more than {PIECE_BYTES} bytes came").into()))
            }
            _ => Ok(false),
        }
    }

    fn try_receive(&self, state: &mut State, rank: usize, buffer: &mut Vec<u8>) -> Result<bool, MpiError> {
        let mut has_looked = false;
        loop {
            let State { peers, buffers, .. } = &mut *state;
            let Some(peer) = peers.get_mut(&rank) else { return Ok(false) };
            while peer.receiving.len() < PIECES
                && let Some(arrival) = peer.arrivals.pop_front()
            {
                let target = take_buffer(buffers, arrival.bytes);
                peer.receiving.push_back(arrival.receive(target)?);
            }
            if let Some(first) = peer.receiving.front_mut()
                && first.is_done()?
                && let Some(first) = peer.receiving.pop_front()
            {
                self.moved.store(true, Ordering::Relaxed);
                let bytes = first.into_bytes();
                if bytes.is_empty() {
                    peer.has_left = true;
                    return Ok(false);
                }
                give_buffer(buffers, std::mem::replace(buffer, bytes));
                return Ok(true);
            }
            if has_looked || peer.has_left || !peer.receiving.is_empty() {
                return Ok(false);
            }
            has_looked = true;
            self.look(state);
        }
    }

    /// Whether a message of the rank may be there that has not been read.
    pub(super) fn has_arrived(&self, rank: usize) -> bool {
        let mut state = self.lock();
        let may_call = self.may_call();
        state.peers.get_mut(&rank).is_some_and(|peer| match peer.receiving.front_mut() {
            Some(first) => may_call && first.is_done() != Ok(false),
            None => !peer.arrivals.is_empty(),
        })
    }

    /// Sends as much of `head` and then `body` as one message takes, if there is room. Returns how many bytes that was.
    pub(super) fn send(&self, rank: usize, tag: c_int, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        if !self.may_call() {
            return Ok(0);
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(error) = &state.failed {
            return Err(LaneError::Broken(error.to_string().into()));
        }
        let State { peers, buffers, .. } = state;
        let peer = peers.entry(rank).or_default();
        let outcome = self.try_send(peer, buffers, (rank, tag), head, body);
        outcome.map_err(|error| {
            let text = error.to_string().into();
            state.failed = Some(error);
            LaneError::Broken(text)
        })
    }

    fn try_send(
        &self,
        peer: &mut Peer,
        buffers: &mut [Vec<Vec<u8>>; 2],
        (rank, tag): (usize, c_int),
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, MpiError> {
        self.reap(peer, buffers)?;
        let from_head = head.len().min(PIECE_BYTES);
        let from_body = body.len().min(PIECE_BYTES - from_head);
        let count = from_head + from_body;
        if count == 0 || peer.sending.len() >= PIECES {
            return Ok(0);
        }
        let mut message = take_buffer(buffers, count);
        message.clear();
        message.extend_from_slice(head.get(..from_head).unwrap_or(head));
        message.extend_from_slice(body.get(..from_body).unwrap_or(body));
        peer.sending.push_back(self.session.channel.send(message, rank, tag, count > SHORT_BYTES)?);
        Ok(count)
    }

    /// Takes back the buffers of messages that are sent.
    fn reap(&self, peer: &mut Peer, buffers: &mut [Vec<Vec<u8>>; 2]) -> Result<(), MpiError> {
        while let Some(first) = peer.sending.front_mut()
            && first.is_done()?
            && let Some(first) = peer.sending.pop_front()
        {
            self.moved.store(true, Ordering::Relaxed);
            give_buffer(buffers, first.into_bytes());
        }
        Ok(())
    }

    /// Whether everything that was sent to a rank is out of this process's hands.
    pub(super) fn is_flushed(&self, rank: usize) -> bool {
        self.unsent(rank) == 0
    }

    /// Whether another message to a rank could be sent.
    pub(super) fn has_room(&self, rank: usize) -> bool {
        self.unsent(rank) < PIECES
    }

    fn unsent(&self, rank: usize) -> usize {
        let may_call = self.may_call();
        let mut guard = self.lock();
        let State { peers, buffers, failed, .. } = &mut *guard;
        let Some(peer) = peers.get_mut(&rank) else { return 0 };
        if may_call
            && failed.is_none()
            && let Err(error) = self.reap(peer, buffers)
        {
            *failed = Some(error);
        }
        if failed.is_some() { 0 } else { peer.sending.len() }
    }
}

/// Tells a rank, once, that this one leaves. After everything else, since MPI keeps the order.
fn tell(session: &Session, peer: &mut Peer, rank: usize, tag: c_int) {
    if peer.is_told || rank >= session.size {
        return;
    }
    peer.is_told = true;
    match session.channel.send(Vec::new(), rank, tag, false) {
        Ok(transfer) => peer.sending.push_back(transfer),
        Err(error) => tracing::debug!(rank, %error, "could not tell a rank that this one leaves"),
    }
}

fn kind_of(bytes: usize) -> usize {
    usize::from(bytes > SHORT_BYTES)
}

fn take_buffer(buffers: &mut [Vec<Vec<u8>>; 2], bytes: usize) -> Vec<u8> {
    let kind = kind_of(bytes);
    let capacity = if kind == 0 { SHORT_BYTES } else { PIECE_BYTES };
    buffers.get_mut(kind).and_then(Vec::pop).unwrap_or_else(|| Vec::with_capacity(capacity))
}

fn give_buffer(buffers: &mut [Vec<Vec<u8>>; 2], buffer: Vec<u8>) {
    let kind = match buffer.capacity() {
        SHORT_BYTES => 0,
        PIECE_BYTES => 1,
        _ => return,
    };
    if let Some(kept) = buffers.get_mut(kind)
        && kept.len() < KEPT
    {
        kept.push(buffer);
    }
}
