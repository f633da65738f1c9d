//! The engine's state machine under simulation: several ranks in one thread, with messages that are delivered, and
//! connections that are made, in a seeded random order. A failing seed replays.

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
    Algorithm, Collective, CommunicatorId, DataType, Deadline, Error, ReduceOp, Reduction, Result, Signature, Tag,
    TransportKind,
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
                core.handle_connection(peer, outcome);
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

#[test]
fn operations_in_flight_together_all_end_with_the_right_result() {
    for seed in 0..300 {
        let size = 2 + seed as usize % 5;
        let mut cluster = Cluster::new(seed, size);
        let calls: Vec<_> = (0..6).map(|_| random_call(&cluster)).collect();
        let mut flights = Vec::new();
        for &call in &calls {
            let mut op = Vec::new();
            for rank in 0..size {
                op.push(Some(cluster.submit(rank, call, FAR)));
                (0..cluster.below(20)).for_each(|_| cluster.turn());
            }
            flights.push(op);
        }
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        for (call, op) in calls.iter().zip(&flights) {
            for (rank, flight) in op.iter().flatten().enumerate() {
                assert_eq!(flight.completion.outcome(), Some(Ok(())), "seed {seed}, rank {rank}: {call:?}");
                check_result(*call, rank, size, flight);
            }
        }
    }
}

#[test]
fn a_mismatch_reaches_every_rank() {
    for seed in 0..300 {
        let size = 2 + seed as usize % 5;
        let mut cluster = Cluster::new(seed, size);
        let (usual, odd_one) = (random_call(&cluster), cluster.below(size));
        let odd = loop {
            let odd = random_call(&cluster);
            if odd != usual {
                break odd;
            }
        };
        let after = SimCall { collective: Collective::Allreduce, algorithm: Algorithm::TwoShot, count: 3, root: 0 };
        let mut flights = Vec::new();
        for number in 0..6 {
            let call = |rank: usize| match number {
                0 if rank == odd_one => odd,
                0 => usual,
                _ => after,
            };
            flights.push((0..size).map(|rank| Some(cluster.submit(rank, call(rank), FAR))).collect());
            assert!(cluster.settle(&flights), "seed {seed}: {usual:?} and {odd:?} do not end");
        }
        for rank in 0..size {
            let outcomes: Vec<_> =
                flights.iter().map(|op| op[rank].as_ref().unwrap().completion.outcome().unwrap()).collect();
            let told = outcomes.iter().any(|outcome| matches!(outcome, Err(Error::Mismatch { .. })));
            assert!(told, "seed {seed}, rank {rank}: {usual:?} and {odd:?} went unseen: {outcomes:?}");
            assert_eq!(outcomes[5], Ok(()), "seed {seed}, rank {rank}: does not go on");
        }
    }
}

#[test]
fn a_death_reaches_every_rank_and_is_named() {
    for seed in 0..300 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let victim = cluster.below(size);
        let count = 1 + cluster.below(12);
        let call = SimCall { collective: Collective::Allreduce, count, ..random_call(&cluster) };
        let algorithms = schedule::algorithms_for(Collective::Allreduce);
        let call = SimCall { algorithm: algorithms[cluster.below(algorithms.len())], ..call };
        let when = cluster.below(200);
        let mut flights: Vec<Vec<Option<Flight>>> = Vec::new();
        let mut first = Vec::new();
        for rank in 0..size {
            first.push(Some(cluster.submit(rank, call, FAR)));
        }
        flights.push(first);
        (0..when).for_each(|_| cluster.turn());
        cluster.kill(victim);
        flights.push((0..size).map(|rank| (rank != victim).then(|| cluster.submit(rank, call, FAR))).collect());
        assert!(cluster.settle(&flights), "seed {seed}: the survivors do not end");
        for rank in (0..size).filter(|&rank| rank != victim) {
            let outcome = flights[1][rank].as_ref().unwrap().completion.outcome().unwrap();
            let named = matches!(outcome, Err(Error::PeerFailed { rank: named, .. }) if named == victim);
            assert!(named, "seed {seed}, rank {rank}: {outcome:?}");
            let first = flights[0][rank].as_ref().unwrap();
            if first.completion.outcome() == Some(Ok(())) {
                check_result(call, rank, size, first);
            }
        }
    }
}

