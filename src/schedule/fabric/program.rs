//! Plans, packed for running: steps that repeat are kept once, messages are numbered by channel.
//!
//! A *channel* carries the messages of one rank to another, in order. Where ranks `r` and `r + period` have the same
//! plan but for the numbers of their peers, which are `period` further too, ranks 0 to `period` stand for all: what
//! rank `r` would send to `q` goes to `q mod period`, on a channel that remembers how far `q` was from `r`.

use std::collections::HashMap;

use super::super::{Instruction, Schedule, Step};
use super::Fabric;

/// What a message or a receive of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    Send,
    Recv,
    /// What comes in is combined with what is there.
    RecvReduce,
}

/// A message or a receive of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) channel: u32,
    pub(super) kind: OpKind,
    pub(super) bytes: u64,
}

/// A step of a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PackedStep {
    /// Where its messages lie in [`Program::ops`].
    pub(super) ops: (u32, u32),
    /// Seconds of copies and reductions.
    pub(super) local: f64,
    /// How often it is done before the next.
    pub(super) times: u32,
}

/// What one rank does.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) steps: Vec<PackedStep>,
    pub(super) ops: Vec<Op>,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Channel {
    /// The ranks that stand for the sender and the receiver.
    pub(super) from: u32,
    pub(super) to: u32,
    /// How many ranks the receiver is after the sender, around the corner.
    pub(super) distance: u32,
    pub(super) way: Way,
}

/// Which servers lie between sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Host,
    Rack,
    Spine,
}

/// The programs of the ranks that are run.
#[derive(Debug)]
pub(super) struct Programs {
    /// All ranks that there are.
    pub(super) ranks: usize,
    /// After how many ranks everything is the same again; `ranks` if never.
    pub(super) period: usize,
    pub(super) programs: Vec<Program>,
    pub(super) channels: Vec<Channel>,
    numbers: HashMap<(u32, u32, u32), u32>,
}

impl Programs {
    /// For `ranks` ranks, which repeat after `period`; nobody has a program yet.
    pub(super) fn new(ranks: usize, period: usize) -> Self {
        Self { ranks, period, programs: Vec::new(), channels: Vec::new(), numbers: HashMap::new() }
    }

    /// Packs the plan of rank `rank`, the next one without a program. `stands_in` says
    /// whether the first period stands for all.
    pub(super) fn push(&mut self, rank: usize, schedule: &Schedule, width: usize, fabric: &Fabric, stands_in: bool) {
        let mut program = Program::default();
        let mut ops: Vec<Op> = Vec::new();
        for step in &schedule.steps {
            ops.clear();
            let mut local = 0.0;
            for instruction in &step.instructions {
                let bytes = |count: usize| (count * width) as u64;
                match instruction {
                    Instruction::Send { peer, source } => {
                        let channel = self.channel(rank, *peer, fabric, stands_in);
                        ops.push(Op { channel, kind: OpKind::Send, bytes: bytes(source.count) });
                    }
                    Instruction::Recv { peer, target } => {
                        let channel = self.channel(*peer, rank, fabric, stands_in);
                        ops.push(Op { channel, kind: OpKind::Recv, bytes: bytes(target.count) });
                    }
                    Instruction::RecvReduce { peer, target, .. } => {
                        let channel = self.channel(*peer, rank, fabric, stands_in);
                        ops.push(Op { channel, kind: OpKind::RecvReduce, bytes: bytes(target.count) });
                    }
                    Instruction::Copy { source, .. } => local += bytes(source.count) as f64 / fabric.copy_rate,
                    Instruction::Reduce { sources, target, .. } => {
                        local += bytes(sources.len() * target.count) as f64 / fabric.reduce_rate;
                    }
                }
            }
            program.append(&ops, local);
        }
        self.programs.push(program);
    }

    fn channel(&mut self, from: usize, to: usize, fabric: &Fabric, stands_in: bool) -> u32 {
        let distance = (to + self.ranks - from) % self.ranks;
        let run = if stands_in { self.period } else { self.ranks };
        let key = ((from % run) as u32, (to % run) as u32, distance as u32);
        let channels = &mut self.channels;
        *self.numbers.entry(key).or_insert_with(|| {
            let (from_host, to_host) = (from / fabric.ranks_per_host, to / fabric.ranks_per_host);
            let apart = fabric.ranks_per_rack().is_some_and(|most| from / most != to / most);
            let way = match (from_host == to_host, apart) {
                (true, _) => Way::Host,
                (false, false) => Way::Rack,
                (false, true) => Way::Spine,
            };
            channels.push(Channel { from: key.0, to: key.1, distance: key.2, way });
            channels.len() as u32 - 1
        })
    }

    /// Messages that the programs send, and their bytes.
    pub(super) fn sent(&self) -> (u64, u64) {
        let mut sum = (0, 0);
        for program in &self.programs {
            for step in &program.steps {
                let sends = program.of(step).iter().filter(|op| op.kind == OpKind::Send);
                let (messages, bytes) = sends.fold((0, 0), |(n, bytes), op| (n + 1, bytes + op.bytes));
                sum = (sum.0 + messages * u64::from(step.times), sum.1 + bytes * u64::from(step.times));
            }
        }
        sum
    }
}

impl Program {
    /// The messages and receives of a step.
    pub(super) fn of(&self, step: &PackedStep) -> &[Op] {
        &self.ops[step.ops.0 as usize..step.ops.1 as usize]
    }

    /// Adds a step, which may be one more of the last.
    fn append(&mut self, ops: &[Op], local: f64) {
        if let Some(last) = self.steps.last_mut()
            && last.local == local
            && self.ops[last.ops.0 as usize..last.ops.1 as usize] == *ops
        {
            last.times += 1;
            return;
        }
        let start = self.ops.len() as u32;
        self.ops.extend_from_slice(ops);
        self.steps.push(PackedStep { ops: (start, self.ops.len() as u32), local, times: 1 });
    }
}

/// Whether two plans are the same but for the numbers of their peers, which are as far from `b_rank` as from `a_rank`.
pub(super) fn same_but_for_place(a: (usize, &Schedule), b: (usize, &Schedule), ranks: usize) -> bool {
    let view = |rank: usize, step: &Step| -> Vec<(u8, usize, usize)> {
        let far = |peer: usize| (peer + ranks - rank) % ranks;
        let see = |instruction: &Instruction| match instruction {
            Instruction::Send { peer, source } => (0, far(*peer), source.count),
            Instruction::Recv { peer, target } => (1, far(*peer), target.count),
            Instruction::RecvReduce { peer, target, .. } => (2, far(*peer), target.count),
            Instruction::Copy { source, .. } => (3, 0, source.count),
            Instruction::Reduce { sources, target, .. } => (4, sources.len(), target.count),
        };
        step.instructions.iter().map(see).collect()
    };
    let steps = a.1.steps.iter().zip(&b.1.steps);
    a.1.steps.len() == b.1.steps.len() && steps.into_iter().all(|(x, y)| view(a.0, x) == view(b.0, y))
}
