//! What the end of a worker means.

use super::*;

#[test]
fn a_goodbye_that_says_nothing_of_the_work_leaves_the_word_to_the_exit_code() {
    // With another code than 0 it has failed, whether the view without it comes before its end or after.
    for is_closed_up in [false, true] {
        let mut bench = Bench::steady(limits(1, 3, 3), &[("a", 3)]);
        bench.leave(1, Parting::Unsaid);
        if is_closed_up {
            bench.view(&[0, 2], &[], &[]);
        }
        bench.end(1, 4);
        bench.gone(1);
        assert_eq!(bench.start(), [3]);
        assert!(bench.was_said("slot 1 (host a, pid 101) exited with code 4; another is started"));
        assert_eq!((bench.fleet.is_done, bench.fleet.poll_done()), (false, false));
    }
    // With 0 it is done, and the registry hears of it.
    let mut bench = Bench::steady(limits(1, 3, 4), &[("a", 3)]);
    bench.part(1, Parting::Unsaid);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 4)]), true);
    bench.nothing();
    assert!(bench.fleet.poll_done() && !bench.fleet.poll_done());
    // All ended, and one of them had failed: nobody is left for whom it could be replaced.
    bench.leave(0, Parting::Unsaid);
    bench.part(2, Parting::Unsaid);
    bench.news(News::Ended(Outcome::Finished));
    bench.end(0, 6);
    bench.gone(0);
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(Cause::Failed { rank: 0, ending: Ending::Code(6) }));
    assert!(bench.was_said("slot 0 (host a, pid 100) exited with code 6") && !bench.was_said("its work is done"));
    // Or it is told too late that one failed, without which the others went on and did the work.
    let mut bench = Bench::steady(limits(1, 2, 2), &[("a", 2)]);
    bench.leave(1, Parting::Unsaid);
    bench.view(&[0], &[], &[]);
    bench.part(0, Parting::Done);
    bench.news(News::Ended(Outcome::Finished));
    bench.end(1, 6);
    bench.gone(1);
    assert!(bench.was_said("slot 1 (host a, pid 101) exited with code 6"));
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
}

#[test]
fn one_that_leaves_as_it_was_asked_to_is_neither_done_nor_failed() {
    let mut bench = Bench::steady(limits(1, 2, 3), &[("a", 2)]);
    bench.part(1, Parting::Asked);
    bench.nothing();
    bench.pass(60 * SECOND);
    bench.nothing();
    // The others go on, and others are started where there is room.
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 2), ("b", 1)]), true);
    assert_eq!(bench.start(), [2]);
    bench.kill(2);
    bench.part(0, Parting::Asked);
    bench.nothing();
    bench.news(News::Ended(Outcome::Finished));
    bench.nothing();
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(1));
    let text = "the job ended before its work was done: all members left as they were asked to";
    assert!(bench.was_said(text));
    // The last one out had a failure to tell.
    let mut bench = Bench::steady(limits(1, 1, 1), &[("a", 1)]);
    bench.leave(0, Parting::Asked);
    bench.news(News::Ended(Outcome::Finished));
    bench.end(0, 9);
    bench.gone(0);
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(9));
    // And one was done.
    let mut bench = Bench::steady(limits(1, 2, 2), &[("a", 2)]);
    bench.part(0, Parting::Asked);
    bench.part(1, Parting::Done);
    bench.news(News::Ended(Outcome::Finished));
    bench.nothing();
    assert_eq!(bench.fleet.outcome(), Some(Cause::Done));
}

#[test]
fn newcomers_that_fall_as_soon_as_they_have_joined_are_spaced_and_their_place_is_given_up() {
    let mut bench = Bench::steady(Limits { respawn_limit: 5, ..limits(1, 2, 2) }, &[("a", 2)]);
    let join = |bench: &mut Bench, worker: usize| {
        bench.register(worker, worker);
        bench.view(&[0, worker], &[], &[worker]);
    };
    // One of the first view has shown that the program works.
    bench.kill(1);
    let mut worker = bench.start()[0];
    assert!(bench.was_said("slot 1 (host a, pid 101) was ended by signal 9 (SIGKILL); another is started"));
    for pause in [1, 2, 4, 8] {
        join(&mut bench, worker);
        bench.pass(AT_WORK - Duration::from_millis(1));
        bench.end(worker, 7);
        bench.gone(worker);
        bench.nothing();
        assert!(bench.was_said(&format!("exited with code 7; another is started in {pause} s")));
        bench.pass(pause * SECOND - Duration::from_millis(1));
        bench.nothing();
        bench.pass(Duration::from_millis(1));
        worker = bench.start()[0];
    }
    join(&mut bench, worker);
    bench.end(worker, 9);
    bench.gone(worker);
    bench.pass(1000 * SECOND);
    bench.nothing();
    let text = "exited with code 9; 5 in a row did not come to work there: no other is started in its place on host a";
    assert!(bench.was_said(text), "{:?}", bench.said);
    // The other place is as good as before, and a new host is used.
    bench.kill(0);
    assert_eq!(bench.start(), [worker + 1]);
    bench.fleet.set_hosts(bench.now, &hosts(&[("a", 2), ("b", 1)]), true);
    assert_eq!(bench.start(), [worker + 2]);
    assert_eq!(bench.fleet.host_name(worker + 2), "b");
}

#[test]
fn one_that_comes_to_work_makes_the_failures_of_its_place_forgotten() {
    let mut bench = Bench::steady(Limits { respawn_limit: 2, ..limits(1, 2, 2) }, &[("a", 2)]);
    bench.kill(1);
    for round in 0..3 {
        let worker = bench.start()[0];
        bench.kill(worker);
        bench.pass(SECOND);
        let worker = bench.start()[0];
        bench.register(worker, worker);
        bench.view(&[0, worker], &[], &[worker]);
        bench.pass(AT_WORK);
        bench.kill(worker);
        assert!(!bench.said.iter().any(|text| text.contains("no other")), "round {round}");
    }
}

#[test]
fn an_exit_code_after_the_goodbye_is_not_hidden() {
    let mut bench = Bench::steady(limits(1, 2, 2), &[("a", 2)]);
    bench.leave(0, Parting::Done);
    bench.end(0, 3);
    bench.gone(0);
    bench.leave(1, Parting::Done);
    bench.news(News::Ended(Outcome::Finished));
    bench.end(1, 0);
    bench.gone(1);
    bench.nothing();
    assert_eq!(bench.fleet.outcome().map(Cause::exit_code), Some(3));
    assert!(bench.was_said("slot 0 (host a, pid 100) exited with code 3 after it had said that its work is done"));
}

#[test]
fn an_end_without_a_goodbye_is_a_failure_whatever_the_code() {
    let mut bench = Bench::steady(limits(1, 2, 2), &[("a", 2)]);
    bench.end(0, 0);
    bench.gone(0);
    bench.nothing();
    assert_eq!(bench.exits.len(), 1, "the registry is asked");
    bench.view(&[1], &[0], &[]);
    assert!(bench.was_said("slot 0 (host a, pid 100) exited with code 0 without a goodbye; another is started"));
    // With the goodbye overtaken by the end, all is well.
    let mut bench = Bench::steady(limits(1, 2, 2), &[("a", 2)]);
    bench.end(0, 0);
    bench.gone(0);
    bench.leave(0, Parting::Done);
    bench.nothing();
    assert!(!bench.was_said("without a goodbye"));
}
