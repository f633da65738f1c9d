//! What the ranks write, as the launcher shows and keeps it.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::{Started, ended, read, run, script, wait_until};

#[test]
fn lines_have_the_number_of_their_rank() {
    let end = ended(script(3, &[], "echo out; echo err >&2"));
    assert_eq!(end.sorted(), ["[0] out", "[1] out", "[2] out"]);
    let mut lines: Vec<_> = end.stderr.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] err", "[1] err", "[2] err"]);
    assert_eq!(ended(script(1, &["--no-prefix"], "echo out")).text(), "out\n");
    assert_eq!(ended(script(1, &["--tag-output"], "echo out")).text(), "[0]<stdout> out\n");
    assert_eq!(ended(script(1, &["--color", "always"], "echo out")).text(), "\x1b[36m[0]\x1b[0m out\n");
    let stamped = ended(script(1, &["--prefix-timestamp"], "echo out")).text();
    assert!(stamped.starts_with("20") && stamped.ends_with("Z [0] out\n"), "{stamped}");
}

#[test]
fn no_line_is_torn_or_lost_under_a_flood() {
    // Both streams of four ranks into one pipe, in writes that do not end where lines end.
    const LINES: usize = 5000;
    let program = format!(
        r#"awk -v r=$PHALANX_RANK 'BEGIN {{ for (i = 0; i < {LINES}; i++) {{
            printf "out %d %d ", r, i; printf "%0" (i % 200 + 1) "d end\n", 0;
            printf "err %d %d end\n", r, i > "/dev/stderr" }} }}'"#
    );
    let mut shell = std::process::Command::new("sh");
    let own = env!("CARGO_BIN_EXE_phalanx");
    shell.args(["-c", &format!("exec {own} run -np 4 sh -c \"$0\" 2>&1"), &program]);
    shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    let end = ended(shell);
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    let mut next: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in end.text().lines() {
        let words: Vec<_> = line.split(' ').collect();
        let (prefix, stream, rank, number) = (words[0], words[1], words[2], words[3]);
        assert_eq!(prefix, format!("[{rank}]"), "{line}");
        assert_eq!(words.last(), Some(&"end"), "{line}");
        let expected = next.entry((rank.into(), stream.into())).or_default();
        assert_eq!(number, expected.to_string(), "the order within a stream is kept: {line}");
        if stream == "out" {
            assert_eq!(words[4].len(), *expected % 200 + 1, "{line}");
        }
        *expected += 1;
    }
    assert_eq!(next.len(), 8);
    assert!(next.values().all(|&count| count == LINES));
}

#[test]
fn long_lines_last_lines_and_any_bytes_arrive_whole() {
    let end = ended(script(2, &[], "head -c 900000 /dev/zero | tr '\\0' x; echo; printf 'no newline'"));
    let long = "x".repeat(900_000);
    let expected: Vec<_> =
        (0..2).flat_map(|rank| [format!("[{rank}] {long}"), format!("[{rank}] no newline")]).collect();
    let mut sorted = end.sorted();
    sorted.sort_by_key(|line| (line.as_bytes()[1], std::cmp::Reverse(line.len())));
    assert!(sorted == expected, "lengths {:?}", sorted.iter().map(String::len).collect::<Vec<_>>());

    let end = ended(script(1, &[], r"printf 'a\377\000b\n'"));
    assert_eq!(end.stdout, b"[0] a\xff\0b\n");
}

#[test]
fn progress_bars_keep_their_returns() {
    let end = ended(script(1, &[], r"printf '\r 10%%\r 20%%\rdone\n'"));
    assert_eq!(end.text(), "[0]  10%\r[0]  20%\r[0] done\n");
}

#[test]
fn output_is_kept_in_files_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let logs = dir.path().join("a/b");
    let end = ended(script(
        11,
        &["--output-dir", logs.to_str().expect("a name")],
        r"printf 'r%s\n\rbytes \377' $PHALANX_RANK; echo e$PHALANX_RANK >&2",
    ));
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    for rank in 0..11 {
        let directory = logs.join(format!("rank.{rank:02}"));
        let expected = [format!("r{rank}\n\rbytes ").as_bytes(), b"\xff"].concat();
        assert_eq!(read(&directory.join("stdout")), expected);
        assert_eq!(read(&directory.join("stderr")), format!("e{rank}\n").as_bytes());
    }
    assert_eq!(end.stdout.iter().filter(|&&byte| byte == 0xff).count(), 11, "and it is shown as well");
}

/// How many bytes wait in a pipe.
fn waiting(fd: impl std::os::fd::AsFd) -> u64 {
    rustix::io::ioctl_fionread(fd).expect("a pipe")
}

#[test]
fn a_reader_that_does_not_read_blocks_nobody_but_the_writers() {
    let mut command = script(2, &[], "exec yes");
    command.stderr(Stdio::null());
    let mut child = command.spawn().expect("the launcher starts");
    let out = child.stdout.take().expect("a pipe");
    let job = Started::new(child);
    let mut last = 0;
    wait_until("the pipe is full", || {
        let now = waiting(&out);
        let full = now == last && now > 60_000;
        last = now;
        full
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", job.pid().as_raw_nonzero())).expect("it lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 100_000, "{peak} kB");
    // It still hears, and ends although nobody reads.
    let begin = Instant::now();
    job.signal(Signal::INT);
    let end = job.wait();
    assert_eq!(end.code(), Some(130));
    assert!(begin.elapsed().as_secs() < 30);
    drop(out);
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let mut job = Started::of(script(2, &[], "exec yes"));
    assert!(job.line().ends_with("] y"));
    job.stop_reading();
    let end = job.wait();
    assert_eq!(end.code(), Some(141));
    assert!(end.stderr.contains("nobody reads the output any more"), "{}", end.stderr);
}

#[test]
fn a_slow_reader_gets_everything() {
    let end = ended(run(&["-np", "2", "seq", "200000"]));
    for rank in 0..2 {
        let prefix = format!("[{rank}] ");
        let text = end.text();
        let numbers = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        assert!(numbers.map(str::to_owned).eq((1..=200_000).map(|number| number.to_string())));
    }
}
