//! The registry as a service: one thread that drives a `membership::Registry` over connections, a clock and a file.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::state_file::StateFile;
use crate::bootstrap::Bind;
use crate::bootstrap::control::{End, Incoming, LinkServer, new_wake};
use crate::membership::registry::{Action, Broken, Event, Outcome, Registry, RegistryConfig, Who};
use crate::sys::points::{self, Point, reach};
use crate::types::{Error, Result};
use crate::wire::handshake::JobKey;
use crate::wire::registry::{FromRegistry, MAX_REQUEST_FRAME, ToRegistry, Whom};

/// How long the service goes on writing what it has said when it is told to end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// Hears what happens. Called on the service's thread; it must not block for long.
pub type OnEvent = Box<dyn FnMut(&Event) + Send>;

enum Command {
    Exited { who: Who, how: String },
    Done,
    Evict { whom: Whom, reason: String },
    End { reason: String },
    Stop,
}

/// The registry of one job. Dropping it ends its thread, after what was to be told has been told.
pub struct RegistryService {
    address: String,
    commands: Arc<Mutex<Vec<Command>>>,
    wake: Arc<OwnedFd>,
    outcome: Arc<Mutex<Option<Outcome>>>,
    thread: Option<JoinHandle<()>>,
}

impl RegistryService {
    /// Listens at `bind` for members and operators that know `key`. With a state file, a registry that was there before
    /// is continued from it, and each view is in it before any member hears of it. It is removed when the job is over.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if it cannot listen.
    pub fn start(
        config: RegistryConfig,
        key: JobKey,
        bind: &Bind,
        state_file: Option<StateFile>,
        on_event: OnEvent,
    ) -> Result<Self> {
        points::arm_from_environment()?;
        let failed = |error: std::io::Error| {
            Error::environment(format!("the registry cannot start: {error}"), "see the limits of this process")
        };
        let now = Instant::now();
        let server = LinkServer::start(bind, key, MAX_REQUEST_FRAME, config.heartbeat_limit)?;
        let registry = match &state_file {
            Some(file) => file.registry(now, config),
            None => Registry::new(now, config),
        };
        let address = server.address()?;
        let wake = Arc::new(new_wake().map_err(failed)?);
        let (commands, outcome) = (Arc::<Mutex<Vec<Command>>>::default(), Arc::<Mutex<Option<Outcome>>>::default());
        let service = Service {
            server,
            registry,
            state_file,
            on_event,
            commands: commands.clone(),
            wake: wake.clone(),
            outcome: outcome.clone(),
            closing: BTreeSet::new(),
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-registry".into())
            .spawn(move || service.serve())
            .map_err(failed)?;
        Ok(Self { address, commands, wake, outcome, thread: Some(thread) })
    }

    /// Where it listens, as [`PHALANX_REGISTRY`](crate::bootstrap::variables()) would say it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The process of a member ended, as the launcher saw.
    pub fn exited(&self, who: Who, how: &str) {
        self.command(Command::Exited { who, how: how.into() });
    }

    /// The work of a member that left without a word on it was done, as the launcher saw by how its process ended.
    pub fn done(&self) {
        self.command(Command::Done);
    }

    /// A member is to be out.
    pub fn evict(&self, whom: Whom, reason: &str) {
        self.command(Command::Evict { whom, reason: reason.into() });
    }

    /// The job is to end.
    pub fn end(&self, reason: &str) {
        self.command(Command::End { reason: reason.into() });
    }

    /// How the job ended, if it did.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn command(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        // The counter cannot be full: it is read before it is.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for RegistryService {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

struct Service {
    server: LinkServer,
    registry: Registry,
    state_file: Option<StateFile>,
    on_event: OnEvent,
    commands: Arc<Mutex<Vec<Command>>>,
    wake: Arc<OwnedFd>,
    outcome: Arc<Mutex<Option<Outcome>>>,
    /// Connections that are over for the registry.
    closing: BTreeSet<u64>,
}

impl Service {
    fn serve(mut self) {
        self.run();
        if self.registry.outcome().is_some()
            && let Some(file) = self.state_file
        {
            file.remove();
        }
    }

    fn run(&mut self) {
        let mut stop_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if self.registry.deadline().is_some_and(|deadline| deadline.has_passed(now)) {
                self.registry.handle_timeout(now);
            }
            self.act();
            if let Some(limit) = stop_at
                && (now >= limit || self.server.is_written())
            {
                return;
            }
            let until = self.registry.deadline().map(|deadline| deadline.remaining(now));
            let until = until.into_iter().chain(stop_at.map(|limit| limit.saturating_duration_since(now))).min();
            let incoming = self.server.wait(self.wake.as_fd(), until);
            let mut counter = [0; 8];
            let _ = rustix::io::read(&*self.wake, &mut counter);
            let now = Instant::now();
            let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
            for command in commands {
                match command {
                    Command::Exited { who, how } => drop(self.registry.handle_exit(now, &who, &how)),
                    Command::Done => self.registry.handle_done(now),
                    Command::Evict { whom, reason } => drop(self.registry.evict(now, whom, &reason)),
                    Command::End { reason } => self.registry.end(now, &reason),
                    Command::Stop => drop(stop_at.get_or_insert(now + DRAIN_PATIENCE)),
                }
                self.act();
            }
            for one in incoming {
                self.hear(now, one);
                self.act();
            }
        }
    }

    fn hear(&mut self, now: Instant, incoming: Incoming) {
        match incoming {
            Incoming::Frame(id, frame) => match ToRegistry::decode(&frame) {
                Ok(message) => self.registry.handle_message(now, id, message),
                Err(error) => {
                    tracing::warn!(%error, "a connection to the registry broke the protocol");
                    self.server.close(id, true);
                    self.registry.handle_closed(now, id, Broken::Closed, &error.to_string());
                }
            },
            Incoming::Lost(id, end) => {
                let (how, detail) = match end {
                    End::Closed(detail) | End::Violation(detail) => (Broken::Closed, detail),
                    End::Unreachable(detail) => (Broken::Unreachable, detail),
                };
                if !self.closing.remove(&id) {
                    self.registry.handle_closed(now, id, how, &detail);
                }
            }
        }
    }

    /// Carries out what the registry wants.
    fn act(&mut self) {
        while let Some(action) = self.registry.poll_action() {
            match action {
                Action::Tell { connections, message } => {
                    let frame: Arc<[u8]> = FromRegistry::encode(&message).into();
                    let (is_view, is_prepare) =
                        (matches!(message, FromRegistry::View(_)), matches!(message, FromRegistry::Prepare { .. }));
                    if is_prepare {
                        reach(Point::Evidence);
                    }
                    for (at, id) in connections.iter().enumerate() {
                        // Where there is but one, it has not been told.
                        if at == connections.len() / 2 && is_view {
                            reach(Point::HalfTold);
                        } else if at == connections.len() / 2 && is_prepare {
                            reach(Point::HalfPrepared);
                        }
                        self.server.send(*id, frame.clone());
                    }
                    if is_view {
                        reach(Point::Told);
                    }
                }
                Action::Close { connection } => self.server.close(connection, false),
                Action::LookAtHost { connection } => {
                    if let Some(unanswered) = self.server.unanswered(connection) {
                        self.registry.handle_host(Instant::now(), connection, unanswered);
                    }
                }
                Action::Persist { number, state } => {
                    reach(Point::Reports);
                    if let Some(file) = &mut self.state_file
                        && let Err(error) = file.write(state)
                    {
                        // Going on would break what the file promises; stopping would end a job that runs well.
                        let file = file.path().display();
                        tracing::error!(%file, %error, "the registry's state file cannot be written any more");
                    }
                    reach(Point::Written);
                    self.registry.handle_persisted(Instant::now(), number);
                }
                Action::Event(event) => {
                    if let Event::Ended(outcome) = &event {
                        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
                    }
                    (self.on_event)(&event);
                }
            }
        }
    }
}
