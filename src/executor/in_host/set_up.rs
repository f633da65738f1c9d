//! How the ranks of a communicator come to see each other's boards.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{InHost, MOST_RANKS, Peer};
use crate::executor::completion::Completion;
use crate::executor::operation::Work;
use crate::schedule::{self, PlanRequest, Shape};
use crate::transport::board::{Board, Neighbour, Part};
use crate::transport::foreign::{Foreign, Witness};
use crate::types::{Algorithm, Collective, DataType, Deadline, Error, ReduceOp, Reduction, Result, Signature, Tag};

/// Words that each rank tells: the part it took and its epoch, or what it sees of the others'; and by what its memory is
/// known.
const WORDS: usize = WITNESS + 3;

/// The first of those by which its memory is known.
const WITNESS: usize = 2;

/// It sees all the others' parts; it has mapped their heaps; and it can read their memory.
const SEES: u64 = 1;
const MAPS: u64 = 2;
const READS: u64 = 4;

/// What a rank tells that has no part.
const NONE: u64 = u64::MAX;

/// The memory of an allgather of words.
pub(in crate::executor) struct Table {
    own: [u64; WORDS],
    all: Vec<u64>,
}

/// A setting-up that is under way.
pub(in crate::executor) struct SetUp {
    rank: usize,
    members: Arc<[usize]>,
    board: Option<(Arc<Board>, usize, Part)>,
    /// The parts of all, by rank, once they are known; this rank's own is not among them.
    peers: Option<SmallVec<[Peer; MOST_RANKS]>>,
    /// Under which call, and until when.
    signature: Signature,
    deadline: Deadline,
    /// The numbers of the two allgathers.
    sequences: [u64; 2],
    /// Which is under way.
    round: usize,
    pub completion: Arc<Completion>,
    /// Operations that wait for the outcome, by slot.
    pub held: Vec<usize>,
}

impl SetUp {
    /// How many operations it takes.
    pub const OPERATIONS: u64 = 2;

    /// Takes a part of this process's board, if there is one left.
    pub fn new(
        rank: usize,
        members: Arc<[usize]>,
        board: Option<Arc<Board>>,
        signature: Signature,
        deadline: Deadline,
        first_sequence: u64,
    ) -> Self {
        let board = board.and_then(|board| board.take().map(|(index, part)| (board, index, part)));
        Self {
            rank,
            members,
            board,
            peers: None,
            signature,
            deadline,
            sequences: [first_sequence, first_sequence + 1],
            round: 0,
            completion: Arc::default(),
            held: Vec::new(),
        }
    }

    /// The number of the allgather that is next.
    pub fn sequence(&self) -> u64 {
        self.sequences[self.round]
    }

    /// The allgather that is next.
    pub fn work(&self, tag: Tag) -> Result<Work> {
        let mut own = [0; WORDS];
        match (self.round, &self.board) {
            (0, Some((_, index, part))) => [own[0], own[1]] = [*index as u64, part.epoch()],
            (0, None) => own[0] = NONE,
            _ => own[0] = self.seen(),
        }
        let witness = self.board.as_ref().and_then(|(board, ..)| board.witness());
        own[WITNESS..][..3].copy_from_slice(&witness.map_or([0; 3], Witness::told));
        let size = self.members.len();
        let mut table = Box::new(Table { own, all: vec![0; WORDS * size] });
        let request = PlanRequest {
            collective: Collective::Allgather,
            algorithm: Algorithm::OneShot,
            rank: self.rank,
            size,
            root: 0,
            shape: Shape::Blocks(&vec![WORDS; size]),
            in_place: false,
            hosts: &vec![0; size],
            segment: WORDS * size,
            deterministic: false,
        };
        Ok(Work {
            tag,
            signature: self.signature,
            schedule: Arc::new(schedule::plan(&request).map_err(Error::invalid)?),
            dtype: DataType::U64,
            reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
            unequal: false,
            contributions: size,
            layout: None,
            input: table.own.as_ptr().cast(),
            input_count: WORDS,
            output: table.all.as_mut_ptr().cast(),
            output_count: WORDS * size,
            deadline: self.deadline,
            spoilt: None,
            keep: Some(table),
        })
    }

    /// What the first allgather brought. `neighbour` gives what the member of the world with this number shows.
    pub fn learn(&mut self, neighbour: impl Fn(usize) -> Option<Neighbour>) {
        if self.round > 0 {
            return;
        }
        let Some(table) = self.take_table() else { return };
        let Some((board, ..)) = &self.board else { return };
        let may_read = board.witness().is_some();
        let others = self.members.iter().zip(table.all.chunks_exact(WORDS)).enumerate();
        let peer = |(rank, (&member, words)): (usize, (&usize, &[u64]))| {
            let neighbour = neighbour(member)?;
            let part = neighbour.part(words[0], words[1])?;
            let memory = may_read.then(|| Foreign::meet(std::array::from_fn(|word| words[WITNESS + word]))).flatten();
            Some(Peer { rank, part, neighbour, memory, seen: 0, compared: 0 })
        };
        self.peers = others.filter(|(rank, _)| *rank != self.rank).map(peer).collect();
    }

    /// What of the others' this rank can use.
    fn seen(&self) -> u64 {
        let Some(peers) = &self.peers else { return 0 };
        let if_all = |what: u64, has: fn(&Peer) -> bool| if peers.iter().all(has) { what } else { 0 };
        SEES | if_all(MAPS, |peer| peer.neighbour.maps_heap()) | if_all(READS, |peer| peer.memory.is_some())
    }

    /// Goes on to the second allgather; false when that was it.
    pub fn next_round(&mut self) -> bool {
        if self.round + 1 == self.sequences.len() {
            return false;
        }
        self.round += 1;
        self.completion = Arc::default();
        true
    }

    /// The boards of all, if both allgathers went `well` and all see all; and the operations that waited.
    pub fn finish(mut self, well: bool) -> (Option<InHost>, Vec<usize>) {
        let table = self.take_table().filter(|_| well);
        let seen = table.map_or(0, |table| table.all.chunks_exact(WORDS).fold(u64::MAX, |seen, words| seen & words[0]));
        let ready = seen & SEES != 0;
        let held = std::mem::take(&mut self.held);
        let in_host = match (ready, self.board.take(), self.peers.take()) {
            (true, Some((board, index, part)), Some(peers)) => {
                Some(InHost::new(board, index, part, peers, seen & MAPS != 0, seen & READS != 0))
            }
            (_, board, _) => {
                self.board = board;
                None
            }
        };
        (in_host, held)
    }

    fn take_table(&self) -> Option<Box<Table>> {
        self.completion.take_kept().and_then(|kept| kept.downcast().ok())
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        if let Some((board, index, part)) = self.board.take() {
            // Nobody reads it: none has begun to.
            part.leave();
            board.give_back(index, Vec::new(), Vec::new());
        }
    }
}
