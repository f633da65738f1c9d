//! Authenticated connections that carry frames: between the members of an elastic job, or its operators, and its
//! registry. Both ends are non-blocking, and owned by one thread each.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::client::{self, Failure, Place, handshake_identity};
use super::server::listen;
use super::stream::{Listener, Stream};
use super::{Bind, key, wire_key};
use crate::types::{Deadline, Error, Result};
use crate::wire::handshake::{JobKey, Purpose, Refusal, Responder};
use crate::wire::rendezvous::Frames;

/// How a connection ended, for the judgement of who is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The other end's process closed it, or its host did when the process ended.
    Closed(String),
    /// The other end's host does not answer.
    Unreachable(String),
    /// It broke the protocol.
    Violation(String),
}

impl End {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN) => {
                End::Unreachable(error.to_string())
            }
            _ => End::Closed(error.to_string()),
        }
    }
}

/// An authenticated connection.
pub(crate) struct Link {
    stream: Stream,
    frames: Frames,
    outgoing: VecDeque<Arc<[u8]>>,
    written: usize,
}

impl Link {
    fn new(stream: Stream, max_frame: usize) -> Self {
        Self { stream, frames: Frames::new(max_frame), outgoing: VecDeque::new(), written: 0 }
    }

    /// Connects to the registry at `place` (as `PHALANX_REGISTRY` says it) and proves the key. Returns the key too: a
    /// Unix socket hands it over. The other end is given up when it does not acknowledge for `silence`.
    ///
    /// # Errors
    ///
    /// Whether trying again may help, and why it failed.
    pub fn dial(
        place: &str,
        key: Option<&JobKey>,
        max_frame: usize,
        deadline: Deadline,
        silence: Duration,
    ) -> std::result::Result<(Self, JobKey), (bool, Error)> {
        let parsed = match place.strip_prefix("unix:@") {
            Some(name) => Place::Unix(name.into()),
            None => Place::Tcp(place.into()),
        };
        let (stream, key) = client::reach_registry(&parsed, key, deadline).map_err(|failure| match failure {
            Failure::Again(why) => {
                let hint = "see that the launcher or the registry runs, and that its address can be reached";
                (true, Error::environment(format!("the registry cannot be reached: {why}"), hint))
            }
            Failure::Stranger(error) | Failure::Final(error) => (false, error),
        })?;
        watch(&stream, silence);
        Ok((Self::new(stream, max_frame), key))
    }

    /// From here on the other end is given up when it does not acknowledge for `silence`.
    pub fn set_silence(&self, silence: Duration) {
        watch(&self.stream, silence);
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: impl Into<Arc<[u8]>>) {
        self.outgoing.push_back(frame.into());
    }

    /// Whether everything is with the kernel.
    pub fn is_written(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Writes what the socket takes.
    pub fn write(&mut self) -> std::result::Result<(), End> {
        while let Some(piece) = self.outgoing.front() {
            match self.stream.write(&piece[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(End::of(&error)),
            }
            if self.written >= piece.len() {
                self.outgoing.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }

    /// Reads the frames that are there, without their lengths.
    pub fn read(&mut self, frames: &mut Vec<Vec<u8>>) -> std::result::Result<(), End> {
        let mut buffer = [0u8; 16 * 1024];
        let violation = |error: crate::wire::rendezvous::Malformed| End::Violation(error.to_string());
        loop {
            let wanted = self.frames.wanted().map_err(violation)?.min(buffer.len());
            match self.stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(End::Closed("it closed its connection".into())),
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(End::of(&error)),
            }
            if let Some(frame) = self.frames.next_frame().map_err(violation)? {
                frames.push(frame);
            }
        }
    }

    /// What to wait for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let flags = if self.outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        PollFd::from_borrowed_fd(self.stream.as_fd(), flags)
    }
}

/// Has the kernel give a connection up when the other host acknowledges nothing for `silence`, and ask it when there is
/// nothing to acknowledge. A stopped process's host still acknowledges.
fn watch(stream: &Stream, silence: Duration) {
    if let Stream::Tcp(tcp) = stream {
        let milliseconds = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX).max(1);
        // Where the kernel lacks it, missing signs of life tell, later.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(tcp, milliseconds);
    }
}

/// Waits until a descriptor is ready or the time has passed.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    // Rounded up, so that a deadline has passed on waking.
    let timeout = timeout.map(|timeout| {
        let timeout = timeout.min(Duration::from_secs(3600)) + Duration::from_micros(999);
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: (timeout.subsec_millis() * 1_000_000).into() }
    });
    // A signal ends it early, which does no harm.
    let _ = rustix::event::poll(fds, timeout.as_ref());
}

