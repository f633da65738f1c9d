//! Runs all ranks against a clock that is only a number.
//!
//! A message begins when both of its ends are posted and both of its ports are free. Of two messages that could begin at
//! the same time, the one that stands first in its sender's step goes first: plans put partners in such an order that
//! ports do not collide. A step ends when its messages have ended and its local work is done, which is counted after them.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::super::{Hosts, Instruction, Schedule};
use super::{CostModel, LinkModel};

/// One message of a simulated run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// The sending rank, the step and the instruction in it.
    pub from: (usize, usize, usize),
    /// The receiving rank, the step and the instruction in it.
    pub to: (usize, usize, usize),
    /// When it occupies its ports from, in seconds after the call.
    pub begin: f64,
    /// When it is in its target.
    pub end: f64,
}

/// What a simulated run took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// When the last rank is through, in seconds after all ranks made the call.
    pub seconds: f64,
    /// The most steps with messages in them that any rank takes.
    pub steps: usize,
    /// The most bytes that any rank sends.
    pub bytes: u64,
    /// All bytes between hosts.
    pub bytes_between_hosts: u64,
    /// All messages, in the order in which they begin.
    pub transfers: Vec<Transfer>,
}

/// An instruction: rank, step, place in the step.
type Site = (usize, usize, usize);

/// A message whose ends are both posted.
struct Ready {
    at: f64,
    /// The same in whole picoseconds, so that sums of the same times in another order are the same time.
    tick: u64,
    number: usize,
    from: Site,
    to: Site,
}

impl Ord for Ready {
    /// The earliest is the greatest, since a heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.tick, other.from.2, other.number).cmp(&(self.tick, self.from.2, self.number))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ready {}

#[derive(Clone, Copy, Default)]
struct Rank {
    step: usize,
    pending: usize,
    /// Seconds of local work in this step.
    local: f64,
    /// When the last of its messages ends.
    end: f64,
}

struct Simulation<'a> {
    schedules: &'a [Schedule],
    hosts: Hosts,
    element_bytes: f64,
    model: &'a CostModel,
    ranks: Vec<Rank>,
    sends: HashMap<(usize, usize), VecDeque<(Site, f64)>>,
    recvs: HashMap<(usize, usize), VecDeque<(Site, f64)>>,
    heap: BinaryHeap<Ready>,
    numbers: usize,
    /// Whether every message takes one second, for both of its ends, and ports do not matter.
    paced: bool,
}

/// Predicts the time of plans that belong together and are sound (see [`verify`](super::super::verify())); of others,
/// the time until nothing moves. `hosts` as in [`PlanRequest`](super::super::PlanRequest); `element_bytes` is the size
/// of an element as it travels. Each message costs O(log) time
/// for each other one that goes before it at its ports.
pub fn simulate(schedules: &[Schedule], hosts: &[usize], element_bytes: usize, model: &CostModel) -> Prediction {
    let mut simulation = Simulation::new(schedules, hosts, element_bytes, model, false);
    let mut prediction = simulation.run();
    for (rank, schedule) in schedules.iter().enumerate() {
        let (mut steps, mut bytes) = (0, 0);
        for step in &schedule.steps {
            let mut messages = 0;
            for instruction in &step.instructions {
                if let Instruction::Send { peer, source } = instruction {
                    let sent = source.count as u64 * element_bytes as u64;
                    bytes += sent;
                    if simulation.hosts.host_of(rank) != simulation.hosts.host_of(*peer) {
                        prediction.bytes_between_hosts += sent;
                    }
                }
                messages += usize::from(!matches!(instruction, Instruction::Copy { .. } | Instruction::Reduce { .. }));
            }
            steps += usize::from(messages > 0);
        }
        prediction.steps = prediction.steps.max(steps);
        prediction.bytes = prediction.bytes.max(bytes);
    }
    prediction
}

