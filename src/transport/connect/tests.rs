//! Members of one process that connect for real.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::sync::mpsc;

use super::*;
use crate::transport::lane::LaneError;
use crate::transport::listen::ListenConfig;
use crate::transport::rdma::RdmaUse;
use crate::types::{Fault, TransportKind};
use crate::wire::handshake::{HandshakeError, Hello, Initiator, Purpose, Refusal};

pub(super) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SOON: Duration = Duration::from_secs(20);

type Outcome = (usize, Result<Vec<Box<dyn Lane>>>);

pub(super) struct Member {
    pub(super) connector: Connector,
    pub(super) sleeper: Arc<Sleeper>,
    outcomes: mpsc::Receiver<Outcome>,
    addresses: ListenAddresses,
}

impl Member {
    pub(super) fn next(&self) -> Outcome {
        self.outcomes.recv_timeout(SOON).expect("an outcome")
    }

    pub(super) fn lanes(&self) -> (usize, Vec<Box<dyn Lane>>) {
        let (peer, outcome) = self.next();
        (peer, outcome.unwrap())
    }
}

pub(super) fn bind(address: IpAddr) -> Listeners {
    Listeners::bind(&ListenConfig { address, interface: None, ports: None, shared_memory: true, rdma: RdmaUse::No })
        .unwrap()
}

pub(super) fn key() -> JobKey {
    JobKey::from_bytes([3; 32])
}

pub(super) fn start(listeners: Listeners, config: ConnectorConfig) -> Member {
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let addresses = listeners.addresses().clone();
    let (sender, outcomes) = mpsc::channel();
    let deliver = Box::new(move |peer, _, outcome| drop(sender.send((peer, outcome))));
    let connector = Connector::start_lanes(listeners, config, sleeper.clone(), deliver).unwrap();
    Member { connector, sleeper, outcomes, addresses }
}

pub(super) fn addresses(listeners: &[Listeners]) -> Vec<PeerAddress> {
    listeners
        .iter()
        .enumerate()
        .map(|(rank, listeners)| PeerAddress { rank, addresses: listeners.addresses().clone() })
        .collect()
}

/// Members of one job; `change` may change what each is told.
fn job_at(address: IpAddr, ranks: usize, change: impl Fn(&mut ConnectorConfig)) -> Vec<Member> {
    let listeners: Vec<Listeners> = (0..ranks).map(|_| bind(address)).collect();
    let peers = addresses(&listeners);
    listeners
        .into_iter()
        .enumerate()
        .map(|(rank, listeners)| {
            let mut config = ConnectorConfig::new(rank, Generation(1), key(), peers.clone());
            change(&mut config);
            start(listeners, config)
        })
        .collect()
}

fn job(ranks: usize, transport: TransportPolicy) -> Vec<Member> {
    job_at(LOCAL, ranks, |config| config.transport = transport)
}

/// Makes the members of another machine, as far as addresses tell.
pub(super) fn on_other_machines(config: &mut ConnectorConfig) {
    let own = config.rank;
    for peer in config.peers.iter_mut().filter(|peer| peer.rank != own) {
        peer.addresses.host.boot ^= 1 + peer.rank as u128;
    }
}

/// The contract of this room, over the real carriers.
pub(super) mod conformance {
    use super::*;
    use crate::transport::conformance::{Carrier, Pair, Side};
    use crate::transport::stream::StreamConfig;

    fn pair(change: impl Fn(&mut ConnectorConfig)) -> Pair {
        pair_over(vec![bind(LOCAL), bind(LOCAL)], None, false, change)
    }

