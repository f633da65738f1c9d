//! What members agree on while views change: steps behind which nobody comes in, calls made in one view after the
//! other, and faults that are raised, on all of them alike.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use phalanx::elastic::{Changes, Elastic, Keep, RawStep};
use phalanx::membership::registry::{Event, RegistryConfig};
use phalanx::testing;
use phalanx::types::{Error, Generation, ReduceOp};

use crate::support::{Counter, Job};

fn closed_step(elastic: &Elastic) -> phalanx::Result<phalanx::elastic::StepOutcome> {
    RawStep::default().finish_with(elastic, Changes::PutOff, &mut |_| Ok(()))
}

#[test]
fn newcomers_wait_for_a_step_that_lets_them_in() {
    let job = Job::new(RegistryConfig { max_np: 4, ..RegistryConfig::new(3) });
    let (is_known, fell, synced) = (AtomicBool::new(false), Barrier::new(2), Barrier::new(4));
    thread::scope(|scope| {
        for rank in 0..3 {
            let (job, is_known, fell, synced) = (&job, &is_known, &fell, &synced);
            scope.spawn(move || {
                let elastic = job.join(Some(rank));
                // This lets others in, were they there already.
                elastic.sync(&mut Counter::default()).expect("a sync");
                synced.wait();
                // Until the newcomer is known to the registry, as all find at the same step.
                loop {
                    let mut done = [u8::from(is_known.load(Ordering::Relaxed))];
                    elastic
                        .step_in_views(Changes::PutOff, |attempt| {
                            attempt.communicator.allreduce(&mut done, ReduceOp::Max)
                        })
                        .expect("a step");
                    if done == [1] {
                        break;
                    }
                }
                for _ in 0..50 {
                    let outcome = closed_step(&elastic).expect("a step");
                    assert!(!outcome.joined && outcome.generation == Generation::FIRST, "{outcome:?}");
                }
                if rank == 1 {
                    testing::vanish_elastic(&elastic);
                    fell.wait();
                    return;
                }
                // One falls, whether within this step or before it: the newcomer still waits.
                let mut sum = [1u64];
                let outcome = elastic
                    .step_in_views(Changes::PutOff, |attempt| {
                        sum = [1];
                        attempt.communicator.allreduce(&mut sum, ReduceOp::Sum)
                    })
                    .expect("a step")
                    .1;
                assert_eq!((*outcome.contributors).len() as u64, sum[0]);
                while elastic.basis().len() == 3 {
                    assert!(!closed_step(&elastic).expect("a step").joined);
                }
                assert_eq!(*elastic.basis(), [0, 2]);
                assert_eq!(elastic.agreed().expect("a view").size(), 2);
                // Now it may come.
                while !elastic.step(|_| Ok(())).expect("a step").joined {}
                assert_eq!(*elastic.basis(), [0, 2, 3]);
                elastic.sync(&mut Counter::default()).expect("a sync");
                elastic.shutdown();
            });
        }
        synced.wait();
        scope.spawn(|| {
            let elastic = job.join(None);
            assert_eq!((elastic.slot(), elastic.size()), (3, 3));
            elastic.sync(&mut Counter::default()).expect("a sync");
            elastic.shutdown();
        });
        while !matches!(job.next_event(), Event::Registered { slot: 3, .. }) {}
        is_known.store(true, Ordering::Relaxed);
        fell.wait();
    });
}

#[test]
fn calls_are_made_in_one_view_after_the_other() {
    let job = Job::new(RegistryConfig::new(3));
    let fell = Barrier::new(3);
    thread::scope(|scope| {
        for rank in 0..3 {
            let (job, fell) = (&job, &fell);
            scope.spawn(move || {
                let elastic = job.join(Some(rank));
                elastic.sync(&mut Counter::default()).expect("a sync");
                if rank == 0 {
                    testing::vanish_elastic(&elastic);
                    fell.wait();
                    return;
                }
                let mut tries = 0;
                let (gathered, outcome) = elastic
                    .step_in_views(Changes::Allowed, |attempt| {
                        tries += 1;
                        let comm = attempt.communicator;
                        assert_eq!(attempt.slots[comm.rank()], rank);
                        let mut all = vec![0u64; comm.size()];
                        comm.allgather(&[rank as u64 + 10], &mut all)?;
                        Ok(all)
                    })
                    .expect("the step counts for those that are left");
                assert_eq!((gathered, &*outcome.contributors), (vec![11, 12], &[1, 2][..]));
                assert!(tries >= 1);
                assert_eq!(elastic.agreed().expect("a view").size(), 2);
                // An error of the program's own ends the step on this rank, and nothing counts.
                let counted = elastic.counted();
                let error = elastic.step_in_views(Changes::Allowed, |_| Err::<(), _>(Error::invalid("no")));
                assert_eq!(error.map(drop), Err(Error::invalid("no")));
                assert_eq!(elastic.counted(), counted);
                fell.wait();
                elastic.shutdown();
            });
        }
    });
}

#[test]
fn where_nothing_is_kept_all_hear_of_a_change_at_the_same_step() {
    for seed in 0..10u64 {
        let job = Job::new(RegistryConfig::new(4));
        let fell = Barrier::new(4);
        let raised = thread::scope(|scope| {
            let members: Vec<_> = (0..4)
                .map(|rank| {
                    let (job, fell) = (&job, &fell);
                    scope.spawn(move || {
                        let elastic = job.join(Some(rank)).with_keep(Keep::Nothing);
                        elastic.sync(&mut Counter::default()).expect("a sync");
                        let mut raised = None;
                        let mut more = 0;
                        while more < 20 {
                            if rank == 2 && elastic.counted() > 5 + 3 * seed {
                                testing::vanish_elastic(&elastic);
                                fell.wait();
                                return None;
                            }
                            let mut data = [1u64; 100];
                            match elastic.step(|step| step.allreduce(&mut data, ReduceOp::Sum)) {
                                Ok(outcome) => {
                                    assert_eq!(data[0], outcome.contributors.len() as u64);
                                    more += usize::from(raised.is_some());
                                }
                                Err(Error::ViewChanged { generation, .. }) => {
                                    assert_eq!((generation, raised), (Generation(2), None));
                                    raised = Some(elastic.counted());
                                    elastic.settle().expect("a view that all agree on");
                                    assert_eq!(*elastic.basis(), [0, 1, 3]);
                                }
                                Err(error) => panic!("rank {rank}: {error}"),
                            }
                        }
                        fell.wait();
                        elastic.shutdown();
                        raised
                    })
                })
                .collect();
            members.into_iter().filter_map(|member| member.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(raised.len() == 3 && raised.iter().all(|counted| *counted == raised[0]), "{raised:?}");
    }
}
