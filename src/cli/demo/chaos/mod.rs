//! `phalanx demo --chaos`: the same training, while ranks are killed, stopped and started.
//!
//! The first process runs the registry, starts the ranks as processes of this same program, and does them harm at steps
//! that the seed decides. It shows each change of the view, how long the others were held up, and at the end that no
//! optimiser step was lost or made twice.
//!
//! `faults` decides what happens when, `member` is what a rank does, `driver` is the first process.

mod driver;
mod faults;
mod member;

use serde::{Deserialize, Serialize};

use super::report::{Epoch, Summary};

pub use driver::drive;
pub use member::{is_member, live};

/// From a rank to the first process: one JSON object a line on its standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Told {
    /// It is in a view, and has the state.
    Ready {
        slot: usize,
        /// How long it took from the start of its process.
        since_start_ms: f64,
    },
    /// An optimiser step is made. From rank 0 alone.
    Step { steps: u64 },
    /// An epoch is done. From rank 0 alone.
    Epoch(Epoch),
    /// It went over to another view.
    View { slot: usize, generation: u64, held_up_ms: f64 },
    /// It is done.
    End(Box<Ending>),
    /// It is out.
    Out { reason: String },
}

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Ending {
    slot: usize,
    rank: usize,
    size: usize,
    digest: String,
    accuracy: f64,
    /// Optimiser steps in the weights.
    steps: u64,
    /// Steps whose gradients were agreed on, after the one that came before the first in these weights.
    agreed: u64,
    /// Optimiser steps that were made with gradients of a step that had been made already.
    repeated: u64,
    seconds: f64,
    communication_share: f64,
    transport: String,
    algorithm: String,
}

/// A change of the view, as a person and `--json` see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// Its number.
    pub generation: u64,
    /// The slots of its members, in rank order.
    pub members: Vec<usize>,
    /// Why it began.
    pub cause: String,
    /// The longest that a member that was there before was held up.
    pub held_up_ms: f64,
}

/// What `--json` prints at the end: the summary of a quiet run, and what happened.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    views: Vec<View>,
    lost_steps: u64,
    repeated_steps: u64,
}
