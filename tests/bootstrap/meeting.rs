//! Real servers and members over real sockets, in threads of this process.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Bind, Config, Introduction, KeySource, Rendezvous, RendezvousServer, join, new_key};
use phalanx::membership::Roster;
use phalanx::types::{Deadline, Error, Generation, Result};
use phalanx::wire::handshake::JobKey;

fn key() -> JobKey {
    JobKey::from_bytes([0x5a; 32])
}

fn config(rank: usize, size: usize, rendezvous: Rendezvous) -> Config {
    Config::new(rank, size).unwrap().with_rendezvous(rendezvous).with_key(KeySource::Given(key()))
}

fn introduction(rank: usize) -> Introduction {
    Introduction { addresses: format!("here is {rank}").into_bytes(), host: format!("host {}", rank / 2).into_bytes() }
}

fn within(seconds: f64) -> Deadline {
    Deadline::after(Instant::now(), Duration::from_secs_f64(seconds))
}

/// Each configuration in a thread of its own; what each got, in order.
fn together(configs: Vec<Config>, seconds: f64) -> Vec<Result<Roster>> {
    let deadline = within(seconds);
    std::thread::scope(|scope| {
        let threads: Vec<_> = configs
            .into_iter()
            .map(|config| scope.spawn(move || join(&config, introduction(config.launch.rank), deadline)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn free_port(host: &str) -> u16 {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port()
}

fn tcp(address: &str, hosted_by_launcher: bool) -> Rendezvous {
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
