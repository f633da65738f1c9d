//! The rendezvous server: one thread that lets members in and tells each the table of all, or why there is none.
//!
//! The thread waits on its listeners and connections with poll; what members say goes into a [`Gathering`], what comes
//! out is written back. Before a connection has proven the job's key and sent its join it is a stranger: it has
//! [`STRANGER_PATIENCE`] to do so, at most [`MAX_STRANGERS`] are kept (the oldest makes room), and no more than one
//! short frame is read from it.

mod bind;
mod connection;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::client::handshake_identity;
use super::key;
use super::stream::{Listener, Stream};
use super::wire_key;
use crate::membership::{Gathering, Outcome, Tell};
use crate::types::{Deadline, Error, Generation, Result};
use crate::wire::handshake::{JobKey, Responder};
use crate::wire::rendezvous::{Message, Session};

pub use bind::Bind;
pub(super) use bind::{everywhere, listen};
use connection::{Connection, Stage};

/// How long a connection may take to prove the key and join. Long enough for a member on a loaded machine.
const STRANGER_PATIENCE: Duration = Duration::from_secs(10);

/// How many connections that have not joined are kept.
const MAX_STRANGERS: usize = 1024;

/// How many connections are accepted before the others are looked at again.
const MAX_ACCEPTS: usize = 256;

/// How long the server goes on writing to members that do not read when it is told to end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// How long no connection is accepted after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server is to do.
pub(super) struct Options {
    pub size: usize,
    pub key: JobKey,
    pub bind: Bind,
    pub session: Session,
    /// After this the ranks that are missing are told to those who came. Members bring deadlines of their own.
    pub deadline: Option<Deadline>,
    /// Whether another gathering follows one that is complete.
    pub repeat: bool,
    /// Called when all are there, before any of them knows.
    pub on_complete: Option<Box<dyn FnOnce() + Send>>,
}