    pub(in crate::transport::connect) fn pair_over(
        listeners: Vec<Listeners>,
        stream: Option<StreamConfig>,
        in_heap: bool,
        change: impl Fn(&mut ConnectorConfig),
    ) -> Pair {
        let peers = addresses(&listeners);
        let mut sides = Vec::new();
        for (rank, listeners) in listeners.into_iter().enumerate() {
            let mut config = ConnectorConfig::new(rank, Generation(1), key(), peers.clone());
            change(&mut config);
            let sleeper = Arc::new(Sleeper::new().unwrap());
            let (sender, outcomes) = mpsc::channel();
            let connector = match stream {
                None => {
                    let deliver: DeliverEndpoint = Box::new(move |_, _, outcome| drop(sender.send(outcome)));
                    Connector::start(listeners, config, sleeper.clone(), deliver)
                }
                Some(stream) => {
                    let endpoint = move |lanes, generation| -> Box<dyn Endpoint> {
                        Box::new(StreamEndpoint::new(lanes, generation, stream))
                    };
                    let deliver: DeliverLanes = Box::new(move |_, generation, lanes| {
                        drop(sender.send(lanes.map(|lanes| endpoint(lanes, generation))));
                    });
                    Connector::start_lanes(listeners, config, sleeper.clone(), deliver)
                }
            }
            .unwrap();
            sides.push((connector, sleeper, outcomes));
        }
        sides[0].0.dial(1);
        let mut made = sides.iter().map(|(_connector, sleeper, outcomes)| {
            let endpoint: Result<Box<dyn Endpoint>> = outcomes.recv_timeout(SOON).unwrap();
            let (sleeper, heap) = (sleeper.clone(), sleeper.board().unwrap().heap().cloned());
            let side = Side::new(endpoint.unwrap(), move |limit| sleeper.sleep(limit));
            if in_heap { side.with_heap(heap.expect("a heap")) } else { side }
        });
        let (a, b) = (made.next().unwrap(), made.next().unwrap());
        Pair { a, b }
    }

    fn carrier(kind: TransportKind, change: fn(&mut ConnectorConfig)) -> Carrier {
        Carrier::over_streams(StreamConfig::for_kind(kind), move || pair(change))
    }

    mod shm {
        use super::*;

        fn carrier() -> Carrier {
            super::carrier(TransportKind::Shm, |config| config.transport = TransportPolicy::Shm)
        }

        crate::transport::conformance::suite!(carrier());
    }

    mod small_ring {
        use super::*;

        fn carrier() -> Carrier {
            super::carrier(TransportKind::Shm, |config| config.ring_bytes = crate::transport::shm::MIN_RING_BYTES)
        }

        crate::transport::conformance::suite!(carrier());
    }

    mod tcp {
        use super::*;

        fn carrier() -> Carrier {
            super::carrier(TransportKind::Tcp, |config| config.transport = TransportPolicy::Tcp)
        }

        crate::transport::conformance::suite!(carrier());
    }

    mod striped_tcp {
        use super::*;

        fn carrier() -> Carrier {
            super::carrier(TransportKind::Tcp, |config| {
                on_other_machines(config);
                config.sockets_per_peer = 3;
            })
        }

        crate::transport::conformance::suite!(carrier());
    }
}

pub(super) fn write_all(lane: &mut dyn Lane, sleeper: &Sleeper, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = lane.write(&[], bytes).unwrap();
        bytes = &bytes[count..];
        if count == 0 && lane.prepare_sleep(true) {
            sleeper.sleep(SOON);
        }
    }
}

pub(super) fn read_exactly(lane: &mut dyn Lane, sleeper: &Sleeper, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut have = 0;
    while have < count {
        // SAFETY: the rest of a buffer of our own.
        let read = unsafe { lane.read_into(bytes[have..].as_mut_ptr(), count - have) }.unwrap();
        have += read;
        if read == 0 && lane.prepare_sleep(false) {
            sleeper.sleep(SOON);
        }
    }
    bytes
}

pub(super) fn until_end(lane: &mut dyn Lane, sleeper: &Sleeper) -> LaneError {
    loop {
        match lane.fill(1) {
            Ok(window) => {
                let count = window.len();
                lane.consume(count);
            }
            Err(end) => return end,
        }
        if lane.prepare_sleep(false) {
            sleeper.sleep(SOON);
        }
    }
}

