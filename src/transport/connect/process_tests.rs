//! Members that are processes, and what becomes of their links when they are killed.
//!
//! The other member is this test program itself, started again to run only `child`, which does nothing otherwise.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use super::tests::{LOCAL, Member, key, read_exactly, start, until_end, write_all};
use super::*;
use crate::transport::lane::LaneError;
use crate::transport::listen::ListenConfig;
use crate::types::TransportKind;

const ROLE: &str = "PHALANX_TEST_ROLE";
const ADDRESSES: &str = "addresses: ";

fn config(rank: usize, peer: ListenAddresses, transport: TransportPolicy) -> ConnectorConfig {
    let peers = vec![PeerAddress { rank: 1 - rank, addresses: peer }];
    ConnectorConfig { transport, ..ConnectorConfig::new(rank, Generation(1), key(), peers) }
}

fn policy(role: &str) -> TransportPolicy {
    match role.split(' ').next() {
        Some("tcp") => TransportPolicy::Tcp,
        Some("shm") => TransportPolicy::Shm,
        Some("rdma") => TransportPolicy::Rdma,
        _ => TransportPolicy::Auto,
    }
}

fn bind_for(role: &str) -> Listeners {
    let rdma = policy(role).rdma(&RdmaSettings::default());
    Listeners::bind(&ListenConfig { address: LOCAL, interface: None, ports: None, shared_memory: true, rdma }).unwrap()
}

/// Rank 1, in a process of its own, until its standard input ends.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role.contains("no-memory") {
        // A file size limit holds for nameless memory too.
        let limit = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    }
    let listeners = bind_for(&role);
    println!("\n{ADDRESSES}{}", String::from_utf8(listeners.addresses().encode()).unwrap());
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let peer = ListenAddresses::decode(line.trim().as_bytes()).unwrap();
    let member = start(listeners, config(1, peer, policy(&role)));
    if role.contains("dials") {
        member.connector.dial(0);
    }
    let (_, outcome) = member.next();
    let mut lanes = match outcome {
        Ok(lanes) => lanes,
        Err(error) => {
            println!("\nfailed: {error}");
            return;
        }
    };
    write_all(&mut *lanes[0], &member.sleeper, &[9; 100_000]);
    if role.contains("forks") {
        // A child without exec, such as a data loader's worker, holds every descriptor of its parent.
        // SAFETY: the new process only reads its standard input until that ends, and then ends without unwinding.
        unsafe {
            if libc::fork() == 0 {
                let mut byte = 0u8;
                while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
                libc::_exit(0);
            }
        }
    }
    println!("\nready");
    // Until it is killed, or the test has ended.
    let _ = io::stdin().read(&mut [0]);
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// What follows `prefix` on the next line that has it.
    fn line(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no line {prefix:?}");
            if let Some(rest) = line.trim_end().strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts rank 1 as a process, and rank 0 here.
fn start_two(role: &str) -> (Member, Process) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transport::connect::process_tests::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut process = Process { child, output };
    let peer = ListenAddresses::decode(process.line(ADDRESSES).as_bytes()).unwrap();
    let listeners = bind_for(role);
    let mut line = listeners.addresses().encode();
    line.push(b'\n');
    let member = start(listeners, config(0, peer, policy(role)));
    if !role.contains("dials") {
        member.connector.dial(1);
    }
    process.child.stdin.as_mut().unwrap().write_all(&line).unwrap();
    (member, process)
}

/// How long after the kill the end of the link was known to a sleeper, all that had been sent having been read.
fn killed(role: &str, kind: TransportKind) -> Duration {
    let (member, mut process) = start_two(role);
    let (_, mut lanes) = member.lanes();
    assert_eq!(lanes[0].kind(), kind);
    process.line("ready");
    process.child.kill().unwrap();
    let killed = Instant::now();
    assert_eq!(read_exactly(&mut *lanes[0], &member.sleeper, 100_000), [9; 100_000]);
    let end = until_end(&mut *lanes[0], &member.sleeper);
    assert!(matches!(end, LaneError::Closed | LaneError::Broken(_)));
    killed.elapsed()
}

#[test]
fn a_killed_peer_is_noticed_by_a_sleeper() {
    let cases = [("shm", TransportKind::Shm), ("shm dials forks", TransportKind::Shm), ("tcp", TransportKind::Tcp)];
    for (role, kind) in cases {
        let times: Vec<Duration> = (0..4).map(|_| killed(role, kind)).collect();
        // Every time soon, and at least once as soon as it should be on a machine that has nothing else to do.
        assert!(times.iter().all(|&time| time < Duration::from_secs(1)), "{role}: {times:?}");
        assert!(times.iter().any(|&time| time < Duration::from_millis(50)), "{role}: {times:?}");
    }
}

/// A forked child of the peer keeps neither the connection nor the queue pair.
#[cfg(feature = "rdma")]
#[test]
#[ignore = "needs an RDMA device"]
fn a_killed_peer_over_rdma_is_noticed_by_a_sleeper() {
    for role in ["rdma", "rdma dials forks"] {
        let times: Vec<Duration> = (0..2).map(|_| killed(role, TransportKind::Rdma)).collect();
        // Long before the adapter would give up.
        assert!(times.iter().all(|&time| time < Duration::from_secs(5)), "{role}: {times:?}");
    }
}

#[test]
fn without_memory_to_share_tcp_is_used_unless_that_is_forbidden() {
    for role in ["auto no-memory dials", "auto no-memory"] {
        let (member, _process) = start_two(role);
        let (_, mut lanes) = member.lanes();
        // The side that has memory offers it; mapping what exists needs no limit.
        let kind = if role.contains("dials") { TransportKind::Tcp } else { TransportKind::Shm };
        assert_eq!(lanes[0].kind(), kind, "{role}");
        assert_eq!(read_exactly(&mut *lanes[0], &member.sleeper, 100_000), [9; 100_000]);
    }
    let (_member, mut process) = start_two("shm no-memory dials");
    let error = process.line("failed: ");
    assert!(error.contains("shared memory was demanded, but with rank 0 it failed"), "{error}");
}
