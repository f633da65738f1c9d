//! What a worker says: one JSON object a line on its standard output.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
pub enum Told {
    /// It is in a view.
    In { slot: usize, pid: u32, generation: u64 },
    /// It has the state, as it is after the step with this number.
    Synced { slot: usize, step: u64, digest: u64 },
    /// A step counts.
    Step(Step),
    /// It is out, or the job is over.
    Out { slot: usize, kind: String, reason: String },
    /// It is done.
    End { slot: usize, step: u64, digest: u64 },
}

/// What a step that counts gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub slot: usize,
    /// Its number in the job.
    pub step: u64,
    /// The view in which its results came to be.
    pub generation: u64,
    /// Whose inputs are in them.
    pub by: Vec<usize>,
    /// The first element of the result.
    pub sum: u64,
    /// Of this step's whole result and of those of all before it.
    pub digest: u64,
    /// Seconds on the clock that all processes of the machine share.
    pub at: f64,
    /// How many members the view has now.
    pub size: usize,
}

/// Seconds on the clock that all processes of a machine share.
pub fn clock() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Says a line, as a whole.
pub fn say(told: &Told) {
    // The harness has begun a line of its own.
    let line = format!("\n{}\n", serde_json::to_string(told).expect("plain data"));
    let mut out = std::io::stdout().lock();
    // Whoever listened may be gone; then this process is about to be.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The object in a line, wherever it begins.
pub fn parse(line: &str) -> Option<Told> {
    serde_json::from_str(&line[line.find("{\"told\"")?..]).ok()
}
