//! The commands `demo` and `bench` as a user runs them: real processes, real carriers.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

const PHALANX: &str = env!("CARGO_BIN_EXE_phalanx");

/// Long enough for a machine that is busy with other tests; a hang is longer.
const LIMIT: Duration = Duration::from_secs(120);

fn phalanx(arguments: &[&str]) -> Command {
    let mut command = Command::new(PHALANX);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends a process that outlives the limit, so that a hang is a failure with its output.
fn wait(child: &mut Child) -> ExitStatus {
    let pid = Pid::from_child(child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("a pidfd");
    let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec::try_from(LIMIT).expect("a limit");
    if rustix::event::poll(&mut polled, Some(&limit)) == Ok(0) {
        child.kill().expect("a child");
    }
    child.wait().expect("a child")
}

fn run(arguments: &[&str]) -> Output {
    finish(phalanx(arguments))
}

fn finish(mut command: Command) -> Output {
    let mut child = command.spawn().expect("the program");
    let stdout = child.stdout.take().expect("a pipe");
    let stderr = child.stderr.take().expect("a pipe");
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes)
        })
    };
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
    let status = wait(&mut child);
    let join =
        |thread: std::thread::JoinHandle<std::io::Result<Vec<u8>>>| thread.join().expect("no panic").expect("a pipe");
    Output { status, stdout: join(stdout), stderr: join(stderr) }
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(ToString::to_string).collect()
}

