//! A member's side of the rendezvous: dial, prove the key, join, wait for the answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::key;
use super::stream::Stream;
use super::wire_key;
use crate::types::{Deadline, Error, Generation};
use crate::wire::handshake::{Hello, Identity, Initiator, JobKey, Purpose, Refusal};
use crate::wire::rendezvous::{self, Frames, Join, MemberRecord, Message, Reason, Rejection, Session};

/// What this member brings.
#[derive(Clone, Debug)]
pub(super) struct Newcomer {
    pub size: usize,
    pub session: Session,
    pub member: MemberRecord,
    /// The key, unless the server hands it over.
    pub key: Option<JobKey>,
    /// Whether rank 0 is the server, and so to blame when it goes away.
    pub rank_0_serves: bool,
}

/// All members, in the order of ranks.
#[derive(Debug)]
pub(super) struct Table {
    pub key: JobKey,
    pub generation: Generation,
    pub members: Vec<MemberRecord>,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Trying again may help: the server may not be there yet.
    Again(String),
    /// What listens there is not this job's server.
    Stranger(Error),
    /// It will not.
    Final(Error),
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `host:port`, resolved anew at each attempt.
    Tcp(String),
    /// Any of these.
    AnyOf(Vec<SocketAddr>),
    Unix(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Tcp(address) => f.write_str(address),
            Place::AnyOf(addresses) => {
                let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                f.write_str(&addresses.join(" or "))
            }
            Place::Unix(name) => write!(f, "unix:@{name}"),
        }
    }
}

/// The longest that one address is tried before the next.
const DIAL_PATIENCE: Duration = Duration::from_secs(3);

/// Between attempts: at first the server is likely to be there in a moment, later less so.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// Calls `attempt` until it succeeds, fails for good, or the deadline passes; then the error is made of the last
/// reason.
pub(super) fn until_deadline<T>(
    deadline: Deadline,
    mut attempt: impl FnMut() -> Result<T, Failure>,
    timed_out: impl FnOnce(String, Duration) -> Error,
) -> Result<T, Error> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Final(error) | Failure::Stranger(error)) => return Err(error),
            Err(Failure::Again(why)) => why,
        };
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(timed_out(why, now - began));
        }
        rest(pause.min(deadline.remaining(now)));
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Lets time pass. There is no event to wait for: a port that nobody listens at, or a file on another host's disk, does
/// not tell when that changes.
fn rest(length: Duration) {
    let length = rustix::event::Timespec { tv_sec: length.as_secs() as i64, tv_nsec: length.subsec_nanos().into() };
    // A signal may end it early: the next attempt is made a little sooner.
    let _ = rustix::event::poll(&mut [], Some(&length));
}

/// One attempt to meet at `place`.
pub(super) fn meet(place: &Place, newcomer: &Newcomer, deadline: Deadline) -> Result<Table, Failure> {
    let stream = dial(place, deadline)?;
    let mut wire = Wire { stream, deadline };
    let again = |what: &str, error: io::Error| Failure::Again(format!("{place}: {what}: {error}"));
    let rank = newcomer.member.rank;
    let key = receive_key(place, &mut wire, newcomer.key.as_ref(), &format!("rank {rank}"))?;
    let from = u32::try_from(rank).map_err(|_| Failure::Final(Error::internal("a rank beyond 32 bits")))?;
    authenticate(place, &mut wire, &key, from, Purpose::Rendezvous)?;
    let patience = deadline.remaining(Instant::now());
    let join = Message::Join(Join {
        version: rendezvous::VERSION,
        size: newcomer.size,
        patience,
        session: newcomer.session,
        member: newcomer.member.clone(),
    });
    wire.write(&join.encode()).map_err(|error| again("join", error))?;
    let began = Instant::now();
    let (generation, members) = match receive_answer(&mut wire, newcomer) {
        Ok(Message::Table { generation, members }) => (Generation(generation), members),
        Ok(Message::Rejection(rejection)) => return Err(rejected(place, rejection)),
        Ok(Message::Join(_)) => return Err(gone(place, newcomer, "it broke the protocol".into())),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(Failure::Final(silent(place, newcomer, began.elapsed())));
        }
        Err(error) => return Err(gone(place, newcomer, error.to_string())),
    };
    Ok(Table { key, generation, members })
}

