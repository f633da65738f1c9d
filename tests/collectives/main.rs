//! Collectives over real transports, with ranks as threads of the test: results, mismatches, failures, groups, handles.

mod boards;
mod failures;
mod groups;
mod handles;
mod idle;
mod large;
mod matrix;
mod mismatches;
mod order;
mod overtaking;
mod registered;
mod single_copy;
mod support;