/// All messages of a run in which each takes one second, and keeps both of its ends for so long.
pub(in crate::schedule) fn paced(schedules: &[Schedule]) -> Vec<Transfer> {
    let free = LinkModel { latency: 0.0, overhead: 0.0, seconds_per_byte: 0.0 };
    let model = CostModel {
        in_host: free,
        between_hosts: free,
        reduce_seconds_per_byte: 0.0,
        copy_seconds_per_byte: 0.0,
        ..CostModel::default()
    };
    Simulation::new(schedules, &[], 0, &model, true).run().transfers
}

impl<'a> Simulation<'a> {
    fn new(
        schedules: &'a [Schedule],
        hosts: &[usize],
        element_bytes: usize,
        model: &'a CostModel,
        paced: bool,
    ) -> Self {
        Self {
            schedules,
            hosts: Hosts::new(hosts, schedules.len()),
            element_bytes: element_bytes as f64,
            model,
            ranks: vec![Rank::default(); schedules.len()],
            sends: HashMap::new(),
            recvs: HashMap::new(),
            heap: BinaryHeap::new(),
            numbers: 0,
            paced,
        }
    }

    fn run(&mut self) -> Prediction {
        let mut prediction = Prediction::default();
        let ranks = self.ranks.len();
        // Out and in: of each rank within its host, of each host to others.
        let mut ports = [vec![0.0f64; ranks], vec![0.0; ranks], vec![0.0; ranks], vec![0.0; ranks]];
        for rank in 0..ranks {
            self.post(rank, 0.0, &mut prediction);
        }
        while let Some(message) = self.heap.pop() {
            let (from, to) = (message.from.0, message.to.0);
            let (from_host, to_host) = (self.hosts.host_of(from), self.hosts.host_of(to));
            let near = from_host == to_host;
            let link: &LinkModel = if near { &self.model.in_host } else { &self.model.between_hosts };
            let (out, inward) = if near { ((0, from), (1, to)) } else { ((2, from_host), (3, to_host)) };
            let bytes = self.bytes(message.from);
            let begin = message.at.max(ports[out.0][out.1]).max(ports[inward.0][inward.1]);
            if tick(begin) > message.tick {
                self.heap.push(Ready { at: begin, tick: tick(begin), ..message });
                continue;
            }
            let occupied = begin + if self.paced { 1.0 } else { link.occupied(bytes) };
            if !self.paced {
                ports[out.0][out.1] = occupied;
                ports[inward.0][inward.1] = occupied;
            }
            let arrived = occupied + link.latency;
            let reduces = matches!(self.instruction(message.to), Instruction::RecvReduce { .. });
            let end = arrived + if reduces { bytes * self.model.reduce_seconds_per_byte } else { 0.0 };
            prediction.transfers.push(Transfer { from: message.from, to: message.to, begin, end });
            for (rank, at) in [(from, occupied), (to, end)] {
                let state = &mut self.ranks[rank];
                state.end = state.end.max(at);
                state.pending -= 1;
                if state.pending == 0 {
                    let done = state.end + state.local;
                    state.step += 1;
                    self.post(rank, done, &mut prediction);
                }
            }
        }
        prediction.transfers.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        prediction
    }

    fn instruction(&self, site: Site) -> &Instruction {
        &self.schedules[site.0].steps[site.1].instructions[site.2]
    }

    /// The bytes of a message, seen from its sender.
    fn bytes(&self, site: Site) -> f64 {
        match self.instruction(site) {
            Instruction::Send { source, .. } => source.count as f64 * self.element_bytes,
            _ => 0.0,
        }
    }

