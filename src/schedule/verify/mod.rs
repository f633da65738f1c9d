//! Proves that the plans of all ranks, together, do what their collective means.
//!
//! [`verify`] runs all ranks symbolically: an element is not a number but an expression over the contributions, and a
//! run of elements that went through the same is one piece. It proves, for the plans it is given, that
//!
//! - every span lies within its buffer, scratch within what was declared, and no input is written, nor the buffers of
//!   ranks that only contribute to a reduce or gather;
//! - within a step, nothing writes what another instruction reads or writes;
//! - each send meets a receive of the same count, in order for each pair of ranks, and nothing is left over;
//! - there is no deadlock even when a send completes only once its receive is posted, all instructions of a step being
//!   posted together. A transport that buffers only completes sends earlier, which posts later steps no later, so it
//!   cannot deadlock either;
//! - nothing is read before it was written, and only equal elements of different ranks are ever combined;
//! - every element of the result holds each contribution exactly once, and is finished exactly once;
//! - every rank computes the same expression for the same element, and so the same bits; for deterministic plans, the
//!   one in rank order.

mod expression;
mod machine;
mod meaning;
mod memory;
mod race;

use std::fmt;

use super::{JointRequest, Schedule};

/// What is wrong with the plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rank where it shows.
    pub rank: usize,
    /// The step of that rank; `None` when it shows in the result.
    pub step: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "rank {}, step {step}: {}", self.rank, self.what),
            None => write!(f, "rank {}, result: {}", self.rank, self.what),
        }
    }
}

impl std::error::Error for Violation {}

/// What a verified set of plans adds up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// The most steps that any rank takes.
    pub steps: usize,
    /// Messages in all.
    pub messages: usize,
    /// The most elements that any rank sends.
    pub sent: usize,
}

/// Proves that `schedules`, one a rank, do what `request` asks for, whatever algorithm made them. Costs time in
/// proportion to the instructions, times the pieces each touches.
pub fn verify(request: &JointRequest<'_>, schedules: &[Schedule]) -> Result<Proof, Violation> {
    if schedules.len() != request.size {
        let what = format!("{} plans for {} ranks", schedules.len(), request.size);
        return Err(Violation { rank: 0, step: None, what });
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        let sizes = meaning::sizes(request, rank, schedule.scratch);
        for (index, step) in schedule.steps.iter().enumerate() {
            race::check(step, &sizes, rank, request.size).map_err(|what| Violation {
                rank,
                step: Some(index),
                what,
            })?;
        }
    }
    let mut machine = machine::Machine::new(request, schedules);
    let proof = machine.run()?;
    meaning::check(request, &mut machine)?;
    Ok(proof)
}

#[cfg(test)]
mod tests;
