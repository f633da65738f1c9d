//! `phalanx bench`: how fast a collective is, and whether its results are right.
mod figures;
mod sizes;
mod values;
