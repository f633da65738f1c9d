//! The contract, held against a carrier.
//!
//! A carrier's tests name a function that makes a connected [`Pair`], and get one test for each way of asking whether
//! the clauses of this room's `mod.rs` hold:
//!
//! ```ignore
//! crate::transport::conformance::suite!(carrier());
//! ```

mod basics;
mod world;

pub use world::{Pair, Side};

/// What the suite needs to know of a carrier.
pub struct Carrier {
    /// Makes two endpoints that are connected.
    pub pair: Box<dyn Fn() -> Pair>,
    /// The longest message that is sent before its receive is posted.
    pub eager_limit: usize,
}

/// Every way of asking, as a test of its own.
macro_rules! suite {
    ($carrier:expr) => {
        $crate::transport::conformance::suite! { $carrier;
            every_size_arrives
        }
    };
    ($carrier:expr; $($name:ident)*) => {
        $(#[test]
        fn $name() {
            $crate::transport::conformance::checks::$name(&$carrier);
        })*
    };
}
pub(crate) use suite;

/// The ways of asking.
pub mod checks {
    pub use super::basics::*;
}
