//! Receives of the next step with messages, posted while the current one is under way.
//!
//! A rank that is ready for a message before it is sent costs its peer no question and no copy. And the ranks of a step
//! need not wait for the slowest among them before the next one's bytes may leave: what a rank sends depends on what it
//! has received, not on who else has.
//!
//! A receive may be posted ahead if nothing that comes before it in the plan and is not done reads or writes its target.
//! All receives of the step are posted together, in the plan's order, so that the k-th receive from a peer still
//! meets its k-th message.

use smallvec::SmallVec;

use super::{Message, Operation, is_message};
use crate::schedule::{Instruction, Span};

/// In steps with more instructions than this, receives are posted when their turn comes: every two would have to be
/// compared.
const MOST_COMPARED: usize = 32;

/// What was posted ahead.
#[derive(Default)]
pub(super) struct Ahead {
    /// The step it belongs to; 0 for none, since the first step is never ahead.
    pub step: usize,
    /// Which of that step's instructions are complete already.
    pub complete: SmallVec<[bool; 8]>,
}

impl Operation {
    /// The receives that may be posted ahead of their step now, by instruction number.
    pub fn messages_ahead(&mut self, messages: &mut Vec<(usize, Message)>) {
        if self.ahead.step > self.step {
            return;
        }
        let schedule = self.schedule.clone();
        let Some(current) = schedule.steps.get(self.step) else { return };
        let later = schedule.steps.iter().enumerate().skip(self.step + 1);
        let mut between: SmallVec<[&Instruction; 8]> = SmallVec::new();
        for (number, step) in later {
            if current.instructions.len() + step.instructions.len() + between.len() > MOST_COMPARED {
                return;
            }
            if !step.instructions.iter().any(is_message) {
                between.extend(&step.instructions);
                continue;
            }
            let pending = current.instructions.iter().zip(&self.complete).filter(|(_, done)| !**done);
            between.extend(pending.map(|(instruction, _)| instruction));
            let targets = step.instructions.iter().filter_map(received);
            if targets.clone().any(|target| between.iter().any(|instruction| touches(instruction, target))) {
                return;
            }
            let first = messages.len();
            let is_receive = |instruction: &&Instruction| received(instruction).is_some();
            for (at, instruction) in step.instructions.iter().enumerate().filter(|(_, one)| is_receive(one)) {
                messages.extend(self.message(instruction).map(|message| (Self::number(at, !self.is_odd), message)));
            }
            if messages.len() > first {
                self.ahead.step = number;
                self.ahead.complete.clear();
                self.ahead.complete.resize(step.instructions.len(), false);
            }
            return;
        }
    }
}

/// Where a receive puts what it gets.
pub(super) fn received(instruction: &Instruction) -> Option<&Span> {
    match instruction {
        Instruction::Recv { target, .. } | Instruction::RecvReduce { target, .. } => Some(target),
        Instruction::Send { .. } | Instruction::Copy { .. } | Instruction::Reduce { .. } => None,
    }
}

