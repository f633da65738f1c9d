//! Why there is no plan.

use std::fmt;

use crate::types::{Algorithm, Collective};

/// Why [`plan`](super::plan()) refuses. Every rank that asks for the same gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// What was asked for.
    pub collective: Collective,
    /// With which algorithm.
    pub algorithm: Algorithm,
    /// Among how many ranks.
    pub size: usize,
    /// Why that cannot be.
    pub why: String,
    /// The algorithms that would do; empty when the request itself is at fault.
    pub possible: Vec<Algorithm>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no plan for {} by {} among {} ranks: {}", self.collective, self.algorithm, self.size, self.why)?;
        if !self.possible.is_empty() {
            let names: Vec<_> = self.possible.iter().map(|algorithm| algorithm.name()).collect();
            write!(f, "; possible: {}", names.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for PlanError {}
