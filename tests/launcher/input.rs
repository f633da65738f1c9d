//! Who reads what.

use std::io::{Seek, Write};
use std::process::Stdio;

use crate::support::{Started, ended, script};

#[test]
fn rank_0_reads_and_the_others_do_not() {
    let mut command = script(3, &[], "cat; echo end");
    command.stdin(Stdio::piped());
    let mut job = Started::of(command);
    let mut input = job.child.stdin.take().expect("a pipe");
    assert_eq!(job.lines(2), ["[1] end", "[2] end"]);
    input.write_all(b"one\n").expect("somebody reads");
    assert_eq!(job.line(), "[0] one");
    input.write_all(b"two").expect("somebody reads");
    drop(input);
    // What a rank leaves unfinished is finished by what it writes next.
    assert_eq!(job.line(), "[0] twoend");
    assert_eq!(job.wait().code(), Some(0));
}

#[test]
fn a_file_is_read_only_as_far_as_rank_0_wants() {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(b"first\nsecond\n").expect("writable");
    file.rewind().expect("a file");
    let mut command = script(2, &[], "[ $PHALANX_RANK = 1 ] || head -c 6");
    command.stdin(file.try_clone().expect("a file"));
    let end = ended(command);
    assert_eq!(end.text(), "[0] first\n");
    assert_eq!(file.stream_position().expect("a file"), 6, "the rest is left for whoever comes next");
}