#[test]
fn a_timeout_on_one_rank_ends_the_operation_on_all() {
    for seed in 0..100 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let silent = cluster.below(size);
        let count = 1 + cluster.below(12);
        let call = SimCall { collective: Collective::Allreduce, count, ..random_call(&cluster) };
        let algorithms = schedule::algorithms_for(Collective::Allreduce);
        let call = SimCall { algorithm: algorithms[cluster.below(algorithms.len())], ..call };
        let first: Vec<_> = (0..size)
            .map(|rank| (rank != silent).then(|| cluster.submit(rank, call, Duration::from_secs(10))))
            .collect();
        let mut flights = vec![first];
        (0..500).for_each(|_| cluster.turn());
        let noticing = (silent + 1) % size;
        let later = cluster.start + Duration::from_secs(11);
        cluster.cores[noticing].as_mut().unwrap().check(later);
        flights[0][silent] = Some(cluster.submit(silent, call, FAR));
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        // A rank that had everything before it heard may have ended well, and reports the timeout at its next call.
        let next = SimCall { collective: Collective::Allgather, algorithm: Algorithm::Ring, count: 1, root: 0 };
        flights.push((0..size).map(|rank| Some(cluster.submit(rank, next, FAR))).collect());
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        for rank in 0..size {
            let outcomes: Vec<_> =
                flights.iter().map(|op| op[rank].as_ref().unwrap().completion.outcome().unwrap()).collect();
            let told = |outcome: &Result<()>| matches!(outcome, Err(Error::Timeout { waited, .. }) if *waited == Duration::from_secs(11));
            assert!(outcomes.iter().any(told), "seed {seed}, rank {rank}: {call:?} {outcomes:?}");
        }
    }
}

/// Also by those whose own links to it are well, and that have nothing in flight with the one that noticed.
#[test]
fn a_rank_that_one_gives_up_is_given_up_by_all() {
    for seed in 0..50 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let call = SimCall { collective: Collective::Allreduce, algorithm: Algorithm::OneShot, count: 5, root: 0 };
        let first: Vec<_> = (0..size).map(|rank| Some(cluster.submit(rank, call, FAR))).collect();
        let mut flights = vec![first];
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        let victim = cluster.below(size);
        let witness = (victim + 1 + cluster.below(size - 1)) % size;
        cluster.net.lock().unwrap().queues[victim][witness].push_back(Parcel::Broken);
        cluster.quieten();
        let others = |rank: usize| rank != victim && rank != witness;
        flights.push((0..size).map(|rank| others(rank).then(|| cluster.submit(rank, call, FAR))).collect());
        for rank in (0..size).filter(|&rank| others(rank)) {
            let outcome = flights[1][rank].as_ref().unwrap().completion.outcome();
            let named = matches!(outcome, Some(Err(Error::PeerFailed { rank: named, .. })) if named == victim);
            assert!(named, "seed {seed}, rank {rank}, {victim} lost by {witness}: {outcome:?}");
        }
    }
}

/// A rank that had an operation's result before another gave it up is in its next call when it hears. The others made
/// another call meanwhile: what they see is the cause, and no mismatch.
#[test]
fn ranks_that_went_on_hear_the_cause_and_nothing_else() {
    let mut went_on = 0;
    for seed in 0..300 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let call = SimCall { count: 1 + cluster.below(12), ..random_call(&cluster) };
        let recovery = SimCall { collective: Collective::Allreduce, algorithm: Algorithm::TwoShot, count: 2, root: 0 };
        let first: Vec<_> = (0..size).map(|rank| Some(cluster.submit(rank, call, Duration::from_secs(10)))).collect();
        let done = |flight: &Option<Flight>| flight.as_ref().unwrap().completion.is_done();
        while !first.iter().any(done) {
            cluster.turn();
        }
        let Some(noticing) = (0..size).find(|&rank| !done(&first[rank])) else { continue };
        let second: Vec<_> =
            (0..size).map(|rank| done(&first[rank]).then(|| cluster.submit(rank, call, FAR))).collect();
        went_on += second.iter().flatten().count();
        cluster.cores[noticing].as_mut().unwrap().check(cluster.start + Duration::from_secs(11));
        let mut flights = vec![first, second];
        assert!(cluster.settle(&flights[..1]), "seed {seed}: does not end");
        let failed: Vec<_> =
            flights[0].iter().map(|one| one.as_ref().unwrap().completion.outcome().unwrap().is_err()).collect();
        for ((rank, flight), failed) in flights[1].iter_mut().enumerate().zip(failed) {
            flight.get_or_insert_with(|| cluster.submit(rank, if failed { recovery } else { call }, FAR));
        }
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        // Who had even that before it heard reports the cause at its next call. Then all go on.
        for _ in 0..2 {
            flights.push((0..size).map(|rank| Some(cluster.submit(rank, recovery, FAR))).collect());
            assert!(cluster.settle(&flights), "seed {seed}: does not end");
        }
        for rank in 0..size {
            let outcomes: Vec<_> =
                flights.iter().map(|op| op[rank].as_ref().unwrap().completion.outcome().unwrap()).collect();
            assert!(outcomes.iter().any(Result::is_err), "seed {seed}, rank {rank}: not told: {call:?}");
            assert_eq!(outcomes[3], Ok(()), "seed {seed}, rank {rank}: does not go on: {call:?}");
            for outcome in outcomes {
                assert!(
                    matches!(outcome, Ok(()) | Err(Error::Timeout { .. })),
                    "seed {seed}, rank {rank}: {call:?} {outcome:?}"
                );
            }
        }
    }
    assert!(went_on > 20, "{went_on} ranks went on: too few to show anything");
}