/// The rendezvous server of one job. Dropping it ends its thread, after what was to be told has been told.
#[derive(Debug)]
pub struct RendezvousServer {
    address: String,
    port: Option<u16>,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl RendezvousServer {
    /// Listens at `bind` for the `size` members that know `key`, for as long as it lives: members that meet again get
    /// the next generation.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if it cannot listen there.
    pub fn start(size: usize, key: JobKey, bind: Bind) -> Result<Self> {
        Self::start_with(Options { size, key, bind, session: [0; 16], deadline: None, repeat: true, on_complete: None })
    }

    pub(super) fn start_with(options: Options) -> Result<Self> {
        let listeners = listen(&options.bind)?;
        let failed = |error: io::Error| {
            Error::environment(format!("the rendezvous server cannot start: {error}"), "see the limits of this process")
        };
        for listener in &listeners {
            listener.set_nonblocking().map_err(failed)?;
        }
        let first = listeners.first().ok_or_else(|| Error::internal("a server without a listener"))?;
        let (address, port) = (first.address().map_err(failed)?, first.port());
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let wake = Arc::new(wake);
        let stop = Arc::new(AtomicBool::new(false));
        let now = Instant::now();
        let gathering = Gathering::new(now, options.size, Generation::FIRST, options.session, options.deadline);
        let mut server = Server {
            listeners,
            wake: wake.clone(),
            stop: stop.clone(),
            connections: BTreeMap::new(),
            next: 0,
            generation: Generation::FIRST,
            gathering,
            accept_again: None,
            drain_until: None,
            options,
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-rendezvous".into())
            .spawn(move || server.run())
            .map_err(failed)?;
        Ok(RendezvousServer { address, port, stop, wake, thread: Some(thread) })
    }

    /// Where it listens, as [`PHALANX_RENDEZVOUS`](super::variables()) would say it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The TCP port, if it has one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Ends it, after what was to be told has been told.
    pub fn shutdown(self) {}
}

impl Drop for RendezvousServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The counter cannot be full: nobody else writes it.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    options: Options,
    listeners: Vec<Listener>,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    generation: Generation,
    gathering: Gathering,
    accept_again: Option<Instant>,
    drain_until: Option<Instant>,
}

impl Server {
    fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.handle_time(now);
            if self.is_done(now) {
                return;
            }
            let ready = self.wait(now);
            let now = Instant::now();
            for id in ready {
                self.handle_ready(now, id);
            }
            if self.accept_again.is_none() {
                self.accept(now);
            }
        }
    }

    fn is_done(&mut self, now: Instant) -> bool {
        let is_over = self.gathering.outcome() == Some(&Outcome::Complete) && !self.options.repeat;
        if !is_over && !self.stop.load(Ordering::Acquire) {
            return false;
        }
        let until = *self.drain_until.get_or_insert(now + DRAIN_PATIENCE);
        now >= until || self.connections.values().all(|connection| connection.outgoing.is_empty())
    }

    /// Sleeps until something can be done, and returns the connections that are ready.
    fn wait(&self, now: Instant) -> Vec<u64> {
        let until = self.connections.values().filter_map(|connection| connection.until);
        let until =
            until.chain(self.accept_again).chain(self.drain_until).map(|until| until.saturating_duration_since(now));
        let timeout = until.chain(self.gathering.deadline().map(|deadline| deadline.remaining(now))).min();
        // Rounded up, so that the deadline has passed on waking.
        let timeout = timeout.map(|timeout| {
            let timeout = timeout.min(Duration::from_secs(3600)) + Duration::from_millis(1);
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() }
        });
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        if self.accept_again.is_none() {
            fds.extend(self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        }
        let first = fds.len();
        for connection in self.connections.values() {
            let flags = if connection.outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), flags));
        }
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let mut counter = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut counter);
        fds[first..]
            .iter()
            .zip(self.connections.keys())
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, id)| *id)
            .collect()
    }

    fn handle_time(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
        }
        self.connections.retain(|_, connection| connection.until.is_none_or(|until| until > now));
        let tell = self.gathering.handle_timeout(now);
        self.tell(now, tell);
    }

    fn accept(&mut self, now: Instant) {
        for at in 0..self.listeners.len() {
            // Some at a time, so that a flood of strangers does not keep those who are in from being heard.
            for _ in 0..MAX_ACCEPTS {
                let Some(listener) = self.listeners.get(at) else { break };
                match listener.accept() {
                    Ok(stream) => self.welcome(now, stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if is_out_of_descriptors(&error) => {
                        self.accept_again = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                    // The peer gave up between dialling and now, or the network did.
                    Err(_) => break,
                }
            }
        }
    }

    fn welcome(&mut self, now: Instant, stream: Stream) {
        let mut outgoing = VecDeque::new();
        if stream.is_unix() {
            // The kernel vouches for the peer: it is this user, who may have the key.
            if !stream.is_of_this_user().unwrap_or(false) {
                return;
            }
            outgoing.push_back(wire_key::encode(&self.options.key).into());
        }
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let strangers = self.connections.iter().filter(|(_, connection)| connection.is_stranger());
        if strangers.clone().count() >= MAX_STRANGERS {
            let oldest = strangers.map(|(id, _)| *id).next();
            oldest.and_then(|id| self.connections.remove(&id));
        }
        let Ok(nonce) = key::random() else { return };
        let id = self.next;
        self.next += 1;
        let until = Some(now + STRANGER_PATIENCE);
        let responder = Responder::new(&self.options.key, handshake_identity(&self.options.key), nonce);
        let stage = Stage::Handshake(Box::new(responder));
        self.connections.insert(id, Connection { stream, stage, until, outgoing, written: 0 });
        self.handle_ready(now, id);
    }

    fn handle_ready(&mut self, now: Instant, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut joins = None;
        let result = connection
            .write()
            .and_then(|()| connection.read(self.options.size, &mut joins))
            .and_then(|()| connection.write());
        if let Some(message) = joins {
            connection.stage = Stage::Joined;
            connection.until = None;
            let tell = match message {
                Message::Join(join) => self.gathering.handle_join(now, id, join),
                _ => None,
            };
            self.tell(now, tell);
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let is_told = matches!(connection.stage, Stage::Told) && connection.outgoing.is_empty();
        if let Err(how) = result {
            if connection.is_stranger() {
                tracing::debug!(%how, "the rendezvous server drops a connection that has not joined");
            }
            self.connections.remove(&id);
            let tell = self.gathering.handle_lost(now, id, &how);
            self.tell(now, tell);
        } else if is_told {
            self.connections.remove(&id);
        }
    }

    fn tell(&mut self, now: Instant, tell: Option<Tell>) {
        let Some(Tell { connections, message }) = tell else { return };
        if matches!(message, Message::Table { .. }) {
            self.finish_gathering(now);
        }
        let frame: Arc<[u8]> = message.encode().into();
        for id in connections {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.stage = Stage::Told;
            connection.until = Some(now + STRANGER_PATIENCE);
            connection.outgoing.push_back(frame.clone());
            // What cannot be written now is written when the socket is ready; a broken one is found then too.
            if connection.write().is_err() || connection.outgoing.is_empty() {
                self.connections.remove(&id);
            }
        }
    }

    /// All are there. Whoever knows so may come again at once and must not find this gathering: what follows is done
    /// before anybody is told.
    fn finish_gathering(&mut self, now: Instant) {
        if let Some(on_complete) = self.options.on_complete.take() {
            on_complete();
        }
        if self.options.repeat {
            self.generation = Generation(self.generation.0 + 1);
            self.gathering =
                Gathering::new(now, self.options.size, self.generation, self.options.session, self.options.deadline);
        } else {
            self.listeners.clear();
            self.connections.retain(|_, connection| matches!(connection.stage, Stage::Joined));
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