/// Both sides send a pattern at once and check what comes.
fn converse(ours: (&mut dyn Lane, &Sleeper), theirs: (&mut dyn Lane, &Sleeper)) {
    let pattern: Vec<u8> = (0..1_500_000u32).map(|index| (index.wrapping_mul(2654435761) >> 13) as u8).collect();
    let run = |lane: &mut dyn Lane, sleeper: &Sleeper| {
        let (mut sent, mut have) = (0, 0);
        let mut bytes = vec![0; pattern.len()];
        while sent < pattern.len() || have < pattern.len() {
            let wrote =
                lane.write(&pattern[sent..(sent + 7).min(pattern.len())], &pattern[(sent + 7).min(pattern.len())..]);
            let wrote = wrote.unwrap();
            sent += wrote;
            // SAFETY: the rest of a buffer of our own.
            let read = unsafe { lane.read_into(bytes[have..].as_mut_ptr(), pattern.len() - have) }.unwrap();
            have += read;
            if wrote == 0 && read == 0 && lane.prepare_sleep(sent < pattern.len()) {
                sleeper.sleep(SOON);
            }
        }
        assert!(bytes == pattern);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(theirs.0, theirs.1));
        run(ours.0, ours.1);
    });
}

#[test]
fn two_members_converse_over_each_carrier() {
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let cases = [
        (LOCAL, TransportPolicy::Auto, TransportKind::Shm),
        (LOCAL, TransportPolicy::Shm, TransportKind::Shm),
        (LOCAL, TransportPolicy::Tcp, TransportKind::Tcp),
        (v6, TransportPolicy::Tcp, TransportKind::Tcp),
    ];
    for (address, policy, kind) in cases {
        let members = job_at(address, 2, |config| config.transport = policy);
        members[1].connector.dial(0);
        let (peer, mut theirs) = members[0].lanes();
        assert_eq!((peer, theirs.len(), theirs[0].kind()), (1, 1, kind));
        let (peer, mut ours) = members[1].lanes();
        assert_eq!((peer, ours.len(), ours[0].kind()), (0, 1, kind));
        converse((&mut *ours[0], &members[1].sleeper), (&mut *theirs[0], &members[0].sleeper));
        write_all(&mut *ours[0], &members[1].sleeper, b"the end");
        drop(ours);
        assert_eq!(read_exactly(&mut *theirs[0], &members[0].sleeper, 7), b"the end");
        assert_eq!(until_end(&mut *theirs[0], &members[0].sleeper), LaneError::Closed);
    }
}

#[test]
fn all_lanes_are_there_or_none() {
    let members = job_at(LOCAL, 2, |config| {
        on_other_machines(config);
        config.sockets_per_peer = 4;
    });
    members[0].connector.dial(1);
    let (_, mut ours) = members[0].lanes();
    let (_, mut theirs) = members[1].lanes();
    assert_eq!((ours.len(), theirs.len()), (4, 4));
    for (number, lane) in ours.iter_mut().enumerate() {
        write_all(&mut **lane, &members[0].sleeper, &[number as u8]);
    }
    for (number, lane) in theirs.iter_mut().enumerate() {
        let byte = read_exactly(&mut **lane, &members[1].sleeper, 1);
        assert_eq!(byte, [number as u8], "lanes keep their numbers");
    }
}

#[test]
fn simultaneous_dials_settle_on_one_connection() {
    for policy in [TransportPolicy::Auto, TransportPolicy::Tcp] {
        for _ in 0..20 {
            let members = job(2, policy);
            std::thread::scope(|scope| {
                let first = &members[0].connector;
                scope.spawn(|| first.dial(1));
                members[1].connector.dial(0);
            });
            let (_, mut ours) = members[0].lanes();
            let (_, mut theirs) = members[1].lanes();
            write_all(&mut *ours[0], &members[0].sleeper, b"ping");
            assert_eq!(read_exactly(&mut *theirs[0], &members[1].sleeper, 4), b"ping");
            write_all(&mut *theirs[0], &members[1].sleeper, b"pong");
            assert_eq!(read_exactly(&mut *ours[0], &members[0].sleeper, 4), b"pong");
            assert!(members.iter().all(|member| member.outcomes.try_recv().is_err()), "delivered once");
        }
    }
}

