//! Running packed plans over a fabric, event by event; `mod.rs` has the model.
//!
//! Times are whole picoseconds. What happens at the same time happens in an order that depends on the places of sender
//! and receiver within the period and on how far apart they are, and on nothing else; and what an event brings about is
//! at least a picosecond later. So where ranks repeat, those that stand for each other do the same in the same order,
//! and running one period gives the same times as running all, to the picosecond.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::program::{Channel, OpKind, Program, Programs, Way};
use super::{Fabric, Port};

type Tick = u64;

/// What a message can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// A core.
    Core,
    /// A network card, outwards.
    NicOut,
    /// A network card, inwards.
    NicIn,
    /// From a rack to the spine.
    RackUp,
    /// From the spine to a rack.
    RackDown,
}

impl Outcome {
    /// When the last rank was through.
    pub(super) fn end(&self) -> Tick {
        self.ends.iter().copied().max().unwrap_or(0)
    }
}

impl LinkKind {
    /// All kinds.
    pub const ALL: [LinkKind; 5] =
        [LinkKind::Core, LinkKind::NicOut, LinkKind::NicIn, LinkKind::RackUp, LinkKind::RackDown];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            LinkKind::Core => "core",
            LinkKind::NicOut => "nic-out",
            LinkKind::NicIn => "nic-in",
            LinkKind::RackUp => "rack-up",
            LinkKind::RackDown => "rack-down",
        }
    }
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// Until when it is taken.
    pub(super) free: Tick,
    /// How long it was busy.
    pub(super) busy: Tick,
    /// Bytes that went through.
    pub(super) bytes: u64,
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// When each rank that was run was through.
    pub(super) ends: Vec<Tick>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Ranks that never came to their end: 0 for sound plans.
    pub(super) stuck: usize,
    /// By kind: all servers.
    pub(super) servers: [Vec<Used>; 5],
}

/// Seconds in picoseconds.
pub(super) fn ticks(seconds: f64) -> Tick {
    (seconds * 1e12).round() as Tick
}

/// When, and what comes first of what is at the same time: sender, receiver, distance, number on the channel.
type Event = Reverse<(Tick, u64, u32, u32)>;

/// Numbers on channels that stand for something other than a message.
const STEP: u32 = u32::MAX;
const LOCAL: u32 = u32::MAX - 1;

/// A message on its way.
#[derive(Clone, Copy, Default)]
struct Message {
    channel: u32,
    number: u32,
    stage: u8,
    /// No byte leaves the next server before this.
    tail: Tick,
}

/// The two ends of a message, as far as they are known.
#[derive(Clone, Copy)]
struct Ends {
    bytes: u64,
    sent: Option<Tick>,
    received: Option<Tick>,
    reduces: bool,
    /// The message, where it has come to its receiver before the receive.
    waiting: Option<u32>,
    done: bool,
}

#[derive(Default)]
struct Queue {
    /// The number of the first of `ends`.
    first: u32,
    ends: VecDeque<Ends>,
    sends: u32,
    recvs: u32,
}

#[derive(Clone, Copy, Default)]
struct Rank {
    step: usize,
    /// How often the step was done.
    times: u32,
    pending: u32,
    end: Tick,
    finished: bool,
}

/// A price for each message and each byte, in picoseconds.
#[derive(Clone, Copy)]
struct Price {
    overhead: Tick,
    per_byte: f64,
}

impl Price {
    fn of(&self, bytes: u64) -> Tick {
        self.overhead + (bytes as f64 * self.per_byte).round() as Tick
    }
}

fn kept_cores(fabric: &Fabric) -> usize {
    fabric.cores_per_host.min(fabric.ranks_per_host)
}

struct Engine<'a> {
    fabric: &'a Fabric,
    programs: &'a Programs,
    ranks: Vec<Rank>,
    queues: Vec<Queue>,
    servers: [Vec<Used>; 5],
    heap: BinaryHeap<Event>,
    messages: Vec<Message>,
    spare: Vec<u32>,
    now: Tick,
    total: (u64, u64),
    memory: Price,
    network: Price,
    nic: Price,
    rack: Price,
    reduce_per_byte: f64,
    hop: Tick,
}

