//! Rings: everything travels from neighbour to neighbour.
//!
//! The members stand in a circle; each sends to the next and receives from the one before. The buffer is cut into n
//! parts, one a position.
//!
//! *Reduce-scatter.* Part c sets out from position c + 1, and each member it visits adds its own contribution, until
//! after n - 1 steps it ends at position c with every contribution in. In step s, position p sends part p - 1 - s and
//! receives part p - 2 - s: at any time all parts are on their way, each over another link.
//!
//! *Allgather.* The finished parts go around once more, unchanged. In step s, position p sends part p - s and receives
//! part p - 1 - s.
//!
//! *Allreduce* is the one after the other: 2(n - 1) steps, in which each member sends 2 N (n - 1)/n elements, the
//! fewest possible. Each phase alone: n - 1 steps, N (n - 1)/n elements.
//!
//! Each element is combined along one path and in one order, and the finished element is what travels on, so every
//! rank holds the same bits. Out of place, a contribution is copied to where it will be added to one step ahead of its
//! turn, beside the traffic.
//!
//! Across hosts, the circle visits host after host, so that each host's link carries one stream each way.
//!
//! P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group, split_evenly};
use crate::types::Order;

/// Every member ends with the reduction of all `source`s in its `target`, which may be the same span.
pub(in crate::schedule) fn allreduce(
    builder: &mut Builder,
    group: Group<'_>,
    source: Span,
    target: Span,
    finish: bool,
) {
    let (sources, targets) = (split_evenly(source, group.len()), split_evenly(target, group.len()));
    reduce_scatter(builder, group, &sources, targets[group.me], Some(&targets), finish);
    allgather(builder, group, targets[group.me], &targets);
}

/// Every member ends with its own part of the reduction in `target`. `sources` are its contributions to each part.
/// Partial results of the other parts are kept in `work`, which may be `sources` themselves; without it, in scratch.
pub(in crate::schedule) fn reduce_scatter(
    builder: &mut Builder,
    group: Group<'_>,
    sources: &[Span],
    target: Span,
    work: Option<&[Span]>,
    finish: bool,
) {
    let n = group.len();
    if n == 1 {
        builder.step();
        builder.reduce(vec![sources[0]], target, finish);
        return;
    }
    let (next, previous) = (group.ranks[group.after(1)], group.ranks[group.before(1)]);
    // Without a place for each part, three scratch slots take turns: one is sent from, one received into, and one
    // filled for the next step.
    let longest = sources.iter().map(|source| source.count).max().unwrap_or(0);
    let slots: Vec<Span> =
        (0..if work.is_none() { 3.min(n - 2) } else { 0 }).map(|_| builder.reserve(longest)).collect();
    let arriving = |step: usize| {
        let part = group.before(2 + step);
        let place = match work {
            _ if part == group.me => target,
            Some(work) => work[part],
            None => slots[step % slots.len()].part(0, sources[part].count),
        };
        (sources[part], place)
    };
    builder.step();
    let (source, place) = arriving(0);
    builder.copy(source, place);
    for step in 0..n - 1 {
        builder.step();
        let leaving = if step == 0 { sources[group.before(1)] } else { arriving(step - 1).1 };
        builder.send(next, leaving);
        builder.recv_reduce(previous, arriving(step).1, Order::IncomingFirst, finish && step == n - 2);
        if step + 1 < n - 1 {
            let (source, place) = arriving(step + 1);
            builder.copy(source, place);
        }
    }
}

/// Every member ends with every position's part in `parts`; `own` is where its own part lies at first.
pub(in crate::schedule) fn allgather(builder: &mut Builder, group: Group<'_>, own: Span, parts: &[Span]) {
    let n = group.len();
    let (next, previous) = (group.ranks[group.after(1)], group.ranks[group.before(1)]);
    builder.step();
    builder.copy(own, parts[group.me]);
    for step in 0..n - 1 {
        if step > 0 {
            builder.step();
        }
        builder.send(next, if step == 0 { own } else { parts[group.before(step)] });
        builder.recv(previous, parts[group.before(step + 1)]);
    }
}
