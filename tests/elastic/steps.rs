//! Steps, and members that fall, come and go between and within them.

use std::sync::Barrier;
use std::thread;

use phalanx::TransportKind;
use phalanx::elastic::Elastic;
use phalanx::membership::registry::{Outcome, RegistryConfig};
use phalanx::testing;
use phalanx::types::{Generation, ReduceOp};

use crate::support::{Counter, Job};

#[test]
fn all_that_begin_step_together_and_leave() {
    let job = Job::new(RegistryConfig::new(3));
    thread::scope(|scope| {
        for rank in 0..3 {
            let job = &job;
            scope.spawn(move || {
                let elastic = job.join(Some(rank));
                assert_eq!((elastic.rank(), elastic.size(), elastic.slot()), (rank, 3, rank));
                let mut state = Counter { value: rank as f64 + 7.0, ballast: vec![rank as u8; 5_000_000] };
                elastic.sync(&mut state).expect("a sync");
                assert_eq!(state, Counter { value: 7.0, ballast: vec![0; 5_000_000] });
                for step in 0..20u64 {
                    let mut data = vec![rank as u64 + step; 1000];
                    let input = vec![1u32; 7];
                    let mut output = vec![0u32; 7];
                    let outcome = elastic
                        .step(|step| {
                            step.allreduce(&mut data, ReduceOp::Sum)?;
                            step.allreduce_into(&input, &mut output, ReduceOp::Sum)
                        })
                        .expect("a step");
                    // The sync was the first.
                    assert_eq!((outcome.step, outcome.generation), (step + 2, Generation::FIRST));
                    assert_eq!(*outcome.contributors, [0, 1, 2]);
                    assert!(!outcome.view_changed && !outcome.joined && !outcome.left);
                    assert_eq!((data, output), (vec![3 + 3 * step; 1000], vec![3; 7]));
                }
                elastic.shutdown();
            });
        }
    });
    while job.registry.outcome().is_none() {
        job.next_event();
    }
    assert_eq!(job.registry.outcome(), Some(Outcome::Finished));
}

#[test]
fn when_one_falls_within_a_step_the_others_have_the_results_of_those_that_are_left() {
    one_falls_within_a_step(None);
}

#[test]
#[cfg(feature = "rdma")]
#[ignore = "needs an RDMA device"]
fn when_one_falls_within_a_step_over_rdma_the_others_go_on() {
    one_falls_within_a_step(Some(TransportKind::Rdma));
}

fn one_falls_within_a_step(transport: Option<TransportKind>) {
    let job = Job::new(RegistryConfig::new(4));
    let fell = Barrier::new(4);
    thread::scope(|scope| {
        for rank in 0..4 {
            let (job, fell) = (&job, &fell);
            scope.spawn(move || {
                let mut settings = job.settings(Some(rank));
                settings.transport = transport;
                let elastic = Elastic::join(&settings).expect("a view with this member in");
                elastic.sync(&mut Counter::default()).expect("a sync");
                // It falls in the step after the sync, and not at the end of the sync.
                fell.wait();
                let mut data = vec![10f32.powi(rank as i32); 100_000];
                if rank == 2 {
                    testing::vanish_elastic(&elastic);
                    fell.wait();
                    return;
                }
                let outcome = elastic
                    .step(|step| step.allreduce(&mut data, ReduceOp::Sum))
                    .expect("the step counts for those that are left");
                assert_eq!(*outcome.contributors, [0, 1, 3]);
                assert_eq!((outcome.generation, outcome.step), (Generation(2), 2));
                assert!(outcome.view_changed && !outcome.joined);
                assert_eq!(data, vec![1011.0; 100_000]);
                assert_eq!((elastic.rank(), elastic.size()), ([0, 1, 9, 2][rank], 3));
                assert_eq!(elastic.history().len(), 2);
                fell.wait();
                // And on.
                let mut more = [1u8];
                elastic.step(|step| step.allreduce(&mut more, ReduceOp::Sum)).expect("another step");
                assert_eq!(more, [3]);
                elastic.shutdown();
            });
        }
    });
}