/// What came to a [`LinkServer`].
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A frame, without its length.
    Frame(u64, Vec<u8>),
    /// The connection is over.
    Lost(u64, End),
}

/// How long a connection may take to prove the key. Long enough for a member on a loaded machine.
const STRANGER_PATIENCE: Duration = Duration::from_secs(10);

/// How many connections that have not proven themselves are kept; the oldest makes room.
const MAX_STRANGERS: usize = 1024;

/// How many connections are accepted before the others are looked at again.
const MAX_ACCEPTS: usize = 256;

/// How long no connection is accepted after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How much may wait to be written to a connection that does not read.
const MAX_WAITING: usize = 4096;

enum Guest {
    Stranger { stream: Stream, machine: Box<Responder>, until: Instant, outgoing: VecDeque<u8> },
    Proven { link: Link, close: bool },
}

/// The server's side of any number of links.
pub(crate) struct LinkServer {
    listeners: Vec<Listener>,
    key: JobKey,
    max_frame: usize,
    silence: Duration,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    accept_again: Option<Instant>,
}

impl LinkServer {
    /// Listens.
    pub fn start(bind: &Bind, key: JobKey, max_frame: usize, silence: Duration) -> Result<Self> {
        let listeners = listen(bind)?;
        for listener in &listeners {
            listener.set_nonblocking().map_err(|error| {
                Error::environment(format!("cannot listen: {error}"), "see the limits of this process")
            })?;
        }
        Ok(Self { listeners, key, max_frame, silence, guests: BTreeMap::new(), next: 0, accept_again: None })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<String> {
        let first = self.listeners.first().ok_or_else(|| Error::internal("a server without a listener"))?;
        first.address().map_err(|error| Error::internal(format!("a listener without an address: {error}")))
    }

    /// Queues a frame, and writes what the socket takes now.
    pub fn send(&mut self, id: u64, frame: Arc<[u8]>) {
        if let Some(Guest::Proven { link, .. }) = self.guests.get_mut(&id)
            && link.outgoing.len() < MAX_WAITING
        {
            link.send(frame);
            // A broken one is found when it is read.
            let _ = link.write();
        }
    }

    /// For how long the host at the other end has answered nothing, if it owes an answer and the kernel knows.
    pub fn unanswered(&self, id: u64) -> Option<Duration> {
        match self.guests.get(&id) {
            Some(Guest::Proven { link: Link { stream: Stream::Tcp(tcp), .. }, .. }) => {
                crate::sys::socket::unanswered(tcp)
            }
            _ => None,
        }
    }

    /// Closes a connection once everything is written, or `now`.
    pub fn close(&mut self, id: u64, now: bool) {
        match self.guests.get_mut(&id) {
            Some(Guest::Proven { link, close }) if !now && !link.is_written() => *close = true,
            _ => drop(self.guests.remove(&id)),
        }
    }

    /// Whether everything queued is with the kernel.
    pub fn is_written(&self) -> bool {
        self.guests.values().all(|guest| match guest {
            Guest::Proven { link, .. } => link.is_written(),
            Guest::Stranger { .. } => true,
        })
    }

    /// Waits until something comes, `wake` is signalled or `timeout` passes. Returns what came.
    pub fn wait(&mut self, wake: BorrowedFd<'_>, timeout: Option<Duration>) -> Vec<Incoming> {
        let now = Instant::now();
        let until = self.guests.values().filter_map(|guest| match guest {
            Guest::Stranger { until, .. } => Some(*until),
            Guest::Proven { .. } => None,
        });
        let until = until.chain(self.accept_again).min().map(|until| until.saturating_duration_since(now));
        let timeout = timeout.into_iter().chain(until).min();
        let mut fds = vec![PollFd::from_borrowed_fd(wake, PollFlags::IN)];
        if self.accept_again.is_none() {
            fds.extend(self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        }
        let first = fds.len();
        fds.extend(self.guests.values().map(|guest| match guest {
            Guest::Proven { link, .. } => link.poll_fd(),
            Guest::Stranger { stream, outgoing, .. } => {
                let flags = if outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
                PollFd::from_borrowed_fd(stream.as_fd(), flags)
            }
        }));
        wait(&mut fds, timeout);
        let ready: Vec<u64> = fds[first..]
            .iter()
            .zip(self.guests.keys())
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, id)| *id)
            .collect();
        drop(fds);
        let mut incoming = Vec::new();
        ready.into_iter().for_each(|id| self.handle_ready(id, &mut incoming));
        let now = Instant::now();
        self.guests.retain(|_, guest| !matches!(guest, Guest::Stranger { until, .. } if *until <= now));
        if self.accept_again.is_none_or(|again| again <= now) {
            self.accept_again = None;
            self.accept(now, &mut incoming);
        }
        incoming
    }

