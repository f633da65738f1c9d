//! Members that connect over a real RDMA device. `tests/parts/rdma.sh` runs these where there is one.

use super::tests::{
    LOCAL, Member, addresses, conformance, key, on_other_machines, read_exactly, start, until_end, write_all,
};
use super::*;
use crate::transport::conformance::{Carrier, Memory};
use crate::transport::lane::{Lane, LaneError};
use crate::transport::listen::ListenConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::sync::Once;

fn bind(rdma: RdmaUse) -> Listeners {
    let config = ListenConfig { address: LOCAL, interface: None, ports: None, shared_memory: true, rdma };
    Listeners::bind(&config).unwrap()
}

fn demanded() -> RdmaUse {
    RdmaUse::Demanded(RdmaSettings::default())
}

/// With limits that are met with few bytes: the device is emulated, and slow.
fn carrier(in_heap: bool) -> Carrier {
    let stream = StreamConfig {
        eager_limit: 8 << 10,
        early_budget: 64 << 10,
        segment_bytes: 16 << 10,
        ready_limit: 64,
        ..StreamConfig::for_kind(TransportKind::Rdma)
    };
    let pair = move || {
        conformance::pair_over(vec![bind(demanded()), bind(demanded())], Some(stream), in_heap, |config| {
            config.transport = TransportPolicy::Rdma;
        })
    };
    Carrier { thin: true, ..Carrier::over_streams(stream, pair) }
}

mod suite {
    use super::carrier;

    crate::transport::conformance::suite!(ignored: "needs an RDMA device", carrier(false));
}

/// With payloads that the adapter reads where they are: what asks for their memory, and how long it is needed.
mod in_place {
    use super::carrier;

    crate::transport::conformance::suite! {
        ignored: "needs an RDMA device", carrier(true);
        every_size_arrives
        cancel_at_any_moment
        a_dead_peer_is_told_once
        goodbye_comes_last
        no_wake_up_is_lost
    }
}

fn device(name: &str) -> RdmaSettings {
    RdmaSettings { devices: name.split(',').map(str::to_owned).collect(), ..RdmaSettings::default() }
}

/// Members of which the first dials all others, with these devices and policies.
fn members<const N: usize>(rdma: [RdmaUse; N], policies: [TransportPolicy; N]) -> Vec<Member> {
    let listeners: Vec<Listeners> = rdma.into_iter().map(bind).collect();
    let peers = addresses(&listeners);
    let members: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(rank, listeners)| {
            let mut config = ConnectorConfig::new(rank, Generation(1), key(), peers.clone());
            on_other_machines(&mut config);
            start(listeners, ConnectorConfig { transport: policies[rank], ..config })
        })
        .collect();
    (1..N).for_each(|peer| members[0].connector.dial(peer));
    members
}

/// The warnings of this process since it was asked for last.
fn warnings() -> Vec<String> {
    static SAID: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static SUBSCRIBER: Once = Once::new();
    struct Said;
    impl io::Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            SAID.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    SUBSCRIBER.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(|| Said);
        subscriber.with_ansi(false).init();
    });
    let said = std::mem::take(&mut *SAID.lock().unwrap());
    String::from_utf8(said).unwrap().lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs an RDMA device"]
