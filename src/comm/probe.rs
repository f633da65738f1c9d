//! What the links of a world cost, measured when its ranks have met.
//!
//! Three patterns tell the three figures of a link: everyone passes a few bytes on around the circle (latency and overhead),
//! everyone sends a few bytes to everyone (n - 1 overheads), everyone passes many bytes on. They are run among the ranks of
//! each host, all hosts at once, and among one rank of each host. Every rank takes the worst of all, from one allreduce; so
//! that all hold the same, whatever each measured.
//!
//! It takes as few calls as tell something: `docs/algorithms.md` says how long they take. Over links of 1 Gbit/s the
//! long messages are much of it.

use std::time::{Duration, Instant};

use super::communicator::Communicator;
use crate::schedule::Hosts;
use crate::schedule::cost::{Figures, LinkModel};
use crate::types::{Algorithm, Deadline, ReduceOp, Result};

/// Bytes of the long messages: half a millisecond on a link of 1 Gbit/s.
const LONG: usize = 64 << 10;
/// The calls of each pattern. The first may make connections, and many links let a burst of some hundred KiB pass before
/// they are as slow as they are.
const SHORTS: Calls = Calls { before: 2, together: 4 };
const DIRECTS: Calls = Calls { before: 2, together: 2 };
const LONGS: Calls = Calls { before: 5, together: 1 };

/// How often calls are timed, of which the median counts.
const TIMES: usize = 3;

/// Calls one after the other.
#[derive(Clone, Copy)]
struct Calls {
    /// So many first.
    before: usize,
    /// So many are timed together. What is passed on around a circle may come in at once and then be waited for twice as
    /// long: only all that come from one round take as long as they do.
    together: usize,
}

/// Measures. All ranks call it at the same time, before anything else.
///
/// # Errors
///
/// When a rank does not take part until the deadline, or is lost.
pub(super) fn measure(world: &Communicator, deadline: Deadline) -> Result<Figures> {
    let began = Instant::now();
    let world = world.with_timeout(deadline.remaining(Instant::now()).max(Duration::from_secs(1)));
    let hosts = &world.view().hosts;
    let own_host: Vec<usize> = (0..world.size()).filter(|&rank| hosts[rank] == hosts[world.rank()]).collect();
    let firsts: Vec<usize> =
        (0..world.size()).filter(|&rank| hosts[..rank].iter().all(|host| *host != hosts[rank])).collect();
    // What all ranks know before: whether a figure comes of each kind.
    let (crowded, many) = (firsts.len() < world.size(), firsts.len() > 1);
    let mut worst = [0.0f64; 6];
    let mut add = |at: usize, link: Option<LinkModel>| {
        if let Some(LinkModel { latency, overhead, seconds_per_byte }) = link {
            worst[at..at + 3].copy_from_slice(&[latency, overhead, seconds_per_byte]);
        }
    };
    // As if each rank had a processor: the formulas reckon with what is shared.
    let most = Hosts::new(hosts, world.size()).most() as f64;
    let shared = most / world.inner.basis().measured_host.processors;
    if crowded && own_host.len() > 1 {
        let factor = 1.0 / shared.max(1.0);
        add(0, within(&world, &own_host)?.map(|link| scaled(link, factor, factor)));
    }
    if many {
        // The same of the processors of a machine that is several hosts. The bytes are the link's.
        let sharing = shared * firsts.len() as f64 / world.size() as f64;
        add(3, within(&world, &firsts)?.map(|link| scaled(link, 1.0 / sharing.max(1.0), 1.0)));
    }
    world.allreduce(&mut worst, ReduceOp::Max)?;
    let link = |at: usize| LinkModel {
        latency: worst[at],
        overhead: worst[at + 1].max(1e-9),
        seconds_per_byte: worst[at + 2].max(1e-12),
    };
    let figures = Figures { in_host: crowded.then(|| link(0)), between_hosts: many.then(|| link(3)) };
    tracing::info!(?figures, took = ?began.elapsed(), "links measured");
    Ok(figures)
}

fn scaled(link: LinkModel, overhead: f64, bytes: f64) -> LinkModel {
    LinkModel {
        latency: link.latency,
        overhead: link.overhead * overhead,
        seconds_per_byte: link.seconds_per_byte * bytes,
    }
}

/// Measures among some ranks, as the slowest of them sees it. `None` on the others.
fn within(world: &Communicator, ranks: &[usize]) -> Result<Option<LinkModel>> {
    let Some(group) = world.subgroup(ranks)? else { return Ok(None) };
    let direct = group.with_algorithm(Some(Algorithm::OneShot));
    let size = group.size();
    group.barrier()?;
    let began = Instant::now();
    let now = || began.elapsed().as_secs_f64();
    let mut buffers = Buffers { input: vec![0; LONG], output: vec![0; LONG] };
    let short = time(SHORTS, now, || buffers.pass_on(&group, 8))?;
    let (input, mut output) = (vec![0u64; size], vec![0u64; size]);
    let all = time(DIRECTS, now, || direct.alltoall(&input, &mut output))?;
    let long = time(LONGS, now, || buffers.pass_on(&group, LONG))?;
    Ok(Some(link_of(size, short, all, long)))
}

