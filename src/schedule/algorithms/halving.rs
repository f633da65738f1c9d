//! Recursive halving and doubling (Rabenseifner's algorithm).
//!
//! *Reduce-scatter by halving.* The buffer is cut into one range a member. Partners at distance n/2 split it: each
//! sends the half that the other will keep and adds what it receives to its own half. With partners at distance n/4 the
//! half is split again, and so on: log2 n steps of N/2, N/4, ... elements, N (n - 1)/n in all, the ring's bytes in far
//! fewer steps.
//!
//! *Allreduce* goes the same way back: an allgather by recursive doubling. 2 log2 n steps, 2 N (n - 1)/n elements.
//!
//! Sizes that are no power of two are folded as in `doubling.rs`: an extra hands its whole buffer to its proxy first
//! and gets its result from it last, N elements each way.
//!
//! Each element of a range is combined on one member at a time, the lower numbers on the left; the finished element is
//! what the allgather spreads.
//!
//! R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.

use super::doubling::{Fold, Role, spread};
use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group, join, split_evenly};
use crate::types::Order;

/// Every member ends with the reduction of all `source`s in its `target`, which may be the same span.
pub(in crate::schedule) fn allreduce(
    builder: &mut Builder,
    group: Group<'_>,
    source: Span,
    target: Span,
    finish: bool,
) {
    if group.len() == 1 {
        builder.step();
        builder.reduce(vec![source], target, finish);
        return;
    }
    let fold = Fold::new(group);
    let ranges = split_evenly(target, fold.count);
    halve(builder, &fold, source, target, &ranges, finish);
    match fold.role {
        Role::Extra { proxy } => {
            builder.step();
            builder.recv(proxy, target);
        }
        Role::Member { extra, .. } => {
            spread(builder, &fold, &ranges);
            if let Some(extra) = extra {
                builder.step();
                builder.send(extra, target);
            }
        }
    }
}

/// Every member ends with its own part of the reduction in `target`. `sources` are its contributions to each part, in
/// a row; partial results are kept in `work`, which may be `sources` themselves and then includes `target`.
pub(in crate::schedule) fn reduce_scatter(
    builder: &mut Builder,
    group: Group<'_>,
    sources: &[Span],
    target: Span,
    work: &[Span],
    finish: bool,
) {
    if group.len() == 1 {
        builder.step();
        builder.reduce(vec![sources[0]], target, finish);
        return;
    }
    let fold = Fold::new(group);
    let ranges: Vec<Span> =
        (0..fold.count).map(|number| join(&work[fold.start(number)..fold.start(number + 1)])).collect();
    halve(builder, &fold, join(sources), join(work), &ranges, finish);
    builder.step();
    match fold.role {
        Role::Extra { proxy } => builder.recv(proxy, target),
        Role::Member { extra, .. } => {
            builder.copy(work[group.me], target);
            if let Some(extra) = extra {
                builder.send(extra, work[group.me + 1]);
            }
        }
    }
}

/// The folding and the halving: member `number` ends with `ranges[number]` of the reduction. `ranges` lie in a row and
/// make up `work`; `source` has the length of `work` and is either the same span or apart from it.
fn halve(builder: &mut Builder, fold: &Fold<'_>, source: Span, work: Span, ranges: &[Span], finish: bool) {
    let mut here = source;
    let (number, extra) = match fold.role {
        Role::Extra { proxy } => {
            builder.step();
            builder.send(proxy, source);
            return;
        }
        Role::Member { number, extra } => (number, extra),
    };
    if let Some(extra) = extra {
        builder.step();
        if here == work {
            builder.recv_reduce(extra, work, Order::HereFirst, false);
        } else {
            builder.recv(extra, work);
            builder.step();
            builder.reduce(vec![here, work], work, false);
            here = work;
        }
    }
    for bit in (0..fold.bits()).rev() {
        let partner = number ^ (1 << bit);
        let half = |member: usize| {
            let start = member >> bit << bit;
            join(&ranges[start..start + (1 << bit)])
        };
        let (kept, given) = (half(number), half(partner));
        let contribution = |range: Span| here.part(range.start - work.start, range.count);
        let finish = finish && bit == 0;
        builder.step();
        builder.send(fold.rank(partner), contribution(given));
        if here == work {
            let order = if number < partner { Order::HereFirst } else { Order::IncomingFirst };
            builder.recv_reduce(fold.rank(partner), kept, order, finish);
        } else {
            builder.recv(fold.rank(partner), kept);
            builder.step();
            let own = contribution(kept);
            builder.reduce(if number < partner { vec![own, kept] } else { vec![kept, own] }, kept, finish);
            here = work;
        }
    }
}