/// The lines of a run that went well.
fn well(arguments: &[&str]) -> Vec<String> {
    let output = run(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    lines(&output)
}

fn object(line: Option<&String>) -> Value {
    serde_json::from_str(line.expect("a line")).expect("an object")
}

#[test]
fn ranks_learn_and_agree_and_the_seed_decides_the_weights() {
    let demo = |arguments: &[&str]| object(well(&[&["demo", "--json"], arguments].concat()).last());
    let first = demo(&["--seed", "7"]);
    assert_eq!((&first["ranks"], &first["steps"]), (&4.into(), &660.into()));
    assert!(first["accuracy"].as_f64().is_some_and(|accuracy| accuracy >= 0.95), "{first}");
    assert!(first["communication_share"].as_f64().is_some_and(|share| share > 0.0 && share < 1.0), "{first}");
    assert!(first["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{first}");
    let digests = first["digests"].as_array().expect("a list");
    assert!(digests.len() == 4 && digests.iter().all(|digest| digest == &digests[0]), "{first}");

    let again = demo(&["--seed", "7", "--transport", "tcp", "--algorithm", "ring"]);
    assert_eq!((&again["transport"], &again["algorithm"]), (&"tcp".into(), &"ring".into()));
    assert_eq!(again["digests"], first["digests"], "another transport and algorithm");
    let over_shm = demo(&["--seed", "7", "--transport", "shm"]);
    assert_eq!((&over_shm["transport"], &over_shm["digests"]), (&"shm".into(), &first["digests"]));
    let other = demo(&["--seed", "8", "--epochs", "1", "-n", "2"]);
    assert_ne!(other["digests"][0], first["digests"][0]);
}

#[test]
fn a_person_sees_a_row_an_epoch() {
    let lines = well(&["demo", "--ranks", "1", "--epochs", "2"]);
    assert!(lines[0].starts_with("1 rank trains a 64-128-64-10 network"), "{lines:?}");
    assert!(lines[1].contains("test accuracy") && lines[1].contains("samples/s"), "{lines:?}");
    assert!(lines[2].trim_start().starts_with("1 ") && lines[3].trim_start().starts_with("2 "), "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.starts_with("  rank 0: ")), "{lines:?}");
}

#[test]
fn an_existing_world_is_used() {
    let lines = well(&["run", "-np", "2", PHALANX, "demo", "--epochs", "1", "--json"]);
    let summary = lines.last().expect("a line");
    let summary: Value = serde_json::from_str(&summary[summary.find('{').expect("an object")..]).expect("an object");
    assert_eq!((&summary["ranks"], summary["digests"].as_array().map(Vec::len)), (&2.into(), Some(2)));

    let output = run(&["run", "-np", "2", PHALANX, "bench", "allreduce", "-np", "3"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("3 ranks asked for inside a world of 2"), "{text}");
}

#[test]
fn requests_that_mean_nothing_are_refused_with_what_was_given() {
    for (arguments, expected) in [
        (&["demo", "--ranks", "100"][..], "100 ranks cannot share the 64 images"),
        (&["demo", "--ranks", "0"], "--ranks"),
        (&["demo", "--batch", "2000"], "2000"),
        (&["demo", "--transport", "pigeon"], "pigeon"),
        (&["bench", "allsing"], "allsing"),
        (&["bench", "allreduce", "--bytes", "8T"], "8T"),
        (&["bench", "allreduce", "-np", "2", "--root", "2"], "--root 2"),
        (&["bench", "allreduce", "--op", "bit_and"], "bit_and"),
        (&["bench", "gather", "--in-place"], "gather"),
        (&["bench", "gather", "--algorithm", "ring"], "linear, binomial expected for gather"),
        (&["bench", "send_recv", "--algorithm", "ring"], "nothing to choose"),
        (&["explain", "allreduce", "-np", "0"], "-np 0"),
        (&["explain", "send_recv"], "one message between two ranks"),
        (&["explain", "allreduce", "--measure", "--hosts", "2"], "this machine is one host"),
        (&["explain", "--table", "--measure"], "cannot be used with"),
        (&["explain", "allreduce", "--namespaces", "a,b"], "--measure"),
        (&["explain", "allreduce", "--measure", "--namespaces", "no such host,b"], "namespace"),
        (&["simulate", "send_recv"], "one message between two ranks"),
        (&["simulate", "--ranks", "0"], "--ranks 0"),
        (&["simulate", "--fabric", "no such fabric"], "neither a preset (laptop, "),
        (&["simulate", "--algorithms", "bruck"], "--algorithms bruck given, two_shot"),
        (&["bench", "allreduce", "--hosts", "no such host,b"], "namespace"),
        (&["bench", "reduce", "--limit"], "the limit of memory is that of allreduce, reduce given"),
        (&["bench", "--limit", "--registered"], "cannot be used with"),
        (&["bench", "reduce", "--sweep"], "cannot be used with"),
        (&["bench", "allreduce", "--limit", "-np", "5000"], "5000 ranks need a core each"),
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {:?}", lines(&output));
    }
}

#[test]
fn forecasts_follow_the_fabric_that_is_described() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ours.fabric");
    let printed = run(&["simulate", "--print", "--fabric", "ethernet-10g"]);
    assert!(printed.status.success());
    std::fs::write(&file, &printed.stdout).expect("a file");
    let forecast = |fabric: &str| {
        let output = run(&["simulate", "--ranks", "8:32", "--bytes", "1M", "--fabric", fabric, "--json"]);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>()
    };
    let preset = forecast("ethernet-10g");
    // Three numbers of ranks, five algorithms; one of each row is the fastest.
    assert_eq!(preset.len(), 15);
    assert_eq!(preset.iter().filter(|cell| cell["fastest"] == true).count(), 3);
    assert_eq!(forecast(file.to_str().expect("a path")), preset, "what is printed is what was meant");
    let table = run(&["simulate", "--ranks", "8", "--bytes", "1M", "--algorithms", "ring"]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.starts_with("# allreduce of 1 MiB on clos-400g-4to1"), "{text}");
    let csv = run(&["simulate", "--ranks", "8", "--bytes", "1M", "--algorithms", "ring", "--csv"]);
    assert_eq!(lines(&csv).len(), 2);
}

/// Processes with `word` in their command line, but for this one.
fn processes_with(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if line.split('\0').any(|other| other == word) {
            found.push(line.replace('\0', " "));
        }
    }
    found
}

#[test]
fn an_interrupt_ends_all_of_it() {
    // The seed is unlike any other process's.
    let seed = (u64::from(std::process::id()) << 20 | 0xd1617).to_string();
    let mut child = phalanx(&["demo", "--seed", &seed, "--epochs", "1000000"]).spawn().expect("the program");
    let mut rows = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // The table is under way: all ranks train.
    assert!(rows.by_ref().take(3).all(|row| row.is_ok()));
    assert!(processes_with(&seed).len() > 4);
    let began = Instant::now();
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let status = wait(&mut child);
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(processes_with(&seed), [""; 0]);
}

#[test]
fn every_collective_is_measured_over_both_carriers() {
    for collective in [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "reduce_scatter",
        "alltoall",
        "gather",
        "scatter",
        "barrier",
        "send_recv",
    ] {
        for transport in ["shm", "tcp"] {
            let arguments = ["bench", collective, "-np", "3", "--bytes", "8,4099", "--iters", "5", "--json"];
            let rows = well(&[&arguments[..], &["--transport", transport]].concat());
            assert_eq!(rows.len(), if collective == "barrier" { 1 } else { 2 }, "{rows:?}");
            for row in &rows {
                let row = object(Some(row));
                assert_eq!((&row["collective"], &row["ranks"]), (&collective.into(), &3.into()));
                assert_eq!(
                    (&row["transport"], &row["wrong"], &row["checked"]),
                    (&transport.into(), &0.into(), &5.into())
                );
                for key in ["time_us_p50", "time_us_p99", "algbw_gbs", "busbw_gbs"] {
                    assert!(row[key].is_f64(), "{key} of {row}");
                }
            }
        }
    }
}

/// Algorithms are tried, one is kept, and all ranks make the same call all the time: a difference would be an error.
#[test]
fn algorithms_change_while_it_runs() {
    let cache = tempfile::tempdir().expect("a folder");
    // The second time the figures of the first are there.
    for time in ["measured", "kept"] {
        let mut command =
            phalanx(&["bench", "-np", "4", "--transport", "tcp", "--bytes", "8,32K", "--iters", "150", "--json"]);
        command.env("PHALANX_CHOICE", "free").env("PHALANX_TUNING", "1").env("XDG_CACHE_HOME", cache.path());
        command.env("PHALANX_LOG", "phalanx=debug");
        let output = finish(command);
        assert!(output.status.success(), "{time}: {}", String::from_utf8_lossy(&output.stderr));
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("the ranks agreed on an algorithm"), "{time}: {log}");
        assert_eq!(log.contains("links measured"), time == "measured", "{log}");
        let rows: Vec<Value> = lines(&output).iter().map(|line| object(Some(line))).collect();
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["checked"] == 150), "{rows:?}");
        let kept = std::fs::read_dir(cache.path().join("phalanx")).expect("figures were kept").count();
        assert_eq!(kept, 1, "{time}");
    }
}

