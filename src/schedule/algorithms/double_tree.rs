//! Two complementary binary trees, half of the data on each.
//!
//! In a pipelined binary tree the leaves, half of the members, only send while reducing and only receive while
//! broadcasting, so half of the bandwidth lies idle. Two trees over the same members, such that whoever is an inner
//! member of one is a leaf of the other, use all of it: each carries half of the data, and a member moves about 2 N
//! elements each way, as in a ring, but in O(log n) steps more than there are segments instead of O(n).
//!
//! *The trees.* Members stand at positions 1 .. n. In the first tree, positions with lowest set bit 2^j are at level j:
//! odd ones are leaves, and the children of an inner position v are v - 2^(j-1) on its left and, on its right, the first of
//! v + 2^(j-1), v + 2^(j-2), ... that exists. The second tree is the first one mirrored (n even) or turned by one place (n odd),
//! which makes odd places even.
//!
//! *The pipeline.* Each half is cut into S segments. Time is divided into slots: segment s goes from member v to its
//! parent in slot up(v) + s, and comes back in slot down(v) + s. A member may send up one slot after the later
//! of its children, and the children of one member never share a slot, since both add to the same segment. The root
//! turns each segment around one slot after it is complete. Every message has the same slot at both of its ends, so a
//! step for each slot that is not empty keeps order and cannot deadlock. Both directions of both trees overlap:
//! about S + 4 log2 n slots in all.
//!
//! The left subtree's operand is on the left. Each element is combined along one tree and finished by its root.
//!
//! P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 35(12), 2009.

use std::collections::BTreeMap;

use super::chain::segments;
use crate::schedule::builder::{Builder, Group, split_evenly};
use crate::schedule::{Instruction, Span};
use crate::types::Order;

/// Every member ends with the reduction of all `source`s in its `target`, which may be the same span.
pub(in crate::schedule) fn allreduce(
    builder: &mut Builder,
    group: Group<'_>,
    levels: &Levels,
    source: Span,
    target: Span,
    segment: usize,
    finish: bool,
) {
    if group.len() == 1 {
        builder.step();
        builder.reduce(vec![source], target, finish);
        return;
    }
    let mut slots: BTreeMap<usize, Vec<Instruction>> = BTreeMap::new();
    let halves = split_evenly(source, 2).into_iter().zip(split_evenly(target, 2));
    for (second, (source, target)) in [false, true].into_iter().zip(halves) {
        let tree = Tree { group, second, levels };
        tree.plan(source, target, segment, finish, &mut |slot, instruction| {
            slots.entry(slot).or_default().push(instruction);
        });
    }
    for instructions in slots.into_values() {
        builder.step();
        for instruction in instructions {
            builder.push(instruction);
        }
    }
}

/// The slots of segment 0 in a tree of n places; the same in both trees, and for whoever asks.
pub(in crate::schedule) struct Levels {
    /// Indexed by place; the slot in which the first segment goes to the parent. The root's is the first slot in
    /// which it has all of it.
    up: Vec<usize>,
    /// Indexed by place; the slot in which the first segment comes from the parent.
    down: Vec<usize>,
}

impl Levels {
    /// For `n` members, at least one. Costs O(n).
    pub(in crate::schedule) fn new(n: usize) -> Self {
        let mut levels = Self { up: vec![1; n + 1], down: vec![0; n + 1] };
        let root = root(n);
        // Lower levels first, so that children are known before their parents.
        for level in 1..=root.ilog2() {
            for place in (1 << level..=n).step_by(2 << level) {
                let children = children(place, n);
                if let [Some(left), Some(right)] = children
                    && levels.up[left] == levels.up[right]
                {
                    levels.up[right] += 1;
                }
                let latest = children.into_iter().flatten().map(|child| levels.up[child]).max();
                levels.up[place] = 1 + latest.unwrap_or(0);
            }
        }
        levels.down[root] = levels.up[root] - 1;
        for level in (1..=root.ilog2()).rev() {
            for place in (1 << level..=n).step_by(2 << level) {
                for child in children(place, n).into_iter().flatten() {
                    levels.down[child] = levels.down[place] + 1;
                }
            }
        }
        levels
    }
}

/// The root of a tree of n places.
fn root(n: usize) -> usize {
    1 << n.ilog2()
}

/// The left and the right child of a place among n.
fn children(place: usize, n: usize) -> [Option<usize>; 2] {
    let reach = (place & place.wrapping_neg()) / 2;
    let right = (0..usize::BITS).map(|shift| reach >> shift).take_while(|&distance| distance > 0);
    let right = right.map(|distance| place + distance).find(|&child| child <= n);
    [(reach > 0).then(|| place - reach), right]
}

