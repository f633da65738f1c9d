//! From a request to a plan: checks, buffers, and which algorithm serves which collective.

use std::cell::OnceCell;

use super::algorithms::direct::Pace;
use super::algorithms::double_tree::Levels;
use super::algorithms::{
    binomial, bruck, chain, direct, dissemination, double_tree, doubling, halving, hierarchical, linear, ordered,
    pairwise, ring,
};
use super::builder::{Builder, Group, in_a_row, join, split_evenly};
use super::topology::Hosts;
use super::{Buffer, PlanError, PlanRequest, Schedule, Shape, Span};
use crate::types::{Algorithm, Collective};

/// The algorithms that serve a collective; the first one serves it always. None for `SendRecv`, which is not planned.
pub const fn algorithms_for(collective: Collective) -> &'static [Algorithm] {
    use Algorithm::*;
    match collective {
        Collective::Allreduce => {
            &[TwoShot, OneShot, RecursiveDoubling, HalvingDoubling, Ring, DoubleTree, Hierarchical]
        }
        Collective::Reduce => &[Binomial, Linear, TwoShot, Ring, Hierarchical],
        Collective::Broadcast => &[Binomial, Linear, TwoShot, Ring, Hierarchical],
        Collective::Allgather => &[OneShot, Ring, RecursiveDoubling, Bruck, Hierarchical],
        Collective::ReduceScatter => &[OneShot, Pairwise, Ring, HalvingDoubling],
        Collective::Alltoall => &[Pairwise, OneShot, Bruck],
        Collective::Gather | Collective::Scatter => &[Linear, Binomial],
        Collective::Barrier => &[Dissemination],
        Collective::SendRecv => &[],
    }
}

/// One rank's plan. Pure: the same request gives the same plan, and the plans of all ranks for the same call fit
/// together.
///
/// With one rank, the plan is local work whatever the algorithm. Costs time and memory in proportion to the number of
/// instructions, and O(size) at least.
pub fn plan(request: &PlanRequest<'_>) -> Result<Schedule, PlanError> {
    check(request)?;
    Ok(plan_in(&World::new(request.hosts, request.size), request))
}

/// What the plans of all ranks have in common, for whoever makes many.
pub(super) struct World {
    ranks: Vec<usize>,
    hosts: Hosts,
    levels: OnceCell<Levels>,
}

impl World {
    pub(super) fn new(hosts: &[usize], size: usize) -> Self {
        Self { ranks: (0..size).collect(), hosts: Hosts::new(hosts, size), levels: OnceCell::new() }
    }

    /// One rank's plan in this world; the same as [`plan`] makes.
    pub(super) fn plan(&self, request: &PlanRequest<'_>) -> Result<Schedule, PlanError> {
        check(request)?;
        Ok(plan_in(self, request))
    }
}

fn plan_in(world: &World, request: &PlanRequest<'_>) -> Schedule {
    let mut builder = Builder::new();
    let planner = Planner {
        request,
        group: Group { ranks: &world.ranks, me: request.rank },
        hosts: &world.hosts,
        levels: &world.levels,
    };
    match request.collective {
        Collective::Allreduce => planner.allreduce(&mut builder),
        Collective::Reduce => planner.reduce(&mut builder),
        Collective::Broadcast => planner.broadcast(&mut builder),
        Collective::Allgather => planner.allgather(&mut builder),
        Collective::ReduceScatter => planner.reduce_scatter(&mut builder),
        Collective::Alltoall => planner.alltoall(&mut builder),
        Collective::Gather => planner.gather(&mut builder),
        Collective::Scatter => planner.scatter(&mut builder),
        Collective::Barrier => dissemination::barrier(&mut builder, planner.group),
        Collective::SendRecv => {}
    }
    builder.build(
        request.algorithm,
        partials_travel(request.collective, request.algorithm, planner.hosts, request.deterministic),
    )
}

/// Whether any rank's plan has partial results; all ranks must say the same. Between two ranks, one combination is the
/// whole reduction.
pub(super) fn partials_travel(
    collective: Collective,
    algorithm: Algorithm,
    hosts: &Hosts,
    deterministic: bool,
) -> bool {
    use Algorithm::{Hierarchical, Linear, OneShot, TwoShot};
    let reduces = matches!(collective, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter);
    let raw = match algorithm {
        OneShot | TwoShot | Linear => true,
        Hierarchical => hosts.count() == 1,
        _ => false,
    };
    reduces && hosts.size() > 2 && !deterministic && !raw
}