#[test]
fn a_whole_job_connects_at_once() {
    const RANKS: usize = 8;
    for policy in [TransportPolicy::Auto, TransportPolicy::Tcp] {
        let members = job(RANKS, policy);
        for (rank, member) in members.iter().enumerate() {
            (0..RANKS).filter(|&peer| peer != rank).for_each(|peer| member.connector.dial(peer));
        }
        for (rank, member) in members.iter().enumerate() {
            let mut peers: Vec<usize> = (1..RANKS).map(|_| member.lanes().0).collect();
            peers.sort_unstable();
            assert_eq!(peers, (0..RANKS).filter(|&peer| peer != rank).collect::<Vec<_>>());
        }
    }
}

/// What the dialler is told, for one change of what it believes.
fn refusal(change: impl Fn(&mut ConnectorConfig)) -> Error {
    let listeners = vec![bind(LOCAL), bind(LOCAL)];
    let peers = addresses(&listeners);
    let mut members = Vec::new();
    for (rank, listeners) in listeners.into_iter().enumerate() {
        let mut config = ConnectorConfig::new(rank, Generation(1), key(), peers.clone());
        config.transport = TransportPolicy::Tcp;
        if rank == 1 {
            change(&mut config);
        }
        members.push(start(listeners, config));
    }
    members[1].connector.dial(0);
    let (peer, outcome) = members[1].next();
    assert_eq!(peer, 0);
    assert!(members[0].outcomes.try_recv().is_err(), "the other side hears nothing of it");
    outcome.err().unwrap()
}

#[test]
fn who_does_not_belong_is_told_why() {
    let error = refusal(|config| config.key = JobKey::from_bytes([4; 32]));
    assert!(error.to_string().contains("another job"), "{error}");
    assert_eq!(error.fault(), Fault::Environment);
    let error = refusal(|config| config.generation = Generation(7));
    assert!(error.to_string().contains("generation 7 was asked for; the other side serves generation 1"), "{error}");
    let error = refusal(|config| config.rank = 5);
    assert!(error.to_string().contains("world has no rank 5"), "{error}");
}

/// What the user allows on one rank holds even where another rank allows more.
#[test]
fn a_forbidden_carrier_is_refused_by_the_side_that_is_dialled() {
    for (own, dials) in [(TransportPolicy::Shm, TransportPolicy::Tcp), (TransportPolicy::Tcp, TransportPolicy::Shm)] {
        let members = job_at(LOCAL, 2, |config| config.transport = if config.rank == 0 { own } else { dials });
        members[1].connector.dial(0);
        let error = members[1].next().1.err().expect("a refusal").to_string();
        assert!(error.contains("the peer was told not to use this transport"), "{own:?} is dialled: {error}");
        assert!(members[0].outcomes.try_recv().is_err(), "the other side hears nothing of it");
    }
}

/// Otherwise the answer that somebody recorded would fit.
#[test]
fn every_challenge_is_another() {
    let members = job(2, TransportPolicy::Tcp);
    let hello = Hello {
        job: key().job(),
        generation: Generation(1),
        from: 1,
        to: 0,
        purpose: Purpose::Tcp { lane: 0, lanes: 1 },
        attempt: 1,
        nonce: [5; 32],
    };
    let challenge = || {
        let mut stream = TcpStream::connect(members[0].addresses.tcp[0]).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut initiator = Initiator::new(&key(), &hello);
        stream.write_all(&initiator.poll_output()).unwrap();
        let mut bytes = Vec::new();
        while initiator.poll_output().is_empty() {
            let start = bytes.len();
            bytes.resize(start + initiator.wanted(), 0);
            stream.read_exact(&mut bytes[start..]).unwrap();
            initiator.handle_input(&bytes[start..]).unwrap();
        }
        bytes
    };
    assert_ne!(challenge(), challenge());
}

