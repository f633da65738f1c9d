//! The registry dies, and the launcher dies, while ranks train.

use std::time::Duration;

use phalanx::TransportKind;
use rustix::process::Signal;

use crate::job::{Job, Options};
use crate::launched::Launched;
use crate::leftovers::abstract_sockets;

/// The registry is killed and started again from its file, three times, while ranks train: they train while it is away.
/// In the second and third round a rank dies meanwhile, and a newcomer comes when it is back.
fn killed_and_started_again(transport: TransportKind) {
    let mut job = Job::start(Options::new(4, transport), &[]);
    let mut ranks = job.living();
    job.until_together(&ranks);
    job.until_all_go_on(&ranks, 5);
    let mut newest = 1;
    for round in 0..3 {
        job.kill_registry();
        let before = job.oracle.highest();
        job.until("they train while the registry is away", |job| job.oracle.highest() >= before + 20);
        let away = job.oracle.highest() - before;
        if round > 0 {
            let fallen = ranks.remove(round);
            job.processes[&fallen].signal(Signal::KILL);
            job.until("it is dead", |job| !job.processes[&fallen].is_alive());
        }
        job.start_registry(None);
        job.until_together(&ranks);
        job.until_all_go_on(&ranks, 5);
        if round > 0 {
            ranks.push(job.add(None, None));
            job.until_together(&ranks);
            job.until_all_go_on(&ranks, 5);
        }
        let generation = job.oracle.step(job.oracle.highest()).map_or(0, |step| step.generation);
        assert!(generation > newest || (round == 0 && generation == 1), "{generation} after {newest}");
        newest = generation;
        println!("{transport}: {away} steps while the registry was away, generation {generation} after it");
    }
    assert!(job.state_file().exists());
    let registry = job.registry.expect("a registry");
    let oracle = job.finish_with(|job| {
        assert_eq!(job.processes[&registry].status.and_then(|status| status.code()), Some(0));
    });
    assert!(oracle.highest() > 60);
}

#[test]
fn the_registry_is_killed_and_started_again_under_load() {
    killed_and_started_again(TransportKind::Shm);
    killed_and_started_again(TransportKind::Tcp);
}

/// All that a launcher started, whatever it does, is gone with it.
#[test]
fn a_killed_launcher_leaves_nothing_behind() {
    for transport in ["shm", "tcp"] {
        let options = ["-np", "4", "--min-np", "1", "--transport", transport];
        let mut job = Launched::start("a killed launcher", &options, |_| {});
        job.until("four ranks train", |job| job.training().len() == 4);
        // One is stopped, one has just died, so that the launcher is busy with both.
        job.ranks[&1].signal(Signal::STOP);
        job.ranks[&2].signal(Signal::KILL);
        let launcher = job.launcher.id();
        // What is to be gone is there.
        assert!(job.place.processes().len() >= 4);
        assert!(transport == "tcp" || job.place.memories() > 0);
        assert!(!abstract_sockets(launcher).is_empty());
        job.launcher.kill().expect("it lives");
        let status = job.wait();
        assert!(crate::job::was_killed(status), "{status}");
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !abstract_sockets(launcher).is_empty() {
            assert!(std::time::Instant::now() < until, "{:?}", abstract_sockets(launcher));
            std::thread::yield_now();
        }
    }
}
