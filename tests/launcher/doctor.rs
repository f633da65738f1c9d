//! `phalanx doctor`, as a user and as a program read it.

use std::process::{Command, Stdio};

use crate::support::{Ended, ended};

fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.arg("doctor").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(variables.iter().copied());
    ended(command)
}

#[test]
fn the_machine_is_described_and_each_thing_judged() {
    let end = doctor(&[], &[]);
    assert_eq!(end.code(), Some(0), "{}", end.text());
    let text = end.text();
    for part in [
        "System",
        "Processors",
        "Memory",
        "Limits",
        "Network",
        "Libraries",
        "Python",
        "Launch",
        "What Phalanx would use",
    ] {
        assert!(text.contains(&format!("\n{part}")), "{part} in\n{text}");
    }
    for name in [
        "NCCL",
        "CUDA driver",
        "RDMA verbs",
        "shared memory",
        "single copy",
        "open files",
        "locked memory",
        "caches",
        "NUMA",
    ] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
    assert!(text.contains("Nothing here prevents Phalanx from working"));
}

#[test]
fn the_report_is_one_json_object() {
    let end = doctor(&["--json"], &[]);
    assert_eq!(end.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&end.stdout).expect("JSON");
    assert_eq!(report["healthy"], true);
    assert!(report["cores"]["usable"].as_u64().is_some_and(|count| count > 0));
    assert!(report["limits"]["open_files"].as_u64().is_some_and(|count| count > 0));
    let libraries = report["libraries"].as_array().expect("a list");
    assert!(libraries.iter().any(|library| library["looked_for"][0] == "libcuda.so.1"));
    let interfaces = report["interfaces"].as_array().expect("a list");
    assert!(interfaces.iter().any(|interface| interface["loopback"] == true));
    for finding in report["findings"].as_array().expect("a list") {
        assert!(["ok", "note", "problem"].contains(&finding["state"].as_str().expect("a word")));
    }
}

#[test]
fn single_copy_is_tried_unless_it_is_not_wanted() {
    let report = |variables: &[(&str, &str)]| -> serde_json::Value {
        serde_json::from_slice(&doctor(&["--json"], variables).stdout).expect("JSON")
    };
    let (wanted, forgone) = (report(&[]), report(&[("PHALANX_SINGLE_COPY", "0")]));
    assert_eq!((&wanted["single_copy"]["allowed"], &forgone["single_copy"]["allowed"]), (&true.into(), &false.into()));
    assert_eq!(wanted["single_copy"]["works"], wanted["single_copy"]["error"].is_null());
    let finding = |report: &serde_json::Value| {
        let findings = report["findings"].as_array().expect("a list");
        findings.iter().find(|finding| finding["name"] == "single copy").expect("a finding").clone()
    };
    assert_eq!(finding(&wanted)["state"] == "ok", wanted["single_copy"]["works"] == true);
    assert_eq!(finding(&forgone)["state"], "ok");
    assert!(finding(&forgone)["text"].as_str().is_some_and(|text| text.contains("PHALANX_SINGLE_COPY=0")));
}

#[test]
fn what_prevents_working_is_a_problem_with_an_exit_code() {
    let end = doctor(&[], &[("PHALANX_RANK", "1")]);
    assert_eq!(end.code(), Some(1), "{}", end.text());
    assert!(end.text().contains("PROBLEM") && end.text().contains("PHALANX_SIZE"), "{}", end.text());
    assert!(end.text().ends_with("1 problem prevents Phalanx from working.\n"), "{}", end.text());
}

#[test]
fn a_key_is_never_shown() {
    let key = "0123456789abcdef".repeat(4);
    for arguments in [&[][..], &["--json"]] {
        let end = doctor(arguments, &[("PHALANX_KEY", &key), ("PHALANX_RANK", "0"), ("PHALANX_SIZE", "2")]);
        assert!(end.text().contains("PHALANX_KEY") && !end.text().contains(&key));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut command = Command::new("sh");
    let line =
        format!("{} doctor --variables | head -n 1; {0} doctor --json | head -n 1", env!("CARGO_BIN_EXE_phalanx"));
    command.args(["-c", &line]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let end = ended(command);
    assert!(end.text().contains("PHALANX_RANK") && end.stderr.is_empty(), "{}{}", end.text(), end.stderr);
}
