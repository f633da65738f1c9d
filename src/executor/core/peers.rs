//! Peers that come and go, and what they are told when they do.

use std::sync::Arc;

use super::{Core, Lost, Peer, Queue, Request, frame, hand_over};
use crate::transport::Endpoint;
use crate::types::{Error, Generation, Result, Tag, TransportKind};
use crate::wire::notice::Notice;

/// How many members that it never needed a rank connects to at its end, to tell them what was given up.
const MOST_TOLD: usize = 32;

impl Core {
    /// A connection of a generation has come into being, or could not.
    pub fn handle_connection(&mut self, peer: usize, generation: Generation, outcome: Result<Box<dyn Endpoint>>) {
        if self.is_outdated(peer, generation) {
            return;
        }
        let mut endpoint = match outcome {
            Ok(endpoint) => endpoint,
            Err(error) => return self.handle_no_connection(peer, error),
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
                    endpoint.notify(frame(&Notice::Abort { tag, cause: cause.clone() }, channel.name(channel.rank)));
                }
            }
        }
        queue.notices.into_iter().for_each(|notice| endpoint.notify(notice));
        self.untold = true;
        self.lags |= endpoint.kind() == TransportKind::Mpi;
        queue.requests.into_iter().for_each(|request| hand_over(endpoint.as_mut(), request));
        if self.closed {
            endpoint.say_goodbye();
        }
        self.peers[peer] = Peer::Connected { endpoint, left: false };
    }

    /// Takes over the connections that are there at once. Returns whether there were any.
    pub(super) fn connect_the_connected(&mut self) -> bool {
        let mut any = false;
        while let Some((peer, endpoint)) = self.dial.connected() {
            self.handle_connection(peer, Generation::FIRST, Ok(endpoint));
            any = true;
        }
        any
    }

    /// There is no connection to a peer. Whether that ends more than this attempt depends on the reason.
    fn handle_no_connection(&mut self, peer: usize, error: Error) {
        let Peer::Dialling(queue) = &mut self.peers[peer] else {
            return;
        };
        match error {
            // It is silent, and has its operations' deadlines to speak.
            Error::Timeout { .. } if !queue.requests.is_empty() => self.dial.dial(peer),
            Error::Timeout { .. } => self.peers[peer] = Peer::Unconnected,
            Error::PeerFailed { detail, .. } => {
                // Who is dialled only to be told may be gone for good reasons, and then nobody needs it.
                let needed = !queue.requests.is_empty();
                self.lose(peer, detail, needed);
            }
            // This process's fault or the machine's. The peer may be well, and another call may find a way to it.
            error => {
                let mut tags: Vec<_> = queue.requests.iter().map(Request::tag).collect();
                tags.dedup();
                self.peers[peer] = Peer::Unconnected;
                let slots: Vec<_> = tags.iter().filter_map(|tag| self.by_tag.get(tag).copied()).collect();
                slots.into_iter().for_each(|slot| self.fail(slot, error.clone(), true));
            }
        }
    }

    /// A peer is gone: every operation that it is part of fails, here and, with `tell`, everywhere.
    pub(super) fn lose(&mut self, peer: usize, detail: Arc<str>, tell: bool) {
        if matches!(self.peers[peer], Peer::Gone(_)) {
            return;
        }
        tracing::debug!(peer, %detail, "lost a peer");
        // What it showed before it went is there.
        for index in 0..self.in_hosts.len() {
            self.advance_in_host(index);
        }
        // Dropping the endpoint first gives the memory of everything posted on it back.
        self.peers[peer] = Peer::Gone(detail.clone());
        if let Some(judged) = &self.judged {
            let (generation, detail) = (judged.generation, detail.clone());
            (judged.on_lost)(Lost { generation, slot: peer, detail, is_own: true });
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
                let failure = channel.failure(rank, &operation.signature, &detail);
                self.fail(slot, failure, true);
            }
        }
    }

    /// Connects to members that this rank never needed, and that may need it, to tell them what was given up. Otherwise a
    /// rank that comes late finds this one gone, and takes its end for the cause.
    pub fn tell_the_unconnected(&mut self) {
        let mut strangers = Vec::new();
        // In an elastic world the registry tells.
        let is_judged = self.judged.is_some();
        for channel in self.channels.values().filter(|channel| channel.has_news() && !is_judged) {
            // The next ones in the circle of ranks, so that everyone is told by somebody in a large world too.
            let (before, after) = channel.members.split_at(channel.rank);
            let others = after.iter().chain(before).copied().filter(|&member| member != self.rank);
            strangers.extend(others.take(MOST_TOLD));
        }
        for peer in strangers {
            match &mut self.peers[peer] {
                state @ Peer::Unconnected => {
                    *state = Peer::Dialling(Queue { to_tell: true, ..Queue::default() });
                    self.dial.dial(peer);
                }
                Peer::Dialling(queue) => queue.to_tell = true,
                Peer::Connected { .. } | Peer::Gone(_) => {}
            }
        }
    }

    /// Whether a peer is being connected that must hear something.
    pub fn is_telling(&self) -> bool {
        let must_hear = |queue: &Queue| queue.to_tell || !queue.notices.is_empty();
        self.peers.iter().any(|peer| matches!(peer, Peer::Dialling(queue) if must_hear(queue)))
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

    /// The carrier to each connected peer.
    pub fn links(&self) -> Vec<(usize, TransportKind)> {
        let kinds = self.peers.iter().enumerate().filter_map(|(rank, peer)| match peer {
            Peer::Connected { endpoint, .. } => Some((rank, endpoint.kind())),
            _ => None,
        });
        kinds.collect()
    }
}