/// Proves the key to the server, after the server has proved it.
fn authenticate(place: &Place, wire: &mut Wire, key: &JobKey, from: u32, purpose: Purpose) -> Result<(), Failure> {
    let hello = Hello {
        job: key.job(),
        generation: handshake_identity(key).generation,
        from,
        to: handshake_identity(key).rank,
        purpose,
        attempt: 0,
        nonce: key::random().map_err(Failure::Final)?,
    };
    let mut machine = Initiator::new(key, &hello);
    let mut buffer = [0; 256];
    loop {
        // What it says after an error is for the other side; it may be gone.
        let output = machine.poll_output();
        wire.write(&output).map_err(|error| Failure::Again(format!("{place}: {error}")))?;
        let wanted = machine.wanted().min(buffer.len());
        if wanted == 0 {
            return Ok(());
        }
        let arrived = &mut buffer[..wanted];
        wire.read_exact(arrived).map_err(|error| Failure::Again(format!("{place}: during the handshake: {error}")))?;
        if let Err(error) = machine.handle_input(arrived) {
            let _ = wire.write(&machine.poll_output());
            let hint = match error.refusal {
                Refusal::Version { .. } => "install the same version of Phalanx everywhere",
                _ => "give all ranks of the job the same key, and see that no other job listens there",
            };
            return Err(Failure::Stranger(Error::environment(
                format!("{place} is not this job's {}: {error}", place_name(purpose)),
                hint,
            )));
        }
    }
}

/// Stands for whoever has no rank yet. The server is another.
const NO_RANK: u32 = u32::MAX - 1;

fn place_name(purpose: Purpose) -> &'static str {
    if purpose == Purpose::Registry { "registry" } else { "rendezvous" }
}

/// Connects to the registry of an elastic job, and proves the key, after it has: the connection is non-blocking from
/// then on. Returns the key too, which a Unix socket hands over.
pub(super) fn reach_registry(
    place: &Place,
    key: Option<&JobKey>,
    deadline: Deadline,
) -> Result<(Stream, JobKey), Failure> {
    let stream = dial(place, deadline)?;
    let mut wire = Wire { stream, deadline };
    let key = receive_key(place, &mut wire, key, "this process")?;
    authenticate(place, &mut wire, &key, NO_RANK, Purpose::Registry)?;
    wire.stream.set_nonblocking(true).map_err(|error| Failure::Again(format!("{place}: {error}")))?;
    Ok((wire.stream, key))
}

/// What the server of the rendezvous is in the handshake: no rank, and of no generation yet.
pub(super) fn handshake_identity(key: &JobKey) -> Identity {
    Identity { job: key.job(), generation: Generation(0), rank: u32::MAX }
}

