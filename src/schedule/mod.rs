//! Plans: what each rank of a collective sends, receives, copies and reduces, as a value.
//!
//! A [`Schedule`] is one rank's plan: steps that follow each other, each a set of instructions that may run together,
//! over spans of three buffers. [`plan()`] is a pure function, so that a plan can be checked before it runs
//! ([`verify()`]), priced and chosen ([`cost`]), drawn ([`picture`]), accounted for ([`explain`]) and run in worlds that do
//! not exist ([`fabric`]). One executor runs them all. `docs/algorithms.md` has the steps and bytes of each.

mod algorithms;
mod builder;
pub mod cost;
mod error;
pub mod explain;
pub mod fabric;
mod ir;
mod joint;
pub mod picture;
mod plan;
mod topology;
mod verify;

pub use error::PlanError;
pub use ir::{Buffer, Instruction, PlanRequest, Schedule, Shape, Span, Step};
pub use joint::{Counts, JointRequest};
pub use plan::{algorithms_for, plan};
pub use topology::Hosts;
pub use verify::{Proof, Violation, verify};
