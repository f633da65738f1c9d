//! Dissemination barrier: news of arrival spreads, doubling its reach with each step.
//!
//! In step k, each member sends an empty message to the one 2^k places after it and waits for the one from 2^k places
//! before it. After ceil(log2 n) steps, each has heard, directly or not, from all. No elements are sent.
//!
//! D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", International Journal of
//! Parallel Programming 17(1), 1988.

use crate::schedule::builder::{Builder, Group};
use crate::schedule::{Buffer, Span};

/// No member leaves before every member has come.
pub(in crate::schedule) fn barrier(builder: &mut Builder, group: Group<'_>) {
    let nothing = Span::new(Buffer::Scratch, 0, 0);
    let mut distance = 1;
    while distance < group.len() {
        builder.step();
        builder.send(group.ranks[group.after(distance)], nothing);
        builder.recv(group.ranks[group.before(distance)], nothing);
        distance *= 2;
    }
}
