//! What rank 0 says while it trains, and how a person sees it.

use serde::{Deserialize, Serialize};

/// A line from rank 0 to the process that renders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Message {
    /// Some training steps are done.
    Step {
        /// How many since the start.
        steps: usize,
    },
    /// An epoch is done.
    Epoch(Epoch),
}

impl Message {
    /// The epoch, if it is one.
    pub fn as_epoch(&self) -> Option<&Epoch> {
        match self {
            Message::Epoch(epoch) => Some(epoch),
            _ => None,
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// Training steps since the start.
    pub steps: usize,
    /// The mean loss over the epoch's images, while it was learning.
    pub loss: f64,
    /// The share of test images that are recognised after it.
    pub accuracy: f64,
    /// Training images a second, over all ranks.
    pub samples_per_second: f64,
    /// The mean over the ranks of the share of time spent inside Phalanx.
    pub communication_share: f64,
}
