//! A member that is out comes back in the same process, as somebody new.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use phalanx::TransportKind;
use phalanx::elastic::Elastic;
use phalanx::membership::registry::RegistryConfig;
use phalanx::testing;
use phalanx::types::{Error, Generation, ReduceOp};
use phalanx::wire::registry::Whom;

use crate::support::{Counter, Job};

/// What each member counts: in each step as many as contributed.
fn step(elastic: &Elastic, state: &mut Counter, is_done: bool) -> Result<bool, Error> {
    let mut data = [1u64, u64::from(is_done)];
    let outcome = elastic.step(|step| step.allreduce(&mut data, ReduceOp::Sum))?;
    assert_eq!(data[0], outcome.contributors.len() as u64);
    state.value += data[0] as f64;
    if outcome.joined {
        elastic.sync(state)?;
    }
    Ok(data[1] > 0)
}

#[test]
fn one_that_was_evicted_joins_again_with_a_slot_of_its_own() {
    for kind in [TransportKind::Tcp, TransportKind::Shm] {
        let job = Job::new(RegistryConfig::new(3));
        let (tell, works) = channel();
        let ends: Vec<f64> = thread::scope(|scope| {
            let member = |rank: usize| {
                let (job, tell) = (&job, tell.clone());
                scope.spawn(move || {
                    let mut settings = job.settings(Some(rank));
                    settings.transport = Some(kind);
                    let mut elastic = Elastic::join(&settings).expect("a view with this member in");
                    let mut state = Counter::default();
                    elastic.sync(&mut state).expect("a sync");
                    let mut evictions = 0;
                    let works = || assert!(rank != 1 || tell.send(()).is_ok());
                    works();
                    loop {
                        // Twice is not once: what the first left behind would be in the way.
                        match step(&elastic, &mut state, evictions == 2) {
                            Ok(true) => break,
                            Ok(false) => {}
                            Err(Error::Evicted { reason, .. }) => {
                                assert_eq!((rank, &*reason), (1, "evicted: a test"));
                                elastic = elastic.rejoin().expect("a view with this member in, again");
                                evictions += 1;
                                assert_eq!(elastic.slot(), 2 + evictions);
                                // What it had is worth nothing: it gets the others' state.
                                state = Counter { value: -1.0, ..Counter::default() };
                                elastic.sync(&mut state).expect("a sync");
                                works();
                            }
                            Err(error) => panic!("{kind}, rank {rank}: {error}"),
                        }
                    }
                    elastic.shutdown();
                    state.value
                })
            };
            let members: Vec<_> = (0..3).map(member).collect();
            job.wait_for_view(Generation(1));
            for slot in [1, 3] {
                works.recv_timeout(Duration::from_secs(20)).expect("it is a member");
                job.registry.evict(Whom::Slot(slot), "a test");
                // It may be back so soon that one view is without the old and with the new.
                job.wait_for_members(&[0, 2, slot.max(2) + 1]);
            }
            members.into_iter().map(|member| member.join().expect("no panic")).collect()
        });
        assert!(ends[0] > 0.0 && ends.iter().all(|end| *end == ends[0]), "{kind}: {ends:?}");
    }
}

#[test]
fn a_member_that_is_in_does_not_join_again() {
    let job = Job::new(RegistryConfig::new(1));
    let elastic = job.join(Some(0));
    let Err(Error::InvalidArgument { what }) = elastic.rejoin() else { panic!("it is a member") };
    assert!(what.contains("is a member"), "{what}");
}

#[test]
fn one_that_comes_again_though_it_looks_alive_is_somebody_else() {
    let job = Job::new(RegistryConfig { max_np: 3, ..RegistryConfig::new(2) });
    thread::scope(|scope| {
        for rank in 0..2 {
            let job = &job;
            scope.spawn(move || {
                let mut elastic = job.join(Some(rank));
                let mut state = Counter::default();
                elastic.sync(&mut state).expect("a sync");
                if rank == 1 {
                    // It died, as far as anybody can see, and its successor is there before that is known.
                    testing::vanish_elastic(&elastic);
                    elastic = job.join(Some(rank));
                    assert_eq!(elastic.slot(), 2);
                    elastic.sync(&mut state).expect("a sync");
                }
                while !step(&elastic, &mut state, rank == 1 && elastic.size() == 2).expect("a step") {}
                elastic.shutdown();
            });
        }
    });
}

/// Whoever cannot reach the registry need not wait until it has given up: the others may have gone on long ago.
#[test]
fn one_that_cannot_reach_the_registry_may_join_again() {
    let job = Job::new(RegistryConfig::new(1));
    let elastic = job.join(Some(0));
    assert!(!elastic.can_rejoin());
    drop(job);
    let began = Instant::now();
    while !elastic.can_rejoin() {
        assert!(began.elapsed() < Duration::from_secs(20), "nothing is noticed");
        thread::yield_now();
    }
}
