//! The engine's state machine under simulation: several ranks in one thread, with messages that are delivered, and
//! connections that are made, in a seeded random order. A failing seed replays.

mod tests;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::completion::Completion;
use super::core::Core;
use super::engine::Dial;
use super::operation::Work;
use crate::reduce;
use crate::schedule::{self, PlanRequest, Shape};
use crate::transport::{Endpoint, Event, Notice, Receive, RecvRequest, SendRequest};
use crate::types::{
    Algorithm, Collective, CommunicatorId, DataType, Deadline, Error, Generation, ReduceOp, Reduction, Result,
    Signature, Tag, TransportKind,
};

/// What is on the way from one rank to another.
enum Parcel {
    Data(Tag, Signature, Vec<u8>),
    Notice(Notice),
    Goodbye,
    Broken,
}

/// Everything on the way, by sender and receiver, and the dials that nobody has answered.
#[derive(Default)]
struct Net {
    queues: Vec<Vec<VecDeque<Parcel>>>,
    dials: Vec<(usize, usize)>,
    random: u64,
}

impl Net {
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % limit
    }
}

struct Dialler {
    me: usize,
    net: Arc<Mutex<Net>>,
}

impl Dial for Dialler {
    fn dial(&mut self, peer: usize) {
        self.net.lock().unwrap().dials.push((self.me.min(peer), self.me.max(peer)));
    }
}

/// The simplest thing that keeps the contract: every message is copied into the net at once.
struct SimEndpoint {
    me: usize,
    peer: usize,
    net: Arc<Mutex<Net>>,
    posted: Vec<RecvRequest>,
    mailbox: Vec<(Tag, Signature, Vec<u8>)>,
    announced: HashSet<Tag>,
    cancelled: HashSet<Tag>,
    done: Vec<Event>,
}

// SAFETY: the pointers in posted requests belong to the simulation, which has one thread.
unsafe impl Send for SimEndpoint {}

impl SimEndpoint {
    fn new(me: usize, peer: usize, net: Arc<Mutex<Net>>) -> Self {
        Self {
            me,
            peer,
            net,
            posted: Vec::new(),
            mailbox: Vec::new(),
            announced: HashSet::new(),
            cancelled: HashSet::new(),
            done: Vec::new(),
        }
    }

    fn put(&self, parcel: Parcel) {
        self.net.lock().unwrap().queues[self.me][self.peer].push_back(parcel);
    }

    /// Meets the first posted receive of a tag with the first message of it.
    fn meet(&mut self, tag: Tag) {
        while let (Some(posted), Some(arrived)) = (
            self.posted.iter().position(|request| request.tag == tag),
            self.mailbox.iter().position(|(other, ..)| *other == tag),
        ) {
            let request = self.posted.remove(posted);
            let (_, theirs, bytes) = self.mailbox.remove(arrived);
            if theirs != request.signature {
                self.done.push(Event::Mismatch { tag, theirs });
                return;
            }
            assert_eq!(bytes.len(), request.bytes, "equal calls, unequal lengths");
            match request.mode {
                // SAFETY: the executor promised the target until completion or cancel.
                Receive::Store => unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), request.target, bytes.len());
                },
                // SAFETY: as above.
                Receive::Reduce(how) => unsafe {
                    let count = bytes.len() / how.dtype.size();
                    let from = bytes.as_ptr();
                    reduce::combine(&how.reduction, how.dtype, request.target, from, count, how.order, how.finish);
                },
            }
            self.done.push(Event::Received(request.token));
        }
    }
}

impl Endpoint for SimEndpoint {
    fn kind(&self) -> TransportKind {
        TransportKind::Inproc
    }

    fn link(&self) -> Arc<str> {
        "simulated".into()
    }

    unsafe fn post_send(&mut self, request: SendRequest) {
        let mut bytes = vec![0; request.bytes];
        // SAFETY: the executor promised the source until `Sent`.
        unsafe { std::ptr::copy_nonoverlapping(request.source, bytes.as_mut_ptr(), request.bytes) };
        self.put(Parcel::Data(request.tag, request.signature, bytes));
        self.done.push(Event::Sent(request.token));
    }

    unsafe fn post_recv(&mut self, request: RecvRequest) {
        let tag = request.tag;
        self.posted.push(request);
        self.meet(tag);
    }

    fn notify(&mut self, notice: Notice) {
        self.put(Parcel::Notice(notice));
    }