fn dial(place: &Place, deadline: Deadline) -> Result<Stream, Failure> {
    let again = |error: io::Error| Failure::Again(format!("{place}: {error}"));
    let addresses = match place {
        Place::Unix(name) => {
            let stream = Stream::connect_unix(name).map_err(again)?;
            if !stream.is_of_this_user().map_err(again)? {
                return Err(Failure::Again(format!("{place}: another user listens there")));
            }
            return Ok(stream);
        }
        Place::Tcp(address) => address.to_socket_addrs().map_err(again)?.collect(),
        Place::AnyOf(addresses) => addresses.clone(),
    };
    let mut why = io::Error::new(io::ErrorKind::NotFound, "no address");
    for address in addresses {
        match Stream::connect_tcp(&address, deadline.remaining(Instant::now()).min(DIAL_PATIENCE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = error,
        }
    }
    Err(again(why))
}

fn receive_key(place: &Place, wire: &mut Wire, given: Option<&JobKey>, who: &str) -> Result<JobKey, Failure> {
    if !wire.stream.is_unix() {
        return given.cloned().ok_or_else(|| {
            Failure::Final(Error::environment(format!("no key is given to meet at {place}"), key::hint()))
        });
    }
    let mut bytes = [0; wire_key::BYTES];
    wire.read_exact(&mut bytes).map_err(|error| Failure::Again(format!("{place}: no key: {error}")))?;
    let handed = wire_key::decode(&bytes).ok_or_else(|| Failure::Again(format!("{place}: no key")))?;
    match given {
        Some(given) if *given != handed => Err(Failure::Final(Error::environment(
            format!("the key given to {who} is not that of the server at {place}"),
            "give all ranks of the job the same key",
        ))),
        _ => Ok(handed),
    }
}

fn receive_answer(wire: &mut Wire, newcomer: &Newcomer) -> io::Result<Message> {
    let invalid = |error: rendezvous::Malformed| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut frames = Frames::new(rendezvous::max_answer_frame(newcomer.size));
    let mut buffer = [0; 16 * 1024];
    loop {
        let wanted = frames.wanted().map_err(invalid)?.min(buffer.len());
        let target = &mut buffer[..wanted];
        wire.read_exact(target)?;
        frames.push(target);
        if let Some(frame) = frames.next_frame().map_err(invalid)? {
            return Message::decode(&frame, newcomer.size).map_err(invalid);
        }
    }
}

fn rejected(place: &Place, rejection: Rejection) -> Failure {
    let Rejection { reason, waited, ranks, what, hint } = rejection;
    Failure::Final(match reason {
        Reason::Stale => return Failure::Again(format!("{place}: {what}")),
        Reason::Conflict => Error::environment(what, hint),
        Reason::Missing => Error::Timeout {
            operation: "rendezvous".into(),
            waiting_for: ranks,
            waited,
            detail: format!("{what}; at {place}").into(),
        },
        Reason::Lost => Error::PeerFailed {
            rank: ranks.first().copied().unwrap_or(0),
            operation: "rendezvous".into(),
            detail: what.into(),
        },
    })
}

/// The server went away after this member joined.
fn gone(place: &Place, newcomer: &Newcomer, how: String) -> Failure {
    Failure::Final(if newcomer.rank_0_serves {
        let detail = format!("it serves the rendezvous at {place} and went away: {how}");
        Error::PeerFailed { rank: 0, operation: "rendezvous".into(), detail: detail.into() }
    } else {
        Error::environment(
            format!("the rendezvous server at {place} went away: {how}"),
            "look at the launcher's output",
        )
    })
}

/// The server took the join and did not answer in time, though it knew until when.
fn silent(place: &Place, newcomer: &Newcomer, waited: Duration) -> Error {
    let waiting_for = if newcomer.rank_0_serves { vec![0] } else { Vec::new() };
    Error::Timeout {
        operation: "rendezvous".into(),
        waiting_for,
        waited,
        detail: format!("the server at {place} was reached and is silent").into(),
    }
}

/// A blocking stream with a deadline.
struct Wire {
    stream: Stream,
    deadline: Deadline,
}

impl Wire {
    fn patience(&self) -> io::Result<Duration> {
        let now = Instant::now();
        if self.deadline.has_passed(now) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(self.deadline.remaining(now).min(Duration::from_secs(3600)))
    }

    fn read_exact(&mut self, mut target: &mut [u8]) -> io::Result<()> {
        while !target.is_empty() {
            self.stream.set_patience(self.patience()?)?;
            match self.stream.read(target) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => target = &mut target[count..],
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self, mut source: &[u8]) -> io::Result<()> {
        while !source.is_empty() {
            self.stream.set_patience(self.patience()?)?;
            match self.stream.write(source) {
                Ok(count) => source = &source[count..],
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
