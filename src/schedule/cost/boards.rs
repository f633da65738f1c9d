//! What a call over the boards of ranks on one host costs.

use super::{CostModel, Estimate};
use crate::types::Collective;

/// The most ranks that share boards: every rank looks at all the others' lines.
pub const MOST_RANKS_OF_BOARDS: usize = 8;

/// Estimates `collective` of `bytes` over boards: of the whole buffer, as for the schedules.
pub fn estimate(_collective: Collective, _bytes: f64, _size: usize, _model: &CostModel) -> Estimate {
    Estimate::default()
}
