//! The C interface of Phalanx.
//!
//! `build.rs` writes `phalanx.h` from these files, doc comments included: they are written for its readers.
//! `cargo run -p phalanx-c --bin phalanx-header -- FOLDER` puts the header where a C compiler can find it, and
//! `cargo build --release -p phalanx-c` makes `libphalanx_c.so` and `libphalanx_c.a`.
//!
//! `status` keeps errors and panics on this side; `codes` numbers types, operations, collectives, algorithms;
//! `communicator`, `memory`, `call` and `handle` hold what C sees as opaque or plain structs; `blocking` and `started` are the
//! collectives, once each.

// What callers must keep is said once for all functions, at the top of the header.
#![allow(clippy::missing_safety_doc)]
// The comments are for readers of C: `counts[i]` is no link, and a table is no Rust.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_rust_codeblocks)]

mod blocking;
mod call;
mod codes;
mod communicator;
mod handle;
mod memory;
mod message;
mod started;
mod status;
#[cfg(test)]
mod tests;

pub use blocking::*;
pub use call::*;
pub use codes::*;
pub use communicator::*;
pub use handle::*;
pub use memory::*;
pub use started::*;
pub use status::*;

/// The text of `phalanx.h`.
pub const HEADER: &str = include_str!(concat!(env!("OUT_DIR"), "/phalanx.h"));