#[test]
fn the_limit_of_the_memory_is_measured() {
    // One thread, wherever this runs.
    for limit in ["--limit", "--limit=private"] {
        for line in &well(&["bench", limit, "-np", "1", "--bytes", "8,4099", "--json"]) {
            let row = object(Some(line));
            let named = (&row["algorithm"], &row["wrong"], &row["ranks"]);
            assert_eq!(named, (&"limit".into(), &0.into(), &1.into()), "{row}");
            assert!(row["time_us_p50"].as_f64() > Some(0.0), "{row}");
        }
    }
}

/// Every algorithm that serves has a time beside its prediction, in words and as JSON.
#[test]
fn an_explanation_has_what_was_measured() {
    let asked = ["explain", "reduce_scatter", "--bytes", "4K", "-np", "3", "--transport", "tcp", "--measure"];
    let text = well(&asked).join("\n");
    assert!(text.contains("  measured    ") && text.contains("times what is predicted"), "{text}");
    let explanation = object(well(&[&asked[..], &["--json"]].concat()).last());
    let others = explanation["alternatives"].as_array().expect("a list");
    assert_eq!(others.len(), phalanx::schedule::algorithms_for(phalanx::types::Collective::ReduceScatter).len());
    for other in others {
        for key in ["seconds", "measured_seconds"] {
            assert!(other[key].as_f64() > Some(0.0), "{key} of {other}");
        }
    }
    let unmeasured = object(well(&[&asked[..asked.len() - 1], &["--json"]].concat()).last());
    let others = unmeasured["alternatives"].as_array().expect("a list");
    assert!(others.iter().all(|other| other.get("measured_seconds").is_none_or(Value::is_null)), "{unmeasured}");
}