#[test]
fn a_dead_peer_is_an_error_at_once() {
    for policy in [TransportPolicy::Auto, TransportPolicy::Tcp] {
        let listeners = bind(LOCAL);
        let gone = PeerAddress { rank: 1, addresses: bind(LOCAL).addresses().clone() };
        let mut config = ConnectorConfig::new(0, Generation(1), key(), vec![gone]);
        config.transport = policy;
        let member = start(listeners, config);
        member.connector.dial(1);
        let (_, outcome) = member.next();
        let error = outcome.err().unwrap();
        assert!(matches!(&error, Error::PeerFailed { rank: 1, .. }), "{error}");
        // And it may be asked for again.
        member.connector.dial(1);
        assert!(member.next().1.is_err());
    }
}

#[test]
fn a_silent_peer_is_a_timeout() {
    // It listens and never accepts.
    let silent = bind(LOCAL);
    let peer = PeerAddress { rank: 1, addresses: silent.addresses().clone() };
    let mut config = ConnectorConfig::new(0, Generation(1), key(), vec![peer]);
    config.timeouts.dial = Duration::from_millis(100);
    let member = start(bind(LOCAL), config);
    member.connector.dial(1);
    let error = member.next().1.err().unwrap();
    assert!(matches!(&error, Error::Timeout { waiting_for, .. } if *waiting_for == [1]), "{error}");
}

#[test]
fn shared_memory_across_hosts_is_refused() {
    let mut peer = PeerAddress { rank: 1, addresses: bind(LOCAL).addresses().clone() };
    peer.addresses.host.boot ^= 1;
    let mut config = ConnectorConfig::new(0, Generation(1), key(), vec![peer]);
    config.transport = TransportPolicy::Shm;
    let sleeper = Arc::new(Sleeper::new().unwrap());
    let error = Connector::start_lanes(bind(LOCAL), config, sleeper, Box::new(|_, _, _| ())).unwrap_err();
    assert!(error.to_string().contains("rank 1 is on another machine"), "{error}");
    assert_eq!(error.fault(), Fault::Environment);
}

#[test]
fn strangers_are_dropped_and_disturb_nobody() {
    let members = job_at(LOCAL, 2, |config| {
        config.transport = TransportPolicy::Tcp;
        config.max_pending = 16;
        config.timeouts.handshake = Duration::from_millis(300);
    });
    let address = members[0].addresses.tcp[0];
    // More silent ones than are held, and some that talk.
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut noisy = TcpStream::connect(address).unwrap();
    noisy.write_all(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n").unwrap();
    assert_eq!(noisy.read(&mut [0; 16]).unwrap_or(0), 0, "no answer");

    members[1].connector.dial(0);
    let (_, mut ours) = members[1].lanes();
    let (_, mut theirs) = members[0].lanes();
    write_all(&mut *ours[0], &members[1].sleeper, b"still here");
    assert_eq!(read_exactly(&mut *theirs[0], &members[0].sleeper, 10), b"still here");

    // Every silent one is closed in the end.
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    }
    let counters = members[0].connector.counters();
    assert_eq!((counters.strangers, counters.accepted, counters.connected), (201, 202, 1));
    assert!(counters.evicted >= 184, "{counters:?}");
}