/// Whoever's deadline passes first names the silent rank, however many others wait between the two.
#[test]
fn the_silent_rank_is_named_and_no_other() {
    let mut indirect = 0;
    for seed in 0..120 {
        let size = 3 + seed as usize % 6;
        let mut cluster = Cluster::new(seed, size);
        let silent = cluster.below(size);
        let noticing = (silent + 1 + cluster.below(size - 1)) % size;
        let algorithms = schedule::algorithms_for(Collective::Allreduce);
        let algorithm = algorithms[cluster.below(algorithms.len())];
        let call = SimCall { collective: Collective::Allreduce, count: 1 + cluster.below(12), algorithm, root: 0 };
        let flights: Vec<_> = (0..size)
            .map(|rank| (rank != silent).then(|| cluster.submit(rank, call, Duration::from_secs(10))))
            .collect();
        cluster.asleep = Some(silent);
        let turns = |cluster: &mut Cluster| (0..2000).for_each(|_| cluster.turn());
        turns(&mut cluster);
        for milliseconds in [100, 300, 9200, 10_000] {
            // One is first. Some are not connected to it, and have their own deadlines.
            for (later, first) in [(milliseconds, true), (milliseconds + 50, false)] {
                let later = cluster.start + Duration::from_millis(later);
                for rank in (0..size).filter(|&rank| rank != silent && (rank == noticing) == first) {
                    cluster.cores[rank].as_mut().unwrap().check(later);
                }
                turns(&mut cluster);
            }
        }
        for (rank, flight) in flights.iter().enumerate() {
            let Some(flight) = flight else { continue };
            let outcome = flight.completion.outcome();
            let Some(Err(Error::Timeout { waiting_for, detail, .. })) = &outcome else {
                panic!("seed {seed}, rank {rank}: {call:?} {outcome:?}");
            };
            assert_eq!(*waiting_for, [silent], "seed {seed}, rank {rank}: {call:?}");
            indirect += usize::from(detail.contains("for which rank"));
        }
    }
    assert!(indirect > 40, "{indirect} were named through others: too few to show anything");
}

/// What a connection that cannot be made means depends on whose fault it is.
#[test]
fn only_a_peer_that_is_gone_is_given_up_for_want_of_a_connection() {
    let call = SimCall { collective: Collective::Broadcast, algorithm: Algorithm::Linear, count: 1, root: 0 };
    let dials = |cluster: &Cluster| std::mem::take(&mut cluster.net.lock().unwrap().dials).len();
    let unconnected = |cluster: &mut Cluster, error: Error| {
        cluster.cores[1].as_mut().unwrap().handle_connection(0, Err(error));
    };
    let silent = Error::Timeout {
        operation: "connecting".into(),
        waiting_for: vec![0],
        waited: Duration::from_secs(30),
        detail: "".into(),
    };
    let mut cluster = Cluster::new(1, 2);
    let first = cluster.submit(1, call, Duration::from_secs(60));
    assert_eq!(dials(&cluster), 1);
    // It may yet come, as long as the operation has time.
    unconnected(&mut cluster, silent.clone());
    assert_eq!((dials(&cluster), first.completion.outcome()), (1, None));
    let later = cluster.start + Duration::from_secs(61);
    cluster.cores[1].as_mut().unwrap().check(later);
    assert!(matches!(first.completion.outcome(), Some(Err(Error::Timeout { waiting_for, .. })) if waiting_for == [0]));
    unconnected(&mut cluster, silent);
    assert_eq!(dials(&cluster), 0, "nobody waits any more");
    // A want of descriptors here says nothing about the peer.
    let second = cluster.submit(1, call, FAR);
    assert_eq!(dials(&cluster), 1);
    unconnected(&mut cluster, Error::environment("no more open files", "raise the limit"));
    assert!(matches!(second.completion.outcome(), Some(Err(Error::Environment { .. }))));
    let third = cluster.submit(1, call, FAR);
    assert_eq!(dials(&cluster), 1, "it is tried again");
    let gone = Error::PeerFailed { rank: 0, operation: "connecting".into(), detail: "refused".into() };
    unconnected(&mut cluster, gone);
    assert!(matches!(third.completion.outcome(), Some(Err(Error::PeerFailed { rank: 0, .. }))));
    let fourth = cluster.submit(1, call, FAR);
    assert_eq!(dials(&cluster), 0);
    assert!(matches!(fourth.completion.outcome(), Some(Err(Error::PeerFailed { rank: 0, .. }))));
}
