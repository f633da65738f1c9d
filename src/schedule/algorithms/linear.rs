//! Linear algorithms: straight between the root and each other member.
//!
//! One step of messages. The root sends or receives N elements for each other member (broadcast, reduce) or each
//! member's block (scatter, gather): for few ranks, and where the blocks are long.
//!
//! *Reduce*: all contributions come to the root raw and are reduced there in the order of the group, in one pass.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group};

/// The root's `source` goes to everyone's `target`. `source` matters at the root only.
pub(in crate::schedule) fn broadcast(builder: &mut Builder, group: Group<'_>, root: usize, source: Span, target: Span) {
    builder.step();
    if group.me != root {
        builder.recv(group.ranks[root], target);
        return;
    }
    for distance in 1..group.len() {
        builder.send(group.ranks[group.after(distance)], source);
    }
    builder.copy(source, target);
}

/// The root ends with the reduction of all `source`s in `target`, which may be its own source and matters at the root
/// only.
pub(in crate::schedule) fn reduce(
    builder: &mut Builder,
    group: Group<'_>,
    root: usize,
    source: Span,
    target: Span,
    finish: bool,
) {
    builder.step();
    if group.me != root {
        builder.send(group.ranks[root], source);
        return;
    }
    let slots: Vec<Span> = (0..group.len())
        .map(|position| if position == root { source } else { builder.reserve(source.count) })
        .collect();
    for (position, &slot) in slots.iter().enumerate().filter(|&(position, _)| position != root) {
        builder.recv(group.ranks[position], slot);
    }
    builder.step();
    builder.reduce(slots, target, finish);
}

/// Everyone's `own` goes to the root, which ends with the one of position p in `parts[p]`. `parts` matters at the root
/// only.
pub(in crate::schedule) fn gather(builder: &mut Builder, group: Group<'_>, root: usize, own: Span, parts: &[Span]) {
    builder.step();
    if group.me != root {
        builder.send(group.ranks[root], own);
        return;
    }
    for (position, &part) in parts.iter().enumerate().filter(|&(position, _)| position != root) {
        builder.recv(group.ranks[position], part);
    }
    builder.copy(own, parts[root]);
}

/// The root's `parts[p]` goes to the `own` of position p. `parts` matters at the root only.
pub(in crate::schedule) fn scatter(builder: &mut Builder, group: Group<'_>, root: usize, parts: &[Span], own: Span) {
    builder.step();
    if group.me != root {
        builder.recv(group.ranks[root], own);
        return;
    }
    for (position, &part) in parts.iter().enumerate().filter(|&(position, _)| position != root) {
        builder.send(group.ranks[position], part);
    }
    builder.copy(parts[root], own);
}
