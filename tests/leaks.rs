//! Nothing of a world is left in the process when its communicators are dropped: no descriptor, thread or mapping. Alone
//! in a program of its own, because what is counted belongs to the whole process.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Bind, KeySource, Settings, new_key};
use phalanx::elastic::{Elastic, RegistryService};
use phalanx::membership::registry::RegistryConfig;
use phalanx::types::{Error, ReduceOp};
use phalanx::{Communicator, TransportKind, testing};

/// What a process holds, in the kernel's words.
#[derive(Debug, PartialEq)]
struct Held {
    descriptors: usize,
    threads: usize,
    shared_mappings: usize,
}

fn held() -> Held {
    let entries = |path| std::fs::read_dir(path).expect("a list").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a list");
    Held {
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
        shared_mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
    }
}

/// How ranks end.
#[derive(Clone, Copy, Debug)]
enum End {
    Well,
    /// An operation is given up at its deadline, because one rank does not come.
    LateOne,
    /// One rank vanishes without a word.
    LostOne,
}

fn live(comm: &Communicator, end: End, all_well: &Barrier) {
    for count in [3, 100_000] {
        comm.allreduce(&mut vec![1f32; count], ReduceOp::Sum).expect("all are there");
    }
    all_well.wait();
    let last = comm.rank() == comm.size() - 1;
    match end {
        End::Well => comm.barrier().expect("all are there"),
        End::LateOne if last => {}
        End::LateOne => {
            let outcome = comm.with_timeout(Duration::from_millis(50)).allreduce(&mut [1u8; 9], ReduceOp::Max);
            assert!(matches!(outcome, Err(Error::Timeout { .. } | Error::PeerFailed { .. })), "{outcome:?}");
        }
        End::LostOne if last => testing::vanish(comm),
        End::LostOne => {
            let outcome = comm.barrier();
            assert!(matches!(outcome, Err(Error::PeerFailed { .. })), "{outcome:?}");
        }
    }
}

fn world(kind: TransportKind, end: End) {
    let ranks = testing::local_world(kind, &[0; 3]).expect("a world of threads");
    let all_well = Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        for comm in ranks {
            let all_well = &all_well;
            scope.spawn(move || live(&comm, end, all_well));
        }
    });
}

fn expect(before: &Held, what: &str) {
    // A thread that was joined is listed a moment longer.
    let began = Instant::now();
    while held() != *before {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}: {before:?} became {:?}", held());
        std::thread::yield_now();
    }
}

/// Two members of an elastic job; the second vanishes, the first goes on alone.
fn elastic_job(kind: TransportKind) {
    let key = new_key().expect("random bytes");
    let bind = Bind::Tcp("127.0.0.1:0".into());
    let config = RegistryConfig::new(2);
    let registry = RegistryService::start(config, key.clone(), &bind, None, Box::new(|_| {})).expect("a registry");
    let mut settings = Settings::default();
    settings.registry = Some(registry.address().into());
    settings.key = KeySource::Given(key);
    settings.transport = Some(kind);
    std::thread::scope(|scope| {
        for vanishes in [false, true] {
            let settings = &settings;
            scope.spawn(move || {
                let job = Elastic::join(settings).expect("a view");
                job.sync(&mut vec![1u8; 10]).expect("a sync");
                let step = || {
                    let mut data = [1f32; 1000];
                    job.step(|step| step.allreduce(&mut data, ReduceOp::Sum))
                };
                step().expect("a step");
                if vanishes {
                    return testing::vanish_elastic(&job);
                }
                while step().expect("a step").contributors.len() > 1 {}
            });
        }
    });
}

#[test]
fn a_world_leaves_nothing_behind() {
    let before = held();
    for kind in [TransportKind::Shm, TransportKind::Tcp] {
        (0..3).for_each(|_| elastic_job(kind));
        expect(&before, &format!("an elastic job over {kind}"));
    }
    for kind in [TransportKind::Inproc, TransportKind::Shm, TransportKind::Tcp] {
        for end in [End::Well, End::LateOne, End::LostOne] {
            (0..3).for_each(|_| world(kind, end));
            expect(&before, &format!("{kind}, {end:?}"));
        }
    }
}
