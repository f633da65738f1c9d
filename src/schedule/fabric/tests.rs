//! What must hold whatever the fabric: nothing is faster than its links, nothing is lost, and the few ranks that stand
//! for all do exactly as all do.

use super::engine::{LinkKind, Outcome, run, ticks};
use super::predict::Job;
use super::program::same_but_for_place;
use super::*;
use crate::schedule::{Instruction, PlanRequest, Shape, algorithms_for, plan};
use crate::types::{Algorithm, Collective, DataType};

/// Small racks, odd prices.
fn clos(ranks_per_host: usize, hosts_per_rack: usize, oversubscription: f64) -> Fabric {
    let base = preset("ethernet-10g").expect("a preset");
    Fabric {
        ranks_per_host,
        cores_per_host: ranks_per_host.div_ceil(2),
        nics: 2,
        nic_overhead: 0.7e-6,
        hosts_per_rack,
        oversubscription,
        eager_bytes: 2000,
        ..base
    }
}

/// One rank a host, nothing but the card costs anything.
fn bare(latency: f64) -> Fabric {
    let free = Port { latency, overhead: 0.0, rate: 1e15 };
    Fabric {
        ranks_per_host: 1,
        cores_per_host: 1,
        network: free,
        nics: 1,
        nic_rate: 1e9,
        nic_overhead: 0.0,
        hop_latency: 0.0,
        eager_bytes: usize::MAX >> 1,
        reduce_rate: 1e15,
        copy_rate: 1e15,
        ..clos(1, 0, 1.0)
    }
}

fn question(collective: Collective, algorithm: Algorithm, ranks: usize, bytes: usize, fabric: &Fabric) -> Question<'_> {
    Question { collective, algorithm, ranks, bytes, dtype: DataType::F32, fabric }
}

fn outcome(question: &Question<'_>, all: bool) -> (Outcome, (u64, u64), usize) {
    let job = Job::new(question).unwrap_or_else(|error| panic!("{question:?}: {error}"));
    let count = if all { question.ranks } else { job.period };
    let programs = job.programs(count, u64::MAX).unwrap_or_else(|error| panic!("{question:?}: {error}"));
    (run(&programs, question.fabric), programs.sent(), job.period)
}

/// Those that have plans.
fn collectives() -> impl Iterator<Item = Collective> {
    Collective::ALL.iter().copied().filter(|collective| *collective != Collective::SendRecv)
}

