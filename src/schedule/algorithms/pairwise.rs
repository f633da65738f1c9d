//! Pairwise exchange: one partner at a time.
//!
//! In step s of n - 1, each member sends to the one s places after it and receives from the one s places before it. At
//! any time every member sends one message and receives one, so no port is crowded, whatever the size.
//!
//! *Alltoall*: n - 1 steps, each block sent once. In place, all blocks are first copied to scratch: a block that
//! arrives lands where another is still waiting to leave.
//!
//! *Reduce-scatter*: n - 1 steps, N (n - 1)/n elements sent, no scratch: what arrives is added at once. Since halves
//! would be rounded at each addition, this counts as partial results.
//!
//! R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group};
use crate::types::Order;

/// `sources[p]` goes to position p; what comes from position p goes to `targets[p]`. No target overlaps a source.
pub(in crate::schedule) fn alltoall(builder: &mut Builder, group: Group<'_>, sources: &[Span], targets: &[Span]) {
    builder.step();
    builder.copy(sources[group.me], targets[group.me]);
    for distance in 1..group.len() {
        if distance > 1 {
            builder.step();
        }
        let (to, from) = (group.after(distance), group.before(distance));
        builder.send(group.ranks[to], sources[to]);
        builder.recv(group.ranks[from], targets[from]);
    }
}

/// Every member ends with its own part of the reduction in `target`, which may be its own source.
pub(in crate::schedule) fn reduce_scatter(
    builder: &mut Builder,
    group: Group<'_>,
    sources: &[Span],
    target: Span,
    finish: bool,
) {
    let n = group.len();
    builder.step();
    if n == 1 {
        builder.reduce(vec![sources[0]], target, finish);
        return;
    }
    builder.copy(sources[group.me], target);
    for distance in 1..n {
        builder.step();
        let (to, from) = (group.after(distance), group.before(distance));
        builder.send(group.ranks[to], sources[to]);
        builder.recv_reduce(group.ranks[from], target, Order::IncomingFirst, finish && distance == n - 1);
    }
}
