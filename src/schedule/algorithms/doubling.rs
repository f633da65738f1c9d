//! Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have.
//!
//! *Allreduce.* In step k, members whose numbers differ in bit k exchange their whole buffers and both combine the
//! two. After log2 n steps everyone has everything: log2 n steps, N log2 n elements sent. The fewest steps for
//! which the buffer is not sent to everyone, so this is for small messages and many ranks. Both partners put the
//! operand of the lower numbers on the left and so compute the same bits, and each finishes its own copy in the last
//! step.
//!
//! *Allgather.* In step k, the same partners exchange the runs of parts that they have, which double: log2 n steps,
//! N (n - 1)/n elements sent.
//!
//! *Sizes that are no power of two.* Let q be the largest power of two below n, and r = n - q. The first 2r members form
//! pairs: the even one, the *proxy*, also speaks for the odd one, the *extra*. The extra hands its contribution to the
//! proxy, the q remaining members (*base* and proxies) run the algorithm, and the proxy hands the result back: two more
//! steps, and N elements more for a proxy. Since a pair is made of neighbours, each of the q stands for a range of
//! positions, and the ranges are in order.
//!
//! R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 19(1), 2005.

use crate::schedule::Span;
use crate::schedule::builder::{Builder, Group, join};

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
    let mut here = source;
    match fold.role {
        Role::Extra { proxy } => {
            builder.step();
            builder.send(proxy, source);
            builder.step();
            builder.recv(proxy, target);
        }
        Role::Member { number, extra } => {
            let incoming = builder.reserve(source.count);
            if let Some(extra) = extra {
                builder.step();
                builder.recv(extra, incoming);
                builder.step();
                builder.reduce(vec![here, incoming], target, false);
                here = target;
            }
            for bit in 0..fold.bits() {
                let partner = number ^ (1 << bit);
                let finish = finish && bit + 1 == fold.bits();
                builder.step();
                builder.send(fold.rank(partner), here);
                builder.recv(fold.rank(partner), incoming);
                builder.step();
                let operands = if number < partner { vec![here, incoming] } else { vec![incoming, here] };
                builder.reduce(operands, target, finish);
                here = target;
            }
            if let Some(extra) = extra {
                builder.step();
                builder.send(extra, target);
            }
        }
    }
}

/// Every member ends with every position's part in `parts`, which lie in a row; `own` is where its own part lies at
/// first.
pub(in crate::schedule) fn allgather(builder: &mut Builder, group: Group<'_>, own: Span, parts: &[Span]) {
    let fold = Fold::new(group);
    match fold.role {
        Role::Extra { proxy } => {
            builder.step();
            builder.send(proxy, own);
            builder.step();
            builder.recv(proxy, join(parts));
        }
        Role::Member { extra, .. } => {
            builder.step();
            builder.copy(own, parts[group.me]);
            if let Some(extra) = extra {
                builder.recv(extra, parts[group.me + 1]);
            }
            let ranges: Vec<Span> =
                (0..fold.count).map(|number| join(&parts[fold.start(number)..fold.start(number + 1)])).collect();
            spread(builder, &fold, &ranges);
            if let Some(extra) = extra {
                builder.step();
                builder.send(extra, join(parts));
            }
        }
    }
}

/// The doubling itself: member `number` has `ranges[number]`; in the end, every member has all ranges, which lie in a
/// row.
pub(super) fn spread(builder: &mut Builder, fold: &Fold<'_>, ranges: &[Span]) {
    let Role::Member { number, .. } = fold.role else { return };
    for bit in 0..fold.bits() {
        let partner = number ^ (1 << bit);
        let run = |member: usize| {
            let start = member >> bit << bit;
            join(&ranges[start..start + (1 << bit)])
        };
        builder.step();
        builder.send(fold.rank(partner), run(number));
        builder.recv(fold.rank(partner), run(partner));
    }
}

/// A group folded to a power of two: see the top of this file.
pub(super) struct Fold<'a> {
    group: Group<'a>,
    /// The members of the folded group: a power of two.
    pub(super) count: usize,
    extras: usize,
    /// What this rank is in it.
    pub(super) role: Role,
}

/// What a rank is in a folded group.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// Takes part under a number of its own; is the proxy of `extra` if there is one.
    Member {
        /// Its number in the folded group.
        number: usize,
        /// The rank it also speaks for.
        extra: Option<usize>,
    },
    /// Is spoken for.
    Extra {
        /// The rank that speaks for it.
        proxy: usize,
    },
}

impl<'a> Fold<'a> {
    pub(super) fn new(group: Group<'a>) -> Self {
        let count = 1 << group.len().ilog2();
        let extras = group.len() - count;
        let me = group.me;
        let role = if me >= 2 * extras {
            Role::Member { number: me - extras, extra: None }
        } else if me.is_multiple_of(2) {
            Role::Member { number: me / 2, extra: Some(group.ranks[me + 1]) }
        } else {
            Role::Extra { proxy: group.ranks[me - 1] }
        };
        Self { group, count, extras, role }
    }

    /// log2 of the number of members.
    pub(super) fn bits(&self) -> u32 {
        self.count.ilog2()
    }

    /// The first position that a member stands for; the end of the group for the number after the last.
    pub(super) fn start(&self, number: usize) -> usize {
        if number <= self.extras { 2 * number } else { number + self.extras }
    }

    /// The rank of a member.
    pub(super) fn rank(&self, number: usize) -> usize {
        self.group.ranks[self.start(number)]
    }
}
