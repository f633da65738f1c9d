//! Who does not prove the job's key has no say, whatever it sends; who does and then breaks the protocol is dropped. The
//! registry and its members go on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use phalanx::bootstrap::{KeySource, new_key};
use phalanx::launch::operator::Operator;
use phalanx::membership::registry::{Event, RegistryConfig};
use phalanx::types::{Error, Generation, ReduceOp};
use phalanx::wire::handshake::{Hello, Initiator, JobKey, Purpose};
use phalanx::wire::registry::{
    FromRegistry, MAX_REQUEST_FRAME, Parting, ProcessRecord, Register, Report, Resume, ToRegistry, VERSION, Whom,
};

use crate::support::{Counter, Job};

/// Nothing here takes long; this is only against hangs.
const PATIENCE: Duration = Duration::from_secs(20);

fn connect(job: &Job) -> TcpStream {
    let stream = TcpStream::connect(job.registry.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// The handshake by hand, for a purpose. None if it is refused.
fn prove(job: &Job, key: &JobKey, purpose: Purpose) -> Option<TcpStream> {
    let mut stream = connect(job);
    let hello =
        Hello { job: key.job(), generation: Generation(0), from: 7, to: u32::MAX, purpose, attempt: 0, nonce: [5; 32] };
    let mut machine = Initiator::new(key, &hello);
    while !machine.is_accepted() {
        stream.write_all(&machine.poll_output()).ok()?;
        let mut arrived = vec![0; machine.wanted()];
        stream.read_exact(&mut arrived).ok()?;
        machine.handle_input(&arrived).ok()?;
    }
    stream.write_all(&machine.poll_output()).ok()?;
    Some(stream)
}

/// What else comes until the other end closes. A reset is an end, too; silence is not.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
            panic!("the connection is still open")
        }
        _ => rest,
    }
}

fn operator(place: &str, key: JobKey) -> Result<Operator, Error> {
    Operator::dial(place, &KeySource::Given(key))
}

/// A job of two that works while `disturb` does what it likes. Nothing of that may be noticed.
fn undisturbed(disturb: impl FnOnce(&Job)) {
    let job = Job::new(RegistryConfig::new(2));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for rank in 0..2 {
            let (job, is_over) = (&job, &is_over);
            scope.spawn(move || {
                let elastic = job.join(Some(rank));
                elastic.sync(&mut Counter::default()).expect("a sync");
                let mut data = [0u64; 2];
                while data[1] == 0 {
                    data = [1, u64::from(rank == 0 && is_over.load(Ordering::Relaxed))];
                    let outcome = elastic.step(|step| step.allreduce(&mut data, ReduceOp::Sum)).expect("a step");
                    assert_eq!((data[0], outcome.generation), (2, Generation(1)));
                }
                elastic.shutdown();
            });
        }
        job.wait_for_view(Generation(1));
        disturb(&job);
        // It still listens to those who may speak.
        let status = operator(job.registry.address(), job.key()).and_then(|mut operator| operator.status());
        assert_eq!(status.expect("a status").generation, Generation(1));
        is_over.store(true, Ordering::Relaxed);
    });
    while job.registry.outcome().is_none() {
        let event = job.next_event();
        assert!(!matches!(event, Event::Lost(_) | Event::Named { .. } | Event::Registered { .. }), "{event:?}");
    }
}

#[test]
fn strangers_have_no_say() {
    undisturbed(|job| {
        // Silent ones, who stay.
        let _silent: Vec<_> = (0..100).map(|_| connect(job)).collect();
        let mut half = connect(job);
        half.write_all(b"PHAL").expect("it listens");
        for garbage in [&b"GET /status HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 4096], b"PHALANX\0\xff\xff\xff\xff"] {
            let mut stranger = connect(job);
            // It may be closed before all is written.
            let _ = stranger.write_all(garbage);
            let _ = stranger.shutdown(Shutdown::Write);
            rest(stranger);
        }
        // Messages without a proof, in the open.
        let mut eager = connect(job);
        let evict = ToRegistry::Evict { whom: Whom::Slot(0), reason: "please".into() };
        let _ = eager.write_all(&evict.encode());
        let _ = eager.shutdown(Shutdown::Write);
        rest(eager);
    });
}

#[test]
fn another_job_s_key_opens_nothing() {
    undisturbed(|job| {
        let other = new_key().expect("random bytes");
        assert!(prove(job, &other, Purpose::Registry).is_none());
        let Err(error) = operator(job.registry.address(), other.clone()) else { panic!("it has another key") };
        assert!(error.to_string().contains("is not this job's registry"), "{error}");
        let mut settings = job.settings(Some(0));
        settings.key = KeySource::Given(other);
        let Err(error) = phalanx::elastic::Elastic::join(&settings) else { panic!("it has another key") };
        assert!(error.to_string().contains("is not this job's registry"), "{error}");
        // The right key, for something else than the registry.
        assert!(prove(job, &job.key(), Purpose::Rendezvous).is_none());
    });
}

