//! Every algorithm is proved, and the prover is shown to reject what is wrong.

use super::*;
use crate::schedule::{Buffer, Counts, Instruction, Span, Step, algorithms_for};
use crate::types::{Algorithm, Collective, Order};

/// A small generator of numbers that are random enough and the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// Every collective with every algorithm that serves it.
fn everything() -> impl Iterator<Item = (Collective, Algorithm)> {
    let all = Collective::ALL.iter().copied();
    all.flat_map(|collective| algorithms_for(collective).iter().map(move |&algorithm| (collective, algorithm)))
}

/// Everything that one call can vary in, owned.
#[derive(Clone, Debug)]
struct Case {
    collective: Collective,
    algorithm: Algorithm,
    size: usize,
    root: usize,
    whole: usize,
    blocks: Vec<usize>,
    matrix: Vec<usize>,
    in_place: Vec<bool>,
    hosts: Vec<usize>,
    segment: usize,
    deterministic: bool,
}

impl Case {
    fn new(collective: Collective, algorithm: Algorithm, size: usize, count: usize) -> Self {
        Self {
            collective,
            algorithm,
            size,
            root: 0,
            whole: if collective == Collective::Barrier { 0 } else { count },
            blocks: vec![count; size],
            matrix: vec![count; size * size],
            in_place: Vec::new(),
            hosts: Vec::new(),
            segment: 3,
            deterministic: false,
        }
    }

    fn request(&self) -> JointRequest<'_> {
        JointRequest {
            collective: self.collective,
            algorithm: self.algorithm,
            size: self.size,
            root: self.root,
            counts: match self.collective {
                Collective::Alltoall => Counts::Matrix(&self.matrix),
                Collective::Allgather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter => {
                    Counts::Blocks(&self.blocks)
                }
                _ => Counts::Whole(self.whole),
            },
            in_place: &self.in_place,
            hosts: &self.hosts,
            segment: self.segment,
            deterministic: self.deterministic,
        }
    }

    /// Gives the blocks different lengths, some of them empty, `count` at most.
    fn uneven(&mut self, count: usize, numbers: &mut Numbers) {
        let length = |numbers: &mut Numbers| if numbers.below(4) == 0 { 0 } else { numbers.below(count + 1) };
        self.blocks.fill_with(|| length(numbers));
        if self.algorithm != Algorithm::Bruck && self.in_place.iter().all(|in_place| !in_place) {
            self.matrix.fill_with(|| length(numbers));
        }
    }

    fn prove(&self) -> Proof {
        let request = self.request();
        let schedules = request.plan_all().unwrap_or_else(|error| panic!("{self:?}: {error}"));
        assert!(schedules.iter().all(|schedule| schedule.algorithm == self.algorithm));
        let direct = matches!(self.algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Linear);
        if self.deterministic || direct {
            assert!(schedules.iter().all(|schedule| !schedule.partials_travel), "{self:?}");
        }
        verify(&request, &schedules).unwrap_or_else(|violation| panic!("{self:?}: {violation}"))
    }
}

/// The ways in which hosts are laid out: all in one, neighbours, dealt out in turn, uneven, one each.
fn layout(kind: usize, size: usize, numbers: &mut Numbers) -> Vec<usize> {
    match kind {
        0 => Vec::new(),
        1 => (0..size).map(|rank| rank / 4).collect(),
        2 => (0..size).map(|rank| rank % 3).collect(),
        3 => (0..size).map(|_| 100 + numbers.below(size.isqrt() + 1)).collect(),
        _ => (0..size).rev().collect(),
    }
}

fn places(kind: usize, size: usize, numbers: &mut Numbers) -> Vec<bool> {
    match kind {
        0 => Vec::new(),
        1 => vec![true; size],
        _ => (0..size).map(|_| numbers.below(2) == 0).collect(),
    }
}

