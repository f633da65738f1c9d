//! `phalanx bench`: how fast a collective is, and whether its results are right.
mod figures;
mod layout;
mod measure;
mod sizes;
mod values;
