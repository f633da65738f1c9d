//! Rank order, whatever the algorithm: `((x0 op x1) op x2) ...`.
//!
//! Partial results of a ring or a tree depend on its shape, so where rank order is asked for they may not travel.
//! Contributions travel raw to the rank that reduces them, all in one pass, and only finished results travel on. Direct
//! algorithms do so anyhow. For the others, the movement is replaced by one that keeps as much of their character as
//! can be:
//!
//! *Allreduce.* Reduce-scatter by pairwise exchange into scratch, then an allgather in the shape that was asked for: a
//! ring for the ring, recursive doubling for both kinds of doubling, hosts for the hierarchical one, Bruck's for the
//! double tree, whose logarithmic depth it shares. n - 1 steps and the steps of that allgather; the bytes of a ring;
//! N elements of scratch. Recursive doubling of a short buffer, where steps are what matters, collects all raw
//! contributions on every rank by recursive doubling instead: log2 n steps, N (n - 1) elements sent.
//!
//! *Reduce.* The same reduce-scatter, then the results are gathered at the root. A short buffer by a binomial tree
//! instead: a binomial gather of all raw contributions.
//!
//! *Reduce-scatter.* Pairwise exchange into scratch.

use super::direct::{self, Pace};
use super::{binomial, bruck, doubling, hierarchical, linear, ring};
use crate::schedule::builder::{Builder, Group, in_a_row, split_evenly};
use crate::schedule::topology::Hosts;
use crate::schedule::{Buffer, Span};
use crate::types::Algorithm;

/// The most elements, of all contributions together, that one rank collects raw to save steps.
pub(in crate::schedule) const MOST_COLLECTED: usize = 1 << 14;

fn is_short(source: Span, group: Group<'_>) -> bool {
    source.count.saturating_mul(group.len()) <= MOST_COLLECTED
}

/// Scratch for everyone's contribution, in a row.
fn slots(builder: &mut Builder, group: Group<'_>, source: Span) -> Vec<Span> {
    let all = builder.reserve(source.count * group.len());
    in_a_row(Buffer::Scratch, all.start, &vec![source.count; group.len()])
}

/// Every rank ends with the reduction of all `source`s in its `target`, which may be the same span. `group` holds all
/// ranks in order.
pub(in crate::schedule) fn allreduce(
    builder: &mut Builder,
    group: Group<'_>,
    hosts: &Hosts,
    algorithm: Algorithm,
    source: Span,
    target: Span,
) {
    if algorithm == Algorithm::RecursiveDoubling && is_short(source, group) {
        let slots = slots(builder, group, source);
        doubling::allgather(builder, group, source, &slots);
        builder.step();
        builder.reduce(slots, target, true);
        return;
    }
    let (sources, parts) = (split_evenly(source, group.len()), split_evenly(target, group.len()));
    let own = parts[group.me];
    direct::reduce_scatter(builder, group, &sources, own, true, Pace::Pairwise);
    match algorithm {
        Algorithm::Ring => {
            let order = hosts.ring_order();
            let me = order.iter().position(|&rank| rank == group.me).unwrap_or(0);
            let parts: Vec<Span> = order.iter().map(|&rank| parts[rank]).collect();
            ring::allgather(builder, Group { ranks: &order, me }, own, &parts);
        }
        Algorithm::Hierarchical => hierarchical::allgather(builder, hosts, group.me, own, &parts),
        Algorithm::DoubleTree => bruck::allgather(builder, group, own, &parts),
        _ => doubling::allgather(builder, group, own, &parts),
    }
}

/// The root ends with the reduction of all `source`s in `target`, which may be its own source and matters at the root
/// only. `group` holds all ranks in order.
pub(in crate::schedule) fn reduce(
    builder: &mut Builder,
    group: Group<'_>,
    root: usize,
    algorithm: Algorithm,
    source: Span,
    target: Span,
) {
    let is_root = group.me == root;
    if algorithm == Algorithm::Binomial && is_short(source, group) {
        let slots = if is_root { slots(builder, group, source) } else { Vec::new() };
        binomial::gather(builder, group, root, source, &slots, &vec![source.count; group.len()]);
        if is_root {
            builder.step();
            builder.reduce(slots, target, true);
        }
        return;
    }
    let (sources, parts) = (split_evenly(source, group.len()), split_evenly(target, group.len()));
    let own = if is_root { parts[root] } else { builder.reserve(sources[group.me].count) };
    direct::reduce_scatter(builder, group, &sources, own, true, Pace::Pairwise);
    if algorithm == Algorithm::Ring {
        linear::gather(builder, group, root, own, &parts);
    } else {
        let counts: Vec<usize> = sources.iter().map(|part| part.count).collect();
        binomial::gather(builder, group, root, own, &parts, &counts);
    }
}
