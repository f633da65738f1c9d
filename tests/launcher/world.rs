//! Ranks that the launcher starts meet each other.

use std::time::Instant;

use crate::support::{ended, run};

/// What a rank does. It is a test so that this very program can be a rank.
#[test]
#[ignore = "run by the launcher in the tests below"]
fn rank_of_a_world() {
    let comm = phalanx::init().expect("a world");
    let mut data = [comm.rank() as u64 + 1];
    comm.allreduce(&mut data, phalanx::ReduceOp::Sum).expect("a sum");
    println!("\nworld {} {} {}", comm.rank(), comm.size(), data[0]);
    comm.shutdown();
}

fn world(size: usize) -> Vec<String> {
    let own = std::env::current_exe().expect("this program");
    let own = own.to_str().expect("a name");
    let size = size.to_string();
    let rank = ["-np", &size, "--timeout", "50", own, "--exact", "world::rank_of_a_world", "--ignored", "--nocapture"];
    let end = ended(run(&rank));
    assert_eq!(end.code(), Some(0), "{}\n{}", end.text(), end.stderr);
    let said = |line: &str| Some(line.split_once("world ")?.1.to_owned());
    // The test runner names the test too.
    let said_by_rank = |line: &String| line.starts_with(|first: char| first.is_ascii_digit());
    let mut lines: Vec<_> = end.text().lines().filter_map(said).filter(said_by_rank).collect();
    lines.sort_by_key(|line| line.split(' ').next().and_then(|rank| rank.parse::<usize>().ok()));
    lines
}

#[test]
fn ranks_meet_and_add() {
    assert_eq!(world(1), ["0 1 1"]);
    assert_eq!(world(3), ["0 3 6", "1 3 6", "2 3 6"]);
}

#[test]
fn sixty_four_ranks_meet_within_seconds() {
    let begin = Instant::now();
    let lines = world(64);
    assert_eq!(lines.len(), 64);
    assert!(lines.iter().all(|line| line.ends_with(" 64 2080")), "{lines:?}");
    // Far less on an idle machine.
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}