/// Runs all programs to their end. A message and a server cost O(log messages under way).
pub(super) fn run(programs: &Programs, fabric: &Fabric) -> Outcome {
    let count = programs.programs.len();
    let hosts = count.div_ceil(fabric.ranks_per_host);
    let racks = hosts.div_ceil(fabric.hosts_per_rack.max(1));
    // Cores that no rank uses are not kept.
    let cores = if fabric.one_machine { fabric.cores_per_host } else { hosts * kept_cores(fabric) };
    let per_byte = |rate: f64| 1e12 / rate;
    let core = |port: &Port| Price { overhead: ticks(port.overhead), per_byte: per_byte(port.rate) };
    let uplink = fabric.hosts_per_rack.max(1) as f64 * fabric.nics as f64 * fabric.nic_rate / fabric.oversubscription;
    let nics = hosts * fabric.nics;
    let mut engine = Engine {
        fabric,
        programs,
        ranks: vec![Rank::default(); count],
        queues: programs.channels.iter().map(|_| Queue::default()).collect(),
        servers: [cores, nics, nics, racks, racks].map(|count| vec![Used::default(); count]),
        heap: BinaryHeap::new(),
        messages: Vec::new(),
        spare: Vec::new(),
        now: 0,
        total: (0, 0),
        memory: core(&fabric.memory),
        network: core(&fabric.network),
        nic: Price { overhead: ticks(fabric.nic_overhead), per_byte: per_byte(fabric.nic_rate) },
        rack: Price { overhead: 0, per_byte: per_byte(uplink) },
        reduce_per_byte: per_byte(fabric.reduce_rate),
        hop: ticks(fabric.hop_latency),
    };
    for rank in 0..count {
        engine.schedule(0, engine.key(rank, None), STEP, rank as u32);
    }
    engine.run();
    let ends: Vec<Tick> = engine.ranks.iter().map(|rank| rank.end).collect();
    Outcome {
        stuck: engine.ranks.iter().filter(|rank| !rank.finished).count(),
        ends,
        messages: engine.total.0,
        bytes: engine.total.1,
        servers: engine.servers,
    }
}

