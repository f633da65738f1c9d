//! The state machine against a script, and what is known of the library without one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::group::{Calls, Change, Group, Progress, Way, Work};
use super::library::{Abilities, UniqueId, Version, check_age, configuration};
use super::results::{Code, IN_PROGRESS, SUCCESS};
use super::work::CollectiveCall;
use crate::types::{DataType, Deadline, Error, Generation, ReduceOp, Reduction};

const ID: UniqueId = UniqueId([7; 128]);
const REMOTE: Code = 6;
const ALL: Abilities = Abilities { shrinks: true, grows: true, revokes: true };

/// Answers the calls that it expects, in order, and says what was not asked.
#[derive(Default)]
struct Script {
    expected: VecDeque<(&'static str, Code)>,
    made: Option<u32>,
    next: u32,
}

impl Script {
    fn new(expected: &[(&'static str, Code)]) -> Self {
        Self { expected: expected.iter().copied().collect(), ..Self::default() }
    }

    fn answer(&mut self, call: &str) -> Code {
        let (expected, code) = self.expected.pop_front().unwrap_or_else(|| panic!("{call} was not expected"));
        assert_eq!(call, expected);
        code
    }

    fn make(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.expected.is_empty(), "never asked: {:?}", self.expected);
        }
    }
}

struct Allreduce;

impl Work for Allreduce {
    fn name(&self) -> &str {
        "allreduce(count 8, f32, sum)"
    }
}

impl Calls for Script {
    type Raw = u32;
    type Work = Allreduce;

    fn init(&mut self, size: usize, rank: usize, id: &UniqueId) -> (Option<u32>, Code) {
        assert_eq!(*id, ID);
        let code = self.answer(&format!("init {rank} of {size}"));
        ((code == SUCCESS || code == IN_PROGRESS).then(|| self.make()), code)
    }

    fn state(&mut self, raw: u32) -> Code {
        self.answer(&format!("state {raw}"))
    }

    fn enqueue(&mut self, raw: u32, _work: &Allreduce) -> Code {
        self.answer(&format!("enqueue {raw}"))
    }

    fn revoke(&mut self, raw: u32) -> Code {
        self.answer(&format!("revoke {raw}"))
    }

    fn id_to_grow(&mut self, raw: u32) -> Result<UniqueId, Code> {
        match self.answer(&format!("id to grow {raw}")) {
            SUCCESS => Ok(ID),
            code => Err(code),
        }
    }

    fn shrink(&mut self, raw: u32, without: &[usize]) -> Code {
        let code = self.answer(&format!("shrink {raw} without {without:?}"));
        self.made = Some(self.make()).filter(|_| code == SUCCESS || code == IN_PROGRESS);
        code
    }

    fn grow(&mut self, raw: Option<u32>, size: usize, id: Option<&UniqueId>, rank: Option<usize>) -> Code {
        let code = self.answer(&format!("grow {raw:?} to {size}, id {}, rank {rank:?}", id.is_some()));
        self.made = Some(self.make()).filter(|_| code == SUCCESS || code == IN_PROGRESS);
        code
    }

    fn made(&mut self) -> Option<u32> {
        self.made
    }

    fn finalize(&mut self, raw: u32) -> Code {
        self.answer(&format!("finalize {raw}"))
    }

    fn abort(&mut self, raw: u32) -> Code {
        self.answer(&format!("abort {raw}"))
    }

