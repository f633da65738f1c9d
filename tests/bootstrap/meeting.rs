//! Real servers and members over real sockets, in threads of this process.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Bind, Config, Introduction, KeySource, Rendezvous, RendezvousServer, join};
use phalanx::membership::Roster;
use phalanx::types::{Deadline, Generation, Result};
use phalanx::wire::handshake::JobKey;

pub fn key() -> JobKey {
    JobKey::from_bytes([0x5a; 32])
}

pub fn config(rank: usize, size: usize, rendezvous: Rendezvous) -> Config {
    Config::new(rank, size).unwrap().with_rendezvous(rendezvous).with_key(KeySource::Given(key()))
}

pub fn introduction(rank: usize) -> Introduction {
    Introduction { addresses: format!("here is {rank}").into_bytes(), host: format!("host {}", rank / 2).into_bytes() }
}

pub fn within(seconds: f64) -> Deadline {
    Deadline::after(Instant::now(), Duration::from_secs_f64(seconds))
}

/// Each configuration in a thread of its own; what each got, in order.
pub fn together(configs: Vec<Config>, seconds: f64) -> Vec<Result<Roster>> {
    let deadline = within(seconds);
    std::thread::scope(|scope| {
        let threads: Vec<_> = configs
            .into_iter()
            .map(|config| scope.spawn(move || join(&config, introduction(config.launch.rank), deadline)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A port that nobody listens at, outside the range from which the kernel picks ports for those that dial.
pub fn free_port(host: &str) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Other test programs begin elsewhere.
    let begin = (std::process::id() % 20_000) as u16;
    loop {
        let port = 10_000 + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind((host, port)).is_ok() {
            return port;
        }
    }
}

pub fn tcp(address: &str, hosted_by_launcher: bool) -> Rendezvous {
    Rendezvous::Tcp { address: address.into(), hosted_by_launcher }
}

fn assert_complete(rosters: Vec<Result<Roster>>) {
    let size = rosters.len();
    for (rank, roster) in rosters.into_iter().enumerate() {
        let roster = roster.unwrap();
        assert_eq!((roster.rank, roster.size, roster.key), (rank, size, key()));
        assert_eq!(roster.view.hosts, (0..size).map(|rank| rank / 2).collect::<Vec<_>>());
        for (rank, member) in roster.members.iter().enumerate() {
            assert_eq!(member.addresses, introduction(rank).addresses);
            assert_eq!((member.rank, member.pid), (rank, std::process::id()));
        }
    }
}

#[test]
fn ranks_meet_at_the_launchers_server_and_again() {
    let server = RendezvousServer::start(5, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    for round in 1..=3 {
        let rosters = together((0..5).map(|rank| config(rank, 5, tcp(server.address(), true))).collect(), 30.0);
        assert!(
            rosters.iter().all(|roster| roster.as_ref().is_ok_and(|roster| roster.generation == Generation(round)))
        );
        assert_complete(rosters);
    }
}

#[test]
fn ranks_meet_where_rank_0_listens_and_again() {
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let address = format!("{host}:{}", free_port("127.0.0.1"));
        for _ in 0..3 {
            // Rank 0 comes last: the others have to wait for it.
            assert_complete(together(
                (0..4).rev().map(|rank| config(rank, 4, tcp(&address, false))).rev().collect(),
                30.0,
            ));
        }
    }
}

#[test]
fn ranks_meet_at_a_unix_socket_and_get_the_key_there() {
    let name = format!("phalanx-test-{}-meet", std::process::id());
    let rendezvous = Rendezvous::Unix { name, hosted_by_launcher: false };
    let configs = (0..4).map(|rank| config(rank, 4, rendezvous.clone()).with_key(KeySource::None)).collect();
    let rosters: Vec<_> = together(configs, 30.0).into_iter().map(Result::unwrap).collect();
    assert!(rosters.iter().all(|roster| roster.key == rosters[0].key && roster.key != key()));
}

#[test]
fn ranks_meet_through_a_file_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meet");
    // Left behind by an earlier run: nobody listens there.
    let stale = format!("v1/{}/{}/127.0.0.1:{}\n", "77".repeat(16), "88".repeat(32), free_port("127.0.0.1"));
    std::fs::write(&path, stale).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for given in [true, false, true] {
        let key = if given { KeySource::Given(key()) } else { KeySource::None };
        let configs = (0..4).map(|rank| config(rank, 4, Rendezvous::File(path.clone())).with_key(key.clone()));
        let rosters = together(configs.collect(), 30.0);
        if given {
            assert_complete(rosters);
        } else {
            let rosters: Vec<_> = rosters.into_iter().map(Result::unwrap).collect();
            assert!(rosters.iter().all(|roster| roster.key == rosters[0].key));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file goes when all are there");
    }
}

#[test]
fn a_stale_file_that_leads_to_another_job_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meet");
    // Another job with the same key listens where the stale file points.
    let other = RendezvousServer::start(4, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    std::fs::write(&path, format!("v1/{}/-/{}\n", "77".repeat(16), other.address())).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let configs: Vec<_> = (0..2).map(|rank| config(rank, 2, Rendezvous::File(path.clone()))).collect();
    std::thread::scope(|scope| {
        let [zero, one] = [&configs[0], &configs[1]];
        let first = scope.spawn(move || join(one, introduction(1), within(30.0)));
        let roster = join(zero, introduction(0), within(30.0)).unwrap();
        assert_eq!(roster.size, 2);
        assert_eq!(first.join().unwrap().unwrap().members[0].addresses, introduction(0).addresses);
    });
}

#[test]
fn sixty_four_ranks_meet_in_less_than_a_second() {
    let server = RendezvousServer::start(64, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let began = Instant::now();
    assert_complete(together((0..64).map(|rank| config(rank, 64, tcp(server.address(), true))).collect(), 30.0));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_world_of_one_needs_nobody() {
    let roster = join(&Config::default(), introduction(0), within(1.0)).unwrap();
    assert_eq!((roster.rank, roster.size, &roster.view.hosts[..]), (0, 1, &[0][..]));
}
