//! The command line.
mod cli;
fn main() {}
