//! Binomial trees: the set of those who have it doubles with each step.
//!
//! Members are numbered from the root on: v = position - root, around the corner. The children of v are v + m for
//! each power of two m below the lowest set bit of v (all of them for v = 0), so that the subtree of v + m is the range
//! v + m .. v + 2m. ceil(log2 n) steps.
//!
//! *Broadcast*: N elements a message; a member receives once and sends to each child, the one with the largest subtree
//! first. *Reduce*: the same backwards; a member adds what comes from each child, the one with the smallest subtree
//! first, and sends the sum to its parent. The root moves N ceil(log2 n) elements.
//!
//! *Gather, scatter*: a message carries the blocks of a whole subtree, which are neighbours except where the range goes
//! around the corner of the root's buffer; there it is two messages. Blocks may differ in length, since all ranks know
//! all lengths. The root moves each other block once; inner members keep those of their subtree in scratch.
//!
//! A member that is not the root adds in scratch, so that its own buffers stay as they are.
//!
//! R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005.

use crate::schedule::builder::{Builder, Group, join};
use crate::schedule::{Buffer, Span};
use crate::types::Order;

/// The root's `source` goes to everyone's `target`. `source` matters at the root only.
pub(in crate::schedule) fn broadcast(builder: &mut Builder, group: Group<'_>, root: usize, source: Span, target: Span) {
    let tree = Tree::new(group, root);
    let here = if tree.me == 0 { source } else { target };
    if tree.me != 0 {
        builder.step();
        builder.recv(tree.parent(), target);
    }
    for &child in tree.children().iter().rev() {
        builder.step();
        builder.send(tree.rank(child), here);
    }
    if here != target {
        if tree.size == 1 {
            builder.step();
        }
        builder.copy(here, target);
    }
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
    let tree = Tree::new(group, root);
    if tree.size == 1 {
        builder.step();
        builder.reduce(vec![source], target, finish);
        return;
    }
    let children = tree.children();
    let mut here = source;
    let place = match (tree.me, children.is_empty()) {
        (0, _) => target,
        (_, true) => source,
        (_, false) => builder.reserve(source.count),
    };
    for (index, &child) in children.iter().enumerate() {
        let finish = finish && tree.me == 0 && index + 1 == children.len();
        builder.step();
        if here == place {
            builder.recv_reduce(tree.rank(child), place, Order::HereFirst, finish);
        } else {
            builder.recv(tree.rank(child), place);
            builder.step();
            builder.reduce(vec![here, place], place, finish);
            here = place;
        }
    }
    if tree.me != 0 {
        builder.step();
        builder.send(tree.parent(), here);
    }
}

/// Everyone's `own` goes to the root, which ends with the one of position p in `parts[p]`. `counts` are the lengths of
/// all; `parts` matters at the root only.
pub(in crate::schedule) fn gather(
    builder: &mut Builder,
    group: Group<'_>,
    root: usize,
    own: Span,
    parts: &[Span],
    counts: &[usize],
) {
    let tree = Tree::new(group, root);
    let places = tree.places(builder, own, parts, counts);
    builder.step();
    builder.copy(own, places[0]);
    for &child in &tree.children() {
        if child > tree.me + 1 {
            builder.step();
        }
        for run in tree.runs(child) {
            builder.recv(tree.rank(child), join(&places[run.start - tree.me..run.end - tree.me]));
        }
    }
    if tree.me != 0 {
        builder.step();
        for run in tree.runs(tree.me) {
            builder.send(tree.parent(), join(&places[run.start - tree.me..run.end - tree.me]));
        }
    }
}

/// The root's `parts[p]` goes to the `own` of position p. `counts` are the lengths of all; `parts` matters at the root
/// only.
pub(in crate::schedule) fn scatter(
    builder: &mut Builder,
    group: Group<'_>,
    root: usize,
    parts: &[Span],
    own: Span,
    counts: &[usize],
) {
    let tree = Tree::new(group, root);
    let places = tree.places(builder, own, parts, counts);
    if tree.me != 0 {
        builder.step();
        for run in tree.runs(tree.me) {
            builder.recv(tree.parent(), join(&places[run.start - tree.me..run.end - tree.me]));
        }
    }
    for &child in tree.children().iter().rev() {
        builder.step();
        for run in tree.runs(child) {
            builder.send(tree.rank(child), join(&places[run.start - tree.me..run.end - tree.me]));
        }
    }
    builder.copy(places[0], own);
}

/// A binomial tree over a group, seen from one member, with members numbered from the root on.
struct Tree<'a> {
    group: Group<'a>,
    root: usize,
    size: usize,
    me: usize,
}

impl<'a> Tree<'a> {
    fn new(group: Group<'a>, root: usize) -> Self {
        Self { group, root, size: group.len(), me: group.before(root) }
    }

    /// The rank of a member.
    fn rank(&self, member: usize) -> usize {
        self.group.ranks[(member + self.root) % self.size]
    }

    /// The rank of this member's parent. The root has none.
    fn parent(&self) -> usize {
        self.rank(self.me & (self.me - 1))
    }

    /// How many members `member`'s subtree would have, were the tree complete.
    fn reach(&self, member: usize) -> usize {
        if member == 0 { self.size.next_power_of_two() } else { member & member.wrapping_neg() }
    }

    /// This member's children, smallest subtree first.
    fn children(&self) -> Vec<usize> {
        (0..usize::BITS)
            .map(|bit| 1 << bit)
            .take_while(|&distance| distance < self.reach(self.me))
            .map(|distance| self.me + distance)
            .take_while(|&child| child < self.size)
            .collect()
    }

    /// The subtree of `member`, cut where its blocks go around the corner of the root's buffer.
    fn runs(&self, member: usize) -> Vec<std::ops::Range<usize>> {
        let end = self.size.min(member + self.reach(member));
        let corner = self.size - self.root;
        let runs = if member < corner { [member..end.min(corner), corner..end] } else { [member..end, end..end] };
        runs.into_iter().filter(|run| !run.is_empty()).collect()
    }

    /// Where the blocks of this member's subtree are kept, in the order of the members: at the root in its buffer, at
    /// a leaf in its own, elsewhere in scratch.
    fn places(&self, builder: &mut Builder, own: Span, parts: &[Span], counts: &[usize]) -> Vec<Span> {
        if self.me == 0 {
            return (0..self.size).map(|member| parts[(member + self.root) % self.size]).collect();
        }
        let end = self.size.min(self.me + self.reach(self.me));
        if end == self.me + 1 {
            return vec![own];
        }
        let counts: Vec<usize> = (self.me..end).map(|member| counts[(member + self.root) % self.size]).collect();
        let kept = builder.reserve(counts.iter().sum());
        crate::schedule::builder::in_a_row(Buffer::Scratch, kept.start, &counts)
    }
}