    fn cancel(&mut self, tag: Tag) {
        self.posted.retain(|request| request.tag != tag);
        self.mailbox.retain(|(other, ..)| *other != tag);
        self.cancelled.insert(tag);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        let parcels: Vec<Parcel> = {
            let mut net = self.net.lock().unwrap();
            let count = net.below(3);
            let queue = &mut net.queues[self.peer][self.me];
            queue.drain(..count.min(queue.len())).collect()
        };
        let moved = !parcels.is_empty();
        for parcel in parcels {
            match parcel {
                Parcel::Data(tag, ..) if self.cancelled.contains(&tag) => {}
                Parcel::Data(tag, signature, bytes) => {
                    let expected = self.posted.iter().any(|request| request.tag == tag);
                    if !expected && self.announced.insert(tag) {
                        self.done.push(Event::Early { tag, signature });
                    }
                    self.mailbox.push((tag, signature, bytes));
                    self.meet(tag);
                }
                Parcel::Notice(notice) => self.done.push(Event::Notice(notice)),
                Parcel::Goodbye => self.done.push(Event::Goodbye),
                Parcel::Broken => self.done.push(Event::Failed("reset".into())),
            }
        }
        events.append(&mut self.done);
        moved
    }

    fn prepare_sleep(&mut self) -> bool {
        false
    }

    fn say_goodbye(&mut self) {
        self.put(Parcel::Goodbye);
    }

    fn is_drained(&self) -> bool {
        true
    }
}

/// One rank's view of one operation: its call, its memory, its outcome.
struct Flight {
    completion: Arc<Completion>,
    output: Vec<i64>,
    _input: Vec<i64>,
}

struct Cluster {
    cores: Vec<Option<Core>>,
    net: Arc<Mutex<Net>>,
    start: Instant,
    /// A rank that does not move, though connections to it come into being.
    asleep: Option<usize>,
}

/// A call of the simulation, the same on every rank unless a mismatch is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SimCall {
    collective: Collective,
    algorithm: Algorithm,
    count: usize,
    root: usize,
}

impl Cluster {
    fn new(seed: u64, size: usize) -> Self {
        let queues = (0..size).map(|_| (0..size).map(|_| VecDeque::new()).collect()).collect();
        let net = Net { queues, dials: Vec::new(), random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 };
        let net = Arc::new(Mutex::new(net));
        let cores = (0..size).map(|me| {
            let mut core = Core::new(me, size, Box::new(Dialler { me, net: net.clone() }), Box::new(|| None));
            core.add_channel(CommunicatorId::WORLD, Channel::new((0..size).collect(), me)).unwrap();
            Some(core)
        });
        Self { cores: cores.collect(), net: net.clone(), start: Instant::now(), asleep: None }
    }

    fn below(&self, limit: usize) -> usize {
        self.net.lock().unwrap().below(limit)
    }

    fn submit(&mut self, rank: usize, call: SimCall, deadline: Duration) -> Flight {
        let size = self.cores.len();
        let SimCall { collective, algorithm, count, root } = call;
        let blocks = vec![count; size];
        let reduces = matches!(collective, Collective::Allreduce | Collective::Reduce);
        let shape = if collective == Collective::Allgather { Shape::Blocks(&blocks) } else { Shape::Whole(count) };
        let in_place = collective == Collective::Broadcast;
        let request = PlanRequest {
            collective,
            algorithm,
            rank,
            size,
            root,
            shape,
            in_place,
            hosts: &[],
            segment: 3,
            deterministic: false,
        };
        let schedule = schedule::plan(&request).expect("a possible call");
        let input = vec![rank as i64 + 1; count];
        let mut output = vec![
            if in_place && rank == root { 77 } else { 0 };
            if collective == Collective::Allgather { count * size } else { count }
        ];
        let completion = Arc::new(Completion::default());
        let work = Work {
            tag: Tag { communicator: CommunicatorId::WORLD, sequence: 0 },
            signature: Signature {
                collective,
                dtype: DataType::I64,
                op: reduces.then_some(ReduceOp::Sum),
                algorithm,
                root: Some(root as u32),
                count: count as u64,
                digest: 0,
            },
            schedule: Arc::new(schedule),
            dtype: DataType::I64,
            reduction: Arc::new(Reduction::new(ReduceOp::Sum)),
            unequal: false,
            contributions: size,
            input: if in_place { std::ptr::null() } else { input.as_ptr().cast() },
            input_count: if in_place { 0 } else { count },
            output: output.as_mut_ptr().cast(),
            output_count: output.len(),
            deadline: Deadline::after(self.start, deadline),
            spoilt: None,
            keep: None,
            layout: None,
        };
        let core = self.cores[rank].as_mut().expect("a living rank");
        // SAFETY: the flight keeps both vectors, whose memory does not move, until the simulation is over.
        unsafe { core.submit(work, &completion, self.start) };
        Flight { completion, output, _input: input }
    }