    fn accept(&mut self, now: Instant, incoming: &mut Vec<Incoming>) {
        for at in 0..self.listeners.len() {
            // Some at a time, so that a flood of strangers does not keep those who are in from being heard.
            for _ in 0..MAX_ACCEPTS {
                let Some(listener) = self.listeners.get(at) else { break };
                match listener.accept() {
                    Ok(stream) => self.greet(now, stream, incoming),
                    Err(error)
                        if matches!(
                            error.raw_os_error(),
                            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
                        ) =>
                    {
                        self.accept_again = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                    // None is left, or it gave up between dialling and now.
                    Err(_) => break,
                }
            }
        }
    }

    fn greet(&mut self, now: Instant, stream: Stream, incoming: &mut Vec<Incoming>) {
        let mut outgoing = VecDeque::new();
        if stream.is_unix() {
            // The kernel vouches for the peer: it is this user, who may have the key.
            if !stream.is_of_this_user().unwrap_or(false) {
                return;
            }
            outgoing.extend(wire_key::encode(&self.key));
        }
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut strangers = self.guests.iter().filter(|(_, guest)| matches!(guest, Guest::Stranger { .. }));
        let oldest = strangers.next().map(|(id, _)| *id);
        if strangers.count() + 1 >= MAX_STRANGERS
            && let Some(oldest) = oldest
        {
            self.guests.remove(&oldest);
        }
        let Ok(nonce) = key::random() else { return };
        let machine = Box::new(Responder::new(&self.key, handshake_identity(&self.key), nonce));
        let id = self.next;
        self.next += 1;
        let guest = Guest::Stranger { stream, machine, until: now + STRANGER_PATIENCE, outgoing };
        self.guests.insert(id, guest);
        // A fast peer may be through, and have said something.
        self.handle_ready(id, incoming);
    }

    fn handle_ready(&mut self, id: u64, incoming: &mut Vec<Incoming>) {
        let Some(guest) = self.guests.remove(&id) else { return };
        let guest = match guest {
            Guest::Stranger { stream, machine, until, outgoing } => {
                match prove(stream, machine, until, outgoing, self.max_frame) {
                    Ok(Guest::Proven { link, close }) => {
                        watch(&link.stream, self.silence);
                        Guest::Proven { link, close }
                    }
                    Ok(stranger) => {
                        self.guests.insert(id, stranger);
                        return;
                    }
                    Err(why) => {
                        tracing::debug!(%why, "dropped a connection that did not prove to belong to this job");
                        return;
                    }
                }
            }
            proven @ Guest::Proven { .. } => proven,
        };
        if let Guest::Proven { mut link, close } = guest {
            let mut frames = Vec::new();
            let ended = link.write().and_then(|()| link.read(&mut frames));
            incoming.extend(frames.into_iter().map(|frame| Incoming::Frame(id, frame)));
            match ended {
                Err(end) => incoming.push(Incoming::Lost(id, end)),
                Ok(()) if close && link.is_written() => {}
                Ok(()) => drop(self.guests.insert(id, Guest::Proven { link, close })),
            }
        }
    }
}

/// Moves a stranger's handshake on.
fn prove(
    mut stream: Stream,
    mut machine: Box<Responder>,
    until: Instant,
    mut outgoing: VecDeque<u8>,
    max_frame: usize,
) -> std::result::Result<Guest, String> {
    let mut buffer = [0u8; 256];
    loop {
        while !outgoing.is_empty() {
            match stream.write(outgoing.make_contiguous()) {
                Ok(count) => drop(outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        let wanted = machine.wanted().min(buffer.len());
        if wanted == 0 {
            if !outgoing.is_empty() {
                return Ok(Guest::Stranger { stream, machine, until, outgoing });
            }
            return Ok(Guest::Proven { link: Link::new(stream, max_frame), close: false });
        }
        let count = match stream.read(&mut buffer[..wanted]) {
            Ok(0) => return Err("it closed its connection".into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Guest::Stranger { stream, machine, until, outgoing });
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        };
        let outcome = machine.handle_input(&buffer[..count]);
        let is_refused = match machine.to_decide() {
            Some(hello) if hello.purpose == Purpose::Registry => {
                machine.accept();
                false
            }
            Some(_) => {
                machine.refuse(Refusal::Transport);
                true
            }
            None => false,
        };
        outgoing.extend(machine.poll_output());
        if outcome.is_err() || is_refused {
            // What it is told fits into its socket, or it will not know why.
            let _ = stream.write(outgoing.make_contiguous());
            return Err(outcome.err().map_or_else(|| "it wants no registry".into(), |error| error.to_string()));
        }
    }
}

/// An event counter to wake a waiting thread with.
pub(crate) fn new_wake() -> io::Result<OwnedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}
