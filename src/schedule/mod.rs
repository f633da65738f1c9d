//! Plans: what each rank of a collective sends, receives, copies and reduces, as a value.
//!
//! A [`Schedule`] is one rank's plan: steps that follow each other, each a set of instructions that may run together,
//! over spans of three buffers. `plan` is a pure function, so that a plan can be checked before it runs
//! (`verify`), priced (`cost`), drawn (`picture`) and chosen (`select`). One executor runs them all.

mod ir;

pub use ir::{Buffer, Instruction, PlanRequest, Schedule, Shape, Span, Step};
