//! Variables in, a place in the world out: a table that can be read without Rust.
