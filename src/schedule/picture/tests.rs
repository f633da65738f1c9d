//! Drawings of small plans, as they are.

use super::*;
use crate::schedule::{Counts, JointRequest};
use crate::types::{Algorithm, Collective};

fn schedules(collective: Collective, algorithm: Algorithm, size: usize, count: usize) -> Vec<Schedule> {
    let request = JointRequest {
        collective,
        algorithm,
        size,
        root: 0,
        counts: Counts::Whole(count),
        in_place: &vec![true; size],
        hosts: &[],
        segment: 50,
        deterministic: false,
    };
    request.plan_all().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_ring_is_drawn_arrow_by_arrow() {
    let drawing = text(&schedules(Collective::Allreduce, Algorithm::Ring, 3, 9), 100);
    let expected = "\
step 1: 3 messages
  0 -> 1 [6..9) reduce   1 -> 2 [0..3) reduce   2 -> 0 [3..6) reduce
step 2: 3 messages
  0 -> 1 [3..6) reduce, finish   1 -> 2 [6..9) reduce, finish   2 -> 0 [0..3) reduce, finish
step 3: 3 messages
  0 -> 1 [0..3)   1 -> 2 [3..6)   2 -> 0 [6..9)
step 4: 3 messages
  0 -> 1 [6..9)   1 -> 2 [0..3)   2 -> 0 [3..6)
";
    assert_eq!(drawing, expected);
}

#[test]
fn many_messages_are_drawn_as_a_table() {
    let drawing = text(&schedules(Collective::Allreduce, Algorithm::TwoShot, 4, 8), 1);
    let expected = "\
step 1: 12 messages
     to     0     1     2     3
   0 ->        2..4  4..6  6..8
   1 ->  0..2        4..6  6..8
   2 ->  0..2  2..4        6..8
   3 ->  0..2  2..4  4..6
   then 0-3: reduce 4 operands of 2, finish
... and 1 more steps
";
    assert_eq!(drawing, expected);
}

#[test]
fn alike_messages_are_one_arrow() {
    let drawing = text(&schedules(Collective::Broadcast, Algorithm::Linear, 5, 8), 10);
    assert_eq!(drawing, "step 1: 4 messages\n  0 -> 1-4 [0..8)\n");
}

#[test]
fn the_picture_is_sound_xml() {
    let drawing = svg("a <b> & \"c\"", &schedules(Collective::Allreduce, Algorithm::Hierarchical, 8, 100), &[], 100);
    assert!(drawing.contains("a &lt;b&gt; &amp; &quot;c&quot;"));
    // Tags open and close in pairs, and attributes are quoted.
    let mut open = Vec::new();
    for tag in drawing.split('<').skip(2).map(|rest| rest.split('>').next().unwrap_or("")) {
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or(""));
        }
    }
    assert!(open.is_empty(), "{open:?}");
}
