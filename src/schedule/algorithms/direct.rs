//! Direct algorithms: everyone speaks with everyone at once.
//!
//! *One-shot allreduce.* Everyone sends its whole buffer to everyone else and reduces the n buffers it then has: one
//! step of messages, N (n - 1) elements sent. Nothing has fewer steps, so this is for small messages and few ranks.
//!
//! *Two-shot allreduce.* Position p answers for part p of n: everyone sends it that part (reduce-scatter), it reduces
//! the n contributions, and sends the result to everyone (allgather): two steps of messages, and the ring's
//! 2 N (n - 1)/n elements. *Two-shot reduce* sends the results to the root alone. *Two-shot broadcast* has the root
//! deal out the parts, which everyone then sends to everyone.
//!
//! *Alltoall, allgather, reduce-scatter*: one step of n - 1 messages.
//!
//! Contributions arrive raw, each in a scratch slot of its own, and are reduced in one pass in the order of the group.
//! So these algorithms are deterministic as they are, halves are rounded once without travelling wider, and no
//! partial result travels. The scratch is N (n - 1) elements for one-shot, N (n - 1)/n for two-shot, or twice that of a
//! piece where two-shot goes in pieces.
//!
//! R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005, compare their kin; R. van de Geijn, "On global combine operations", JPDC 22(2), 1994, for reduce and
//! broadcast in two phases.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group, split_evenly};

/// Everyone reduces everything.
pub(in crate::schedule) fn one_shot(builder: &mut Builder, group: Group<'_>, source: Span, target: Span, finish: bool) {
    let sources = vec![source; group.len()];
    reduce_scatter(builder, group, &sources, target, finish, Pace::AtOnce);
}

/// Everyone reduces its part and tells everyone. What is longer than `piece` elements goes in pieces, of which three are
/// on the way at once: while the contributions of one piece travel, the piece before is reduced, and the results of the
/// one before that travel. So scratch stays small, and what was just received is still in the cache when it is reduced.
pub(in crate::schedule) fn two_shot(
    builder: &mut Builder,
    group: Group<'_>,
    source: Span,
    target: Span,
    finish: bool,
    piece: usize,
) {
    let pieces = source.count.div_ceil(piece.max(1));
    if pieces <= 1 || group.len() == 1 {
        let (sources, targets) = (split_evenly(source, group.len()), split_evenly(target, group.len()));
        reduce_scatter(builder, group, &sources, targets[group.me], finish, Pace::AtOnce);
        allgather(builder, group, targets[group.me], &targets);
        return;
    }
    let parts = |span: Span, number: usize| {
        let start = number * piece;
        split_evenly(Span::new(span.buffer, span.start + start, piece.min(span.count - start)), group.len())
    };
    // Two sets of slots, each for the contributions of the others to one piece.
    let slots: Vec<Vec<Span>> =
        (0..2).map(|_| (1..group.len()).map(|_| builder.reserve(piece.div_ceil(group.len()))).collect()).collect();
    let slot = |number: usize, from: usize, count: usize| {
        let place = if from < group.me { from } else { from - 1 };
        Span { count, ..slots[number % 2][place] }
    };
    for step in 0..pieces + 2 {
        builder.step();
        if step >= 2 {
            let results = parts(target, step - 2);
            for distance in 1..group.len() {
                let (to, from) = (group.after(distance), group.before(distance));
                builder.send(group.ranks[to], results[group.me]);
                builder.recv(group.ranks[from], results[from]);
            }
        }
        if step < pieces {
            let contributions = parts(source, step);
            let count = contributions[group.me].count;
            for distance in 1..group.len() {
                let (to, from) = (group.after(distance), group.before(distance));
                builder.send(group.ranks[to], contributions[to]);
                builder.recv(group.ranks[from], slot(step, from, count));
            }
        }
        if (1..=pieces).contains(&step) {
            let (own, result) = (parts(source, step - 1)[group.me], parts(target, step - 1)[group.me]);
            let operand = |from| if from == group.me { own } else { slot(step - 1, from, own.count) };
            builder.reduce((0..group.len()).map(operand).collect(), result, finish);
        }
    }
}

/// Whether the exchanges with all the others are one step, or one step each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::schedule) enum Pace {
    /// One step for all.
    AtOnce,
    /// n - 1 steps, with partners at growing distance, which spares the network a crowd at one port.
    Pairwise,
}

/// `sources[p]` goes to position p, and what arrives is reduced from scratch in the order of the group into `target`,
/// which may be this position's own source.
pub(in crate::schedule) fn reduce_scatter(
    builder: &mut Builder,
    group: Group<'_>,
    sources: &[Span],
    target: Span,
    finish: bool,
    pace: Pace,
) {
    let contributions = collect(builder, group, sources, target.count, pace);
    builder.step();
    builder.reduce(contributions, target, finish);
}

/// Sends `sources[p]` to position p and returns where each position's contribution of `count` elements to this one
/// lies: this position's own in its source, the others in scratch.
fn collect(builder: &mut Builder, group: Group<'_>, sources: &[Span], count: usize, pace: Pace) -> Vec<Span> {
    let contributions: Vec<Span> = (0..group.len())
        .map(|position| if position == group.me { sources[position] } else { builder.reserve(count) })
        .collect();
    builder.step();
    for distance in 1..group.len() {
        if pace == Pace::Pairwise {
            builder.step();
        }
        let (to, from) = (group.after(distance), group.before(distance));
        builder.send(group.ranks[to], sources[to]);
        builder.recv(group.ranks[from], contributions[from]);
    }
    contributions
}

/// Every member ends with every position's part in `parts`; `own` is where its own part lies at first.
pub(in crate::schedule) fn allgather(builder: &mut Builder, group: Group<'_>, own: Span, parts: &[Span]) {
    builder.step();
    builder.copy(own, parts[group.me]);
    for distance in 1..group.len() {
        let (to, from) = (group.after(distance), group.before(distance));
        builder.send(group.ranks[to], own);
        builder.recv(group.ranks[from], parts[from]);
    }
}

/// `sources[p]` goes to position p; what comes from position p goes to `targets[p]`. No target overlaps a source.
pub(in crate::schedule) fn alltoall(builder: &mut Builder, group: Group<'_>, sources: &[Span], targets: &[Span]) {
    builder.step();
    builder.copy(sources[group.me], targets[group.me]);
    for distance in 1..group.len() {
        let (to, from) = (group.after(distance), group.before(distance));
        builder.send(group.ranks[to], sources[to]);
        builder.recv(group.ranks[from], targets[from]);
    }
}

/// The root deals its parts out to the members, who then send them to everyone. `source` matters at the root only.
pub(in crate::schedule) fn broadcast(builder: &mut Builder, group: Group<'_>, root: usize, source: Span, target: Span) {
    let (sources, targets) = (split_evenly(source, group.len()), split_evenly(target, group.len()));
    builder.step();
    if group.me == root {
        builder.copy(source, target);
        for distance in 1..group.len() {
            let to = group.after(distance);
            builder.send(group.ranks[to], sources[to]);
        }
        builder.step();
        for distance in 1..group.len() {
            builder.send(group.ranks[group.after(distance)], sources[root]);
        }
        return;
    }
    builder.recv(group.ranks[root], targets[group.me]);
    builder.step();
    for distance in 1..group.len() {
        let (to, from) = (group.after(distance), group.before(distance));
        if to != root {
            builder.send(group.ranks[to], targets[group.me]);
        }
        builder.recv(group.ranks[from], targets[from]);
    }
}