#[test]
fn nothing_is_lost_and_no_link_carries_above_its_rate() {
    for fabric in [clos(3, 2, 4.0), clos(1, 0, 1.0), Fabric { one_machine: true, ..clos(2, 3, 1.5) }] {
        let uplink = fabric.hosts_per_rack.max(1) as f64 * 2.0 * fabric.nic_rate / fabric.oversubscription;
        for collective in collectives() {
            for &algorithm in algorithms_for(collective) {
                for (ranks, bytes) in [(1, 100), (2, 1), (7, 9000), (12, 100_000), (18, 0), (24, 777_777)] {
                    let question = question(collective, algorithm, ranks, bytes, &fabric);
                    let (outcome, sent, _) = outcome(&question, true);
                    assert_eq!(outcome.stuck, 0, "{question:?}");
                    assert_eq!((outcome.messages, outcome.bytes), sent, "{question:?}");
                    let bytes_at = |kind: LinkKind| -> Vec<u64> {
                        outcome.servers[kind as usize].iter().map(|server| server.bytes).collect()
                    };
                    let sum = |kind| bytes_at(kind).iter().sum::<u64>();
                    assert_eq!(sum(LinkKind::Core), 2 * sent.1, "both ends of every byte, {question:?}");
                    assert_eq!(sum(LinkKind::NicOut), sum(LinkKind::NicIn), "{question:?}");
                    assert_eq!(sum(LinkKind::RackUp), sum(LinkKind::RackDown), "{question:?}");
                    assert!(sum(LinkKind::RackUp) <= sum(LinkKind::NicOut), "{question:?}");
                    let end = outcome.end();
                    let rates = [
                        (LinkKind::NicOut, fabric.nic_rate),
                        (LinkKind::NicIn, fabric.nic_rate),
                        (LinkKind::RackUp, uplink),
                        (LinkKind::RackDown, uplink),
                    ];
                    for (kind, rate) in rates {
                        for server in &outcome.servers[kind as usize] {
                            assert!(server.busy <= end && server.free <= end, "{kind:?} {question:?}");
                            // A picosecond for each message whose time was rounded down.
                            let carried = rate * (server.busy + sent.0) as f64 * 1e-12;
                            assert!(server.bytes as f64 <= carried, "{kind:?} {question:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn bytes_and_messages_are_those_of_the_plans() {
    let fabric = clos(2, 2, 1.0);
    for algorithm in algorithms_for(Collective::Allreduce) {
        let (ranks, count) = (8, 4096);
        let hosts = fabric.hosts(ranks);
        let question = question(Collective::Allreduce, *algorithm, ranks, 4 * count, &fabric);
        let segment = choice(&question, Some(*algorithm)).segment;
        let segment = if *algorithm == Algorithm::TwoShot { segment.next_multiple_of(ranks) } else { segment };
        let (mut messages, mut bytes) = (0, 0);
        for rank in 0..ranks {
            let request = PlanRequest {
                collective: Collective::Allreduce,
                algorithm: *algorithm,
                rank,
                size: ranks,
                root: 0,
                shape: Shape::Whole(count),
                in_place: true,
                hosts: &hosts,
                segment,
                deterministic: false,
            };
            let schedule = plan(&request).unwrap_or_else(|error| panic!("{error}"));
            for instruction in schedule.steps.iter().flat_map(|step| &step.instructions) {
                if let Instruction::Send { source, .. } = instruction {
                    messages += 1;
                    bytes += 4 * source.count as u64;
                }
            }
        }
        let forecast = forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((forecast.messages, forecast.bytes_sent), (messages, bytes), "{algorithm}");
        assert_eq!(forecast.bytes, 4 * count);
    }
}

#[test]
fn no_forecast_is_below_what_bytes_and_rounds_need() {
    let latency = 5e-6;
    for algorithm in algorithms_for(Collective::Allreduce) {
        for ranks in [2, 3, 8, 13, 32] {
            for bytes in [4 * ranks, 40_000 * ranks] {
                let fabric = bare(latency);
                let question = question(Collective::Allreduce, *algorithm, ranks, bytes, &fabric);
                let forecast = forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
                let share = 2.0 * (ranks - 1) as f64 / ranks as f64;
                let rounds = f64::from(usize::BITS - (ranks - 1).leading_zeros());
                // One-shot sends more but in one round, which no other way can do.
                let rounds = if *algorithm == Algorithm::OneShot { 1.0 } else { rounds.min(2.0) };
                let bound = (share * bytes as f64 / 1e9).max(rounds * latency);
                // The picosecond that each event takes at least.
                assert!(forecast.seconds >= bound - 1e-9, "{question:?}: {forecast:?}, bound {bound}");
            }
        }
    }
}

#[test]
fn times_are_those_of_the_textbook() {
    let fabric = bare(1e-3);
    let seconds = |algorithm, ranks, bytes| {
        let question = question(Collective::Allreduce, algorithm, ranks, bytes, &fabric);
        forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}")).seconds
    };
    let same = |seconds: f64, expected: f64| {
        assert!((seconds - expected).abs() < 1e-8, "{seconds} instead of {expected}");
    };
    // 2 (n - 1) steps of N / n bytes, a latency each.
    same(seconds(Algorithm::Ring, 10, 10_000_000), 18.0 * (1e-3 + 1e-3));
    // log2 n steps of N bytes.
    same(seconds(Algorithm::RecursiveDoubling, 16, 1_000_000), 4.0 * (1e-3 + 1e-3));
    // Two phases of log2 n steps, halving.
    same(seconds(Algorithm::HalvingDoubling, 8, 8_000_000), 6.0 * 1e-3 + 2.0 * 7e-3);
    // The messages of a step share the card, the latency is not shared.
    same(seconds(Algorithm::OneShot, 5, 1_000_000), 4e-3 + 1e-3);
    same(seconds(Algorithm::TwoShot, 5, 500_000), 2.0 * (4e-4 + 1e-3));
}

#[test]
fn links_above_the_racks_share_what_they_have() {
    // Four hosts a rack, each sends everything to a host of the other rack in the last step of recursive doubling.
    let racks = Fabric { hosts_per_rack: 4, oversubscription: 4.0, ..bare(1e-6) };
    let question = question(Collective::Allreduce, Algorithm::RecursiveDoubling, 8, 1_000_000, &racks);
    let forecast = forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
    let expected = 3e-6 + 2e-3 + 4e-3;
    assert!((forecast.seconds - expected).abs() < 1e-8, "{forecast:?}");
    assert_eq!(forecast.busiest.0, LinkKind::RackDown);
}

#[test]
fn long_messages_wait_for_word_of_their_receive() {
    let fabric = Fabric { eager_bytes: 999, ..bare(1e-3) };
    let seconds = |bytes| {
        let question = question(Collective::Allreduce, Algorithm::RecursiveDoubling, 2, bytes, &fabric);
        forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}")).seconds
    };
    assert!((seconds(996) - 1.000996e-3).abs() < 1e-9);
    assert!((seconds(1000) - 2.001e-3).abs() < 1e-9);
}

#[test]
fn cores_are_shared_where_there_are_few() {
    let slow = Port { latency: 0.0, overhead: 1e-3, rate: 1e15 };
    let base = Fabric { network: slow, ..bare(0.0) };
    let seconds = |cores_per_host, one_machine| {
        let fabric = Fabric { cores_per_host, one_machine, ..base.clone() };
        let question = question(Collective::Allreduce, Algorithm::RecursiveDoubling, 8, 4, &fabric);
        forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}")).seconds
    };
    // Three rounds of a message out and a message in.
    assert!((seconds(1, false) - 6e-3).abs() < 1e-9);
    // 48 ends of messages, on two cores.
    assert!((seconds(2, true) - 24e-3).abs() < 1e-9);
}

#[test]
fn ranks_that_stand_for_all_do_exactly_as_all_do() {
    let fabrics = [clos(2, 2, 4.0), clos(1, 3, 2.0), clos(4, 0, 1.0), clos(2, 4, 1.0)];
    let mut compared = 0;
    for fabric in &fabrics {
        for collective in collectives() {
            for &algorithm in algorithms_for(collective) {
                for (ranks, bytes) in
                    [(8, 4), (12, 100_000), (16, 5000), (24, 48_000), (32, 3_000_000), (32, 64), (64, 400_000)]
                {
                    let question = question(collective, algorithm, ranks, bytes, fabric);
                    let (few, _, period) = outcome(&question, false);
                    if period == ranks {
                        continue;
                    }
                    compared += 1;
                    let (all, _, _) = outcome(&question, true);
                    for (rank, end) in all.ends.iter().enumerate() {
                        assert_eq!(*end, few.ends[rank % period], "rank {rank} of {question:?}");
                    }
                    let times = ranks as u64 / period as u64;
                    assert_eq!((all.messages, all.bytes), (few.messages * times, few.bytes * times), "{question:?}");
                    for kind in LinkKind::ALL {
                        let (all, few) = (&all.servers[kind as usize], &few.servers[kind as usize]);
                        for (place, server) in all.iter().enumerate() {
                            assert_eq!(*server, few[place % few.len()], "{kind:?} {place} of {question:?}");
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 100, "{compared} compared");
}

#[test]
fn plans_repeat_where_they_are_said_to() {
    let mut repeating = 0;
    for fabric in [clos(2, 2, 1.0), clos(4, 0, 1.0), clos(1, 8, 1.0)] {
        for collective in collectives() {
            for &algorithm in algorithms_for(collective) {
                for (ranks, bytes) in [(16, 4), (16, 64_000), (40, 1_000_000), (64, 8 << 20)] {
                    let question = question(collective, algorithm, ranks, bytes, &fabric);
                    let job = Job::new(&question).unwrap_or_else(|error| panic!("{error}"));
                    if job.period == ranks {
                        continue;
                    }
                    repeating += 1;
                    let plan = |rank| job.plan(rank).unwrap_or_else(|error| panic!("{error}"));
                    let plans: Vec<_> = (0..ranks).map(plan).collect();
                    for rank in job.period..ranks {
                        let stands = rank % job.period;
                        assert!(
                            same_but_for_place((stands, &plans[stands]), (rank, &plans[rank]), ranks),
                            "{question:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(repeating > 30, "{repeating} repeat");
}

#[test]
fn a_ring_of_thousands_is_run_by_one_rack() {
    let fabric = preset("clos-400g-4to1").expect("a preset");
    let question = question(Collective::Allreduce, Algorithm::Ring, 1024, 64 << 20, &fabric);
    let forecast = forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((forecast.ranks_run, forecast.messages), (128, 2 * 1023 * 1024));
    assert_eq!(forecast.bytes_sent, 2 * 1023 * (64 << 20));
}

/// Seconds by the simulator and by formula, of each algorithm that selection may take for an allreduce.
fn allreduces(ranks: usize, bytes: usize, fabric: &Fabric) -> (Algorithm, Vec<(Algorithm, f64, f64)>) {
    let question = |algorithm| question(Collective::Allreduce, algorithm, ranks, bytes, fabric);
    let choice = choice(&question(Algorithm::Ring), None);
    let cells = choice.alternatives.iter().filter(|(algorithm, _)| match algorithm {
        // Everyone to everyone takes long to simulate among many, and is seldom the fastest.
        Algorithm::OneShot | Algorithm::TwoShot => ranks <= 64 || *algorithm == choice.algorithm,
        _ => true,
    });
    let cells = cells.map(|&(algorithm, cost)| {
        let forecast = forecast(&question(algorithm), u64::MAX).unwrap_or_else(|error| panic!("{error}"));
        (algorithm, forecast.seconds, cost.seconds)
    });
    (choice.algorithm, cells.collect())
}

#[test]
fn the_choice_is_within_15_percent_of_the_best() {
    for (name, _) in PRESETS.iter().filter(|(name, _)| *name != "laptop") {
        let fabric = preset(name).expect("a preset");
        for (ranks, sizes) in
            [(8, vec![1 << 10, 64 << 10, 64 << 20]), (64, vec![64 << 10, 1 << 20]), (512, vec![1 << 20])]
        {
            for bytes in sizes {
                let (chosen, cells) = allreduces(ranks, bytes, &fabric);
                let best = cells.iter().map(|(_, seconds, _)| *seconds).fold(f64::INFINITY, f64::min);
                let (_, taken, _) = cells.iter().find(|(algorithm, ..)| *algorithm == chosen).expect("the chosen one");
                assert!(*taken <= 1.15 * best, "{chosen} of {bytes} bytes among {ranks} on {name}: {cells:?}");
                for (algorithm, simulated, formula) in &cells {
                    let ratio = formula / simulated;
                    assert!((0.75..1.35).contains(&ratio), "{ratio} {algorithm} of {bytes} among {ranks} on {name}");
                }
            }
        }
    }
}

#[test]
fn a_short_buffer_goes_by_host_as_it_would() {
    // 16 elements for 64 ranks: made up to an element for each, shards would still be short; nothing is made up.
    let fabric = preset("ethernet-10g").expect("a preset");
    let question = question(Collective::Allreduce, Algorithm::Hierarchical, 64, 64, &fabric);
    let forecast = forecast(&question, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((forecast.bytes, forecast.ranks_run), (64, 64));
}

#[test]
fn too_many_messages_are_said_to_be() {
    let fabric = clos(2, 0, 1.0);
    let question = question(Collective::Allreduce, Algorithm::OneShot, 64, 1, &fabric);
    let why = forecast(&Question { ranks: 65, ..question }, 1000).expect_err("too many");
    assert!(why.contains("at most 1000 wanted"), "{why}");
    assert!(forecast(&Question { ranks: 0, ..question }, 1000).expect_err("none").contains("1 to"));
    let why = forecast(&Question { algorithm: Algorithm::Bruck, ..question }, 1000).expect_err("no such");
    assert!(why.contains("does not serve"), "{why}");
    assert_eq!(ticks(1.5e-6), 1_500_000);
}
