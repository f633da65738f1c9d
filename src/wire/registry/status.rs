//! How an elastic job is, as its registry tells operators.

use std::sync::Arc;
use std::time::Duration;

use super::{ProcessRecord, Slot};
use crate::types::Generation;

/// What the registry is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The first members come together.
    Gathering,
    /// The view stands.
    Steady,
    /// Members stop and report, or the next view is being published.
    Changing,
    /// There are fewer members than the job needs.
    Waiting,
    /// The job is over.
    Ended,
}

impl Phase {
    pub(crate) const ALL: [Phase; 5] = [Phase::Gathering, Phase::Steady, Phase::Changing, Phase::Waiting, Phase::Ended];

    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Gathering => "gathering",
            Phase::Steady => "steady",
            Phase::Changing => "changing",
            Phase::Waiting => "waiting",
            Phase::Ended => "ended",
        }
    }
}

/// How a member is. Dead and slow are different things: only what is dead is out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It gives signs of life.
    Live,
    /// It gives signs of life, but its work has not advanced for long while that of others is ahead.
    Slow,
    /// Its host answers, but it gives no sign of life: it may be stopped.
    Silent,
    /// Its connection is broken; it may come back.
    Away,
    /// It said goodbye.
    Left,
    /// It is judged to be out; the next view says so.
    Gone,
}

impl Condition {
    pub(crate) const ALL: [Condition; 6] =
        [Condition::Live, Condition::Slow, Condition::Silent, Condition::Away, Condition::Left, Condition::Gone];

    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Condition::Live => "live",
            Condition::Slow => "slow",
            Condition::Silent => "silent",
            Condition::Away => "away",
            Condition::Left => "left",
            Condition::Gone => "gone",
        }
    }
}

/// One member, or one that waits to become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub slot: Slot,
    /// Its rank in the view; none for one that waits.
    pub rank: Option<usize>,
    /// Its process.
    pub process: Arc<ProcessRecord>,
    /// How it is.
    pub condition: Condition,
    /// Since when it has given no sign of life.
    pub quiet: Duration,
    /// How many operations it has finished.
    pub progress: u64,
    /// Since when that number has not grown.
    pub idle: Duration,
    /// Whether it has stopped and reported, for a change of view.
    pub has_reported: bool,
}

/// How the job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What the registry is doing.
    pub phase: Phase,
    /// The view.
    pub generation: Generation,
    /// How many steps count.
    pub counted: u64,
    /// How often the view has changed.
    pub changes: u64,
    /// The fewest members the job goes on with.
    pub min_np: usize,
    /// The most members it takes.
    pub max_np: usize,
    /// What it waits for, in words; empty if for nothing.
    pub waits_for: String,
    /// The members by rank, then those that wait.
    pub members: Vec<MemberStatus>,
}