    /// Lets one random rank, or one random dial, move.
    fn turn(&mut self) {
        self.connect();
        let rank = self.below(self.cores.len());
        if self.asleep == Some(rank) {
            return;
        }
        if let Some(core) = &mut self.cores[rank] {
            core.progress();
        }
    }

    /// Makes one random connection that was asked for, perhaps.
    fn connect(&mut self) {
        let dial = {
            let mut net = self.net.lock().unwrap();
            if !net.dials.is_empty() && net.below(3) == 0 {
                let which = net.dials.len();
                let which = net.below(which);
                Some(net.dials.swap_remove(which))
            } else {
                None
            }
        };
        if let Some((low, high)) = dial {
            for (me, peer) in [(low, high), (high, low)] {
                let lost = self.cores[peer].is_none();
                let Some(core) = &mut self.cores[me] else { continue };
                let outcome: Result<Box<dyn Endpoint>> = if lost {
                    Err(Error::PeerFailed { rank: peer, operation: "connecting".into(), detail: "refused".into() })
                } else {
                    Ok(Box::new(SimEndpoint::new(me, peer, self.net.clone())))
                };
                core.handle_connection(peer, Generation::FIRST, outcome);
            }
        }
    }

    /// Lets all ranks move until nothing is on the way.
    fn quieten(&mut self) {
        loop {
            (0..100).for_each(|_| self.turn());
            let net = self.net.lock().unwrap();
            if net.dials.is_empty() && net.queues.iter().flatten().all(VecDeque::is_empty) {
                break;
            }
        }
        self.cores.iter_mut().flatten().for_each(|core| while core.progress() {});
    }

    /// A rank dies: whoever is connected to it sees a reset.
    fn kill(&mut self, rank: usize) {
        self.cores[rank] = None;
        let mut net = self.net.lock().unwrap();
        for peer in 0..net.queues.len() {
            net.queues[rank][peer].push_back(Parcel::Broken);
        }
    }

    /// Moves until every flight of a living rank has ended.
    fn settle(&mut self, flights: &[Vec<Option<Flight>>]) -> bool {
        for round in 0..200_000 {
            if round % 1000 == 999 {
                // Nothing has moved for long: seconds pass.
                let later = self.start + Duration::from_secs(round / 1000);
                self.cores.iter_mut().flatten().for_each(|core| core.check(later));
            }
            let pending = |rank: usize, flight: &Option<Flight>| {
                self.cores[rank].is_some() && flight.as_ref().is_some_and(|flight| !flight.completion.is_done())
            };
            if !flights.iter().any(|op| op.iter().enumerate().any(|(rank, flight)| pending(rank, flight))) {
                return true;
            }
            for _ in 0..16 {
                self.turn();
            }
        }
        false
    }
}

fn random_call(cluster: &Cluster) -> SimCall {
    const COLLECTIVES: [Collective; 4] =
        [Collective::Allreduce, Collective::Broadcast, Collective::Allgather, Collective::Reduce];
    let collective = COLLECTIVES[cluster.below(4)];
    let algorithms = schedule::algorithms_for(collective);
    let algorithm = algorithms[cluster.below(algorithms.len())];
    SimCall { collective, algorithm, count: cluster.below(12), root: cluster.below(cluster.cores.len()) }
}

fn check_result(call: SimCall, rank: usize, size: usize, flight: &Flight) {
    let sum = (1..=size as i64).sum::<i64>();
    let expected: Vec<i64> = match call.collective {
        Collective::Allreduce => vec![sum; call.count],
        Collective::Reduce if rank == call.root => vec![sum; call.count],
        Collective::Broadcast => vec![77; call.count],
        Collective::Allgather => (0..size).flat_map(|rank| vec![rank as i64 + 1; call.count]).collect(),
        _ => return,
    };
    assert_eq!(flight.output, expected, "rank {rank}: {call:?}");
}

const FAR: Duration = Duration::from_secs(3600);
