//! Runs all ranks: posts each rank's step, matches messages, and moves a rank on when its step is done.

use std::collections::{HashMap, VecDeque};

use super::super::{Buffer, Instruction, JointRequest, Schedule, Span};
use super::expression::Expressions;
use super::memory::{Memory, Piece, zip};
use super::{Proof, Violation, meaning};
use crate::types::Order;

/// One rank.
struct Rank<'a> {
    schedule: &'a Schedule,
    /// Input, output, scratch.
    memory: [Memory; 3],
    /// The step that is posted.
    step: usize,
    /// Its messages that are not done.
    pending: usize,
}

impl Rank<'_> {
    fn read(&self, span: Span) -> Result<Vec<Piece>, String> {
        self.memory[span.buffer as usize]
            .read(span.start, span.count)
            .map_err(|what| format!("{:?}: {what}", span.buffer))
    }

    fn write(&mut self, span: Span, pieces: &[Piece]) {
        self.memory[span.buffer as usize].write(span.start, span.count, pieces);
    }
}

/// One end of a message: the rank's step and the instruction in it.
type End = (usize, usize);

/// All ranks, and the messages of which one end is posted.
pub(super) struct Machine<'a> {
    ranks: Vec<Rank<'a>>,
    pub(super) expressions: Expressions,
    /// For each ordered pair, the sends (or else the receives) that wait for their other end.
    sends: HashMap<(usize, usize), VecDeque<End>>,
    recvs: HashMap<(usize, usize), VecDeque<End>>,
    proof: Proof,
}

impl<'a> Machine<'a> {
    pub(super) fn new(request: &JointRequest<'_>, schedules: &'a [Schedule]) -> Self {
        let mut expressions = Expressions::new(request.size);
        let ranks = schedules
            .iter()
            .enumerate()
            .map(|(rank, schedule)| {
                let mut memory = <[Memory; 3]>::default();
                if let Some((span, contributor, origin)) = meaning::contribution(request, rank) {
                    let id = expressions.leaf(contributor);
                    let piece = Piece { start: 0, end: span.count, id, origin };
                    memory[span.buffer as usize].write(span.start, span.count, &[piece]);
                }
                Rank { schedule, memory, step: 0, pending: 0 }
            })
            .collect();
        let (sends, recvs) = (HashMap::new(), HashMap::new());
        Self { ranks, expressions, sends, recvs, proof: Proof::default() }
    }

    /// Runs until every rank is through.
    pub(super) fn run(&mut self) -> Result<Proof, Violation> {
        let mut ready: Vec<usize> = (0..self.ranks.len()).rev().collect();
        for rank in 0..self.ranks.len() {
            self.post(rank)?;
        }
        while let Some(rank) = ready.pop() {
            while self.ranks[rank].step < self.ranks[rank].schedule.steps.len() {
                self.meet(rank, &mut ready)?;
                if self.ranks[rank].pending > 0 {
                    break;
                }
                self.ranks[rank].step += 1;
                self.post(rank)?;
            }
        }
        for (rank, state) in self.ranks.iter().enumerate() {
            if state.step < state.schedule.steps.len() {
                let waiting = self.waiting(rank);
                let what = format!("deadlock: waits for rank{} {waiting}", if waiting.len() == 1 { "" } else { "s" });
                return Err(Violation { rank, step: Some(state.step), what });
            }
            self.proof.steps = self.proof.steps.max(state.schedule.steps.len());
            let steps = state.schedule.steps.iter().flat_map(|step| &step.instructions);
            let sent = steps.map(|instruction| match instruction {
                Instruction::Send { source, .. } => source.count,
                _ => 0,
            });
            self.proof.sent = self.proof.sent.max(sent.sum());
        }
        Ok(std::mem::take(&mut self.proof))
    }