/// Proves every algorithm in worlds of `size`, for counts around those that matter, each in so many variations.
fn prove_all(size: usize, variations: usize, numbers: &mut Numbers) {
    for (collective, algorithm) in everything() {
        for count in [0, 1, size - 1, size, size + 1, 7 * size + 3, 101] {
            for _ in 0..variations {
                let mut case = Case::new(collective, algorithm, size, count);
                case.root = numbers.below(size);
                case.in_place = places(numbers.below(3), size, numbers);
                case.hosts = layout(numbers.below(5), size, numbers);
                case.segment = [1, 5, 64][numbers.below(3)];
                case.deterministic = numbers.below(3) == 0;
                if numbers.below(2) == 0 {
                    case.uneven(count, numbers);
                }
                case.prove();
            }
        }
    }
}

#[test]
fn every_algorithm_is_right_for_small_worlds_in_many_variations() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    (1..=9).for_each(|size| prove_all(size, 12, &mut numbers));
}

#[test]
fn every_algorithm_is_right_for_every_size_to_64() {
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    (10..=64).for_each(|size| prove_all(size, 1, &mut numbers));
}

#[test]
fn every_algorithm_is_right_for_random_sizes_to_1000() {
    let mut numbers = Numbers(0xb529_7a4d_3c6e_f081);
    for (collective, algorithm) in everything() {
        for _ in 0..2 {
            // All pairs speak to each other in direct algorithms, so those get smaller worlds more often.
            let most = if numbers.below(4) == 0 { 936 } else { 300 };
            let size = 65 + numbers.below(most);
            let mut case = Case::new(collective, algorithm, size, numbers.below(3 * size));
            case.root = numbers.below(size);
            case.in_place = places(numbers.below(3), size, &mut numbers);
            case.hosts = layout(numbers.below(4), size, &mut numbers);
            case.segment = 1 + numbers.below(1000);
            case.deterministic = numbers.below(4) == 0;
            case.uneven(50, &mut numbers);
            case.prove();
        }
    }
}

/// Applies `change` to copies of a case's plans, once for each instruction that it accepts, and demands that every
/// changed set of plans is rejected. Returns how many there were.
fn all_rejected(case: &Case, what: &str, change: impl Fn(&mut Vec<Step>, usize, usize) -> bool) -> usize {
    let request = case.request();
    let schedules = request.plan_all().unwrap_or_else(|error| panic!("{error}"));
    verify(&request, &schedules).unwrap_or_else(|violation| panic!("{violation}"));
    let mut rejected = 0;
    for rank in 0..case.size {
        for step in 0..schedules[rank].steps.len() {
            for index in 0..schedules[rank].steps[step].instructions.len() {
                let mut mutant = schedules.clone();
                if change(&mut mutant[rank].steps, step, index) {
                    let verdict = verify(&request, &mutant);
                    let original = &schedules[rank].steps[step].instructions[index];
                    assert!(verdict.is_err(), "{what}: {case:?}, rank {rank}, step {step}: {original:?}");
                    rejected += 1;
                }
            }
        }
    }
    rejected
}

/// Cases with no empty span anywhere, so that every instruction matters.
fn full_cases(deterministic: bool) -> impl Iterator<Item = Case> {
    everything().flat_map(move |(collective, algorithm)| {
        [2, 3, 5, 6].into_iter().flat_map(move |size| {
            [false, true].into_iter().map(move |in_place| {
                let mut case =
                    Case::new(collective, algorithm, size, if collective == Collective::Barrier { 0 } else { 24 });
                case.in_place = vec![in_place; size];
                case.hosts = (0..size).map(|rank| rank % 2).collect();
                case.segment = 12;
                case.root = size - 2;
                case.deterministic = deterministic;
                case
            })
        })
    })
}

#[test]
fn a_missing_instruction_is_noticed() {
    for case in full_cases(false).chain(full_cases(true)) {
        let dropped = all_rejected(&case, "dropped", |steps, step, index| {
            steps[step].instructions.remove(index);
            true
        });
        assert!(dropped > 0);
    }
}

#[test]
fn a_message_to_the_wrong_rank_is_noticed() {
    for case in full_cases(false) {
        all_rejected(&case, "other peer", |steps, step, index| match &mut steps[step].instructions[index] {
            Instruction::Send { peer, .. } | Instruction::Recv { peer, .. } | Instruction::RecvReduce { peer, .. } => {
                *peer = (*peer + 1) % case.size;
                true
            }
            _ => false,
        });
    }
}