/// The other side may have its end of the link already when this one hears of a view.
#[test]
fn an_attempt_that_is_under_way_outlives_the_beginning_of_a_view() {
    let peers = vec![PeerAddress { rank: 1, addresses: bind(LOCAL).addresses().clone() }];
    let config = ConnectorConfig::new(0, Generation(1), key(), peers.clone());
    let member = start(bind(LOCAL), ConnectorConfig { elastic: true, ..config });
    let lane = |lane: u8| {
        let hello = Hello {
            job: key().job(),
            generation: Generation(1),
            from: 1,
            to: 0,
            purpose: Purpose::Tcp { lane, lanes: 2 },
            attempt: 7,
            nonce: [5; 32],
        };
        let mut stream = TcpStream::connect(member.addresses.tcp[0]).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut initiator = Initiator::new(&key(), &hello);
        while !initiator.is_accepted() {
            stream.write_all(&initiator.poll_output()).unwrap();
            let mut bytes = vec![0; initiator.wanted()];
            stream.read_exact(&mut bytes).unwrap();
            initiator.handle_input(&bytes).unwrap();
        }
        stream
    };
    let first = lane(0);
    // It is heard before the second lane's hello, which comes later.
    member.connector.install(NextView { generation: Generation(1), peers, again: Vec::new() });
    let second = lane(1);
    let (peer, lanes) = member.lanes();
    assert_eq!((peer, lanes.len()), (1, 2));
    drop((first, second));
}

/// Shakes hands as the one that dials. The error is the refusal.
fn shake(mut stream: &TcpStream, from: u32, generation: u64) -> std::result::Result<(), HandshakeError> {
    let hello = Hello {
        job: key().job(),
        generation: Generation(generation),
        from,
        to: 0,
        purpose: Purpose::Tcp { lane: 0, lanes: 1 },
        attempt: u64::from(from),
        nonce: [5; 32],
    };
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut initiator = Initiator::new(&key(), &hello);
    while !initiator.is_accepted() {
        stream.write_all(&initiator.poll_output()).unwrap();
        let mut bytes = vec![0; initiator.wanted()];
        stream.read_exact(&mut bytes).unwrap();
        initiator.handle_input(&bytes)?;
    }
    stream.write_all(&initiator.poll_output()).unwrap();
    Ok(())
}

/// A member of view 1 has accepted a connection and hears of view 2 before the other end, which has not heard of it,
/// says hello. Returns in which generation the member takes the connection, or why it does not.
fn hello_of_a_view_that_is_over(is_broken: bool) -> std::result::Result<Generation, HandshakeError> {
    let peers: Vec<_> = [1, 2].map(|rank| PeerAddress { rank, addresses: bind(LOCAL).addresses().clone() }).into();
    let config = ConnectorConfig { elastic: true, ..ConnectorConfig::new(0, Generation(1), key(), peers.clone()) };
    let listeners = bind(LOCAL);
    let address = listeners.addresses().tcp[0];
    let (tell, outcomes) = mpsc::channel();
    let deliver = Box::new(move |peer, generation, outcome: Result<_>| tell.send((peer, generation, outcome)).unwrap());
    let connector = Connector::start_lanes(listeners, config, Arc::new(Sleeper::new().unwrap()), deliver).unwrap();
    let early = TcpStream::connect(address).unwrap();
    while connector.counters().accepted == 0 {
        std::thread::yield_now();
    }
    let again = if is_broken { vec![1] } else { vec![] };
    connector.install(NextView { generation: Generation(2), peers, again });
    // The member has heard of the view when it takes a connection of it.
    let late = loop {
        let stream = TcpStream::connect(address).unwrap();
        if shake(&stream, 2, 2).is_ok() {
            break stream;
        }
    };
    let next = || outcomes.recv_timeout(SOON).expect("an outcome");
    assert!(matches!(next(), (2, Generation(2), Ok(_))));
    shake(&early, 1, 1)?;
    let (peer, generation, outcome) = next();
    assert_eq!((peer, outcome.is_ok()), (1, true));
    drop(late);
    Ok(generation)
}

#[test]
fn a_link_is_of_the_generation_of_its_handshake_at_both_ends() {
    assert_eq!(hello_of_a_view_that_is_over(false), Ok(Generation(1)));
}

#[test]
fn a_link_that_is_broken_is_not_made_again_by_who_has_not_heard_that_it_is() {
    let refusal = Refusal::WrongGeneration { asked: 1, serving: 2 };
    assert_eq!(hello_of_a_view_that_is_over(true), Err(HandshakeError { refusal, by_peer: true }));
}