/// The edges of both trees over `n` members, as positions of child and parent. Costs O(n).
pub(in crate::schedule) fn edges(n: usize) -> Vec<(usize, usize)> {
    let ranks: Vec<usize> = (0..n).collect();
    let levels = Levels { up: Vec::new(), down: Vec::new() };
    let group = Group { ranks: &ranks, me: 0 };
    let trees = [false, true].map(|second| Tree { group, second, levels: &levels });
    let edge = |tree: &Tree<'_>, place| Some((tree.rank(place), tree.rank(tree.parent(place)?)));
    trees.iter().flat_map(|tree| (1..=n).filter_map(|place| edge(tree, place))).collect()
}

/// One of the two trees, over places 1 ..= n.
struct Tree<'a> {
    group: Group<'a>,
    second: bool,
    levels: &'a Levels,
}

impl Tree<'_> {
    fn children(&self, place: usize) -> [Option<usize>; 2] {
        children(place, self.group.len())
    }

    fn parent(&self, place: usize) -> Option<usize> {
        if place == root(self.group.len()) {
            return None;
        }
        // The place above in the complete tree may be missing at the right end; then the next one above takes over.
        let mut above = place;
        loop {
            let bit = above & above.wrapping_neg();
            above = (above ^ bit) | (bit << 1);
            if above <= self.group.len() {
                return Some(above);
            }
        }
    }

    fn place(&self, position: usize) -> usize {
        let n = self.group.len();
        match (self.second, n.is_multiple_of(2)) {
            (false, _) => position + 1,
            (true, true) => n - position,
            (true, false) => (position + 1) % n + 1,
        }
    }

    fn rank(&self, place: usize) -> usize {
        let n = self.group.len();
        let position = match (self.second, n.is_multiple_of(2)) {
            (false, _) => place - 1,
            (true, true) => n - place,
            (true, false) => (place + n - 2) % n,
        };
        self.group.ranks[position]
    }

    /// Puts this rank's part in the tree into slots.
    fn plan(&self, source: Span, target: Span, segment: usize, finish: bool, put: &mut impl FnMut(usize, Instruction)) {
        let me = self.place(self.group.me);
        let parent = self.parent(me);
        let mut children: Vec<(usize, Order)> = self
            .children(me)
            .into_iter()
            .zip([Order::IncomingFirst, Order::HereFirst])
            .filter_map(|(child, order)| child.map(|child| (child, order)))
            .collect();
        children.sort_by_key(|&(child, _)| self.levels.up[child]);
        for (index, (offset, count)) in segments(source.count, segment).into_iter().enumerate() {
            let (own, place) = (source.part(offset, count), target.part(offset, count));
            if let Some(&(first, _)) = children.first()
                && own != place
                && count > 0
            {
                put(self.levels.up[first] + index - 1, Instruction::Copy { source: own, target: place });
            }
            for (order_in_time, &(child, order)) in children.iter().enumerate() {
                let finish = finish && parent.is_none() && order_in_time + 1 == children.len();
                let peer = self.rank(child);
                put(self.levels.up[child] + index, Instruction::RecvReduce { peer, target: place, order, finish });
            }
            if let Some(parent) = parent {
                let peer = self.rank(parent);
                let leaving = if children.is_empty() { own } else { place };
                put(self.levels.up[me] + index, Instruction::Send { peer, source: leaving });
                put(self.levels.down[me] + index, Instruction::Recv { peer, target: place });
            }
            for &(child, _) in &children {
                put(self.levels.down[child] + index, Instruction::Send { peer: self.rank(child), source: place });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_inner_in_one_tree_is_a_leaf_of_the_other() {
        for n in 2..200 {
            let ranks: Vec<usize> = (0..n).collect();
            let levels = Levels::new(n);
            let group = Group { ranks: &ranks, me: 0 };
            let trees = [false, true].map(|second| Tree { group, second, levels: &levels });
            for position in 0..n {
                let inner = trees.each_ref().map(|tree| tree.children(tree.place(position)) != [None, None]);
                assert_ne!(inner, [true, true], "position {position} of {n}");
            }
            for tree in &trees {
                for place in 1..=n {
                    assert_eq!(tree.place(tree.rank(place)), place);
                    for child in tree.children(place).into_iter().flatten() {
                        assert_eq!(tree.parent(child), Some(place), "child {child} of {place}, size {n}");
                    }
                }
                let depth = levels.down.iter().max().copied().unwrap_or(0);
                assert!(depth as u32 <= 4 * n.ilog2() + 4, "{depth} slots for size {n}");
            }
        }
    }
}
