//! Meetings that fail: everyone hears why, in time, and strangers harm nobody.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Bind, Config, KeySource, Rendezvous, RendezvousServer, join};
use phalanx::types::{Error, Generation};
use phalanx::wire::handshake::{Hello, Initiator, JobKey, Purpose};

use crate::meeting::{config, free_port, introduction, key, tcp, together, within};

/// A timeout whose text is not looked at, apart from those who are missing.
fn missing(error: &Error) -> Vec<usize> {
    match error {
        Error::Timeout { waiting_for, operation, .. } if &**operation == "rendezvous" => waiting_for.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn missing_ranks_are_named_on_all_others_at_the_deadline() {
    let server = RendezvousServer::start(5, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let unix =
        Rendezvous::Unix { name: format!("phalanx-test-{}-missing", std::process::id()), hosted_by_launcher: false };
    let places = [tcp(server.address(), true), tcp(&format!("[::1]:{}", free_port("::1")), false), unix];
    for place in places {
        let began = Instant::now();
        let errors = together([0, 1, 3].map(|rank| config(rank, 5, place.clone())).into(), 0.6);
        for error in errors {
            let error = error.unwrap_err();
            assert_eq!(missing(&error), [2, 4]);
            assert!(error.to_string().contains("3 of 5 ranks came"), "{error}");
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn a_missing_rank_0_is_named_when_it_serves() {
    let place = tcp(&format!("127.0.0.1:{}", free_port("127.0.0.1")), false);
    for error in together([1, 2].map(|rank| config(rank, 3, place.clone())).into(), 0.4) {
        let error = error.unwrap_err();
        assert_eq!(missing(&error), [0]);
        assert!(error.to_string().contains("was not reached"), "{error}");
    }
}

#[test]
fn a_launcher_that_is_away_is_not_a_ranks_fault() {
    let place = tcp(&format!("127.0.0.1:{}", free_port("127.0.0.1")), true);
    let error = join(&config(1, 3, place), introduction(1), within(0.3)).unwrap_err();
    assert!(matches!(error, Error::Environment { .. }), "{error}");
    assert!(error.to_string().contains("PHALANX_RENDEZVOUS"), "{error}");
}

#[test]
fn ranks_that_contradict_each_other_are_told_at_once() {
    let cases: [(&[(usize, usize)], &str); 3] = [
        (&[(0, 3), (1, 3), (1, 3)], "two processes say that they are rank 1"),
        (&[(0, 3), (1, 2), (2, 3)], "says the size is 2, the server says 3"),
        (&[(0, 3), (5, 6), (2, 3)], "says the size is 6, the server says 3"),
    ];
    for (ranks, what) in cases {
        let server = RendezvousServer::start(3, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
        let began = Instant::now();
        let configs = ranks.iter().map(|&(rank, size)| config(rank, size, tcp(server.address(), true)));
        for error in together(configs.collect(), 60.0) {
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Environment { .. }) && error.to_string().contains(what), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

/// Speaks to the server by hand as far as joining would go, and stays or leaves.
fn authenticated(address: &str, key: &JobKey, from: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let hello = Hello {
        job: key.job(),
        generation: Generation(0),
        from,
        to: u32::MAX,
        purpose: Purpose::Rendezvous,
        attempt: 0,
        nonce: [from as u8; 32],
    };
    let mut machine = Initiator::new(key, &hello);
    while !machine.is_accepted() {
        stream.write_all(&machine.poll_output()).unwrap();
        let mut arrived = vec![0; machine.wanted()];
        stream.read_exact(&mut arrived).unwrap();
        machine.handle_input(&arrived).unwrap();
    }
    stream
}

fn join_frame(rank: usize, size: usize) -> Vec<u8> {
    use phalanx::wire::rendezvous::{Join, MemberRecord, Message, VERSION};
    let member = MemberRecord { rank, pid: 1, host: vec![1], host_name: "n".into(), addresses: vec![] };
    Message::Join(Join { version: VERSION, size, patience: Duration::from_secs(60), session: [0; 16], member }).encode()
}

#[test]
fn one_that_leaves_before_all_are_there_is_named() {
    let server = RendezvousServer::start(3, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let mut leaver = authenticated(server.address(), &key(), 2);
    leaver.write_all(&join_frame(2, 3)).unwrap();
    let configs = [0, 1].map(|rank| config(rank, 3, tcp(server.address(), true)));
    let errors = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| together(vec![configs[0].clone()], 60.0));
        drop(leaver);
        waiting.join().unwrap()
    });
    for error in errors {
        let Err(Error::PeerFailed { rank: 2, detail, .. }) = &error else { panic!("{error:?}") };
        assert!(detail.contains("rank 2 (process 1 on n) left before all ranks had come"), "{detail}");
    }
}

#[test]
fn rank_0_that_goes_away_while_it_serves_is_named() {
    // Stands for a rank 0 that is killed: it proves the key, takes the join, and is gone.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        use phalanx::wire::handshake::{Identity, Responder};
        let identity = Identity { job: key().job(), generation: Generation(0), rank: u32::MAX };
        let mut machine = Responder::new(&key(), identity, [9; 32]);
        loop {
            let mut arrived = vec![0; machine.wanted()];
            stream.read_exact(&mut arrived).unwrap();
            machine.handle_input(&arrived).unwrap();
            let decided = machine.to_decide().is_some();
            machine.accept();
            stream.write_all(&machine.poll_output()).unwrap();
            if decided {
                stream.read_exact(&mut [0; 8]).unwrap();
                return;
            }
        }
    });
    let error = join(&config(1, 2, tcp(&address, false)), introduction(1), within(60.0)).unwrap_err();
    assert!(matches!(&error, Error::PeerFailed { rank: 0, .. }) && error.to_string().contains("went away"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_wrong_key_is_told_and_harms_nobody() {
    let server = RendezvousServer::start(2, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let wrong = || config(1, 2, tcp(server.address(), true)).with_key(KeySource::Given(JobKey::from_bytes([1; 32])));
    let error = join(&wrong(), introduction(1), within(60.0)).unwrap_err().to_string();
    assert!(error.contains("is not this job's rendezvous") && error.contains("same key"), "{error}");
    // The others meet all the same.
    let rosters = together((0..2).map(|rank| config(rank, 2, tcp(server.address(), true))).collect(), 30.0);
    assert!(rosters.iter().all(Result::is_ok));
}

#[test]
fn a_network_rendezvous_without_a_key_says_how_to_give_one() {
    for rank in 0..2 {
        let place = tcp("127.0.0.1:9", false);
        let config = Config::new(rank, 2).unwrap().with_rendezvous(place);
        let error = join(&config, introduction(rank), within(60.0)).unwrap_err().to_string();
        assert!(error.contains("PHALANX_KEY_FILE") && error.contains("strangers"), "{error}");
    }
}

#[test]
fn keys_that_differ_at_a_unix_socket_are_told() {
    let place =
        Rendezvous::Unix { name: format!("phalanx-test-{}-keys", std::process::id()), hosted_by_launcher: false };
    let other = KeySource::Given(JobKey::from_bytes([1; 32]));
    let configs = vec![config(0, 2, place.clone()), config(1, 2, place).with_key(other)];
    let mut errors = together(configs, 1.0).into_iter();
    assert_eq!(missing(&errors.next().unwrap().unwrap_err()), [1]);
    let error = errors.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("the key given to rank 1 is not that of the server"), "{error}");
}

#[test]
fn strangers_harm_nobody() {
    let server = RendezvousServer::start(3, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let connect = || TcpStream::connect(server.address()).unwrap();
    // Silent from the start, silent in the middle of a greeting, and silent with the key proven.
    let _silent = connect();
    let mut half_open = connect();
    half_open.write_all(b"PHAL").unwrap();
    let _proven = authenticated(server.address(), &key(), 0);
    // A speaker of something else, one that closes at once, and one with the key that sends no join.
    let mut garbage = connect();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(connect());
    let mut confused = authenticated(server.address(), &key(), 0);
    confused.write_all(&u32::MAX.to_le_bytes()).unwrap();
    for stranger in [&mut garbage, &mut confused] {
        let mut rest = Vec::new();
        // Closed, with or without a reset, and nothing told.
        let _ = stranger.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    }
    let rosters = together((0..3).map(|rank| config(rank, 3, tcp(server.address(), true))).collect(), 30.0);
    assert!(rosters.iter().all(Result::is_ok), "{rosters:?}");
}

#[test]
fn many_strangers_make_room_for_members() {
    let server = RendezvousServer::start(2, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let strangers: Vec<_> = (0..1500).map_while(|_| TcpStream::connect(server.address()).ok()).collect();
    let rosters = together((0..2).map(|rank| config(rank, 2, tcp(server.address(), true))).collect(), 30.0);
    assert!(rosters.iter().all(Result::is_ok), "{} strangers: {rosters:?}", strangers.len());
}

#[test]
fn a_second_join_on_one_connection_is_a_failure_of_that_rank() {
    let server = RendezvousServer::start(3, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let mut twice = authenticated(server.address(), &key(), 2);
    twice.write_all(&join_frame(2, 3)).unwrap();
    twice.write_all(&join_frame(2, 3)).unwrap();
    let error = join(&config(0, 3, tcp(server.address(), true)), introduction(0), within(60.0)).unwrap_err();
    assert!(
        matches!(&error, Error::PeerFailed { rank: 2, .. }) && error.to_string().contains("after its join"),
        "{error}"
    );
}

#[test]
fn a_port_that_is_taken_is_an_error_of_rank_0_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = tcp(&taken.local_addr().unwrap().to_string(), false);
    let began = Instant::now();
    let error = join(&config(0, 2, place), introduction(0), within(60.0)).unwrap_err().to_string();
    assert!(
        error.contains("cannot listen at 127.0.0.1:") && error.contains("another process listens there"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn nothing_is_left_when_the_server_ends() {
    let server = RendezvousServer::start(2, key(), Bind::Tcp("127.0.0.1:0".into())).unwrap();
    let address = server.address().to_string();
    let _silent = TcpStream::connect(&address).unwrap();
    let began = Instant::now();
    server.shutdown();
    assert!(began.elapsed() < Duration::from_secs(1), "nobody waits for strangers");
    assert!(TcpStream::connect(&address).is_err());
}