/// Whether an instruction reads or writes a part of `span`.
fn touches(instruction: &Instruction, span: &Span) -> bool {
    match instruction {
        Instruction::Send { source, .. } => source.overlaps(span),
        Instruction::Recv { target, .. } | Instruction::RecvReduce { target, .. } => target.overlaps(span),
        Instruction::Copy { source, target } => source.overlaps(span) || target.overlaps(span),
        Instruction::Reduce { sources, target, .. } => {
            target.overlaps(span) || sources.iter().any(|source| source.overlaps(span))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::executor::operation::Work;
    use crate::executor::scratch::ScratchPool;
    use crate::schedule::{Buffer, Schedule, Step};
    use crate::types::{
        Algorithm, Collective, CommunicatorId, DataType, Deadline, ReduceOp, Reduction, Signature, Tag,
    };

    fn operation(steps: Vec<Vec<Instruction>>, output: &mut [f32]) -> Operation {
        let steps = steps.into_iter().map(|instructions| Step { instructions }).collect();
        let algorithm = Algorithm::TwoShot;
        let signature = Signature {
            collective: Collective::Allreduce,
            dtype: DataType::F32,
            op: Some(ReduceOp::Sum),
            algorithm,
            root: None,
            count: 4,
            digest: 0,
        };
        let now = Instant::now();
        let tag = Tag { communicator: CommunicatorId(1), sequence: 0 };
        let work = Work {
            tag,
            signature,
            schedule: Arc::new(Schedule { algorithm, steps, scratch: 4, partials_travel: false }),
            dtype: DataType::F32,
            reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
            unequal: false,
            contributions: 2,
            input: std::ptr::null(),
            input_count: 0,
            output: output.as_mut_ptr().cast(),
            output_count: output.len(),
            deadline: Deadline::after(now, Duration::from_secs(60)),
            spoilt: None,
            keep: None,
            layout: None,
        };
        // SAFETY: the output outlives the operation in every test, and nothing else uses it.
        let mut operation = unsafe { Operation::new(work, tag, Arc::default(), now) };
        operation.prepare_schedule(&mut ScratchPool::default());
        operation
    }

    const fn output(start: usize, count: usize) -> Span {
        Span::new(Buffer::Output, start, count)
    }

    const fn scratch(start: usize, count: usize) -> Span {
        Span::new(Buffer::Scratch, start, count)
    }

    fn post(operation: &mut Operation) -> Vec<usize> {
        let mut messages = Vec::new();
        operation.messages(&mut messages);
        messages.into_iter().map(|(number, _)| number).collect()
    }

    fn post_ahead(operation: &mut Operation) -> Vec<usize> {
        let mut messages = Vec::new();
        operation.messages_ahead(&mut messages);
        assert!(messages.iter().all(|(_, message)| matches!(message, Message::Recv { .. })));
        messages.into_iter().map(|(number, _)| number).collect()
    }

    /// A two-shot allreduce in place of rank 0 of 2, the second half of which is overwritten once it is sent.
    fn two_shot() -> Vec<Vec<Instruction>> {
        vec![
            vec![
                Instruction::Send { peer: 1, source: output(2, 2) },
                Instruction::Recv { peer: 1, target: scratch(0, 2) },
            ],
            vec![Instruction::Reduce {
                sources: vec![output(0, 2), scratch(0, 2)],
                target: output(0, 2),
                finish: true,
            }],
            vec![
                Instruction::Send { peer: 1, source: output(0, 2) },
                Instruction::Recv { peer: 1, target: output(2, 2) },
            ],
        ]
    }

    #[test]
    fn a_receive_waits_for_the_send_from_its_target_and_for_nothing_else() {
        let mut memory = [0.0; 4];
        let mut operation = operation(two_shot(), &mut memory);
        let first = post(&mut operation);
        assert_eq!(first.len(), 2);
        assert!(post_ahead(&mut operation).is_empty(), "what is to be sent lies there");
        assert!(!operation.complete(first[0]));
        assert!(operation.only_receives());
        let ahead = post_ahead(&mut operation);
        assert_eq!(ahead.len(), 1);
        assert!(!first.contains(&ahead[0]), "messages of both steps are told apart");
        assert!(post_ahead(&mut operation).is_empty(), "once");

        // It comes before what it was posted behind, from another peer perhaps.
        assert!(!operation.complete(ahead[0]));
        assert!(operation.complete(first[1]));
        operation.next_step();
        assert!(post(&mut operation).is_empty());
        operation.next_step();
        let last = post(&mut operation);
        assert_eq!(last.len(), 1, "the send alone");
        assert_eq!(operation.outstanding, 1);
        assert!(operation.complete(last[0]));
        operation.next_step();
        assert!(operation.is_finished());
    }

    #[test]
    fn one_that_is_still_under_way_when_its_step_begins_is_waited_for() {
        let mut memory = [0.0; 4];
        let mut operation = operation(two_shot(), &mut memory);
        let first = post(&mut operation);
        operation.complete(first[0]);
        let ahead = post_ahead(&mut operation);
        assert!(operation.complete(first[1]));
        operation.next_step();
        post(&mut operation);
        operation.next_step();
        let last = post(&mut operation);
        assert_eq!((last.len(), operation.outstanding), (1, 2));
        assert!(!operation.complete(last[0]));
        assert!(operation.complete(ahead[0]));
    }

    #[test]
    fn what_is_read_or_written_before_is_not_received_ahead() {
        let begin = || vec![Instruction::Recv { peer: 1, target: scratch(0, 1) }];
        let end = || vec![Instruction::Recv { peer: 1, target: scratch(2, 1) }];
        let copy = |source, target| vec![Instruction::Copy { source, target }];
        for (between, expected) in [
            (copy(scratch(2, 1), output(0, 1)), 0),
            (copy(output(0, 1), scratch(2, 1)), 0),
            (copy(scratch(0, 1), scratch(1, 1)), 1),
        ] {
            let mut memory = [0.0; 4];
            let mut operation = operation(vec![begin(), between, end()], &mut memory);
            post(&mut operation);
            assert_eq!(post_ahead(&mut operation).len(), expected);
        }
        let mut memory = [0.0; 4];
        let mut operation = operation(vec![begin(), begin()], &mut memory);
        post(&mut operation);
        assert!(post_ahead(&mut operation).is_empty(), "both are received into");
    }
}
