//! The file in which a launcher's registry keeps what it knows: it has one owner, and ends with its members.

use rustix::process::Signal;

use crate::elastic::{Job, phalanx};

#[test]
fn a_launcher_that_was_killed_begins_anew_and_says_what_it_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.state");
    let options = ["-np", "3", "--min-np", "1", "--registry-state", file.to_str().expect("a name")];
    let mut job = Job::in_folder(folder, &options);
    job.wait_for(&[0, 1, 2]);
    let launcher = job.launcher.child.id();
    // Nobody else may have the file meanwhile.
    let key = "ab".repeat(32);
    let registry = ["registry", "--listen", "127.0.0.1:0", "-np", "3", "--state", options[5]];
    for second in [&[&["run"], &options[..], &["true"]].concat(), &registry[..]] {
        let end = phalanx(second, &[("PHALANX_KEY", &key)]);
        assert_eq!(end.code(), Some(1), "{second:?}: {}", end.stderr);
        let who = format!("state file {} is in use by process {launcher} on ", options[5]);
        assert!(end.stderr.contains(&who), "{second:?}: {}", end.stderr);
    }
    job.signal(1, Signal::KILL);
    job.wait_for(&[0, 2, 3]);
    job.launcher.signal(Signal::KILL);
    let mut old = job.launcher;
    old.wait_status();
    assert!(file.exists());

    let mut job = Job::in_folder(job.folder, &options);
    job.wait_for(&[0, 1, 2]);
    let status = phalanx(&["status", "--registry", &job.registry()], &[]);
    // The last view was the third: without slot 1, then with slot 3.
    assert!(status.text().starts_with("steady, view 4: 3 ranks"), "{}\n{}", status.text(), status.stderr);
    let end = job.assert_fine();
    for part in [
        format!("phalanx: {}: found job ", options[5]),
        " at view 3, slots 0, 2-3, ".into(),
        format!("; these members are gone with the launcher that was process {launcher} on "),
        ", so that the job begins anew, with view 4\n".into(),
    ] {
        assert!(end.stderr.contains(&part), "{part:?} in\n{}", end.stderr);
    }
    assert!(!file.exists(), "it is of no more use");
}

#[test]
fn a_file_that_cannot_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("not there").join("job.state");
    let file = file.to_str().expect("a name");
    for command in [
        &["run", "-np", "1", "--min-np", "1", "--registry-state", file, "true"][..],
        &["registry", "--listen", "127.0.0.1:0", "-np", "1", "--state", file],
    ] {
        let end = phalanx(command, &[("PHALANX_KEY", &"ab".repeat(32))]);
        assert_eq!(end.code(), Some(1), "{command:?}: {}", end.stderr);
        let what = format!("the registry's state file {file} cannot be written: No such file or directory");
        assert!(end.stderr.contains(&what), "{command:?}: {}", end.stderr);
    }
}
