//! One NCCL communicator on one rank, as a state machine.

use std::time::Instant;

use super::library::{Abilities, UniqueId};
use super::results::{self, Code, IN_PROGRESS, SUCCESS};
use crate::types::{Deadline, Error, Generation, Result};

/// What a group asks of NCCL. None of these may wait.
pub trait Calls {
    /// A communicator of NCCL.
    type Raw: Copy + PartialEq;
    /// What is put on a stream.
    type Work;

    /// Begins to make a communicator.
    fn init(&mut self, size: usize, rank: usize, id: &UniqueId) -> (Option<Self::Raw>, Code);
    /// How far a communicator is with what was begun.
    fn state(&mut self, raw: Self::Raw) -> Code;
    /// Puts work on a stream.
    fn enqueue(&mut self, raw: Self::Raw, work: &Self::Work) -> Code;
    /// Begins to stop what is in flight on a communicator, which is then good for nothing but `shrink` and `abort`.
    fn revoke(&mut self, raw: Self::Raw) -> Code;
    /// Begins to make a communicator without some of the ranks. It is the old one that says how far that is.
    fn shrink(&mut self, raw: Self::Raw, without: &[usize]) -> Code;
    /// What newcomers meet the ranks of a communicator by, that is to be grown next: for the first of those to give.
    fn id_to_grow(&mut self, raw: Self::Raw) -> Result<UniqueId, Code>;
    /// Begins to make a communicator with more ranks, which says itself how far it is. `raw` is what a rank has that was in
    /// the old one; `id` is given to the first of those and to newcomers, `rank` to newcomers.
    fn grow(&mut self, raw: Option<Self::Raw>, size: usize, id: Option<&UniqueId>, rank: Option<usize>) -> Code;
    /// What `shrink` or `grow` has made: with `grow` at once, with `shrink` when it is done.
    fn made(&mut self) -> Option<Self::Raw>;
    /// Begins to end a communicator, when all ranks have.
    fn finalize(&mut self, raw: Self::Raw) -> Code;
    /// Gives up what is in flight, and frees a communicator.
    fn abort(&mut self, raw: Self::Raw) -> Code;
    /// What NCCL says of its last error.
    fn words(&mut self, raw: Option<Self::Raw>) -> String;
}

/// Work for errors.
pub trait Work {
    /// The call, as `allreduce(...)`.
    fn name(&self) -> &str;
}

/// How a communicator for another view comes about. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From nothing.
    Anew,
    /// From the old one, without those who are gone.
    Shrink,
    /// From the old one, with newcomers.
    Grow,
}

/// From one view to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new view's generation.
    pub generation: Generation,
    /// This rank in the new view.
    pub rank: usize,
    /// The ranks of the new view.
    pub size: usize,
    /// Ranks of the old view that are gone.
    pub lost: Vec<usize>,
    /// How many of the new view's ranks were not in the old one. They come after the others.
    pub joined: usize,
}

impl Change {
    /// How the new communicator is to be made, where the libraries of all ranks have `abilities`, and whether all that
    /// stay still have theirs.
    pub fn way(&self, abilities: Abilities, all_alive: bool) -> Way {
        match (self.lost.is_empty(), self.joined) {
            _ if !all_alive => Way::Anew,
            (false, 0) if abilities.shrinks => Way::Shrink,
            (true, joined) if joined > 0 && abilities.grows => Way::Grow,
            _ => Way::Anew,
        }
    }
}

/// How far a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something is under way: poll again.
    Pending,
    /// It can be used.
    Ready,
    /// It has ended.
    Ended,
}

#[derive(Debug)]
enum State<R> {
    /// Being made, from nothing.
    Starting(R),
    /// Its successor, without some ranks, is being made of it.
    Shrinking(R),
    /// Being made of another, which is freed afterwards; a newcomer has none.
    Succeeding {
        old: Option<R>,
        made: R,
    },
    Ready(R),
    /// Work is being put on a stream.
    Working(R),
    /// What is in flight is being stopped.
    Stopping(R),
    /// Nothing is in flight, and nothing can be: another can be made of it.
    Stopped(R),
    Ending(R),
    Ended,
    Failed(Error),
}