    /// The ranks that a rank's step waits for, in words.
    fn waiting(&self, rank: usize) -> String {
        let sends =
            self.sends.iter().filter(|(pair, queue)| pair.0 == rank && !queue.is_empty()).map(|(pair, _)| pair.1);
        let recvs =
            self.recvs.iter().filter(|(pair, queue)| pair.1 == rank && !queue.is_empty()).map(|(pair, _)| pair.0);
        let mut peers: Vec<usize> = sends.chain(recvs).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Does the local work of a rank's current step and posts its messages. Since nothing in a step writes what
    /// another instruction reads, the order does not matter.
    fn post(&mut self, rank: usize) -> Result<(), Violation> {
        let index = self.ranks[rank].step;
        let schedule = self.ranks[rank].schedule;
        let Some(step) = schedule.steps.get(index) else { return Ok(()) };
        for (number, instruction) in step.instructions.iter().enumerate() {
            let done = match instruction {
                Instruction::Send { peer, .. } => {
                    self.ranks[rank].pending += 1;
                    self.sends.entry((rank, *peer)).or_default().push_back((index, number));
                    Ok(())
                }
                Instruction::Recv { peer, .. } | Instruction::RecvReduce { peer, .. } => {
                    self.ranks[rank].pending += 1;
                    self.recvs.entry((*peer, rank)).or_default().push_back((index, number));
                    Ok(())
                }
                Instruction::Copy { source, target } => self.ranks[rank].read(*source).map(|pieces| {
                    self.ranks[rank].write(*target, &pieces);
                }),
                Instruction::Reduce { sources, target, finish } => self.reduce(rank, sources, *target, *finish),
            };
            done.map_err(|what| Violation { rank, step: Some(index), what })?;
        }
        Ok(())
    }

    fn reduce(&mut self, rank: usize, sources: &[Span], target: Span, finish: bool) -> Result<(), String> {
        let mut sum: Option<Vec<Piece>> = None;
        for source in sources {
            let pieces = self.ranks[rank].read(*source)?;
            sum = Some(match sum {
                None => pieces,
                Some(sum) => zip(&sum, &pieces, |left, right| self.expressions.combine(left, right))?,
            });
        }
        let mut sum = sum.unwrap_or_default();
        self.finish(&mut sum, finish)?;
        self.ranks[rank].write(target, &sum);
        Ok(())
    }

    fn finish(&mut self, pieces: &mut [Piece], finish: bool) -> Result<(), String> {
        if finish {
            for piece in pieces {
                piece.id = self.expressions.finish(piece.id)?;
            }
        }
        Ok(())
    }

    /// Delivers the messages of a rank's current step whose other end is posted too, and notes the peers whose steps
    /// that ends.
    fn meet(&mut self, rank: usize, ready: &mut Vec<usize>) -> Result<(), Violation> {
        let schedule = self.ranks[rank].schedule;
        let Some(step) = schedule.steps.get(self.ranks[rank].step) else { return Ok(()) };
        for instruction in &step.instructions {
            let (from, to) = match instruction {
                Instruction::Send { peer, .. } => (rank, *peer),
                Instruction::Recv { peer, .. } | Instruction::RecvReduce { peer, .. } => (*peer, rank),
                _ => continue,
            };
            let (Some(sends), Some(recvs)) = (self.sends.get_mut(&(from, to)), self.recvs.get_mut(&(from, to))) else {
                continue;
            };
            if sends.is_empty() || recvs.is_empty() {
                continue;
            }
            if let (Some(send), Some(recv)) = (sends.pop_front(), recvs.pop_front()) {
                self.deliver(from, send, to, recv).map_err(|what| Violation {
                    rank: to,
                    step: Some(recv.0),
                    what: format!("from rank {from}: {what}"),
                })?;
                for end in [from, to] {
                    self.ranks[end].pending -= 1;
                    if self.ranks[end].pending == 0 && end != rank {
                        ready.push(end);
                    }
                }
            }
        }
        Ok(())
    }

    /// Both ends are posted, so nothing has written the source since.
    fn deliver(&mut self, from: usize, send: End, to: usize, recv: End) -> Result<(), String> {
        let instruction = |rank: usize, end: End| {
            let schedule: &'a Schedule = self.ranks[rank].schedule;
            &schedule.steps[end.0].instructions[end.1]
        };
        let Instruction::Send { source, .. } = instruction(from, send) else { return Ok(()) };
        let receive = instruction(to, recv);
        let pieces = self.ranks[from].read(*source).map_err(|what| format!("what was sent: {what}"))?;
        self.proof.messages += 1;
        match receive {
            Instruction::Recv { target, .. } | Instruction::RecvReduce { target, .. }
                if target.count != source.count =>
            {
                Err(format!("{} elements sent, {} expected", source.count, target.count))
            }
            Instruction::Recv { target, .. } => {
                self.ranks[to].write(*target, &pieces);
                Ok(())
            }
            Instruction::RecvReduce { target, order, finish, .. } => {
                let here = self.ranks[to].read(*target)?;
                let (left, right) = match order {
                    Order::HereFirst => (&here, &pieces),
                    Order::IncomingFirst => (&pieces, &here),
                };
                let mut sum = zip(left, right, |left, right| self.expressions.combine(left, right))?;
                self.finish(&mut sum, *finish)?;
                self.ranks[to].write(*target, &sum);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What a rank's output holds, with starts counted from the span's first element.
    pub(super) fn output(&self, rank: usize, start: usize, count: usize) -> Result<Vec<Piece>, String> {
        self.ranks[rank].read(Span::new(Buffer::Output, start, count))
    }
}
