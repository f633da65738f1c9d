//! What a change of view does to the engine.
//!
//! In an elastic world ranks do not judge each other. A lost link is reported, and the operations that need it fail; who
//! is gone is the registry's word, which comes as a suspension and a new view. Peers are then known by slots, which no
//! two members of a job share in its lifetime: connections between those who stay outlive the change, and a member that
//! was removed cannot be taken for the one that came for it.

use std::sync::Arc;

use super::{Core, Peer, Unknown};
use crate::types::{Error, Generation};

/// Hears of lost links. Called under the engine's lock: it must neither block nor call the engine.
pub type OnLost = Box<dyn Fn(usize, Arc<str>) + Send>;

/// What an elastic world's engine knows more.
pub(super) struct Judged {
    /// The view in which operations run.
    pub generation: Generation,
    /// The last view that is over, and why nothing can be done in it any more.
    pub over: Option<(Generation, Error)>,
    /// Hears of lost links.
    pub on_lost: OnLost,
    /// Messages for views that were over, dropped.
    pub stale: u64,
}

impl Core {
    /// From here on the world is an elastic one, in its view `generation`.
    pub fn judge(&mut self, generation: Generation, on_lost: OnLost) {
        self.judged = Some(Judged { generation, over: None, on_lost, stale: 0 });
    }

    /// Gives up everything in flight, without a word to the others: they are suspended too. Calls fail with `cause`
    /// until they are made in a later view.
    pub fn suspend(&mut self, cause: &Error) {
        for channel in self.channels.values_mut() {
            channel.over.get_or_insert_with(|| cause.clone());
        }
        // What is made of the view's communicators from here on is over as well.
        if let Some(judged) = &mut self.judged
            && judged.over.as_ref().is_none_or(|(last, _)| *last < judged.generation)
        {
            judged.over = Some((judged.generation, cause.clone()));
        }
        for slot in 0..self.slots.len() {
            self.fail(slot, cause.clone(), false);
        }
    }

    /// The next view begins: peers are the slots below `size`, of which `gone` are out. The links to `broken` are lost
    /// as one side sees it, though both stay. Returns all such slots, which can be dialled again.
    pub fn install(&mut self, generation: Generation, size: usize, gone: &[usize], broken: &[usize]) -> Vec<usize> {
        self.end_quietly(generation);
        let Some(judged) = &mut self.judged else {
            return Vec::new();
        };
        judged.generation = generation;
        let before = self.unknown.len();
        self.unknown.retain(|(_, said)| {
            let (Unknown::Early(tag, _) | Unknown::Abort(tag, _)) = said;
            tag.communicator.generations_ahead(generation) >= 0
        });
        judged.stale += (before - self.unknown.len()) as u64;
        if self.peers.len() < size {
            self.peers.resize_with(size, || Peer::Unconnected);
        }
        let mut again = Vec::new();
        for (slot, peer) in self.peers.iter_mut().enumerate() {
            if gone.contains(&slot) {
                // What it still writes is read by nobody, whatever carries it.
                *peer = Peer::Gone("it is not a member any more".into());
            } else if slot != self.rank && (matches!(peer, Peer::Gone(_)) || broken.contains(&slot)) {
                *peer = Peer::Unconnected;
                again.push(slot);
            }
        }
        again
    }

    /// Ends the view before that of `next`, if nobody was told to stop in it: all agreed on the change between two steps.
    fn end_quietly(&mut self, next: Generation) {
        let Some(judged) = &self.judged else { return };
        let before = judged.generation;
        if before < next && judged.over.as_ref().is_none_or(|(last, _)| *last < before) {
            let cause = "the view changed between two steps".into();
            self.suspend(&Error::ViewChanged { generation: before, cause });
        }
    }

    /// Why nothing can be done in a communicator that is about to be made: its view is over.
    pub(super) fn why_over(&self, communicator: crate::types::CommunicatorId) -> Option<Error> {
        let (last, cause) = self.judged.as_ref()?.over.as_ref()?;
        (communicator.generations_ahead(*last) <= 0).then(|| cause.clone())
    }

    /// Whether a communicator is of a view that is over here. What comes for it is dropped.
    pub(super) fn is_stale(&mut self, communicator: crate::types::CommunicatorId) -> bool {
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