#[test]
fn sweeps_and_registered_buffers_are_measured() {
    let cells = well(&["bench", "--sweep=broadcast", "-np", "2", "--bytes", "8,4K", "--json"]);
    assert_eq!(cells.len(), 2, "{cells:?}");
    for cell in cells.iter().map(|line| object(Some(line))) {
        assert!(cell["wrong"] == 0 && cell["ways"].as_array().is_some_and(|ways| ways.len() > 1), "{cell}");
    }
    let rows = well(&["bench", "--registered", "-np", "2", "--transport", "shm", "--bytes", "8,256K", "--json"]);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().all(|line| object(Some(line))["wrong"] == 0), "{rows:?}");
}

#[test]
fn threads_and_forced_algorithms_are_measured_too() {
    let rows = well(&[
        "bench",
        "allreduce",
        "--threads",
        "-np",
        "4",
        "--bytes",
        "1:64",
        "--factor",
        "4",
        "--dtype",
        "bf16",
        "--op",
        "max",
        "--algorithm",
        "ring",
        "--in-place",
        "--iters",
        "3",
        "--json",
    ]);
    let bytes: Vec<_> = rows.iter().map(|row| object(Some(row))["bytes"].clone()).collect();
    assert_eq!(bytes, [2, 4, 16, 64]);
    let row = object(rows.last());
    assert_eq!(
        (&row["transport"], &row["algorithm"], &row["in_place"]),
        (&"inproc".into(), &"ring".into(), &true.into())
    );
    assert_eq!((&row["dtype"], &row["op"], &row["count"]), (&"bf16".into(), &"max".into(), &32.into()));
}

#[test]
fn ranks_fall_and_come_and_the_training_goes_on() {
    for (seed, transport) in [("1", "shm"), ("5", "tcp")] {
        let lines = well(&["demo", "--chaos", "--json", "--seed", seed, "--transport", transport]);
        let report = object(lines.last());
        assert!(report["accuracy"].as_f64().is_some_and(|accuracy| accuracy >= 0.95), "{report}");
        assert_eq!((&report["lost_steps"], &report["repeated_steps"]), (&0.into(), &0.into()), "{report}");
        let digests = report["digests"].as_array().expect("a list");
        assert!(digests.len() == 5 && digests.iter().all(|digest| digest == &digests[0]), "{report}");
        // Two are killed, one is stopped, four come.
        let views = report["views"].as_array().expect("a list");
        let causes: Vec<&str> = views.iter().filter_map(|view| view["cause"].as_str()).collect();
        // One view may have several causes: those who come at the same time come in together.
        let told = |words: &[&str]| {
            let one = |cause: &&str| words.iter().any(|word| cause.contains(word));
            causes.iter().flat_map(|causes| causes.split("; ")).filter(one).count()
        };
        assert_eq!(told(&[" is gone: "]), 2, "{causes:?}");
        assert_eq!(told(&["silent"]), 1, "{causes:?}");
        assert_eq!(told(&["joined"]), 4, "{causes:?}");
        for (number, view) in (1u64..).zip(views) {
            assert_eq!(view["generation"], number, "{report}");
            // Zero where the view changed while all were computing.
            assert!(view["held_up_ms"].as_f64().is_some_and(|held_up| (0.0..10_000.0).contains(&held_up)), "{report}");
        }
        assert_eq!(views.last().and_then(|view| view["members"].as_array()).map(Vec::len), Some(5), "{report}");
    }
}
