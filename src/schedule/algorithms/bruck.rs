//! Bruck's algorithms: ceil(log2 n) steps for any number of ranks.
//!
//! *Allgather.* Each member collects the parts of the positions that follow it: it has its own, and in step k receives
//! up to 2^k more from the member 2^k places after it, while the one 2^k places before it receives its first ones.
//! ceil(log2 n) steps, N (n - 1)/n elements sent. Parts land where they belong, so nothing is turned around at the end;
//! a run of parts that goes around the corner of the buffer is two messages. Parts may differ in length.
//!
//! *Alltoall* of equal blocks. Number a member's blocks by how far they have to go: block j is for the member j places
//! after it. In step k, all blocks whose number has bit k travel 2^k places together, packed into one message. After
//! ceil(log2 n) steps, block j has gone exactly j places. About n/2 blocks a step, so (n/2) ceil(log2 n) blocks
//! sent against n - 1 for pairwise exchange: for small blocks and many ranks. A block stays where it arrived until it
//! is packed again, and is put in its place at the end.
//!
//! J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE TPDS 8(11), 1997.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group, join};

/// Every member ends with every position's part in `parts`, which lie in a row; `own` is where its own part lies at
/// first.
pub(in crate::schedule) fn allgather(builder: &mut Builder, group: Group<'_>, own: Span, parts: &[Span]) {
    let n = group.len();
    // The parts of `count` positions from `first` on, around the corner.
    let runs = |first: usize, count: usize| {
        let end = first + count;
        if end <= n { vec![join(&parts[first..end])] } else { vec![join(&parts[first..]), join(&parts[..end - n])] }
    };
    builder.step();
    builder.copy(own, parts[group.me]);
    let mut held = 1;
    while held < n {
        if held > 1 {
            builder.step();
        }
        let count = held.min(n - held);
        let (to, from) = (group.before(held), group.after(held));
        let leaving = if held == 1 { vec![own] } else { runs(group.me, count) };
        for run in leaving {
            builder.send(group.ranks[to], run);
        }
        for run in runs(from, count) {
            builder.recv(group.ranks[from], run);
        }
        held += count;
    }
}

/// `sources[p]` goes to position p; what comes from position p goes to `targets[p]`. All have the same count; the
/// targets may be the sources.
pub(in crate::schedule) fn alltoall(builder: &mut Builder, group: Group<'_>, sources: &[Span], targets: &[Span]) {
    let n = group.len();
    let count = sources[0].count;
    // Where each block lies now, by how far it has to go.
    let mut places: Vec<Span> = (0..n).map(|distance| sources[group.after(distance)]).collect();
    let mut bit = 1;
    while bit < n {
        let moving: Vec<usize> = (0..n).filter(|distance| distance & bit != 0).collect();
        let (packed, arrived) = (builder.reserve(moving.len() * count), builder.reserve(moving.len() * count));
        builder.step();
        for (slot, &block) in moving.iter().enumerate() {
            builder.copy(places[block], packed.part(slot * count, count));
            places[block] = arrived.part(slot * count, count);
        }
        builder.step();
        builder.send(group.ranks[group.after(bit)], packed);
        builder.recv(group.ranks[group.before(bit)], arrived);
        bit *= 2;
    }
    builder.step();
    for (distance, &place) in places.iter().enumerate() {
        builder.copy(place, targets[group.before(distance)]);
    }
}
