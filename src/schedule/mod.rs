//! Plans: what each rank of a collective sends, receives, copies and reduces, as a value.
//!
//! A [`Schedule`] is one rank's plan: steps that follow each other, each a set of instructions that may run together,
//! over spans of three buffers. `plan` is a pure function, so that a plan can be checked before it runs
//! (`verify`), priced (`cost`), drawn (`picture`) and chosen (`select`). One executor runs them all.

mod ir;

pub use ir::{Buffer, Instruction, PlanRequest, Schedule, Shape, Span, Step};

pub struct ChoiceRequest<'a> {
    pub collective: crate::types::Collective,
    pub bytes: usize,
    pub dtype: crate::types::DataType,
    pub size: usize,
    pub hosts: &'a [usize],
    pub equal: bool,
    pub deterministic: bool,
    pub forced: Option<crate::types::Algorithm>,
}
pub fn choose(_request: &ChoiceRequest<'_>) -> crate::types::Algorithm {
    unimplemented!()
}
pub fn plan(_request: &PlanRequest<'_>) -> Result<Schedule, String> {
    unimplemented!()
}
