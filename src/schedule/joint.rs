//! One call as all of its ranks see it together: what verifying, pricing and drawing start from.

use super::{PlanError, PlanRequest, Schedule, Shape, plan};
use crate::types::{Algorithm, Collective};

/// How many elements a collective moves, on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts<'a> {
    /// As [`Shape::Whole`].
    Whole(usize),
    /// As [`Shape::Blocks`].
    Blocks(&'a [usize]),
    /// Alltoall: what each rank sends to each, `size * size` counts, those of rank 0 first.
    Matrix(&'a [usize]),
}

/// What all ranks of a call ask for together.
#[derive(Clone, Copy, Debug)]
pub struct JointRequest<'a> {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The number of ranks.
    pub size: usize,
    /// The root, for rooted collectives; otherwise ignored.
    pub root: usize,
    /// The counts.
    pub counts: Counts<'a>,
    /// For each rank, whether it works in place; empty when none does.
    pub in_place: &'a [bool],
    /// As [`PlanRequest::hosts`].
    pub hosts: &'a [usize],
    /// As [`PlanRequest::segment`].
    pub segment: usize,
    /// As [`PlanRequest::deterministic`].
    pub deterministic: bool,
}

impl JointRequest<'_> {
    /// Whether a rank works in place.
    pub fn is_in_place(&self, rank: usize) -> bool {
        self.in_place.get(rank).copied().unwrap_or(false)
    }

    /// What `from` sends to `to` in an alltoall.
    pub(super) fn exchanged(&self, from: usize, to: usize) -> usize {
        match self.counts {
            Counts::Matrix(counts) => counts.get(from * self.size + to).copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// One rank's plan.
    pub fn plan(&self, rank: usize) -> Result<Schedule, PlanError> {
        let (mut send, mut recv) = (Vec::new(), Vec::new());
        let shape = match self.counts {
            Counts::Whole(count) => Shape::Whole(count),
            Counts::Blocks(counts) => Shape::Blocks(counts),
            Counts::Matrix(counts) => {
                send.extend((0..self.size).map(|to| self.exchanged(rank, to)));
                recv.extend((0..self.size).map(|from| self.exchanged(from, rank)));
                Shape::Exchange { send: &send, recv: &recv, equal: counts.iter().all(|count| *count == counts[0]) }
            }
        };
        plan(&PlanRequest {
            collective: self.collective,
            algorithm: self.algorithm,
            rank,
            size: self.size,
            root: self.root,
            shape,
            in_place: self.is_in_place(rank),
            hosts: self.hosts,
            segment: self.segment,
            deterministic: self.deterministic,
        })
    }

    /// The plans of all ranks.
    pub fn plan_all(&self) -> Result<Vec<Schedule>, PlanError> {
        (0..self.size).map(|rank| self.plan(rank)).collect()
    }
}
