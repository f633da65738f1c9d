//! The CUDA kernels on the CPU, through `kernels/shim`, against the arithmetic of the host: bit for bit.
//!
//! The sources are compiled by the C++ compiler of this machine; without one, the tests say so and pass over them.

mod adasum;
mod eighths;
mod library;
mod memory;
mod moves;
mod peers;
mod quantized;
mod reductions;