/// One communicator of NCCL on one rank. Never waits and reads no clock: poll it.
pub struct Group<C: Calls> {
    calls: C,
    state: State<C::Raw>,
    /// Communicators of a group that has failed, which are still to be freed.
    left: Vec<C::Raw>,
    /// Whether one was being made then, which NCCL tells of when it is.
    was_shrinking: bool,
    generation: Generation,
    rank: usize,
    size: usize,
    /// What is under way, since when, and until when.
    what: String,
    since: Instant,
    deadline: Deadline,
}

impl<C: Calls> Group<C>
where
    C::Work: Work,
{
    /// Begins to make a communicator from nothing.
    pub fn start(
        mut calls: C,
        (rank, size): (usize, usize),
        generation: Generation,
        id: &UniqueId,
        now: Instant,
        deadline: Deadline,
    ) -> Self {
        let (raw, code) = calls.init(size, rank, id);
        let mut group = Self {
            calls,
            state: State::Ended,
            left: Vec::new(),
            was_shrinking: false,
            generation,
            rank,
            size,
            what: "ncclCommInitRankConfig".into(),
            since: now,
            deadline,
        };
        group.state = match (raw, code) {
            (Some(raw), IN_PROGRESS) => State::Starting(raw),
            (Some(raw), SUCCESS) => State::Ready(raw),
            (raw, code) => {
                let error = group.error(raw, code);
                if let Some(raw) = raw {
                    group.calls.abort(raw);
                }
                State::Failed(error)
            }
        };
        group
    }

    /// A newcomer's communicator, grown from the others'.
    pub fn join(mut calls: C, change: &Change, id: &UniqueId, now: Instant, deadline: Deadline) -> Self {
        let code = calls.grow(None, change.size, Some(id), Some(change.rank));
        let mut group = Self {
            calls,
            state: State::Ended,
            left: Vec::new(),
            was_shrinking: false,
            generation: change.generation,
            rank: change.rank,
            size: change.size,
            what: "ncclCommGrow".into(),
            since: now,
            deadline,
        };
        group.grown(None, code);
        group
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The generation of the view that it is of.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether there is a communicator, from which another can be made.
    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::Stopped(_))
    }

    /// Whether it can be given work.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Asks how far it is. Also to be asked now and then while nothing is under way: it is how another rank's failure
    /// is noticed.
    ///
    /// # Errors
    ///
    /// What ended it: the same at every later call.
    pub fn poll(&mut self, now: Instant) -> Result<Progress> {
        let (raw, is_waiting) = match &self.state {
            State::Failed(error) => return Err(error.clone()),
            State::Ended => return Ok(Progress::Ended),
            State::Ready(raw) | State::Stopped(raw) => (*raw, false),
            State::Starting(raw) | State::Working(raw) | State::Stopping(raw) | State::Ending(raw) => (*raw, true),
            State::Shrinking(raw) | State::Succeeding { made: raw, .. } => (*raw, true),
        };
        match self.calls.state(raw) {
            IN_PROGRESS if is_waiting && self.deadline.has_passed(now) => {
                let waited = now.saturating_duration_since(self.since);
                let others = (0..self.size).filter(|&rank| rank != self.rank).collect();
                let error = Error::Timeout {
                    operation: self.what.as_str().into(),
                    waiting_for: others,
                    waited,
                    detail: "over NCCL, which does not say whom it waits for; it was aborted".into(),
                };
                self.fail(error.clone());
                Err(error)
            }
            IN_PROGRESS if is_waiting => Ok(Progress::Pending),
            // Work that was enqueued may be on its way.
            IN_PROGRESS => Ok(Progress::Ready),
            SUCCESS => self.advance(),
            code => {
                let error = self.error(Some(raw), code);
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Goes on after NCCL has said that what was begun is done.
    fn advance(&mut self) -> Result<Progress> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Starting(raw) | State::Working(raw) | State::Ready(raw) => {
                self.state = State::Ready(raw);
                Ok(Progress::Ready)
            }
            State::Stopping(raw) | State::Stopped(raw) => {
                self.state = State::Stopped(raw);
                Ok(Progress::Ready)
            }
            State::Shrinking(old) => {
                let Some(made) = self.calls.made() else {
                    let error = Error::internal("NCCL made no communicator and says that it did");
                    self.state = State::Shrinking(old);
                    self.fail(error.clone());
                    return Err(error);
                };
                // What was made may have to be asked about itself.
                self.state = State::Succeeding { old: Some(old), made };
                Ok(Progress::Pending)
            }
            State::Succeeding { old, made } => {
                if let Some(old) = old {
                    self.calls.abort(old);
                }
                self.state = State::Ready(made);
                Ok(Progress::Ready)
            }
            State::Ending(raw) => {
                // Everything is flushed. `ncclCommDestroy` would wait for the other ranks of this host, who may go on with
                // something else.
                self.calls.abort(raw);
                Ok(Progress::Ended)
            }
            State::Ended => Ok(Progress::Ended),
            State::Failed(error) => {
                self.state = State::Failed(error.clone());
                Err(error)
            }
        }
    }

    /// Puts work on a stream. The work is on it once [`poll`](Self::poll) says that the group is ready again.
    ///
    /// # Errors
    ///
    /// When the group is of another generation, not ready, or failed; when NCCL refuses, which ends it.
    pub fn enqueue(&mut self, work: &C::Work, generation: Generation, now: Instant, deadline: Deadline) -> Result<()> {
        if generation != self.generation {
            return Err(Error::internal(format_args!(
                "work of {generation} given to an NCCL communicator of {}",
                self.generation
            )));
        }
        let raw = match &self.state {
            State::Ready(raw) => *raw,
            State::Failed(error) => return Err(error.clone()),
            _ => return Err(Error::internal("work given to an NCCL communicator that is not ready")),
        };
        (self.what, self.since, self.deadline) = (work.name().into(), now, deadline);
        match self.calls.enqueue(raw, work) {
            SUCCESS => Ok(()),
            IN_PROGRESS => {
                self.state = State::Working(raw);
                Ok(())
            }
            code => {
                let error = self.error(Some(raw), code);
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Begins to stop what is in flight, so that nothing touches its memory any more, and keeps the communicator for
    /// another to be made of it. Poll until it is ready. Whoever can no more is to be given up.
    pub fn stop(&mut self, now: Instant, deadline: Deadline) {
        let (State::Ready(raw) | State::Working(raw)) = self.state else { return };
        (self.what, self.since, self.deadline) = ("ncclCommRevoke".into(), now, deadline);
        self.state = State::Stopping(raw);
        let code = self.calls.revoke(raw);
        self.began(code);
    }

    /// What newcomers meet these ranks by, when the group is grown next. For its first rank to ask for.
    ///
    /// # Errors
    ///
    /// When it is not ready; when NCCL has none.
    pub fn id_to_grow(&mut self) -> Result<UniqueId> {
        let State::Ready(raw) = self.state else {
            return Err(Error::internal("an NCCL communicator that is not ready is to be grown"));
        };
        self.what = "ncclCommGetUniqueId".into();
        self.calls.id_to_grow(raw).map_err(|code| self.error(Some(raw), code))
    }

    /// Goes over to another view: from a communicator with nothing in flight, unless it is made anew. `id` is for a new
    /// start, and for the first rank of those that stay when newcomers come. Poll until it is ready.
    pub fn change(&mut self, change: &Change, way: Way, id: Option<&UniqueId>, now: Instant, deadline: Deadline) {
        (self.generation, self.rank, self.size) = (change.generation, change.rank, change.size);
        (self.since, self.deadline) = (now, deadline);
        let idle = match self.state {
            State::Ready(raw) | State::Stopped(raw) => Some(raw),
            _ => None,
        };
        match (way, idle) {
            (Way::Shrink, Some(raw)) => {
                self.what = "ncclCommShrink".into();
                self.state = State::Shrinking(raw);
                let code = self.calls.shrink(raw, &change.lost);
                self.began(code);
            }
            (Way::Grow, Some(raw)) => {
                self.what = "ncclCommGrow".into();
                let code = self.calls.grow(Some(raw), change.size, id, None);
                self.grown(Some(raw), code);
            }
            (Way::Shrink | Way::Grow, None) => {
                self.fail(Error::internal("an NCCL communicator is to be made from one that is gone or busy"));
            }
            (Way::Anew, _) => {
                self.set_aside();
                self.free();
                self.what = "ncclCommInitRankConfig".into();
                let Some(id) = id else {
                    self.state = State::Failed(Error::internal("an NCCL communicator is to be made without an id"));
                    return;
                };
                let (raw, code) = self.calls.init(change.size, change.rank, id);
                self.state = match (raw, code) {
                    (Some(raw), IN_PROGRESS) => State::Starting(raw),
                    (Some(raw), SUCCESS) => State::Ready(raw),
                    (raw, code) => {
                        let error = self.error(raw, code);
                        if let Some(raw) = raw {
                            self.calls.abort(raw);
                        }
                        State::Failed(error)
                    }
                };
            }
        }
    }

    /// Begins to end it in good order, which every rank must. Poll until it has ended.
    pub fn end(&mut self, now: Instant, deadline: Deadline) {
        let State::Ready(raw) = self.state else {
            return self.give_up(Error::Closed { what: "an NCCL communicator".into() });
        };
        (self.what, self.since, self.deadline) = ("ncclCommFinalize".into(), now, deadline);
        self.state = State::Ending(raw);
        let code = self.calls.finalize(raw);
        self.began(code);
    }

    /// Gives up what is in flight, frees the communicator, and fails from now on: with `cause`, if it has not failed
    /// before. Takes as long as the device needs to leave what it does.
    pub fn give_up(&mut self, cause: Error) {
        self.fail(cause);
        self.free();
    }

    /// Fails from now on. What is left is freed by [`give_up`](Self::give_up), so that the other ranks can be told first.
    fn fail(&mut self, cause: Error) {
        // The first cause stays, and what has ended has.
        if !matches!(self.state, State::Failed(_) | State::Ended) {
            self.set_aside();
            self.state = State::Failed(cause);
        }
    }

    /// After a call that begins something: whether it was refused.
    fn began(&mut self, code: Code) {
        if code != SUCCESS && code != IN_PROGRESS {
            let raw = match self.state {
                State::Shrinking(raw) | State::Stopping(raw) | State::Ending(raw) => Some(raw),
                _ => None,
            };
            let error = self.error(raw, code);
            self.fail(error);
        }
    }

    /// After a call that makes a communicator with more ranks.
    fn grown(&mut self, old: Option<C::Raw>, code: Code) {
        match self.calls.made().filter(|_| code == SUCCESS || code == IN_PROGRESS) {
            Some(made) => self.state = State::Succeeding { old, made },
            None => {
                let error = self.error(old, code);
                self.set_aside();
                self.state = State::Failed(error);
            }
        }
    }

    fn error(&mut self, raw: Option<C::Raw>, code: Code) -> Error {
        let words = self.calls.words(raw);
        results::error(&self.what, code, &words)
    }
}

impl<C: Calls> Group<C> {
    /// Its communicators are among what is left.
    fn set_aside(&mut self) {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Starting(raw)
            | State::Ready(raw)
            | State::Working(raw)
            | State::Stopping(raw)
            | State::Stopped(raw)
            | State::Ending(raw) => self.left.push(raw),
            State::Shrinking(old) => {
                self.left.push(old);
                self.was_shrinking = true;
            }
            State::Succeeding { old, made } => self.left.extend([made].into_iter().chain(old)),
            State::Failed(_) | State::Ended => {}
        }
    }

    fn free(&mut self) {
        for raw in self.left.drain(..) {
            self.calls.abort(raw);
        }
        // NCCL is done with what it was making only now.
        if std::mem::take(&mut self.was_shrinking)
            && let Some(made) = self.calls.made()
        {
            self.calls.abort(made);
        }
    }
}

/// Whatever is left is given up: nothing of it may outlive the group.
impl<C: Calls> Drop for Group<C> {
    fn drop(&mut self) {
        self.set_aside();
        self.free();
    }
}
