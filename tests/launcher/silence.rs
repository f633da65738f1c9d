//! Stopped, hung, dead: three things, told apart.

use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::Signal;

use crate::elastic::{Job, phalanx};
use crate::support::PATIENCE;

/// A member, as `phalanx status` shows it.
fn member(job: &Job, slot: u64) -> serde_json::Value {
    let end = phalanx(&["status", "--json", "--registry", &job.registry()], &[]);
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    let status: serde_json::Value = serde_json::from_str(&end.text()).expect("JSON");
    let members = status["members"].as_array().expect("a list");
    members.iter().find(|member| member["slot"] == slot).expect("it is there").clone()
}

/// Waits until a member is so, and `length` is above 1.5 s. There is no event to wait for: an operator asks again and
/// again.
fn wait_until(job: &Job, slot: u64, condition: &str, length: Option<&str>) {
    let began = Instant::now();
    loop {
        let member = member(job, slot);
        let is_long = length.is_none_or(|length| member[length].as_f64().is_some_and(|seconds| seconds > 1.5));
        if member["condition"] == condition && is_long {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "slot {slot} is not {condition}: {member}");
    }
}

#[test]
fn a_rank_that_hangs_and_one_that_is_stopped_are_named_and_stay() {
    let mut job = Job::new(&["-np", "3", "--min-np", "1", "--heartbeat", "0.4", "--name-silent", "1"]);
    job.wait_for(&[0, 1, 2]);
    let hang = job.folder.path().join("hang");
    rustix::fs::mknodat(CWD, &hang, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    // Slot 1 is stuck in code of its own, and gives signs of life.
    wait_until(&job, 1, "slow", Some("idle_seconds"));
    [0, 2].into_iter().for_each(|slot| assert_eq!(member(&job, slot)["condition"], "live"));
    // Slot 2 is stopped, and its host answers.
    job.signal(2, Signal::STOP);
    wait_until(&job, 2, "silent", Some("quiet_seconds"));
    assert_eq!(member(&job, 1)["condition"], "slow");
    job.signal(2, Signal::CONT);
    let writer = std::fs::File::options().write(true).open(&hang).expect("slot 1 reads");
    std::fs::remove_file(&hang).expect("ours");
    drop(writer);
    wait_until(&job, 1, "live", None);
    let end = job.assert_fine();
    for part in [
        "phalanx: slot 1: its work has not advanced for ",
        "phalanx: slot 2: no sign of life for ",
        " though its host answers: it may be stopped\n",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
    assert!(!end.stderr.contains("is out") && !end.stderr.contains("view 2"), "{}", end.stderr);
    assert_eq!(end.text().matches("trained: done").count(), 3, "{}", end.text());
}