impl Engine<'_> {
    fn run(&mut self) {
        while let Some(Reverse((tick, _, number, what))) = self.heap.pop() {
            self.now = tick;
            match number {
                STEP => self.step(what as usize),
                LOCAL => self.local(what as usize),
                _ => self.hop(what),
            }
        }
    }

    fn schedule(&mut self, at: Tick, key: u64, number: u32, what: u32) {
        self.heap.push(Reverse((at.max(self.now + 1), key, number, what)));
    }

    /// What comes first at the same time: 20 bits each for sender, receiver, and distance. A rank's own affairs come
    /// after its messages.
    fn key(&self, from: usize, channel: Option<&Channel>) -> u64 {
        let period = self.programs.period;
        let (to, distance) =
            channel.map_or((0xf_ffff, 0xf_ffff), |channel| (channel.to as usize % period, channel.distance));
        ((from % period) as u64) << 40 | (to as u64) << 20 | u64::from(distance)
    }

    fn channel(&self, number: u32) -> &Channel {
        &self.programs.channels[number as usize]
    }

    /// Begins a rank's next step, or ends the rank.
    fn step(&mut self, rank: usize) {
        let programs = self.programs;
        let program: &Program = &programs.programs[rank];
        let Some(step) = program.steps.get(self.ranks[rank].step) else {
            self.ranks[rank].finished = true;
            return;
        };
        let ops = program.of(step);
        let state = &mut self.ranks[rank];
        state.pending = ops.len() as u32 + u32::from(step.local > 0.0);
        state.end = self.now;
        state.times += 1;
        if state.times == step.times {
            (state.step, state.times) = (state.step + 1, 0);
        }
        if step.local > 0.0 {
            self.schedule(self.now, self.key(rank, None), LOCAL, rank as u32);
        }
        for op in ops {
            self.post(op.channel, op.kind, op.bytes);
        }
    }

    /// Says that one end of a message is there.
    fn post(&mut self, channel: u32, kind: OpKind, bytes: u64) {
        let now = self.now;
        let queue = &mut self.queues[channel as usize];
        let counter = if kind == OpKind::Send { &mut queue.sends } else { &mut queue.recvs };
        let number = *counter;
        *counter += 1;
        let index = (number - queue.first) as usize;
        if index == queue.ends.len() {
            let ends = Ends { bytes, sent: None, received: None, reduces: false, waiting: None, done: false };
            queue.ends.push_back(ends);
        }
        let ends = &mut queue.ends[index];
        match kind {
            OpKind::Send => (ends.sent, ends.bytes) = (Some(now), bytes),
            _ => (ends.received, ends.reduces) = (Some(now), kind == OpKind::RecvReduce),
        }
        let ends = *ends;
        let eager = ends.bytes <= self.fabric.eager_bytes as u64;
        match (ends.sent, ends.received) {
            (Some(sent), _) if eager && kind == OpKind::Send => self.launch(channel, number, sent),
            (Some(sent), Some(received)) if !eager => {
                // Word of the receive goes the way of an empty message.
                let at = sent.max(received + self.head(channel));
                self.launch(channel, number, at);
            }
            (Some(_), Some(_)) => {
                if let Some(message) = ends.waiting {
                    let key = self.key(self.channel(channel).from as usize, Some(self.channel(channel)));
                    self.schedule(now, key, number, message);
                }
            }
            _ => {}
        }
    }

    /// How long an empty message is under way where nothing is busy.
    fn head(&self, channel: u32) -> Tick {
        match self.channel(channel).way {
            Way::Host => self.memory.overhead + ticks(self.fabric.memory.latency),
            Way::Rack => self.network.overhead + ticks(self.fabric.network.latency) + 2 * self.hop,
            Way::Spine => self.network.overhead + ticks(self.fabric.network.latency) + 4 * self.hop,
        }
    }

    fn launch(&mut self, channel: u32, number: u32, at: Tick) {
        let message = Message { channel, number, stage: 0, tail: 0 };
        let index = self.spare.pop().unwrap_or_else(|| {
            self.messages.push(message);
            self.messages.len() as u32 - 1
        });
        self.messages[index as usize] = message;
        let key = self.key(self.channel(channel).from as usize, Some(self.channel(channel)));
        self.schedule(at, key, number, index);
    }

    fn core(&self, rank: usize) -> usize {
        if self.fabric.one_machine {
            return rank % self.fabric.cores_per_host;
        }
        let (host, local) = (rank / self.fabric.ranks_per_host, rank % self.fabric.ranks_per_host);
        let kept = kept_cores(self.fabric);
        host * kept + local % kept
    }

    fn nic(&self, rank: usize) -> usize {
        let (host, local) = (rank / self.fabric.ranks_per_host, rank % self.fabric.ranks_per_host);
        host * self.fabric.nics + local % self.fabric.nics
    }

    fn rack(&self, rank: usize) -> usize {
        rank / self.fabric.ranks_per_rack().unwrap_or(usize::MAX)
    }

    /// Takes a turn at a server from `now` on; when it begins and when it ends.
    fn serve(&mut self, kind: LinkKind, index: usize, time: Tick, bytes: u64) -> (Tick, Tick) {
        let server = &mut self.servers[kind as usize][index];
        let begin = self.now.max(server.free);
        server.free = begin + time;
        server.busy += time;
        server.bytes += bytes;
        (begin, begin + time)
    }

    /// Copies and reductions of a step.
    fn local(&mut self, rank: usize) {
        let program = &self.programs.programs[rank];
        let state = self.ranks[rank];
        // The state has moved on to the step after this one, unless this one repeats.
        let index = if state.times == 0 { state.step - 1 } else { state.step };
        let time = ticks(program.steps[index].local);
        let (_, end) = self.serve(LinkKind::Core, self.core(rank), time, 0);
        self.finish(rank, end);
    }

    /// One of the things that a rank's step waits for ends at `at`.
    fn finish(&mut self, rank: usize, at: Tick) {
        let state = &mut self.ranks[rank];
        state.end = state.end.max(at);
        state.pending -= 1;
        if state.pending == 0 {
            let end = state.end;
            self.schedule(end, self.key(rank, None), STEP, rank as u32);
        }
    }

    /// The head of a message comes to its next server.
    fn hop(&mut self, index: u32) {
        let Message { channel: number_of_channel, number, stage, tail } = self.messages[index as usize];
        let channel = *self.channel(number_of_channel);
        let (from, to) = (channel.from as usize, channel.to as usize);
        let place = (number - self.queues[number_of_channel as usize].first) as usize;
        let ends = self.queues[number_of_channel as usize].ends[place];
        let bytes = ends.bytes;
        let (price, latency) = match channel.way {
            Way::Host => (self.memory, self.fabric.memory.latency),
            _ => (self.network, self.fabric.network.latency),
        };
        let last = match channel.way {
            Way::Host => 1,
            Way::Rack => 3,
            Way::Spine => 5,
        };
        if stage == last {
            if ends.received.is_none() {
                self.queues[number_of_channel as usize].ends[place].waiting = Some(index);
                return;
            }
            let combining = if ends.reduces { (bytes as f64 * self.reduce_per_byte).round() as Tick } else { 0 };
            let (_, end) = self.serve(LinkKind::Core, self.core(to), price.of(bytes) + combining, bytes);
            self.spare.push(index);
            self.total.0 += 1;
            self.total.1 += bytes;
            let queue = &mut self.queues[number_of_channel as usize];
            queue.ends[place].done = true;
            while queue.ends.front().is_some_and(|ends| ends.done) {
                queue.ends.pop_front();
                queue.first += 1;
            }
            self.finish(to, end.max(tail));
            return;
        }
        let (kind, server, price, ahead) = match (stage, channel.way) {
            (0, _) => (LinkKind::Core, self.core(from), price, price.overhead + ticks(latency)),
            (1, _) => (LinkKind::NicOut, self.nic(from), self.nic, self.hop),
            (2, Way::Rack) | (4, _) => (LinkKind::NicIn, self.nic(to), self.nic, self.hop),
            (2, _) => (LinkKind::RackUp, self.rack(from), self.rack, self.hop),
            _ => (LinkKind::RackDown, self.rack(to), self.rack, self.hop),
        };
        let (begin, end) = self.serve(kind, server, price.of(bytes), bytes);
        let end = end.max(tail);
        // The sender's memory is free when the last byte has left it: an early message's as soon as it is copied.
        let leaves = if channel.way == Way::Host || bytes <= self.fabric.eager_bytes as u64 { 0 } else { 1 };
        if stage == leaves {
            self.finish(from, end);
        }
        let message = &mut self.messages[index as usize];
        message.stage += 1;
        message.tail = end + ahead - if stage == 0 { price.overhead } else { 0 };
        let key = self.key(from, Some(&channel));
        self.schedule(begin + ahead, key, number, index);
    }
}
