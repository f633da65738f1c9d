//! The contract, held against a carrier.
//!
//! A carrier's tests say how a connected [`Pair`] is made, and get one test for each way of asking whether the
//! clauses of this room's `mod.rs` hold:
//!
//! ```ignore
//! crate::transport::conformance::suite!(carrier());
//! ```
//!
//! `suite!(ignored: "why", carrier())` makes tests that are run only when asked for; with `; NAME...` behind it, only these.

mod basics;
mod calls;
mod cancel;
mod early;
mod ends;
mod threads;
mod world;

use super::stream::StreamConfig;

pub use world::{Memory, Pair, Random, Side, reducing, signature, tag};

/// What the suite needs to know of a carrier.
pub struct Carrier {
    /// Makes two endpoints that are connected.
    pub pair: Box<dyn Fn() -> Pair + Send + Sync>,
    /// The longest message that is sent before its receive is posted.
    pub eager_limit: usize,
    /// How many bytes of messages without a receive may leave their sender.
    pub early_budget: usize,
    /// How many receives are offered before their message is announced.
    pub ready_limit: usize,
    /// Where every byte is dear: each check is made with fewer seeds and shorter messages.
    pub thin: bool,
}

impl Carrier {
    /// A carrier of streams with these settings.
    pub fn over_streams(config: StreamConfig, pair: impl Fn() -> Pair + Send + Sync + 'static) -> Self {
        Self {
            pair: Box::new(pair),
            eager_limit: config.eager_limit,
            early_budget: config.early_budget,
            ready_limit: config.ready_limit,
            thin: false,
        }
    }

    /// How many times something is done that is done `whole` times where it costs little.
    fn times(&self, whole: u64) -> u64 {
        if self.thin { whole.div_ceil(10) } else { whole }
    }

    /// The length of a message that has `whole` bytes where that costs little.
    fn long(&self, whole: usize) -> usize {
        if self.thin { whole / 8 } else { whole }
    }
}

/// Every way of asking, as a test of its own.
macro_rules! suite {
    (ignored: $why:literal, $carrier:expr; $($name:ident)*) => {
        $crate::transport::conformance::suite! { @each [#[ignore = $why]] $carrier; $($name)* }
    };
    (ignored: $why:literal, $carrier:expr) => {
        $crate::transport::conformance::suite! { @all [#[ignore = $why]] $carrier }
    };
    ($carrier:expr) => {
        $crate::transport::conformance::suite! { @all [] $carrier }
    };
    (@all $how:tt $carrier:expr) => {
        $crate::transport::conformance::suite! { @each $how $carrier;
            every_size_arrives
            one_tag_keeps_its_order
            lengths_may_vary_within_a_call
            tags_are_independent
            another_length_is_a_violation
            every_element_is_combined_once
            a_users_function_sees_its_operands_in_order
            early_messages_are_told_once
            posted_messages_are_not_early
            a_flood_stays_with_its_sender
            credit_comes_back
            many_receives_may_wait
            cancel_at_any_moment
            late_messages_of_a_cancelled_tag_are_dropped
            cancel_takes_back_untold_events
            another_call_is_told_on_both_sides
            a_later_message_may_differ
            point_to_point_messages_agree_in_pairs
            notices_arrive_in_order
            notices_overtake_data
            short_messages_overtake_long_ones
            long_messages_take_turns
            short_messages_do_not_starve_long_ones
            a_dead_peer_is_told_once
            what_was_written_before_the_end_arrives
            goodbye_comes_last
            goodbye_closes_one_direction
            goodbye_waits_for_late_receives
            no_wake_up_is_lost
            an_idle_endpoint_sleeps
            death_wakes_a_sleeper
            two_threads_exchange_everything
        }
    };
    (@each $how:tt $carrier:expr; $($name:ident)*) => {
        $($crate::transport::conformance::suite! { @one $how $carrier; $name })*
    };
    (@one [$(#[$how:meta])*] $carrier:expr; $name:ident) => {
        #[test]
        $(#[$how])*
        fn $name() {
            $crate::transport::conformance::checks::$name(&$carrier);
        }
    };
}
pub(crate) use suite;

/// The ways of asking.
pub mod checks {
    pub use super::basics::*;
    pub use super::calls::*;
    pub use super::cancel::*;
    pub use super::early::*;
    pub use super::ends::*;
    pub use super::threads::*;
}