/// Refuses what cannot be planned.
fn check(request: &PlanRequest<'_>) -> Result<(), PlanError> {
    let refuse = |why: String, possible: Vec<Algorithm>| {
        let &PlanRequest { collective, algorithm, size, .. } = request;
        Err(PlanError { collective, algorithm, size, why, possible })
    };
    let PlanRequest { collective, algorithm, rank, size, root, hosts, .. } = *request;
    let rooted =
        matches!(collective, Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter);
    let serving = algorithms_for(collective);
    if serving.is_empty() {
        return refuse(format!("{collective} is one instruction and needs no plan"), Vec::new());
    }
    if !serving.contains(&algorithm) {
        return refuse("the algorithm does not serve this collective".into(), serving.to_vec());
    }
    if rank >= size {
        return refuse(format!("rank {rank} is not below the size"), Vec::new());
    }
    if rooted && root >= size {
        return refuse(format!("root {root} is not below the size"), Vec::new());
    }
    if !hosts.is_empty() && hosts.len() != size {
        return refuse(format!("hosts are given for {} ranks", hosts.len()), Vec::new());
    }
    if request.segment == 0 {
        return refuse("segments of no elements".into(), Vec::new());
    }
    let lengths: &[&[usize]] = match (collective, &request.shape) {
        (Collective::Allreduce | Collective::Reduce | Collective::Broadcast, Shape::Whole(_)) => &[],
        (Collective::Barrier, Shape::Whole(0)) => &[],
        (
            Collective::Allgather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter,
            Shape::Blocks(counts),
        ) => &[counts],
        (Collective::Alltoall, Shape::Exchange { send, recv, .. }) => &[send, recv],
        (_, shape) => return refuse(format!("its counts cannot be {shape:?}"), Vec::new()),
    };
    for counts in lengths {
        if counts.len() != size {
            return refuse(format!("counts are given for {} ranks", counts.len()), Vec::new());
        }
    }
    // No plan needs more scratch than this, so that sums and products further down cannot overflow.
    let totals = lengths.iter().map(|counts| counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)));
    let whole = if let Shape::Whole(count) = request.shape { Some(Some(count)) } else { None };
    if totals.chain(whole).any(|total| total.and_then(|total| total.checked_mul(size.max(64) + 1)).is_none()) {
        return refuse("the counts are more than any memory can hold".into(), Vec::new());
    }
    if let Shape::Exchange { send, recv, equal } = request.shape {
        if algorithm == Algorithm::Bruck && !equal {
            return refuse("it needs blocks of equal length".into(), vec![Algorithm::Pairwise, Algorithm::OneShot]);
        }
        if send[rank] != recv[rank] {
            let (sent, received) = (send[rank], recv[rank]);
            return refuse(format!("rank {rank} sends {sent} elements to itself and receives {received}"), Vec::new());
        }
        if equal && (send.iter().any(|count| *count != send[0]) || send != recv) {
            return refuse("the blocks are said to be of equal length and are not".into(), Vec::new());
        }
        if request.in_place && !equal {
            return refuse("in place, blocks must be of equal length".into(), Vec::new());
        }
    }
    Ok(())
}

/// A request that has been checked.
struct Planner<'a> {
    request: &'a PlanRequest<'a>,
    /// All ranks, in rank order.
    group: Group<'a>,
    hosts: &'a Hosts,
    levels: &'a OnceCell<Levels>,
}