fn members_of_two_machines_use_rdma_unasked() {
    let there = || RdmaUse::IfThere(RdmaSettings::default());
    for policy in [TransportPolicy::Auto, TransportPolicy::Rdma] {
        let members = members([there(), there()], [policy; 2]);
        for member in &members {
            let (_, lanes) = member.lanes();
            assert_eq!((lanes.len(), lanes[0].kind()), (1, TransportKind::Rdma));
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_without_it_gets_tcp() {
    for rdma in [[demanded(), RdmaUse::No], [RdmaUse::No, demanded()]] {
        let members = members(rdma, [TransportPolicy::Auto; 2]);
        for member in &members {
            let (_, lanes) = member.lanes();
            assert_eq!((lanes.len(), lanes[0].kind()), (2, TransportKind::Tcp));
        }
    }
}

/// However many there are, it is said once. Those who have no RDMA themselves miss nothing.
#[test]
#[ignore = "needs an RDMA device"]
fn that_peers_have_none_is_said_once() {
    warnings();
    let members = members([demanded(), RdmaUse::No, RdmaUse::No], [TransportPolicy::Auto; 3]);
    for member in [&members[0], &members[0], &members[1], &members[2]] {
        assert_eq!(member.lanes().1[0].kind(), TransportKind::Tcp);
    }
    let said = warnings();
    let [line] = said.as_slice() else { panic!("{said:#?}") };
    assert!(line.contains("no RDMA with this rank") && line.contains("TCP is used"), "{line}");
}

/// Two devices on networks of their own: what the one sends never comes to the other.
#[test]
#[ignore = "needs two RDMA devices"]
fn without_a_way_between_the_adapters_tcp_is_used_unless_that_is_forbidden() {
    let apart = || [RdmaUse::IfThere(device("rxe0")), RdmaUse::IfThere(device("rxe1"))];
    warnings();
    let begun = std::time::Instant::now();
    let tcp = members(apart(), [TransportPolicy::Auto; 2]);
    for member in &tcp {
        let (_, lanes) = member.lanes();
        assert_eq!((lanes.len(), lanes[0].kind()), (2, TransportKind::Tcp));
    }
    assert!(begun.elapsed() < ConnectTimeouts::default().dial / 2, "{:?}", begun.elapsed());
    // Each of the two says it, once, and why.
    let said = warnings();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(
        said.iter().all(|line| line.contains("no RDMA with this rank") && line.contains("no packet got")),
        "{said:#?}"
    );
    let refused = members(apart(), [TransportPolicy::Rdma; 2]);
    let error = refused[0].next().1.err().expect("no link").to_string();
    assert!(error.contains("RDMA was demanded") && error.contains("no packet got from rxe0"), "{error}");
}

/// Rings that go round, striped over the rails of both.
#[test]
#[ignore = "needs two RDMA devices"]
fn every_rail_carries() {
    let rails = || RdmaUse::Demanded(device("rxe0,rxe1"));
    let members = members([rails(), rails()], [TransportPolicy::Rdma; 2]);
    let mut ends: Vec<_> = members.iter().map(|member| member.lanes().1).collect();
    for (rail, name) in ["rxe0", "rxe1"].into_iter().enumerate() {
        let link = ends[0][rail].link();
        assert!(link.contains(name), "{link}");
        let bytes = vec![rail as u8 + 1; 300_000];
        write_all(&mut *ends[0][rail], &members[0].sleeper, &bytes);
        assert_eq!(read_exactly(&mut *ends[1][rail], &members[1].sleeper, bytes.len()), bytes);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_forbids_it_ends_the_attempt_where_it_is_demanded() {
    let members = members([demanded(), demanded()], [TransportPolicy::Rdma, TransportPolicy::Tcp]);
    let error = members[0].next().1.err().expect("no link").to_string();
    assert!(error.contains("told not to use this transport"), "{error}");
}

/// Rings that go round many times, with pieces of every length, both ways at once.
#[test]
#[ignore = "needs an RDMA device"]
fn bytes_keep_their_order_around_the_ring() {
    let members = members([demanded(), demanded()], [TransportPolicy::Rdma; 2]);
    let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::thread::scope(|scope| {
        for member in members {
            let sent = &sent;
            scope.spawn(move || {
                let mut lanes = member.lanes().1;
                let lane = &mut *lanes[0];
                let (mut written, mut read, mut step) = (0, Vec::new(), 1);
                while written < sent.len() || read.len() < sent.len() {
                    let piece = &sent[written..sent.len().min(written + step)];
                    let count = if piece.is_empty() { 0 } else { lane.write(&[], piece).unwrap() };
                    written += count;
                    step = step % 70_001 * 3 + 1;
                    let window = lane.fill(1).unwrap();
                    let taken = window.len().min(step);
                    read.extend_from_slice(&window[..taken]);
                    lane.consume(taken);
                    if count == 0 && taken == 0 && lane.prepare_sleep(written < sent.len()) {
                        member.sleeper.sleep(Duration::from_secs(60));
                    }
                }
                assert!(&read == sent, "other bytes, or in another order");
            });
        }
    });
}

/// Sends memory that `comm.alloc` would give from the first to the second of these. Whether the adapter read it there.
fn is_read_in_place(members: &[Member], ends: &mut [Vec<Box<dyn Lane>>; 2], misalignment: usize, seed: u64) -> bool {
    let heap = members[0].sleeper.board().unwrap().heap().unwrap();
    let memory = Memory::filled(100_000, misalignment, seed).moved_to(heap);
    let (mut written, mut last) = (0, None);
    while written < memory.slice().len() {
        // SAFETY: the memory stays as it is until it was taken back.
        let (count, loan) = unsafe { ends[0][0].write_lent(&[], &memory.slice()[written..]) }.unwrap();
        assert!(count > 0, "the lane has ended");
        written += count;
        last = loan.or(last);
    }
    let came = read_exactly(&mut *ends[1][0], &members[1].sleeper, written);
    assert!(came == memory.slice(), "other bytes");
    ends[0][0].take_back();
    assert!(last.is_none_or(|loan| ends[0][0].returned() >= loan));
    memory.check_guards();
    last.is_some()
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_of_comm_alloc_is_read_where_it_is() {
    let members = members([demanded(), demanded()], [TransportPolicy::Rdma; 2]);
    let mut ends = [members[0].lanes().1, members[1].lanes().1];
    for misalignment in [0, 1, 63] {
        assert!(is_read_in_place(&members, &mut ends, misalignment, 5 + misalignment as u64), "it was copied");
    }
}

/// As in a process without privileges: from here on this thread, and those that it starts, lock memory within the limit.
/// They must open the device after that: it serves only whom it was opened by.
fn give_up_privileges() {
    let held = capabilities(None).unwrap();
    let effective = held.effective.difference(CapabilitySet::IPC_LOCK);
    set_capabilities(None, CapabilitySets { effective, ..held }).unwrap();
}

/// Until this is dropped, no more memory can be locked than is now.
struct NothingMoreIsLocked(Option<u64>);

impl NothingMoreIsLocked {
    fn new() -> Self {
        let before = getrlimit(Resource::Memlock);
        // Less than the rings that are locked already.
        setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), ..before }).unwrap();
        Self(before.current)
    }
}

impl Drop for NothingMoreIsLocked {
    fn drop(&mut self) {
        setrlimit(Resource::Memlock, Rlimit { current: self.0, ..getrlimit(Resource::Memlock) }).unwrap();
    }
}

/// Then it is copied, which is said once.
#[test]
#[ignore = "needs an RDMA device"]
fn where_no_more_memory_may_be_locked_it_is_copied() {
    let check = || {
        give_up_privileges();
        let members = members([demanded(), demanded()], [TransportPolicy::Rdma; 2]);
        let mut ends = [members[0].lanes().1, members[1].lanes().1];
        warnings();
        let limit = NothingMoreIsLocked::new();
        for seed in 1..4 {
            assert!(!is_read_in_place(&members, &mut ends, 0, seed), "it was registered beyond the limit");
        }
        drop(limit);
        let said = warnings();
        let [line] = said.as_slice() else { panic!("{said:#?}") };
        for what in ["rxe0", "It is copied", "of this process is 65536 bytes", "ulimit -l unlimited"] {
            assert!(line.contains(what), "{what} is not in {line}");
        }
        // That one was refused is forgotten with its memory.
        assert!(is_read_in_place(&members, &mut ends, 0, 4), "it was copied");
    };
    std::thread::scope(|scope| scope.spawn(check).join().unwrap());
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_was_written_before_the_end_is_read_before_the_end() {
    let members = members([demanded(), demanded()], [TransportPolicy::Rdma; 2]);
    let mut ours = members[0].lanes().1;
    let mut theirs = members[1].lanes().1;
    let bytes = vec![7; 400_000];
    write_all(&mut *ours[0], &members[0].sleeper, &bytes);
    drop(ours);
    assert_eq!(read_exactly(&mut *theirs[0], &members[1].sleeper, bytes.len()), bytes);
    assert_eq!(until_end(&mut *theirs[0], &members[1].sleeper), LaneError::Closed);
}