    /// Posts a rank's steps from `now` on, until one has messages to wait for.
    fn post(&mut self, rank: usize, now: f64, prediction: &mut Prediction) {
        let mut now = now;
        let schedules = self.schedules;
        while let Some(step) = schedules[rank].steps.get(self.ranks[rank].step) {
            let (mut pending, mut local) = (0, 0.0);
            for (index, instruction) in step.instructions.iter().enumerate() {
                let site = (rank, self.ranks[rank].step, index);
                match instruction {
                    Instruction::Send { peer, .. } => {
                        pending += 1;
                        self.sends.entry((rank, *peer)).or_default().push_back((site, now));
                        self.meet(rank, *peer);
                    }
                    Instruction::Recv { peer, .. } | Instruction::RecvReduce { peer, .. } => {
                        pending += 1;
                        self.recvs.entry((*peer, rank)).or_default().push_back((site, now));
                        self.meet(*peer, rank);
                    }
                    Instruction::Copy { source, .. } => {
                        local += source.count as f64 * self.element_bytes * self.model.copy_seconds_per_byte;
                    }
                    Instruction::Reduce { sources, target, .. } => {
                        let bytes = (sources.len() * target.count) as f64 * self.element_bytes;
                        local += bytes * self.model.reduce_seconds_per_byte;
                    }
                }
            }
            let state = &mut self.ranks[rank];
            (state.pending, state.local, state.end) = (pending, local, now);
            if pending > 0 {
                return;
            }
            now += local;
            state.step += 1;
        }
        prediction.seconds = prediction.seconds.max(now);
    }

    /// Makes a message ready when both ends are posted.
    fn meet(&mut self, from: usize, to: usize) {
        let (Some(sends), Some(recvs)) = (self.sends.get_mut(&(from, to)), self.recvs.get_mut(&(from, to))) else {
            return;
        };
        if sends.is_empty() || recvs.is_empty() {
            return;
        }
        if let (Some((send, sent)), Some((recv, received))) = (sends.pop_front(), recvs.pop_front()) {
            self.numbers += 1;
            let at = sent.max(received);
            self.heap.push(Ready { at, tick: tick(at), number: self.numbers, from: send, to: recv });
        }
    }
}

fn tick(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Counts, JointRequest};
    use crate::types::{Algorithm, Collective};

    /// A link on which everything is counted in whole seconds.
    const UNIT: LinkModel = LinkModel { latency: 1.0, overhead: 0.0, seconds_per_byte: 1.0 };

    fn seconds(collective: Collective, algorithm: Algorithm, size: usize, count: usize, hosts: &[usize]) -> f64 {
        let request = JointRequest {
            collective,
            algorithm,
            size,
            root: 0,
            counts: Counts::Whole(count),
            in_place: &vec![true; size],
            hosts,
            segment: 10,
            deterministic: false,
        };
        let model = CostModel {
            in_host: UNIT,
            between_hosts: LinkModel { latency: 100.0, ..UNIT },
            reduce_seconds_per_byte: 0.0,
            copy_seconds_per_byte: 0.0,
            ..CostModel::default()
        };
        let schedules = request.plan_all().unwrap_or_else(|error| panic!("{error}"));
        simulate(&schedules, hosts, 1, &model).seconds
    }

    #[test]
    fn times_are_those_of_the_textbook() {
        // 2 (n - 1) steps of N / n bytes, a second of latency each.
        assert_eq!(seconds(Collective::Allreduce, Algorithm::Ring, 4, 40, &[]), 6.0 * 11.0);
        // log2 n steps of N bytes.
        assert_eq!(seconds(Collective::Allreduce, Algorithm::RecursiveDoubling, 8, 40, &[]), 3.0 * 41.0);
        // Ports are shared by the messages of a step, the latency is not.
        assert_eq!(seconds(Collective::Allreduce, Algorithm::OneShot, 4, 40, &[]), 3.0 * 40.0 + 1.0);
        assert_eq!(seconds(Collective::Allreduce, Algorithm::TwoShot, 4, 8, &[]), 2.0 * (3.0 * 2.0 + 1.0));
        // The last member of a chain of four gets the first of four segments in the third step.
        assert_eq!(seconds(Collective::Broadcast, Algorithm::Ring, 4, 40, &[]), 6.0 * 11.0);
        assert_eq!(seconds(Collective::Barrier, Algorithm::Dissemination, 5, 0, &[]), 3.0);
    }

    #[test]
    fn a_host_shares_its_link() {
        // Two ranks on each of two hosts: four messages of forty bytes leave each host.
        let hosts = [0, 0, 1, 1];
        assert_eq!(seconds(Collective::Allreduce, Algorithm::OneShot, 4, 40, &hosts), 4.0 * 40.0 + 100.0);
    }
}
