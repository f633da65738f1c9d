//! Nothing of a job outlives it, whoever is killed.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal};

use crate::support::{PATIENCE, Started, hold, hold_named, is_ready, script};

/// A worker that ignores all it can, with a child, and a grandchild in a session of its own whose parent is gone. Each
/// says its number.
const STUBBORN: &str = r#"
trap '' TERM INT HUP QUIT
echo worker $$
sh -c 'echo child $$; exec sleep 1000' &
setsid sh -c 'setsid sh -c "echo grandchild \$\$; exec sleep 1000" & exit 0' &
while :; do sleep 1000; done
"#;

/// Starts two ranks of it and takes hold of all their processes.
fn stubborn(options: &[&str]) -> (Started, Vec<OwnedFd>) {
    let mut job = Started::of(script(2, options, STUBBORN));
    let lines = job.lines(6);
    let processes = lines.iter().map(|line| hold_named(line)).collect();
    (job, processes)
}

fn all_end(processes: &[OwnedFd]) {
    for process in processes {
        assert!(is_ready(process, PATIENCE), "a process is left");
    }
}

/// The guards of a launcher.
fn guards(job: &Started) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", job.pid().as_raw_nonzero());
    match std::fs::read_to_string(path) {
        Ok(text) => text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect(),
        Err(_) => panic!("this kernel does not list children"),
    }
}

#[test]
fn killing_the_launcher_leaves_no_process() {
    let (mut job, mut processes) = stubborn(&[]);
    processes.extend(guards(&job).into_iter().map(hold));
    assert_eq!(processes.len(), 8);
    job.signal(Signal::KILL);
    job.wait_status();
    all_end(&processes);
}

#[test]
fn ending_the_launcher_leaves_no_process() {
    let (job, processes) = stubborn(&["--grace", "0.2"]);
    job.signal(Signal::TERM);
    assert_eq!(job.wait().code(), Some(143));
    all_end(&processes);
}

#[test]
fn killing_a_guard_fails_the_job_and_leaves_no_process() {
    let (job, processes) = stubborn(&["--grace", "0.2"]);
    rustix::process::kill_process(guards(&job)[0], Signal::KILL).expect("it lives");
    let end = job.wait();
    assert_eq!(end.code(), Some(137), "{}", end.stderr);
    assert!(end.stderr.contains("the guard of rank 0 was killed"), "{}", end.stderr);
    all_end(&processes);
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let mut job = Started::of(script(
        2,
        &["--grace", "0.2"],
        r#"setsid sh -c 'trap "" TERM; echo left $$; exec sleep 1000' & [ $PHALANX_RANK = 0 ] && exec sleep 1000; read x < /dev/null; sleep 0.1; exit 0"#,
    ));
    let lines = job.lines(2);
    assert!(is_ready(hold_named(&lines[1]), PATIENCE), "rank 1 has ended, and with it what it left");
    assert!(!is_ready(hold_named(&lines[0]), std::time::Duration::ZERO), "rank 0 goes on");
    job.signal(Signal::TERM);
    assert_eq!(job.wait().code(), Some(143));
}
