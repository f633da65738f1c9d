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
//! - all ranks say alike whether partial results travel, and where they say no, none do;
//! - every rank computes the same expression for the same element, and so the same bits; for deterministic plans, the
//!   one in rank order.

mod expression;
mod machine;
mod meaning;
mod memory;
mod race;

use std::fmt;

use super::{Instruction, JointRequest, Schedule};

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
        if schedule.partials_travel != schedules[0].partials_travel {
            let what = "says otherwise than rank 0 whether partial results travel".into();
            return Err(Violation { rank, step: None, what });
        }
        for (index, step) in schedule.steps.iter().enumerate() {
            if !schedule.partials_travel && step.instructions.iter().any(leaves_partial) {
                let what = "a partial result is kept or sent, and none was declared".into();
                return Err(Violation { rank, step: Some(index), what });
            }
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

/// Whether an instruction combines elements and does not finish them at once. Where none does, every operand of every
/// combination is a contribution.
fn leaves_partial(instruction: &Instruction) -> bool {
    match instruction {
        Instruction::RecvReduce { finish, .. } => !finish,
        Instruction::Reduce { sources, finish, .. } => sources.len() > 1 && !finish,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
