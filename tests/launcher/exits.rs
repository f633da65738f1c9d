//! Exit codes, who decides them, and what is said.

use std::time::Instant;

use crate::support::{ended, fifo, run, script};

#[test]
fn all_zero_is_zero() {
    let end = ended(script(3, &[], "exit 0"));
    assert_eq!(end.code(), Some(0));
    assert_eq!((end.stdout.as_slice(), end.stderr.as_str()), (b"".as_slice(), ""));
}

#[test]
fn the_first_rank_that_fails_decides_and_is_quoted() {
    // Not before the others are there: a rank that was not started needs not be ended.
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let [first, last] = [0, 1].map(|at| fifo(dirs[at].path()));
    let end = ended(script(
        3,
        &[],
        &format!(
            r#"case $PHALANX_RANK in
            0) echo here > {first};;
            1) read word < {first}; read word < {last}; echo before >&2; echo "the reason" >&2; exit 3;;
            2) echo here > {last};;
            esac
            exec sleep 1000"#
        ),
    ));
    assert_eq!(end.code(), Some(3));
    assert!(end.stderr.contains("phalanx: rank 1 exited with code 3 (host localhost, pid "), "{}", end.stderr);
    assert!(end.stderr.contains("; ending the other 2 ranks\n"), "{}", end.stderr);
    assert!(
        end.stderr.contains("the last lines of rank 1's standard error:\n    before\n    the reason\n"),
        "{}",
        end.stderr
    );
}

#[test]
fn output_is_quoted_where_there_is_no_error_output() {
    let end = ended(script(2, &[], "[ $PHALANX_RANK = 0 ] || exec sleep 1000; echo words; exit 1"));
    assert!(end.stderr.contains("standard output:\n    words\n"), "{}", end.stderr);
}

#[test]
fn a_rank_that_is_killed_gives_128_and_the_signal() {
    let end = ended(script(2, &[], "[ $PHALANX_RANK = 0 ] && kill -9 $$; exec sleep 1000"));
    assert_eq!(end.code(), Some(137));
    assert!(end.stderr.contains("rank 0 was ended by signal 9 (SIGKILL)"), "{}", end.stderr);
    assert!(end.stderr.contains("lack of memory"), "{}", end.stderr);
}

#[test]
fn the_earlier_failure_is_the_cause_even_if_others_follow_at_once() {
    // Rank 1 ends because rank 0 did: it waits for the end of a pipe that rank 0 holds. Real programs also take a moment
    // to notice and to unwind.
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = fifo(dir.path());
    for _ in 0..5 {
        let end = ended(script(
            2,
            &[],
            &format!(
                "if [ $PHALANX_RANK = 0 ]; then exec 3>{fifo}; exit 11; fi
                exec 3<{fifo}; cat <&3; sleep 0.1; exit 12"
            ),
        ));
        assert_eq!(end.code(), Some(11), "{}", end.stderr);
    }
}

#[test]
fn what_cannot_be_run_says_why_and_starts_nothing() {
    let end = ended(run(&["-np", "2", "no-such-program-here"]));
    assert_eq!(end.code(), Some(127));
    assert!(end.stderr.starts_with("phalanx: no-such-program-here: no such command; "), "{}", end.stderr);

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("train.py");
    std::fs::write(&file, "print('x')\n").expect("writable");
    let end = ended(run(&["-np", "2", file.to_str().expect("a name")]));
    assert_eq!(end.code(), Some(126));
    assert!(end.stderr.contains("`python "), "{}", end.stderr);

    // The directory of the output is the launcher's business too: nothing runs without it.
    let mark = dir.path().join("mark");
    let end = ended(run(&[
        "-np",
        "2",
        "--output-dir",
        file.to_str().expect("a name"),
        "touch",
        mark.to_str().expect("a name"),
    ]));
    assert_eq!(end.code(), Some(1));
    assert!(!mark.exists());
}

#[test]
fn a_wrong_command_line_is_2() {
    for arguments in
        [vec!["-np", "2"], vec!["-np", "x", "true"], vec!["true"], vec!["-np", "0", "true"], vec!["--bogus"]]
    {
        let end = ended(run(&arguments));
        assert_eq!(end.code(), Some(2), "{arguments:?}: {}", end.stderr);
        assert!(!end.stderr.is_empty());
    }
}

#[test]
fn the_time_limit_gives_124() {
    let end = ended(script(2, &["--timeout", "0.3"], "exec sleep 1000"));
    assert_eq!(end.code(), Some(124));
    assert!(end.stderr.contains("the time limit of 0.3 s has passed; ending 2 ranks"), "{}", end.stderr);
}

#[test]
fn ranks_that_do_not_want_to_end_are_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = fifo(dir.path());
    let end = ended(script(
        2,
        &["--grace", "0.2"],
        &format!(
            "[ $PHALANX_RANK = 0 ] && {{ read x <{fifo}; exit 5; }}
            trap '' TERM; echo ready >{fifo}; while :; do sleep 1000; done"
        ),
    ));
    assert_eq!(end.code(), Some(5));
    assert!(end.stderr.contains("1 rank did not end within 0.2 s; killing"), "{}", end.stderr);
}

#[test]
fn ranks_may_clean_up_within_the_grace_period() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = fifo(dir.path());
    let end = ended(script(
        2,
        &["--grace", "50"],
        &format!(
            "[ $PHALANX_RANK = 0 ] && {{ read x <{fifo}; exit 4; }}
            trap 'echo cleaned; exit 9' TERM; echo ready >{fifo}; while :; do sleep 0.05; done"
        ),
    ));
    assert_eq!(end.code(), Some(4));
    assert_eq!(end.text(), "[1] cleaned\n");
}

#[test]
fn quiet_says_only_why_a_job_failed() {
    let end = ended(script(2, &["--quiet"], "echo x >&2; exit 6"));
    assert_eq!(end.code(), Some(6));
    let own: Vec<_> = end.stderr.lines().filter(|line| line.starts_with("phalanx:")).collect();
    assert_eq!(own.len(), 1, "{}", end.stderr);
    let end = ended(script(1, &["--verbose"], "exit 0"));
    assert!(end.stderr.contains("phalanx: rank 0 started (pid "), "{}", end.stderr);
}

#[test]
fn sixty_four_ranks_start_and_end_within_seconds() {
    let begin = Instant::now();
    let end = ended(run(&["-np", "64", "true"]));
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    // A second or less on an idle machine.
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

#[test]
fn many_ranks_fit_a_small_limit_of_open_files_and_get_it_back() {
    let mut command = std::process::Command::new("sh");
    let line = format!("ulimit -Sn 100; exec {} run -np 40 sh -c 'ulimit -Sn'", env!("CARGO_BIN_EXE_phalanx"));
    command.args(["-c", &line]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let end = ended(command);
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    assert_eq!(end.text().lines().filter(|line| line.ends_with("] 100")).count(), 40);
}
