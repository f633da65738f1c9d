use super::*;
use crate::schedule::{Counts, algorithms_for};
use crate::types::Collective;

#[test]
fn first() {
    for collective in Collective::ALL.iter().copied() {
        for &algorithm in algorithms_for(collective) {
            for size in 1..=17 {
                for count in [0, 1, size - 1, size, size + 1, 101] {
                    for in_place in [false, true] {
                        for hosts in 0..4 {
                            let blocks: Vec<usize> = (0..size).map(|rank| (count * (rank * 7 % 4)) / 2).collect();
                            let matrix = vec![count; size * size];
                            let counts = match collective {
                                Collective::Allreduce | Collective::Reduce | Collective::Broadcast => {
                                    Counts::Whole(count)
                                }
                                Collective::Barrier => Counts::Whole(0),
                                Collective::Alltoall => Counts::Matrix(&matrix),
                                _ => Counts::Blocks(&blocks),
                            };
                            let in_place = vec![in_place; size];
                            let hosts: Vec<usize> = match hosts {
                                0 => vec![],
                                1 => (0..size).map(|rank| rank / 3).collect(),
                                2 => (0..size).map(|rank| rank % 3).collect(),
                                _ => (0..size).collect(),
                            };
                            for deterministic in [false, true] {
                                let request = JointRequest {
                                    collective,
                                    algorithm,
                                    size,
                                    root: size / 2,
                                    counts,
                                    in_place: &in_place,
                                    hosts: &hosts,
                                    segment: 5,
                                    deterministic,
                                };
                                let schedules = request.plan_all().unwrap();
                                if let Err(violation) = verify(&request, &schedules) {
                                    panic!("{request:?}\n{violation}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
