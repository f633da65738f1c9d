//! Collectives on device memory, against a stand-in of the driver (`driver.cpp`) whose device memory is host memory. Each
//! scenario runs in a process of its own, since what the stand-in does wrong is told by its environment.
//!
//! On a machine with a GPU, PHALANX_TEST_GPU=1 runs the scenarios that need no stand-in against the real driver.

mod arithmetic;
mod bench;
#[cfg(feature = "nccl")]
mod blocks;
#[cfg(feature = "nccl")]
mod elastic;
mod failures;
mod given_up;
mod harness;
#[cfg(feature = "nccl")]
#[path = "../elastic/support.rs"]
#[allow(dead_code, reason = "the jobs of other tests can more")]
mod job;
mod matrix;
#[path = "../kernels/memory.rs"]
#[allow(dead_code, reason = "arrays with guards are for kernels that are called")]
mod memory;
#[cfg(feature = "nccl")]
mod nccl;
mod nowhere;
mod nvrtc;
mod order;
#[cfg(feature = "nccl")]
mod over_nccl;
mod over_peers;
mod staged;

/// Where the scenarios run: in the process that a test starts.
#[test]
fn scenario() {
    let Ok(name) = std::env::var(harness::SCENARIO) else { return };
    match name.as_str() {
        "arithmetic" => arithmetic::inside(),
        "refusals" => arithmetic::refusals(),
        "kernels" => arithmetic::opening(),
        "matrix" => matrix::inside(),
        "order" => order::asynchronous(),
        "endless" => order::endless(),
        "mismatch" => failures::mismatch(),
        "arguments" => failures::arguments(),
        "owning" => order::owning(),
        "calls" => failures::calls(),
        "elements" => failures::elements(),
        "nccl" => {}
        name if name.starts_with("nvrtc ") => {}
        #[cfg(feature = "nccl")]
        "nccl-elastic" => elastic::inside(),
        #[cfg(feature = "nccl")]
        "nccl-blocks" => blocks::inside(),
        #[cfg(feature = "nccl")]
        other if other.starts_with("nccl-") => over_nccl::inside(other),
        other if other.starts_with("staged-") => staged::inside(other),
        name if name.starts_with("give-up") || name.starts_with("shutdown-") => given_up::inside(name),
        name if name.starts_with("nowhere") => nowhere::inside(name),
        other if other.starts_with("peer-") => over_peers::inside(other),
        other => panic!("there is no scenario {other}"),
    }
}
