//! Chains: a ring that is cut open, for one root, with segments following each other.
//!
//! The members stand in a line. *Broadcast*: the root is the first; each member passes segment s on while segment
//! s + 1 comes in. *Reduce*: the root is the last; each member adds its contribution to segment s while s - 1 leaves.
//! With S segments, n - 1 + S - 1 steps; each member sends N elements and receives N elements at most, so that for long
//! buffers the time is that of one message, whatever the number of members.
//!
//! In a reduce, a member between the ends adds in three scratch slots that take turns: one is sent from, one received
//! into, one filled with its next contribution. So it needs little scratch, and its own buffers stay as they are.
//!
//! Across hosts, the line visits host after host.
//!
//! R. van de Geijn and J. Watts, "SUMMA: Scalable universal matrix multiplication algorithm", Concurrency 9(4), 1997,
//! for pipelined broadcast and sum along a ring.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group};
use crate::types::Order;

/// The `source` of position 0 goes to everyone's `target`.
pub(in crate::schedule) fn broadcast(
    builder: &mut Builder,
    group: Group<'_>,
    source: Span,
    target: Span,
    segment: usize,
) {
    let first = group.me == 0;
    let last = group.me + 1 == group.len();
    let here = if first { source } else { target };
    let segments = segments(target.count, segment);
    for step in 0..=segments.len() {
        builder.step();
        if step > 0 {
            let (offset, count) = segments[step - 1];
            if !last {
                builder.send(group.ranks[group.me + 1], here.part(offset, count));
            }
            builder.copy(here.part(offset, count), target.part(offset, count));
        }
        if let Some(&(offset, count)) = segments.get(step).filter(|_| !first) {
            builder.recv(group.ranks[group.me - 1], target.part(offset, count));
        }
    }
}

/// The last position ends with the reduction of all `source`s in `target`, which may be its own source and matters
/// there only.
pub(in crate::schedule) fn reduce(
    builder: &mut Builder,
    group: Group<'_>,
    source: Span,
    target: Span,
    segment: usize,
    finish: bool,
) {
    let segments = segments(source.count, segment);
    let last = group.me + 1 == group.len();
    if group.len() == 1 {
        builder.step();
        builder.reduce(vec![source], target, finish);
        return;
    }
    if group.me == 0 {
        for &(offset, count) in &segments {
            builder.step();
            builder.send(group.ranks[1], source.part(offset, count));
        }
        return;
    }
    let longest = segments[0].1;
    let slots: Vec<Span> =
        (0..if last { 0 } else { 3.min(segments.len()) }).map(|_| builder.reserve(longest)).collect();
    let place = |index: usize| {
        let (offset, count) = segments[index];
        if last { target.part(offset, count) } else { slots[index % slots.len()].part(0, count) }
    };
    let own = |index: usize| {
        let (offset, count) = segments[index];
        source.part(offset, count)
    };
    builder.step();
    builder.copy(own(0), place(0));
    for step in 0..=segments.len() {
        builder.step();
        if step > 0 && !last {
            builder.send(group.ranks[group.me + 1], place(step - 1));
        }
        if step < segments.len() {
            builder.recv_reduce(group.ranks[group.me - 1], place(step), Order::IncomingFirst, finish && last);
        }
        if step + 1 < segments.len() {
            builder.copy(own(step + 1), place(step + 1));
        }
    }
}

/// Offset and count of each segment of `count` elements; a single empty one when there are none.
pub(in crate::schedule) fn segments(count: usize, segment: usize) -> Vec<(usize, usize)> {
    if count == 0 {
        return vec![(0, 0)];
    }
    (0..count).step_by(segment.max(1)).map(|offset| (offset, segment.max(1).min(count - offset))).collect()
}
