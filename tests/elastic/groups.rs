//! Groups of a view end with it, on every member, also where the group has lost nobody.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use phalanx::elastic::Elastic;
use phalanx::membership::registry::RegistryConfig;
use phalanx::types::{Error, Generation, ReduceOp};
use phalanx::wire::registry::Whom;
use phalanx::{Communicator, TransportKind, testing};

use crate::support::{Counter, Job};

/// What ends the view.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// Rank 3 dies without a word.
    Dies,
    /// The registry is told to take rank 3 out.
    Evicted,
    /// A process joins, which members agree to at the end of a step.
    Joined,
}

fn is_view_changed<T: std::fmt::Debug>(outcome: Result<T, Error>, what: &str) {
    match outcome {
        Err(Error::ViewChanged { .. }) => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn sum(comm: &Communicator, value: u64) -> Result<u64, Error> {
    let mut data = vec![value; 5_000];
    comm.allreduce(&mut data, ReduceOp::Sum)?;
    assert!(data.iter().all(|element| *element == data[0]), "torn");
    Ok(data[0])
}

/// The groups of a view: halves by split, halves by list (which costs no message), and the even or odd ranks of a half.
fn groups(comm: &Communicator) -> Result<[Communicator; 3], Error> {
    let here = "this rank is in it";
    let (rank, half) = (comm.rank(), comm.size().div_ceil(2));
    let split = comm.split(Some((rank / half) as u64), 0)?.expect(here);
    let list: Vec<usize> = (0..comm.size()).filter(|other| other / half == rank / half).collect();
    let list = comm.subgroup(&list)?.expect(here);
    let nested = list.split(Some(list.rank() as u64 % 2), 0)?.expect(here);
    Ok([split, list, nested])
}

/// A member of four. Of each half the lower rank waits in a group when the view ends, and the upper one comes later.
fn live(job: &Job, kind: TransportKind, rank: usize, end: End, points: &[Barrier; 2]) {
    let mut settings = job.settings(Some(rank));
    settings.transport = Some(kind);
    let elastic = Elastic::join(&settings).expect("a view with this member in");
    elastic.sync(&mut Counter::default()).expect("a sync");
    let comm = elastic.communicator().expect("a view");
    let old = groups(&comm).expect("groups");
    assert_eq!(sum(&old[0], rank as u64).expect("a sum"), [1, 1, 5, 5][rank]);
    points[0].wait();
    let what = format!("{kind}, {end:?}, rank {rank}");
    if rank == 3 && end == End::Dies {
        testing::vanish_elastic(&elastic);
    }
    if end != End::Joined && [0, 2].contains(&rank) {
        // Its partner is not going to come: for rank 0 it lives, for rank 2 it does not.
        is_view_changed(sum(&old[0], 1), &what);
    }
    if rank == 3 && end != End::Joined {
        points[1].wait();
        if end == End::Evicted {
            // The others may have heard of it earlier.
            let mut data = [0u8];
            let outcome = elastic.step(|step| step.allreduce(&mut data, ReduceOp::Sum));
            assert!(matches!(outcome, Err(Error::Evicted { .. })), "{what}: {outcome:?}");
            let outcome = sum(&old[0], 1);
            assert!(matches!(outcome, Err(Error::Evicted { .. })), "{what}: {outcome:?}");
        }
        return;
    }
    let next = if end == End::Joined {
        while elastic.size() == 4 {
            let mut data = [0u8];
            if elastic.step(|step| step.allreduce(&mut data, ReduceOp::Sum)).expect("a step").joined {
                elastic.sync(&mut Counter::default()).expect("a sync");
            }
        }
        elastic.communicator().expect("a view")
    } else {
        // The registry has made the next view: so this member has stopped for it.
        points[1].wait();
        elastic.communicator().expect("the next view")
    };
    assert_eq!((next.view().generation, next.size()), (Generation(2), if end == End::Joined { 5 } else { 3 }));
    // Whatever is made of the old view now is over, too.
    for group in &old {
        is_view_changed(sum(group, 1), &what);
    }
    is_view_changed(sum(&comm, 1), &what);
    is_view_changed(comm.split(Some(0), 0), &what);
    let late = comm.subgroup(&[0, 1, 2, 3]).expect("costs no message").expect("this rank is in it");
    is_view_changed(sum(&late, 1), &what);
    is_view_changed(comm.send(&[1u8], (rank + 1) % 3, 9), &what);
    is_view_changed(comm.recv(&mut [1u8], (rank + 1) % 3, 9), &what);
    go_on(&elastic, &next, &what);
}

/// Groups of the new view work, and so does what comes after them.
fn go_on(elastic: &Elastic, comm: &Communicator, what: &str) {
    let size = comm.size() as u64;
    let [split, list, nested] = groups(comm).unwrap_or_else(|error| panic!("{what}: {error}"));
    for _ in 0..3 {
        assert_eq!(sum(&split, 1), Ok(split.size() as u64), "{what}");
        assert_eq!(sum(&list, 2), Ok(2 * list.size() as u64), "{what}");
        assert_eq!(sum(&nested, 3), Ok(3 * nested.size() as u64), "{what}");
        assert_eq!(sum(comm, 1), Ok(size), "{what}");
    }
    let mut data = [1u64];
    elastic.step(|step| step.allreduce(&mut data, ReduceOp::Sum)).expect("a step");
    assert_eq!(data, [size]);
    elastic.shutdown();
}

fn with(kind: TransportKind, end: End) {
    let config = RegistryConfig { max_np: 5, ..RegistryConfig::new(4) };
    let job = Job::new(config.with_heartbeat_limit(Duration::from_secs(1)));
    let points = [Barrier::new(5), Barrier::new(5)];
    thread::scope(|scope| {
        for rank in 0..4 {
            let (job, points) = (&job, &points);
            scope.spawn(move || live(job, kind, rank, end, points));
        }
        job.wait_for_view(Generation(1));
        points[0].wait();
        match end {
            End::Dies => {}
            End::Evicted => job.registry.evict(Whom::Slot(3), "a test"),
            End::Joined => {
                let mut settings = job.settings(None);
                settings.transport = Some(kind);
                scope.spawn(move || {
                    let elastic = Elastic::join(&settings).expect("a view with this member in");
                    elastic.sync(&mut Counter::default()).expect("a sync");
                    let comm = elastic.communicator().expect("a view");
                    go_on(&elastic, &comm, "the newcomer");
                });
            }
        }
        if end != End::Joined {
            job.wait_for_view(Generation(2));
            points[1].wait();
        }
    });
}

#[test]
fn groups_end_when_a_member_dies() {
    [TransportKind::Tcp, TransportKind::Shm].into_iter().for_each(|kind| with(kind, End::Dies));
}

#[test]
fn groups_end_when_a_member_is_taken_out() {
    [TransportKind::Tcp, TransportKind::Shm].into_iter().for_each(|kind| with(kind, End::Evicted));
}

#[test]
fn groups_end_when_a_process_joins() {
    [TransportKind::Tcp, TransportKind::Shm].into_iter().for_each(|kind| with(kind, End::Joined));
}