#[test]
fn a_shifted_or_shortened_span_is_noticed() {
    for case in full_cases(false).filter(|case| case.collective != Collective::Barrier) {
        for (what, shift) in [("shifted up", 1), ("shifted down", -1)] {
            all_rejected(&case, what, |steps, step, index| {
                let span = match &mut steps[step].instructions[index] {
                    Instruction::Send { source, .. } | Instruction::Copy { source, .. } => source,
                    Instruction::Recv { target, .. } | Instruction::RecvReduce { target, .. } => target,
                    Instruction::Reduce { sources, .. } => &mut sources[0],
                };
                span.start = span.start.wrapping_add_signed(shift);
                true
            });
        }
        all_rejected(&case, "shortened", |steps, step, index| {
            match &mut steps[step].instructions[index] {
                Instruction::Send { source, .. } => source.count -= 1,
                Instruction::Recv { target, .. } | Instruction::RecvReduce { target, .. } => target.count -= 1,
                Instruction::Copy { source, target } => {
                    (source.count, target.count) = (source.count - 1, target.count - 1)
                }
                Instruction::Reduce { sources, target, .. } => {
                    sources.iter_mut().for_each(|source| source.count -= 1);
                    target.count -= 1;
                }
            }
            true
        });
    }
}

#[test]
fn a_contribution_counted_twice_is_noticed() {
    let mut rejected = 0;
    for case in full_cases(false) {
        rejected += all_rejected(&case, "repeated", |steps, step, index| {
            let again = steps[step].instructions[index].clone();
            // Doing it again from the same operands to another place gives the same, and is no mistake.
            let matters = match &again {
                Instruction::Reduce { sources, target, finish } => {
                    sources.contains(target) && (*finish || sources.len() > 1)
                }
                Instruction::Copy { .. } => false,
                _ => true,
            };
            if matters {
                steps.insert(step + 1, Step { instructions: vec![again] });
            }
            matters
        });
        rejected +=
            all_rejected(&case, "operand repeated", |steps, step, index| match &mut steps[step].instructions[index] {
                Instruction::Reduce { sources, .. } => {
                    sources.push(sources[0]);
                    true
                }
                _ => false,
            });
    }
    assert!(rejected > 1000);
}

#[test]
fn a_result_finished_twice_or_never_is_noticed() {
    let mut rejected = 0;
    for case in full_cases(false) {
        rejected += all_rejected(&case, "finish", |steps, step, index| match &mut steps[step].instructions[index] {
            Instruction::RecvReduce { finish, .. } | Instruction::Reduce { finish, .. } => {
                *finish = !*finish;
                true
            }
            _ => false,
        });
    }
    assert!(rejected > 500);
}

#[test]
fn operands_in_another_order_are_noticed() {
    // Where both sides of an exchange combine, one that turns the operands around gets other bits.
    let mut turned = 0;
    for mut case in full_cases(false).filter(|case| case.collective == Collective::Allreduce) {
        case.hosts.clear();
        if case.algorithm == Algorithm::RecursiveDoubling && case.size.is_power_of_two() {
            turned += all_rejected(&case, "turned", |steps, step, index| match &mut steps[step].instructions[index] {
                Instruction::Reduce { sources, .. } => {
                    sources.reverse();
                    true
                }
                _ => false,
            });
        }
    }
    // In rank order, any other order is wrong.
    for case in full_cases(true) {
        turned +=
            all_rejected(&case, "not in rank order", |steps, step, index| match &mut steps[step].instructions[index] {
                Instruction::Reduce { sources, .. } => {
                    sources.reverse();
                    sources.len() > 1
                }
                Instruction::RecvReduce { order, .. } => {
                    *order = match order {
                        Order::HereFirst => Order::IncomingFirst,
                        Order::IncomingFirst => Order::HereFirst,
                    };
                    true
                }
                _ => false,
            });
    }
    assert!(turned > 100);
}

