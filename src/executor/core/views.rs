//! What a change of view does to the engine.
//!
//! In an elastic world ranks do not judge each other. A lost link is reported, and the operations that need it fail; who
//! is gone is the registry's word, which comes as a suspension and a new view. Peers are then known by slots, which no
//! two members of a job share in its lifetime: connections between those who stay outlive the change, and a member that
//! was removed cannot be taken for the one that came for it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Core, Peer, Unknown};
use crate::types::{CommunicatorId, Error, Generation};

/// A link that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The view in which it was lost.
    pub generation: Generation,
    /// The slot at its other end.
    pub slot: usize,
    /// How, in words.
    pub detail: Arc<str>,
    /// Whether it is this rank's own link. Otherwise another rank gave a call up for its link to that slot, and tells
    /// the registry itself.
    pub is_own: bool,
}

/// Hears of lost links. Called under the engine's lock: it must neither block nor call the engine.
pub type OnLost = Box<dyn Fn(Lost) + Send>;

/// What an elastic world's engine knows more.
pub(super) struct Judged {
    /// The view in which operations run.
    pub generation: Generation,
    /// Hears of lost links.
    pub on_lost: OnLost,
    /// Why the last view that is over ended, and whether that is the present one: the next has not come.
    ended: Option<(Error, bool)>,
    /// Another rank has told of a link that it lost: this one looks after its own until the view is over, though nothing
    /// may be in flight, so that the registry hears of whatever is lost.
    is_looking: Cell<bool>,
    /// Messages for views that were over, dropped.
    pub stale: u64,
    /// The view with which each peer's link was closed or to be made anew: connections that were made before are not it.
    since: BTreeMap<usize, Generation>,
}

impl Core {
    /// From here on the world is an elastic one, in its view `generation`.
    pub fn judge(&mut self, generation: Generation, on_lost: OnLost) {
        self.judged = Some(Judged {
            generation,
            on_lost,
            ended: None,
            is_looking: Cell::new(false),
            stale: 0,
            since: BTreeMap::new(),
        });
    }

    /// Gives up everything in flight, without a word to the others: they are suspended too. Calls fail with `cause`
    /// until they are made in a later view.
    pub fn suspend(&mut self, cause: &Error) {
        if let Some(judged) = &mut self.judged
            && !matches!(judged.ended, Some((_, true)))
        {
            judged.ended = Some((cause.clone(), true));
            judged.is_looking.set(false);
        }
        for channel in self.channels.values_mut() {
            channel.over.get_or_insert_with(|| cause.clone());
        }
        for slot in 0..self.slots.len() {
            self.fail(slot, cause.clone(), false);
        }
    }

    /// The next view begins, of these members. Whoever else has been a peer is one no more. The links to `broken` are
    /// lost as one side sees it, though both stay. Returns all such slots, which can be dialled again. Calls on
    /// communicators of earlier views fail with `cause`, whether or not there was a suspension in between.
    pub fn install(
        &mut self,
        generation: Generation,
        members: &[usize],
        broken: &[usize],
        cause: &Error,
    ) -> Vec<usize> {
        let Some(judged) = &mut self.judged else {
            return Vec::new();
        };
        judged.generation = generation;
        judged.ended = Some((cause.clone(), false));
        judged.is_looking.set(false);
        for (id, channel) in &mut self.channels {
            if id.generations_ahead(generation) < 0 {
                channel.over.get_or_insert_with(|| cause.clone());
            }
        }
        for slot in 0..self.slots.len() {
            let operation = self.slots[slot].operation.as_ref();
            if operation.is_some_and(|operation| operation.tag.communicator.generations_ahead(generation) < 0) {
                self.fail(slot, cause.clone(), false);
            }
        }
        let Some(judged) = &mut self.judged else {
            return Vec::new();
        };
        let before = self.unknown.len();
        self.unknown.retain(|(_, said)| {
            let (Unknown::Early(tag, _) | Unknown::Abort(tag, _)) = said;
            tag.communicator.generations_ahead(generation) >= 0
        });
        judged.stale += (before - self.unknown.len()) as u64;
        let size = members.iter().map(|slot| slot + 1).max().unwrap_or(0).max(self.peers.len());
        self.peers.resize_with(size, || Peer::Unconnected);
        let mut is_member = vec![false; size];
        members.iter().for_each(|&slot| is_member[slot] = true);
        let mut again = Vec::new();
        for (slot, peer) in self.peers.iter_mut().enumerate() {
            if !is_member[slot] {
                // What it still writes is read by nobody, whatever carries it.
                *peer = Peer::Gone("it is not a member any more".into());
                judged.since.remove(&slot);
            } else if slot != self.rank && (matches!(peer, Peer::Gone(_)) || broken.contains(&slot)) {
                *peer = Peer::Unconnected;
                judged.since.insert(slot, generation);
                again.push(slot);
            }
        }
        again
    }

    /// Why nothing can be done in a communicator that is only now made, if its view is over.
    pub fn is_over(&self, communicator: CommunicatorId) -> Option<Error> {
        let judged = self.judged.as_ref()?;
        let (cause, is_present) = judged.ended.as_ref()?;
        let ahead = communicator.generations_ahead(judged.generation);
        (ahead < 0 || (ahead == 0 && *is_present)).then(|| cause.clone())
    }

    /// An operation's failure as whoever made the call is to see it. A lost peer is the end of an elastic world's view:
    /// the registry hears of it, and has the next word.
    pub(super) fn seen(&self, communicator: CommunicatorId, cause: Error) -> Error {
        let (Some(judged), Error::PeerFailed { rank, detail, .. }) = (&self.judged, &cause) else { return cause };
        // What an earlier view's call says of a member is no word on the present view.
        let is_present = communicator.generations_ahead(judged.generation) == 0;
        let channel = self.channels.get(&communicator).filter(|_| is_present);
        let slot = channel.and_then(|channel| channel.member_named(*rank));
        if let Some(slot) = slot.filter(|slot| *slot != self.rank) {
            let is_own = matches!(self.peers[slot], Peer::Gone(_) | Peer::Connected { left: true, .. });
            (judged.on_lost)(Lost { generation: judged.generation, slot, detail: detail.clone(), is_own });
            judged.is_looking.set(judged.is_looking.get() || !is_own);
        }
        Error::ViewChanged { generation: judged.generation, cause: cause.to_string().into() }
    }

    /// Whether links may be lost that nothing in flight would show.
    pub(super) fn is_looking(&self) -> bool {
        self.judged.as_ref().is_some_and(|judged| judged.is_looking.get())
    }

    /// Whether a connection to a peer, or the lack of one, is of a view before the one with which the link was to be made
    /// anew: what the connector said before it heard of that view.
    pub(super) fn is_outdated(&self, peer: usize, generation: Generation) -> bool {
        let since = self.judged.as_ref().and_then(|judged| judged.since.get(&peer));
        since.is_some_and(|since| generation < *since)
    }

    /// Whether a communicator is of a view that is over here. What comes for it is dropped.
    pub(super) fn is_stale(&mut self, communicator: CommunicatorId) -> bool {
        match &mut self.judged {
            Some(judged) if communicator.generations_ahead(judged.generation) < 0 => {
                judged.stale += 1;
                true
            }
            _ => false,
        }
    }

    /// How many messages of views that were over have been dropped.
    pub fn stale(&self) -> u64 {
        self.judged.as_ref().map_or(0, |judged| judged.stale)
    }
}
