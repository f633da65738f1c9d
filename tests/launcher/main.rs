//! The launcher, as its user meets it: real processes, real signals, a real terminal.

mod doctor;
mod elastic;
mod exits;
mod input;
mod orphans;
mod output;
mod plan;
mod registry_state;
mod signals;
mod silence;
mod support;
mod terminal;
mod world;
