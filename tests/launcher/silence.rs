//! Stopped, hung, dead: three things, told apart.

use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::Signal;

use crate::elastic::{Job, phalanx};
use crate::support::PATIENCE;

/// How a member is, in the words of `phalanx status`.
fn condition(job: &Job, slot: u64) -> String {
    let end = phalanx(&["status", "--json", "--registry", &job.registry()], &[]);
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    let status: serde_json::Value = serde_json::from_str(&end.text()).expect("JSON");
    let members = status["members"].as_array().expect("a list");
    let member = members.iter().find(|member| member["slot"] == slot).expect("it is there");
    member["condition"].as_str().expect("a word").to_owned()
}

/// There is no event to wait for: an operator asks again and again.
fn wait_until(job: &Job, slot: u64, wanted: &str) {
    let began = Instant::now();
    loop {
        let condition = condition(job, slot);
        if condition == wanted {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "slot {slot} is {condition}, not {wanted}");
    }
}

#[test]
fn a_rank_that_hangs_and_one_that_is_stopped_are_named_and_stay() {
    let mut job = Job::new(&["-np", "3", "--min-np", "1", "--heartbeat", "0.4", "--name-silent", "1"]);
    job.wait_for(&[0, 1, 2]);
    let hang = job.folder.path().join("hang");
    rustix::fs::mknodat(CWD, &hang, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    // Slot 1 is stuck in code of its own, and gives signs of life.
    wait_until(&job, 1, "slow");
    assert_eq!((condition(&job, 0), condition(&job, 2)), ("live".into(), "live".into()));
    // Slot 2 is stopped, and its host answers.
    job.signal(2, Signal::STOP);
    wait_until(&job, 2, "silent");
    assert_eq!(condition(&job, 1), "slow");
    job.signal(2, Signal::CONT);
    let writer = std::fs::File::options().write(true).open(&hang).expect("slot 1 reads");
    std::fs::remove_file(&hang).expect("ours");
    drop(writer);
    wait_until(&job, 1, "live");
    let end = job.assert_fine();
    for part in [
        "phalanx: slot 1: its work has not advanced for ",
        "phalanx: slot 2: no sign of life for 1 s though its host answers: it may be stopped\n",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
    assert!(!end.stderr.contains("is out") && !end.stderr.contains("view 2"), "{}", end.stderr);
    assert_eq!(end.text().matches("trained: done").count(), 3, "{}", end.text());
}