    fn words(&mut self, raw: Option<u32>) -> String {
        format!("the words of {raw:?}")
    }
}

fn started(now: Instant, script: &[(&'static str, Code)]) -> Group<Script> {
    let deadline = Deadline::after(now, Duration::from_secs(10));
    Group::start(Script::new(script), (1, 4), Generation::FIRST, &ID, now, deadline)
}

/// A group that is ready, and what is still expected of it.
fn ready(now: Instant, script: &[(&'static str, Code)]) -> Group<Script> {
    let mut all = vec![("init 1 of 4", IN_PROGRESS), ("state 1", SUCCESS)];
    all.extend(script);
    let mut group = started(now, &all);
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    group
}

fn second(lost: &[usize], joined: usize, size: usize) -> Change {
    Change { generation: Generation(2), rank: 1, size, lost: lost.to_vec(), joined }
}

#[test]
fn a_group_is_made_used_and_ended() {
    let now = Instant::now();
    let deadline = Deadline::after(now, Duration::from_secs(10));
    let mut group = started(
        now,
        &[
            ("init 1 of 4", IN_PROGRESS),
            ("state 1", IN_PROGRESS),
            ("state 1", SUCCESS),
            ("enqueue 1", SUCCESS),
            ("enqueue 1", IN_PROGRESS),
            ("state 1", IN_PROGRESS),
            ("state 1", SUCCESS),
            ("finalize 1", IN_PROGRESS),
            ("state 1", IN_PROGRESS),
            ("state 1", SUCCESS),
            ("abort 1", SUCCESS),
        ],
    );
    assert!(group.enqueue(&Allreduce, Generation::FIRST, now, deadline).is_err(), "it is not ready");
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    group.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap();
    group.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap();
    assert!(
        group.enqueue(&Allreduce, Generation::FIRST, now, deadline).is_err(),
        "one is still being put on the stream"
    );
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    group.end(now, deadline);
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ended));
    assert_eq!(group.poll(now), Ok(Progress::Ended));
}

#[test]
fn whatever_does_not_come_by_its_deadline_is_aborted_once() {
    let now = Instant::now();
    let late = now + Duration::from_secs(11);
    let starting = started(now, &[("init 1 of 4", IN_PROGRESS), ("state 1", IN_PROGRESS), ("abort 1", SUCCESS)]);
    let mut working = ready(now, &[("enqueue 1", IN_PROGRESS), ("state 1", IN_PROGRESS), ("abort 1", SUCCESS)]);
    let deadline = Deadline::after(now, Duration::from_secs(10));
    working.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap();
    let mut ending = ready(now, &[("finalize 1", IN_PROGRESS), ("state 1", IN_PROGRESS), ("abort 1", SUCCESS)]);
    ending.end(now, deadline);
    for (mut group, what) in
        [(starting, "ncclCommInitRankConfig"), (working, "allreduce(count 8, f32, sum)"), (ending, "ncclCommFinalize")]
    {
        let error = group.poll(late).unwrap_err();
        let Error::Timeout { operation, waiting_for, waited, .. } = &error else { panic!("{error}") };
        assert_eq!((&**operation, waiting_for.as_slice(), waited.as_secs()), (what, &[0, 2, 3][..], 11));
        assert_eq!(group.poll(late), Err(error), "the same from then on");
        assert!(!group.is_alive());
    }
}

#[test]
fn a_failure_of_another_rank_is_noticed_while_nothing_is_asked_for() {
    let now = Instant::now();
    let mut group = ready(now, &[("state 1", REMOTE), ("abort 1", SUCCESS)]);
    let error = group.poll(now).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ncclRemoteError, code 6: the words of Some(1)") && text.contains("another rank"), "{text}");
    let deadline = Deadline::after(now, Duration::from_secs(10));
    assert_eq!(group.enqueue(&Allreduce, Generation::FIRST, now, deadline), Err(error));
}

#[test]
fn a_refusal_is_an_error_with_the_librarys_words() {
    let now = Instant::now();
    let mut group = started(now, &[("init 1 of 4", 5)]);
    let text = group.poll(now).unwrap_err().to_string();
    assert!(text.starts_with("ncclCommInitRankConfig failed with ncclInvalidUsage, code 5: the words"), "{text}");
    let mut group = ready(now, &[("enqueue 1", 1), ("abort 1", SUCCESS)]);
    let deadline = Deadline::after(now, Duration::from_secs(10));
    let text = group.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap_err().to_string();
    assert!(text.starts_with("allreduce(count 8, f32, sum) failed with ncclUnhandledCudaError"), "{text}");
}

#[test]
fn work_of_another_generation_is_never_given_to_nccl() {
    let now = Instant::now();
    let mut group = ready(now, &[("abort 1", SUCCESS)]);
    let deadline = Deadline::after(now, Duration::from_secs(10));
    assert!(group.enqueue(&Allreduce, Generation(2), now, deadline).is_err());
    assert!(group.is_alive());
    group.give_up(Error::internal("the first cause"));
    group.give_up(Error::internal("a second one"));
    assert_eq!(group.poll(now), Err(Error::internal("the first cause")));
}

#[test]
fn a_fall_shrinks_the_communicator_and_frees_the_old_one() {
    let now = Instant::now();
    let deadline = Deadline::after(now, Duration::from_secs(10));
    let mut group = ready(
        now,
        &[
            ("enqueue 1", IN_PROGRESS),
            ("revoke 1", IN_PROGRESS),
            ("state 1", IN_PROGRESS),
            ("state 1", SUCCESS),
            ("shrink 1 without [0]", IN_PROGRESS),
            ("state 1", IN_PROGRESS),
            ("state 1", SUCCESS),
            ("state 2", SUCCESS),
            ("abort 1", SUCCESS),
            ("enqueue 2", SUCCESS),
            ("abort 2", SUCCESS),
        ],
    );
    // What is in flight is stopped first: its memory is the caller's again long before there is a next view.
    group.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap();
    assert!(!group.is_alive());
    group.stop(now, deadline);
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    assert!(group.is_alive() && !group.is_ready());
    assert!(group.enqueue(&Allreduce, Generation::FIRST, now, deadline).is_err(), "it was stopped");
    let change = second(&[0], 0, 3);
    assert_eq!(change.way(ALL, true), Way::Shrink);
    group.change(&change, Way::Shrink, None, now, deadline);
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    assert_eq!((group.rank(), group.size(), group.generation()), (1, 3, Generation(2)));
    group.enqueue(&Allreduce, Generation(2), now, deadline).unwrap();
}

#[test]
fn newcomers_and_those_who_stay_grow_the_communicator() {
    let now = Instant::now();
    let deadline = Deadline::after(now, Duration::from_secs(10));
    let change = second(&[], 2, 6);
    assert_eq!(change.way(ALL, true), Way::Grow);
    let mut group = ready(
        now,
        &[
            ("id to grow 1", SUCCESS),
            ("grow Some(1) to 6, id true, rank None", IN_PROGRESS),
            ("state 2", IN_PROGRESS),
            ("state 2", SUCCESS),
            ("abort 1", SUCCESS),
            ("abort 2", SUCCESS),
        ],
    );
    let id = group.id_to_grow().unwrap();
    group.change(&change, Way::Grow, Some(&id), now, deadline);
    // The old one is needed until the new one is made.
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    let newcomer = Change { rank: 5, ..change };
    let script = Script::new(&[
        ("grow None to 6, id true, rank Some(5)", IN_PROGRESS),
        ("state 1", IN_PROGRESS),
        ("state 1", SUCCESS),
        ("abort 1", SUCCESS),
    ]);
    let mut group = Group::join(script, &newcomer, &ID, now, deadline);
    assert_eq!(group.poll(now), Ok(Progress::Pending));
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    assert_eq!(group.rank(), 5);
}

#[test]
fn a_change_that_fails_or_is_late_leaves_neither_communicator() {
    let now = Instant::now();
    let deadline = Deadline::after(now, Duration::from_secs(10));
    let mut refused = ready(now, &[("shrink 1 without [3]", 3), ("abort 1", SUCCESS)]);
    refused.change(&second(&[3], 0, 3), Way::Shrink, None, now, deadline);
    assert!(refused.poll(now).unwrap_err().to_string().contains("ncclCommShrink failed with ncclInternalError"));
    let script =
        [("shrink 1 without [3]", IN_PROGRESS), ("state 1", IN_PROGRESS), ("abort 1", SUCCESS), ("abort 2", SUCCESS)];
    let mut late = ready(now, &script);
    late.change(&second(&[3], 0, 3), Way::Shrink, None, now, deadline);
    assert!(matches!(late.poll(now + Duration::from_secs(11)), Err(Error::Timeout { .. })));
    let script = [("id to grow 1", SUCCESS), ("grow Some(1) to 5, id false, rank None", 4), ("abort 1", SUCCESS)];
    let mut refused = ready(now, &script);
    refused.id_to_grow().unwrap();
    refused.change(&second(&[], 1, 5), Way::Grow, None, now, deadline);
    assert!(refused.poll(now).unwrap_err().to_string().contains("ncclCommGrow failed with ncclInvalidArgument"));
    let script = [("grow Some(1) to 5, id false, rank None", IN_PROGRESS), ("abort 2", SUCCESS), ("abort 1", SUCCESS)];
    ready(now, &script).change(&second(&[], 1, 5), Way::Grow, None, now, deadline);
    let script = Script::new(&[("grow None to 5, id true, rank Some(1)", 3)]);
    let mut refused = Group::join(script, &second(&[], 1, 5), &ID, now, deadline);
    assert!(refused.poll(now).unwrap_err().to_string().contains("ncclCommGrow failed with ncclInternalError"));
    // Nothing is made of one that has work in flight.
    let mut busy = ready(now, &[("enqueue 1", IN_PROGRESS), ("abort 1", SUCCESS)]);
    busy.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap();
    busy.change(&second(&[3], 0, 3), Way::Shrink, None, now, deadline);
    assert!(busy.poll(now).is_err());
    // One that cannot be stopped is given up.
    let mut unstoppable = ready(now, &[("enqueue 1", SUCCESS), ("revoke 1", 4), ("abort 1", SUCCESS)]);
    unstoppable.enqueue(&Allreduce, Generation::FIRST, now, deadline).unwrap();
    unstoppable.stop(now, deadline);
    assert!(unstoppable.poll(now).unwrap_err().to_string().contains("ncclCommRevoke failed"));
}

#[test]
fn where_the_old_one_is_no_help_a_new_one_is_made() {
    assert_eq!(second(&[0], 1, 4).way(ALL, true), Way::Anew, "some gone and some new");
    assert_eq!(second(&[0], 0, 3).way(ALL, false), Way::Anew, "one was aborted");
    assert_eq!(second(&[0], 0, 3).way(Abilities::default(), true), Way::Anew, "an older library");
    assert_eq!(second(&[], 0, 4).way(ALL, true), Way::Anew, "the same ranks in another order");
    let now = Instant::now();
    let deadline = Deadline::after(now, Duration::from_secs(10));
    let script = [("abort 1", SUCCESS), ("init 1 of 3", IN_PROGRESS), ("state 2", SUCCESS), ("abort 2", SUCCESS)];
    let mut group = ready(now, &script);
    group.change(&second(&[0], 0, 3), Way::Anew, Some(&ID), now, deadline);
    assert_eq!(group.poll(now), Ok(Progress::Ready));
    assert_eq!(group.size(), 3);
}

#[test]
fn what_nccl_does_otherwise_is_not_given_to_it() {
    let among = |size, insists, dtype, op| CollectiveCall::numbers(dtype, Some(&Reduction::new(op)), size, insists);
    let refused = |dtype, op, why: &str| {
        assert!(among(4, false, dtype, op).unwrap_err().contains(why));
        assert!(among(4, true, dtype, op).unwrap_err().contains(why), "even where NCCL is insisted on");
    };
    refused(DataType::I32, ReduceOp::Average, "averages of integers");
    refused(DataType::I16, ReduceOp::Sum, "elements of the type");
    refused(DataType::Bool, ReduceOp::Sum, "elements of the type");
    refused(DataType::U8, ReduceOp::BitXor, "lacks the op");
    let scaled = Reduction::new(ReduceOp::Sum).postscale(0.5);
    assert!(CollectiveCall::numbers(DataType::F32, Some(&scaled), 2, true).unwrap_err().contains("factors"));
    // What it rounds otherwise it is given where that was asked for.
    for (size, dtype, op, why, numbers) in [
        (3, DataType::BF16, ReduceOp::Sum, "halves", (9, 0)),
        (4, DataType::F16, ReduceOp::Average, "halves", (6, 4)),
        (2, DataType::F32, ReduceOp::Min, "NaN", (7, 3)),
        (3, DataType::F64, ReduceOp::Average, "power of two", (8, 4)),
    ] {
        assert!(among(size, false, dtype, op).unwrap_err().contains(why));
        assert_eq!(among(size, true, dtype, op), Ok(numbers));
    }
    for (size, dtype, op, numbers) in [
        (7, DataType::F32, ReduceOp::Sum, (7, 0)),
        (4, DataType::F32, ReduceOp::Average, (7, 4)),
        (2, DataType::BF16, ReduceOp::Sum, (9, 0)),
        (3, DataType::I64, ReduceOp::Max, (4, 2)),
    ] {
        assert_eq!(among(size, false, dtype, op), Ok(numbers));
    }
    // What is only moved has as many bytes, whatever it is.
    for (dtype, number) in [(DataType::Bool, 1), (DataType::I16, 6), (DataType::F32, 3), (DataType::F64, 5)] {
        assert_eq!(CollectiveCall::numbers(dtype, None, 3, false), Ok((number, 0)));
    }
}

#[test]
fn versions_are_read_compared_and_refused_by_name() {
    let version = |code| Version::from_code(code);
    assert_eq!(version(23_203).to_string(), "2.32.3");
    assert_eq!(version(2_804).to_string(), "2.8.4");
    assert!(version(21_803) > version(2_804));
    let text = check_age(version(21_701), "libnccl.so.2").unwrap_err().to_string();
    assert!(text.contains("NCCL 2.17.1 (libnccl.so.2) is too old: 2.18.0 or later"), "{text}");
    check_age(version(21_800), "libnccl.so.2").unwrap();
    assert_eq!(format!("{ID:?}"), "UniqueId(hidden)");
    // As NVIDIA's header lays it out for 2.30: four numbers, a pointer, two, a pointer, nine, after the first three fields.
    assert_eq!((configuration().blocking, configuration().size), (0, 96));
}