/// Lets one connection through, and keeps what its client said.
fn record(listener: &TcpListener, to: &str) -> Vec<u8> {
    let (mut client, _) = listener.accept().expect("a client");
    let mut server = TcpStream::connect(to).expect("it listens");
    let (mut to_client, mut from_server) = (client.try_clone().expect("room"), server.try_clone().expect("room"));
    let answers = thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        said.extend_from_slice(&buffer[..count]);
        server.write_all(&buffer[..count]).expect("it listens");
    }
    let _ = server.shutdown(Shutdown::Both);
    let _ = answers.join();
    said
}

#[test]
fn what_was_recorded_is_worth_nothing_when_it_is_said_again() {
    undisturbed(|job| {
        // An operator's whole session, as one on the way hears it. There is no slot 9, so that it does no harm itself.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        let (key, to) = (job.key(), job.registry.address().to_owned());
        let said = thread::scope(|scope| {
            let recorder = scope.spawn(|| record(&listener, &to));
            let mut operator = operator(&place, key).expect("the key is right");
            operator.status().expect("a status");
            let error = operator.evict(Whom::Slot(9), "a test").expect_err("nobody is there");
            assert!(error.to_string().contains("no member in slot 9"), "{error}");
            drop(operator);
            recorder.join().expect("no panic")
        });
        let answers = |bytes: &[u8]| {
            let mut again = connect(job);
            // It is closed in the middle, perhaps.
            let _ = again.write_all(bytes);
            let _ = again.shutdown(Shutdown::Write);
            rest(again)
        };
        let frames = ToRegistry::StatusRequest.encode().len()
            + ToRegistry::Evict { whom: Whom::Slot(9), reason: "a test".into() }.encode().len();
        let handshake = said.len() - frames;
        // The same words get the answer to a hello, and nothing that follows a proof: the registry's nonce is another.
        let first = answers(&said);
        assert_eq!(first.len(), answers(&said[..handshake]).len(), "a refusal, with or without frames behind it");
        // Frames alone are not even a hello.
        answers(&said[handshake..]);
    });
}

#[test]
fn one_with_the_key_that_breaks_the_protocol_is_dropped() {
    undisturbed(|job| {
        let frame = |length: u32, bytes: &[u8]| [&length.to_le_bytes(), bytes].concat();
        let too_long = u32::try_from(MAX_REQUEST_FRAME + 1).expect("32 bits");
        for (what, bytes) in [
            ("a length beyond all bounds", frame(u32::MAX, b"")),
            ("a length beyond the longest request", frame(too_long, &[1])),
            ("no kind", frame(0, b"")),
            ("a kind that does not exist", frame(1, &[200])),
            ("a kind of the other direction", FromRegistry::Goodbye.encode()),
            ("a report cut short", frame(3, &[4, 0, 0])),
            ("a report with more behind it", frame(64, &[4; 64])),
        ] {
            let mut stranger = prove(job, &job.key(), Purpose::Registry).expect("the key is right");
            stranger.write_all(&bytes).expect("it listens");
            assert_eq!(rest(stranger), Vec::<u8>::new(), "{what}");
        }
    });
}

#[test]
fn one_with_the_key_that_is_no_member_speaks_for_none() {
    undisturbed(|job| {
        let mut stranger = prove(job, &job.key(), Purpose::Registry).expect("the key is right");
        let generation = Generation(1);
        let report = Report { generation, counted: 1_000_000, holds: true, boundary: false, closed: false };
        for message in [
            ToRegistry::Report(report),
            ToRegistry::Suspect { generation, slot: 1, detail: "so they say".into() },
            ToRegistry::Leave { parting: Parting::Done, reason: "so they say".into() },
            ToRegistry::Heartbeat { number: 1, progress: u64::MAX, is_waiting: true, counted: u64::MAX },
        ] {
            stranger.write_all(&message.encode()).expect("it listens");
        }
        // Somebody's place without its token.
        let process = ProcessRecord { pid: 1, host: vec![1], host_name: "n".into(), addresses: vec![] };
        let resume = Some(Resume { slot: 0, generation });
        let register =
            Register { version: VERSION, token: [9; 16], patience: PATIENCE, wish: Some(0), process, resume };
        stranger.write_all(&ToRegistry::Register(register).encode()).expect("it listens");
        let told = rest(stranger);
        let Ok(FromRegistry::Evicted { reason, .. }) = FromRegistry::decode(told.get(4..).unwrap_or_default()) else {
            panic!("{told:?}");
        };
        assert!(reason.contains("knows of no such member"), "{reason}");
    });
}