impl Planner<'_> {
    /// The buffer that this rank's contribution is read from.
    fn input(&self) -> Buffer {
        if self.request.in_place { Buffer::Output } else { Buffer::Input }
    }

    /// Whether rank order is asked for and the algorithm does not reduce in rank order as it is.
    fn must_order(&self) -> bool {
        use Algorithm::{Linear, OneShot, TwoShot};
        let &PlanRequest { deterministic, size, algorithm, .. } = self.request;
        deterministic && size > 1 && !matches!(algorithm, OneShot | TwoShot | Linear)
    }

    fn is_root(&self) -> bool {
        self.request.rank == self.request.root
    }

    /// The count of a collective that moves the whole buffer.
    fn whole(&self) -> usize {
        match self.request.shape {
            Shape::Whole(count) => count,
            _ => 0,
        }
    }

    /// Each rank's count of a collective that moves blocks.
    fn counts(&self) -> &[usize] {
        match self.request.shape {
            Shape::Blocks(counts) => counts,
            _ => &[],
        }
    }

    /// The ring that visits host after host, seen from this rank: its ranks, and this rank's position.
    fn ring(&self) -> (Vec<usize>, usize) {
        self.line(0)
    }

    /// The same ring, turned so that it begins with `first`.
    fn line(&self, first: usize) -> (Vec<usize>, usize) {
        let mut order = self.hosts.ring_order();
        let position = |order: &[usize], rank| order.iter().position(|&other| other == rank).unwrap_or(0);
        let turn = position(&order, first);
        order.rotate_left(turn);
        let me = position(&order, self.request.rank);
        (order, me)
    }

    fn allreduce(&self, builder: &mut Builder) {
        let request = self.request;
        let source = Span::new(self.input(), 0, self.whole());
        let target = Span::new(Buffer::Output, 0, self.whole());
        match request.algorithm {
            algorithm if self.must_order() => {
                ordered::allreduce(builder, self.group, self.hosts, algorithm, source, target);
            }
            Algorithm::OneShot => direct::one_shot(builder, self.group, source, target, true),
            Algorithm::TwoShot => direct::two_shot(builder, self.group, source, target, true, request.segment),
            Algorithm::Ring => {
                let (order, me) = self.ring();
                ring::allreduce(builder, Group { ranks: &order, me }, source, target, true);
            }
            Algorithm::RecursiveDoubling => doubling::allreduce(builder, self.group, source, target, true),
            Algorithm::HalvingDoubling => halving::allreduce(builder, self.group, source, target, true),
            Algorithm::DoubleTree => {
                let levels = self.levels.get_or_init(|| Levels::new(request.size));
                double_tree::allreduce(builder, self.group, levels, source, target, request.segment, true);
            }
            _ => hierarchical::allreduce(builder, self.hosts, request.rank, source, target, true),
        }
    }

    fn reduce(&self, builder: &mut Builder) {
        let PlanRequest { rank, root, segment, .. } = *self.request;
        let source = Span::new(self.input(), 0, self.whole());
        let target = Span::new(Buffer::Output, 0, self.whole());
        match self.request.algorithm {
            algorithm if self.must_order() => ordered::reduce(builder, self.group, root, algorithm, source, target),
            Algorithm::Binomial => binomial::reduce(builder, self.group, root, source, target, true),
            Algorithm::Linear => linear::reduce(builder, self.group, root, source, target, true),
            Algorithm::TwoShot => {
                let (sources, targets) =
                    (split_evenly(source, self.group.len()), split_evenly(target, self.group.len()));
                let mine = sources[rank].count;
                let part = if self.is_root() { targets[rank] } else { builder.reserve(mine) };
                direct::reduce_scatter(builder, self.group, &sources, part, true, Pace::AtOnce);
                linear::gather(builder, self.group, root, part, &targets);
            }
            Algorithm::Ring => {
                let (mut order, me) = self.line(root);
                let me = (me + order.len() - 1) % order.len();
                order.rotate_left(1);
                chain::reduce(builder, Group { ranks: &order, me }, source, target, segment, true);
            }
            _ => hierarchical::reduce(builder, self.hosts, rank, root, source, target, true),
        }
    }

    fn broadcast(&self, builder: &mut Builder) {
        let PlanRequest { rank, root, segment, .. } = *self.request;
        let source = Span::new(self.input(), 0, self.whole());
        let target = Span::new(Buffer::Output, 0, self.whole());
        match self.request.algorithm {
            Algorithm::Binomial => binomial::broadcast(builder, self.group, root, source, target),
            Algorithm::Linear => linear::broadcast(builder, self.group, root, source, target),
            Algorithm::TwoShot => direct::broadcast(builder, self.group, root, source, target),
            Algorithm::Ring => {
                let (order, me) = self.line(root);
                chain::broadcast(builder, Group { ranks: &order, me }, source, target, segment);
            }
            _ => hierarchical::broadcast(builder, self.hosts, rank, root, source, target),
        }
    }

    fn allgather(&self, builder: &mut Builder) {
        let rank = self.request.rank;
        let parts = in_a_row(Buffer::Output, 0, self.counts());
        let own = if self.request.in_place { parts[rank] } else { Span::new(Buffer::Input, 0, parts[rank].count) };
        match self.request.algorithm {
            Algorithm::OneShot => direct::allgather(builder, self.group, own, &parts),
            Algorithm::RecursiveDoubling => doubling::allgather(builder, self.group, own, &parts),
            Algorithm::Bruck => bruck::allgather(builder, self.group, own, &parts),
            Algorithm::Ring => {
                let (order, me) = self.ring();
                let parts: Vec<Span> = order.iter().map(|&rank| parts[rank]).collect();
                ring::allgather(builder, Group { ranks: &order, me }, own, &parts);
            }
            _ => hierarchical::allgather(builder, self.hosts, rank, own, &parts),
        }
    }

    fn reduce_scatter(&self, builder: &mut Builder) {
        let rank = self.request.rank;
        let sources = in_a_row(self.input(), 0, self.counts());
        let target =
            if self.request.in_place { sources[rank] } else { Span::new(Buffer::Output, 0, sources[rank].count) };
        match self.request.algorithm {
            _ if self.must_order() => {
                direct::reduce_scatter(builder, self.group, &sources, target, true, Pace::Pairwise);
            }
            Algorithm::OneShot => direct::reduce_scatter(builder, self.group, &sources, target, true, Pace::AtOnce),
            Algorithm::Pairwise => pairwise::reduce_scatter(builder, self.group, &sources, target, true),
            Algorithm::Ring => {
                let (order, me) = self.ring();
                let sources: Vec<Span> = order.iter().map(|&rank| sources[rank]).collect();
                let work = self.request.in_place.then_some(&*sources);
                ring::reduce_scatter(builder, Group { ranks: &order, me }, &sources, target, work, true);
            }
            _ => {
                let work = if self.request.in_place || self.group.len() == 1 {
                    sources.clone()
                } else {
                    let work = builder.reserve(self.counts().iter().sum());
                    in_a_row(work.buffer, work.start, self.counts())
                };
                halving::reduce_scatter(builder, self.group, &sources, target, &work, true);
            }
        }
    }

    fn alltoall(&self, builder: &mut Builder) {
        let Shape::Exchange { send, recv, .. } = self.request.shape else { return };
        let targets = in_a_row(Buffer::Output, 0, recv);
        let mut sources = in_a_row(self.input(), 0, send);
        if self.request.in_place && self.request.algorithm != Algorithm::Bruck {
            // What arrives lands where something else waits to leave; this rank's own block stays where it is.
            let rank = self.request.rank;
            let kept = builder.reserve(send.iter().sum());
            let outgoing = in_a_row(kept.buffer, kept.start, send);
            builder.step();
            for others in [0..rank, rank + 1..send.len()].into_iter().filter(|others| !others.is_empty()) {
                builder.copy(join(&sources[others.clone()]), join(&outgoing[others]));
            }
            sources = outgoing;
            sources[rank] = targets[rank];
        }
        match self.request.algorithm {
            Algorithm::Pairwise => pairwise::alltoall(builder, self.group, &sources, &targets),
            Algorithm::OneShot => direct::alltoall(builder, self.group, &sources, &targets),
            _ => bruck::alltoall(builder, self.group, &sources, &targets),
        }
    }

    /// This rank's own block and all blocks, where one of the two buffers holds them all at the root.
    fn rooted_blocks(&self, own: Buffer, all: Buffer) -> (Span, Vec<Span>) {
        let rank = self.request.rank;
        let parts = in_a_row(all, 0, self.counts());
        let own =
            if self.request.in_place && self.is_root() { parts[rank] } else { Span::new(own, 0, parts[rank].count) };
        (own, parts)
    }

    fn gather(&self, builder: &mut Builder) {
        let root = self.request.root;
        let (own, parts) = self.rooted_blocks(self.input(), Buffer::Output);
        match self.request.algorithm {
            Algorithm::Linear => linear::gather(builder, self.group, root, own, &parts),
            _ => binomial::gather(builder, self.group, root, own, &parts, self.counts()),
        }
    }

    fn scatter(&self, builder: &mut Builder) {
        let root = self.request.root;
        let (own, parts) = self.rooted_blocks(Buffer::Output, self.input());
        match self.request.algorithm {
            Algorithm::Linear => linear::scatter(builder, self.group, root, &parts, own),
            _ => binomial::scatter(builder, self.group, root, &parts, own, self.counts()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Instruction;

    fn request(collective: Collective, algorithm: Algorithm, shape: Shape<'_>) -> PlanRequest<'_> {
        PlanRequest {
            collective,
            algorithm,
            rank: 0,
            size: 2,
            root: 0,
            shape,
            in_place: false,
            hosts: &[],
            segment: 8,
            deterministic: false,
        }
    }

    fn refusal(request: PlanRequest<'_>) -> String {
        plan(&request).map(|_| ()).map_err(|error| error.to_string()).expect_err("a refusal")
    }

    #[test]
    fn what_cannot_be_planned_is_refused_in_words() {
        use Algorithm::{Bruck, Ring, TwoShot};
        let whole = request(Collective::Allreduce, Ring, Shape::Whole(4));
        let uneven = Shape::Exchange { send: &[1, 2], recv: &[1, 3], equal: false };
        let cases = [
            (request(Collective::Gather, Ring, Shape::Blocks(&[1, 2])), "possible: linear, binomial"),
            (request(Collective::SendRecv, Ring, Shape::Whole(1)), "needs no plan"),
            (PlanRequest { rank: 2, ..whole }, "rank 2 is not below the size"),
            (PlanRequest { size: 0, ..whole }, "rank 0 is not below the size"),
            (PlanRequest { hosts: &[0], ..whole }, "hosts are given for 1 ranks"),
            (PlanRequest { segment: 0, ..whole }, "segments of no elements"),
            (PlanRequest { shape: Shape::Blocks(&[1, 2]), ..whole }, "its counts cannot be Blocks([1, 2])"),
            (PlanRequest { shape: Shape::Whole(usize::MAX / 3), ..whole }, "more than any memory can hold"),
            (PlanRequest { root: 2, ..request(Collective::Broadcast, Ring, Shape::Whole(4)) }, "root 2 is not below"),
            (request(Collective::Allgather, Ring, Shape::Blocks(&[1])), "counts are given for 1 ranks"),
            (request(Collective::Allgather, Ring, Shape::Blocks(&[usize::MAX, 2])), "more than any memory can hold"),
            (request(Collective::Alltoall, Bruck, uneven), "equal length; possible: pairwise, one_shot"),
            (PlanRequest { in_place: true, ..request(Collective::Alltoall, Algorithm::Pairwise, uneven) }, "in place"),
            (
                request(
                    Collective::Alltoall,
                    Algorithm::OneShot,
                    Shape::Exchange { send: &[1, 2], recv: &[2, 2], equal: false },
                ),
                "rank 0 sends 1 elements to itself and receives 2",
            ),
            (
                request(
                    Collective::Alltoall,
                    Algorithm::OneShot,
                    Shape::Exchange { send: &[1, 2], recv: &[1, 2], equal: true },
                ),
                "said to be of equal length",
            ),
        ];
        for (request, expected) in cases {
            let words = refusal(request);
            assert!(words.contains(expected), "{words:?} lacks {expected:?}");
        }
        assert!(plan(&PlanRequest { algorithm: TwoShot, ..whole }).is_ok());
    }

    #[test]
    fn one_rank_needs_no_messages_and_still_finishes() {
        for algorithm in algorithms_for(Collective::Allreduce) {
            for (in_place, buffer) in [(false, Buffer::Input), (true, Buffer::Output)] {
                let request =
                    PlanRequest { size: 1, in_place, ..request(Collective::Allreduce, *algorithm, Shape::Whole(4)) };
                let expected = Instruction::Reduce {
                    sources: vec![Span::new(buffer, 0, 4)],
                    target: Span::new(Buffer::Output, 0, 4),
                    finish: true,
                };
                let schedule = plan(&request).unwrap_or_else(|error| panic!("{error}"));
                let instructions: Vec<_> = schedule.steps.into_iter().flat_map(|step| step.instructions).collect();
                assert_eq!(instructions, [expected], "{algorithm}");
                assert!(!schedule.partials_travel);
            }
        }
    }
}
