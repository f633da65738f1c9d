//! The engine where nothing moves, and where its world changes.

use std::sync::mpsc::channel;

use super::*;
use crate::executor::core::Lost;
use crate::schedule::{Buffer, Instruction, Schedule, Span, Step};
use crate::transport::sleep::Sleeper;
use crate::types::{Algorithm, Collective, DataType, ReduceOp, Reduction, Signature, Tag};

/// A peer that never answers.
struct Silence;

impl Dial for Silence {
    fn dial(&mut self, _peer: usize) {}
}

fn receive_from_1(patience: Duration) -> Work {
    receive_from(1, patience)
}

fn receive_from(peer: usize, patience: Duration) -> Work {
    let target = Span::new(Buffer::Output, 0, 0);
    let step = Step { instructions: vec![Instruction::Recv { peer, target }] };
    let schedule = Schedule { algorithm: Algorithm::Linear, steps: vec![step], scratch: 0, partials_travel: false };
    let (dtype, algorithm) = (DataType::U8, Algorithm::Linear);
    let signature =
        Signature { collective: Collective::Barrier, dtype, op: None, algorithm, root: None, count: 0, digest: 0 };
    Work {
        tag: Tag { communicator: CommunicatorId::WORLD, sequence: 0 },
        signature,
        schedule: Arc::new(schedule),
        dtype,
        reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
        unequal: false,
        contributions: 2,
        input: std::ptr::null(),
        input_count: 0,
        output: std::ptr::null_mut(),
        output_count: 0,
        deadline: Deadline::after(Instant::now(), patience),
        spoilt: None,
        keep: None,
        layout: None,
    }
}

/// Nothing wakes a rank that has no connection: the deadline itself must.
#[test]
fn a_deadline_that_passes_while_nothing_moves_is_told_at_once() {
    let config = EngineConfig { spin: Duration::ZERO, yields: false, in_background: true, owner: None };
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let engine = Engine::new(0, 2, Box::new(Silence), sleeper, config).unwrap();
    engine.add_channel(CommunicatorId::WORLD, [0, 1].into(), 0, false).unwrap();
    let patience = Duration::from_millis(100);
    // The best of some: others run on this machine.
    let late = (0..5).map(|_| {
        let since = Instant::now();
        // SAFETY: nothing is pointed to.
        let completion = unsafe { engine.submit(receive_from_1(patience), false) };
        assert!(matches!(engine.wait(&completion, None), Some(Err(Error::Timeout { .. }))));
        since.elapsed().saturating_sub(patience)
    });
    let best = late.min();
    assert!(best < Some(MAX_SLEEP / 2), "{best:?} late");
}

/// A channel is made when its first message is sent or received, which can be just after the view has ended.
#[test]
fn a_channel_that_is_made_when_its_view_is_over_takes_nothing() {
    let config = EngineConfig { spin: Duration::ZERO, yields: false, in_background: true, owner: None };
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let engine = Engine::new(0, 2, Box::new(Silence), sleeper, config).unwrap();
    let (first, second) = (Generation::FIRST, Generation(Generation::FIRST.0 + 1));
    engine.judge(first, Box::new(|_| {}));
    let cause = |text: &str| Error::ViewChanged { generation: first, cause: text.into() };
    engine.suspend(&cause("one"));
    engine.suspend(&cause("two"));
    let submit = |id: CommunicatorId| {
        engine.add_link(id, [1, 0], [1, 0], 1).unwrap();
        let work = receive_from_1(Duration::from_secs(60));
        let work = Work { tag: Tag { communicator: id, sequence: 0 }, ..work };
        // SAFETY: nothing is pointed to.
        unsafe { engine.submit(work, false) }.outcome()
    };
    assert_eq!(submit(CommunicatorId::point_to_point(first, 1)), Some(Err(cause("one"))));
    engine.install(second, &[0, 1], &[], &cause("next"), config).unwrap();
    assert_eq!(submit(CommunicatorId::point_to_point(first, 2)), Some(Err(cause("next"))));
    assert_eq!(submit(CommunicatorId::point_to_point(second, 1)), None);
}

/// Newcomers come in between two steps, where nobody is told to stop. What is done in the view before is over.
#[test]
fn a_view_that_changes_between_two_steps_is_over_for_what_is_in_flight() {
    let config = EngineConfig { spin: Duration::ZERO, yields: false, in_background: true, owner: None };
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let engine = Engine::new(0, 2, Box::new(Silence), sleeper, config).unwrap();
    engine.judge(Generation::FIRST, Box::new(|_| {}));
    let cause = Error::ViewChanged { generation: Generation::FIRST, cause: "next".into() };
    engine.install(Generation::FIRST, &[0, 1], &[], &cause, config).unwrap();
    engine.add_channel(CommunicatorId::WORLD, [0, 1].into(), 0, false).unwrap();
    // SAFETY: nothing is pointed to.
    let submit = || unsafe { engine.submit(receive_from_1(Duration::from_secs(60)), false) };
    let before = submit();
    assert_eq!(before.outcome(), None);
    engine.install(Generation(Generation::FIRST.0 + 1), &[0, 1], &[], &cause, config).unwrap();
    for completion in [before, submit()] {
        assert_eq!(completion.outcome(), Some(Err(cause.clone())));
    }
}

/// Whoever is in the next view is a peer, whatever its slot is; nobody else is, and what becomes of the way to it is no
/// news of this view.
#[test]
fn who_is_not_in_the_next_view_is_lost_to_nobody() {
    let config = EngineConfig { spin: Duration::ZERO, yields: false, in_background: true, owner: None };
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let engine = Engine::new(0, 3, Box::new(Silence), sleeper, config).unwrap();
    let (tell, lost) = channel();
    engine.judge(Generation::FIRST, Box::new(move |lost: Lost| tell.send((lost.generation.0, lost.slot)).unwrap()));
    let cause = Error::ViewChanged { generation: Generation::FIRST, cause: "next".into() };
    engine.add_channel(CommunicatorId::WORLD, [0, 1, 2].into(), 0, false).unwrap();
    for peer in [1, 2] {
        // SAFETY: nothing is pointed to.
        let _ = unsafe { engine.submit(receive_from(peer, Duration::from_secs(60)), false) };
    }
    engine.install(Generation(2), &[0, 1], &[], &cause, config).unwrap();
    let handler = engine.connection_handler();
    for peer in [2, 1] {
        handler(
            peer,
            Generation(2),
            Err(Error::PeerFailed { rank: peer, operation: "".into(), detail: "it is dead".into() }),
        );
    }
    assert_eq!(lost.try_iter().collect::<Vec<_>>(), [(2, 1)]);
}