/// The figures of a link from the times of the three patterns among `size` ranks.
fn link_of(size: usize, short: f64, all: f64, long: f64) -> LinkModel {
    let each = if size > 2 { (all - short) / (size - 2) as f64 } else { short / 2.0 };
    // Noise may make it more than all of the short pattern, or nothing.
    let overhead = each.clamp(short / 10.0, short).max(1e-9);
    LinkModel {
        latency: (short - overhead).max(0.0),
        overhead,
        seconds_per_byte: ((long - short) / LONG as f64).max(1e-12),
    }
}

/// The seconds of a call by the clock `now`, once those before are made.
fn time(calls: Calls, now: impl Fn() -> f64, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    (0..calls.before).try_for_each(|_| call())?;
    let mut times = [0.0; TIMES];
    for taken in &mut times {
        let began = now();
        (0..calls.together).try_for_each(|_| call())?;
        *taken = (now() - began) / calls.together as f64;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TIMES / 2])
}

/// What is passed on: made once, so that its pages are there.
struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Buffers {
    /// Sends `bytes` to the next rank and receives as many from the one before.
    fn pass_on(&mut self, group: &Communicator, bytes: usize) -> Result<()> {
        let (rank, size) = (group.rank(), group.size());
        let (input, output) = (&self.input[..bytes], &mut self.output[..bytes]);
        group.scope(|scope| {
            scope.recv(output, (rank + size - 1) % size, 0)?;
            scope.send(input, (rank + 1) % size, 0)?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn figures_are_those_that_the_times_came_of() {
        let link = LinkModel { latency: 20e-6, overhead: 5e-6, seconds_per_byte: 8e-9 };
        let found = link_of(4, 25e-6, 35e-6, 25e-6 + LONG as f64 * 8e-9);
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
        assert!(near(found.latency, link.latency) && near(found.overhead, link.overhead), "{found:?}");
        assert!(near(found.seconds_per_byte, link.seconds_per_byte), "{found:?}");
    }

    #[test]
    fn figures_are_sound_whatever_noise_does() {
        for (short, all, long) in [(1e-6, 1e-9, 1e-9), (1e-6, 1.0, 1.0), (0.0, 0.0, 0.0), (5e-6, 5e-6, 5e-6)] {
            for size in [2, 3, 9] {
                let link = link_of(size, short, all, long);
                assert!(Figures { in_host: Some(link), between_hosts: None }.are_sound(), "{link:?}");
            }
        }
    }

    #[test]
    fn one_slow_call_and_those_before_do_not_count() {
        // A clock that only calls move on: the first, and one of those that are timed, take long.
        let (clock, mut number) = (Cell::new(0.0), 0);
        let taken = time(
            Calls { before: 2, together: 2 },
            || clock.get(),
            || {
                number += 1;
                clock.set(clock.get() + if matches!(number, 1 | 5) { 100.0 } else { 2.0 });
                Ok(())
            },
        );
        assert_eq!((taken, number), (Ok(2.0), 2 + 2 * TIMES));
        let failed = time(SHORTS, || 0.0, || Err(crate::types::Error::internal("lost")));
        assert!(failed.is_err());
    }

    #[test]
    fn a_rank_that_does_not_take_part_is_waited_for_until_the_deadline() {
        let world = super::super::thread_world(3).expect("threads");
        // Rank 0 is there, and does nothing.
        let said: Vec<_> = std::thread::scope(|scope| {
            let rank = |comm: &Communicator| measure(comm, Deadline::after(Instant::now(), Duration::ZERO));
            let threads: Vec<_> = world[1..].iter().map(|comm| scope.spawn(move || rank(comm))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for said in said {
            let error = said.expect_err("rank 0 does not take part").to_string();
            assert!(error.contains("rank"), "{error}");
        }
    }

    #[test]
    fn all_ranks_hold_the_same_figures() {
        let world = super::super::thread_world_on(&[0, 0, 1, 1, 2]).expect("threads");
        let figures: Vec<Figures> = std::thread::scope(|scope| {
            let rank = |comm: Communicator| {
                scope.spawn(move || measure(&comm, Deadline::after(Instant::now(), Duration::from_secs(120))))
            };
            let threads: Vec<_> = world.into_iter().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("figures")).collect()
        });
        assert!(figures.iter().all(|one| *one == figures[0] && one.are_sound()), "{figures:?}");
        assert!(figures[0].in_host.is_some() && figures[0].between_hosts.is_some());
    }
}
