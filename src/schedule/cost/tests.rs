//! The formulas are held against the simulation of the plans they stand for.

use super::*;
use crate::schedule::{Counts, Hosts, JointRequest, algorithms_for};
use crate::types::{Algorithm, Collective, DataType};

/// A call with equal blocks, `elements` in all.
fn predict(
    collective: Collective,
    algorithm: Algorithm,
    elements: usize,
    hosts: &Hosts,
    segment: usize,
    deterministic: bool,
    model: &CostModel,
) -> Prediction {
    let size = hosts.size();
    let blocks = vec![elements / size; size];
    let matrix = vec![elements / size; size * size];
    let names: Vec<usize> = (0..size).map(|rank| hosts.host_of(rank)).collect();
    let request = JointRequest {
        collective,
        algorithm,
        size,
        root: 0,
        counts: match collective {
            Collective::Alltoall => Counts::Matrix(&matrix),
            Collective::Allgather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter => {
                Counts::Blocks(&blocks)
            }
            Collective::Barrier => Counts::Whole(0),
            _ => Counts::Whole(elements),
        },
        in_place: &vec![true; size],
        hosts: &names,
        segment,
        deterministic,
    };
    let schedules = request.plan_all().unwrap_or_else(|error| panic!("{error}"));
    simulate(&schedules, &names, 4, model)
}

fn planned() -> impl Iterator<Item = Collective> {
    Collective::ALL.iter().copied().filter(|collective| *collective != Collective::SendRecv)
}

/// All in one host, neighbours on hosts of four, dealt out to three hosts.
fn layouts(size: usize) -> [Hosts; 3] {
    let neighbours: Vec<usize> = (0..size).map(|rank| rank / 4).collect();
    let dealt: Vec<usize> = (0..size).map(|rank| rank % 3).collect();
    [Hosts::new(&[], size), Hosts::new(&neighbours, size), Hosts::new(&dealt, size)]
}

#[test]
fn formulas_agree_with_the_simulation() {
    let model = CostModel::default();
    for size in [2, 3, 4, 6, 8, 16, 24] {
        for hosts in layouts(size) {
            for (collective, &algorithm) in planned().flat_map(|c| algorithms_for(c).iter().map(move |a| (c, a))) {
                for (elements, deterministic) in
                    [(0, false), (192, true), (12288, false), (196_608, true), (3 << 20, false)]
                {
                    let cost = estimate(collective, algorithm, (elements, 4), &hosts, deterministic, &model);
                    let segment = ((cost.segment / 4.0).ceil() as usize).max(1);
                    let real = predict(collective, algorithm, elements, &hosts, segment, deterministic, &model);
                    let what = format!(
                        "{collective} by {algorithm} of {elements} elements among {size} ranks on {} hosts \
                         (deterministic: {deterministic}): {cost:?}, {} s, {} steps, {} bytes",
                        hosts.count(),
                        real.seconds,
                        real.steps,
                        real.bytes
                    );
                    let ratio = cost.seconds / real.seconds;
                    assert!((0.5..=2.0).contains(&ratio), "{ratio} {what}");
                    // A rank of a double tree idles in some slots, and which one is busiest depends on the size.
                    if algorithm != Algorithm::DoubleTree && !deterministic {
                        assert_eq!(cost.steps, real.steps, "{what}");
                    }
                    if size.is_power_of_two() && hosts.count() == 1 && !deterministic {
                        assert_eq!(cost.bytes.round() as u64, real.bytes, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_choice_is_near_the_best() {
    let model = CostModel::default();
    for size in [2, 4, 6, 16, 24] {
        for hosts in layouts(size) {
            let names: Vec<usize> = (0..size).map(|rank| hosts.host_of(rank)).collect();
            for collective in planned() {
                for (elements, deterministic) in [(48, false), (12288, true), (196_608, false), (3 << 20, false)] {
                    let selection = Selection {
                        deterministic,
                        ..Selection::new(collective, elements, DataType::F32, size, &names)
                    };
                    let choice = select(&selection, &model);
                    let time = |algorithm: Algorithm| {
                        let (_, cost) = choice
                            .alternatives
                            .iter()
                            .find(|(other, _)| *other == algorithm)
                            .copied()
                            .unwrap_or((algorithm, Estimate::default()));
                        let segment = ((cost.segment / 4.0).ceil() as usize).max(1);
                        predict(collective, algorithm, elements, &hosts, segment, deterministic, &model).seconds
                    };
                    let chosen = time(choice.algorithm);
                    for &(other, _) in &choice.alternatives {
                        assert!(
                            chosen <= 1.7 * time(other),
                            "{} is {chosen} s, {other} {} s: {selection:?}",
                            choice.algorithm,
                            time(other)
                        );
                    }
                }
            }
        }
    }
}