#[test]
fn rings_are_not_taken_for_rank_order() {
    let mut case = Case::new(Collective::Allreduce, Algorithm::Ring, 4, 24);
    let schedules = case.request().plan_all().unwrap_or_else(|error| panic!("{error}"));
    case.deterministic = true;
    let verdict = verify(&case.request(), &schedules).map_err(|violation| violation.what);
    assert!(verdict.is_err_and(|what| what.contains("not in rank order")));
}

#[test]
fn a_deadlock_names_who_waits_for_whom() {
    // Everyone sends first and receives in the next step: fine where sends are buffered, and only there.
    let mut case = Case::new(Collective::Allgather, Algorithm::OneShot, 3, 4);
    case.in_place = vec![true; 3];
    let mut schedules = case.request().plan_all().unwrap_or_else(|error| panic!("{error}"));
    for schedule in &mut schedules {
        let all = std::mem::take(&mut schedule.steps[0].instructions);
        let (sends, recvs) = all.into_iter().partition(|instruction| matches!(instruction, Instruction::Send { .. }));
        schedule.steps = vec![Step { instructions: sends }, Step { instructions: recvs }];
    }
    let verdict = verify(&case.request(), &schedules);
    let expected = Violation { rank: 0, step: Some(0), what: "deadlock: waits for ranks 1, 2".into() };
    assert_eq!(verdict, Err(expected));
}

#[test]
fn races_are_noticed() {
    let case = Case::new(Collective::Allreduce, Algorithm::Ring, 4, 24);
    let request = case.request();
    let schedules = request.plan_all().unwrap_or_else(|error| panic!("{error}"));
    // Two steps in one: what the first receives is what the second sends.
    let mut merged = schedules.clone();
    let second = merged[1].steps.remove(2);
    merged[1].steps[1].instructions.extend(second.instructions);
    assert!(verify(&request, &merged).is_err_and(|violation| violation.what.contains("write the same")));
    // A ring passes on what it has received. In one step, whether that has come yet is a matter of luck.
    let mut case = Case::new(Collective::Allgather, Algorithm::Ring, 4, 6);
    case.in_place = vec![true; 4];
    let request = case.request();
    let schedules = request.plan_all().unwrap_or_else(|error| panic!("{error}"));
    let mut merged = schedules.clone();
    let second = merged[1].steps.remove(1);
    merged[1].steps[0].instructions.extend(second.instructions);
    assert!(verify(&request, &merged).is_err_and(|violation| violation.what.contains("while another reads")));
    // A copy onto a part of itself.
    let mut shifted = schedules;
    let (source, target) = (Span::new(Buffer::Output, 0, 5), Span::new(Buffer::Output, 1, 5));
    shifted[1].steps.push(Step { instructions: vec![Instruction::Copy { source, target }] });
    assert!(verify(&request, &shifted).is_err_and(|violation| violation.what.contains("while it reads")));
}

#[test]
fn a_partial_result_that_is_not_declared_is_noticed() {
    for case in full_cases(false) {
        let request = case.request();
        let mut schedules = request.plan_all().unwrap_or_else(|error| panic!("{error}"));
        let declared = schedules[0].partials_travel;
        schedules[0].partials_travel = !declared;
        assert!(verify(&request, &schedules).is_err(), "{case:?}");
        schedules.iter_mut().for_each(|schedule| schedule.partials_travel = false);
        assert_eq!(verify(&request, &schedules).is_err(), declared, "{case:?}");
    }
}

#[test]
fn the_buffers_of_those_who_only_contribute_are_kept() {
    let mut case = Case::new(Collective::Reduce, Algorithm::Binomial, 4, 24);
    case.in_place = vec![true; 4];
    let mut schedules = case.request().plan_all().unwrap_or_else(|error| panic!("{error}"));
    for instruction in schedules[2].steps.iter_mut().flat_map(|step| &mut step.instructions) {
        if let Instruction::Recv { target, .. } = instruction {
            target.buffer = Buffer::Output;
        }
    }
    assert!(verify(&case.request(), &schedules).is_err_and(|violation| violation.what.contains("kept")));
}
