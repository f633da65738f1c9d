//! The thread that talks to the registry, and what it does to the engine.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::control::{Command, Control};
use super::ledger::{Installed, Shared};
use crate::bootstrap::Settings;
use crate::bootstrap::control::{Link, wait};
use crate::comm::{Members, Settings as CommSettings, Views, among, told};
use crate::executor::Lost;
use crate::membership::member::{Action, Installation, Member, Outcome, Stop};
use crate::schedule::cost::{AlgorithmTable, agree, crowd};
use crate::sys::points::{Point, reach};
use crate::transport::connect::{ConnectorConfig, PeerAddress, TransportPolicy};
use crate::transport::listen::Listeners;
use crate::types::{Deadline, Error, Generation, Result};
use crate::wire::handshake::JobKey;
use crate::wire::registry::{FromRegistry, Gone, MAX_ANSWER_FRAME, Parting, ToRegistry};

/// How long one attempt to reach the registry may take. An address that does not answer is tried again.
const DIAL_LIMIT: Duration = Duration::from_secs(2);

/// After how long without an acknowledgement of the registry's host a member's connection to it is given up, until the
/// registry has said how long that is in its job.
const SILENCE: Duration = Duration::from_secs(5);

/// What the thread is told.
pub(super) struct ClientConfig {
    /// Where the registry listens.
    pub place: String,
    pub key: Option<JobKey>,
    pub settings: Settings,
    pub table: Arc<AlgorithmTable>,
    pub policy: TransportPolicy,
    pub listeners: Listeners,
}

/// The engine, from the first view on.
pub(super) type SharedViews = Arc<Mutex<Option<Views>>>;

/// The running thread.
pub(super) struct Client {
    thread: JoinHandle<()>,
}

impl Client {
    /// Starts it; `member` knows who this is.
    pub fn start(
        config: ClientConfig,
        member: Member,
        shared: Arc<Shared>,
        control: Control,
        views: SharedViews,
    ) -> Result<Self> {
        let ClientConfig { place, key, settings, table, policy, listeners } = config;
        let listeners = Some(listeners);
        let mut driver = Driver {
            place,
            key,
            settings,
            table,
            policy,
            listeners,
            link: None,
            member,
            shared,
            control,
            views,
            has_vanished: false,
        };
        let thread = std::thread::Builder::new().name("phalanx-member".into()).spawn(move || driver.run());
        let thread = thread.map_err(|error| {
            Error::environment(format_args!("cannot start a thread: {error}"), "raise the limit on threads (ulimit -u)")
        })?;
        Ok(Self { thread })
    }

    /// Waits for its end, which a leave or a stop brings about.
    pub fn join(self) {
        // A panic of that thread has been reported by the panic hook.
        let _ = self.thread.join();
    }
}

struct Driver {
    place: String,
    key: Option<JobKey>,
    settings: Settings,
    table: Arc<AlgorithmTable>,
    policy: TransportPolicy,
    /// Until the first view.
    listeners: Option<Listeners>,
    link: Option<Link>,
    member: Member,
    shared: Arc<Shared>,
    control: Control,
    views: SharedViews,
    has_vanished: bool,
}

impl Driver {
    fn run(&mut self) {
        loop {
            let now = Instant::now();
            if self.member.deadline().is_some_and(|deadline| deadline.has_passed(now)) {
                let (progress, is_waiting) = self.progress();
                self.member.handle_progress(now, progress, is_waiting);
                self.member.handle_counted(self.shared.lock().counted);
                self.member.handle_timeout(now);
            }
            self.act();
            if self.member.is_over() || self.has_vanished {
                return;
            }
            self.wait();
            for command in self.control.take() {
                self.obey(command);
                self.act();
            }
            self.hear();
        }
    }

    fn wait(&self) {
        let timeout = self.member.deadline().map(|deadline| deadline.remaining(Instant::now()));
        let mut fds = vec![PollFd::from_borrowed_fd(self.control.wake.as_fd(), PollFlags::IN)];
        fds.extend(self.link.as_ref().map(Link::poll_fd));
        wait(&mut fds, timeout);
        self.control.wake.clear();
    }

    fn obey(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::LinkLost(Lost { generation, slot, detail, is_own }) => {
                if self.member.generation() == Some(generation) {
                    match is_own {
                        true => self.member.handle_link_lost(now, slot, &detail),
                        false => self.member.handle_link_told(now),
                    }
                }
                let mut ledger = self.shared.lock();
                ledger.heard += 1;
                ledger.doomed = self.member.has_lost_links();
                drop(ledger);
                self.shared.notify();
            }
            Command::Boundary { generation } => {
                let ledger = self.shared.lock();
                if ledger.at_boundary && ledger.runs_in(generation) {
                    self.member.handle_boundary(now, ledger.counted);
                }
            }
            Command::Leave { parting, why } => self.member.leave(now, parting, why),
            Command::Vanish => {
                self.link = None;
                self.has_vanished = true;
                if let Some(views) = self.lock_views().as_ref() {
                    views.vanish();
                }
                self.end(Error::Closed { what: "this rank vanished".into() });
            }
        }
    }

    fn hear(&mut self) {
        let Some(link) = &mut self.link else { return };
        let mut frames = Vec::new();
        let ended = link.write().and_then(|()| link.read(&mut frames));
        for frame in frames {
            match FromRegistry::decode(&frame) {
                Ok(message) => {
                    if let (FromRegistry::Welcome { heartbeat_limit, .. }, Some(link)) = (&message, &self.link) {
                        link.set_silence(*heartbeat_limit);
                    }
                    match &message {
                        FromRegistry::Welcome { .. } => reach(Point::Welcome),
                        FromRegistry::View(_) => reach(Point::View),
                        FromRegistry::Prepare { .. } => reach(Point::Prepare),
                        FromRegistry::Wanted { .. } => reach(Point::Wanted),
                        _ => {}
                    }
                    self.member.handle_message(Instant::now(), message);
                }
                Err(error) => {
                    self.link = None;
                    self.member.handle_disconnected(Instant::now(), &error.to_string());
                    return;
                }
            }
            self.act();
        }
        if let Err(end) = ended
            && self.link.take().is_some()
        {
            self.member.handle_disconnected(Instant::now(), &format!("{end:?}"));
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.member.poll_action() {
            match action {
                Action::Connect => self.connect(),
                Action::Disconnect => {
                    if let Some(mut link) = self.link.take() {
                        // What fits goes out; the registry needs nothing more from this member.
                        let _ = link.write();
                    }
                }
                Action::Send(message) => self.send(&message),
                Action::Suspend { generation, gone } => self.suspend(generation, &gone),
                Action::Install(installation) => self.install(*installation),
                Action::Wanted => self.shared.lock().wanted = true,
                Action::Waiting { have, need, remaining } => {
                    tracing::warn!(have, need, ?remaining, "the job waits for members");
                }
                Action::Stuck { away, detail, remaining } => {
                    tracing::warn!(?away, waits_for = %detail, ?remaining, "cut off from the registry; waiting for it");
                }
                Action::Away { detail } => {
                    tracing::warn!(%detail, "the registry is away; the work goes on");
                    self.shared.lock().away = Some((Instant::now(), detail.into()));
                }
                Action::Back => {
                    tracing::info!("the registry is back");
                    self.shared.lock().away = None;
                }
                Action::Stop(stop) => self.stop(&stop),
            }
        }
    }

    fn send(&mut self, message: &ToRegistry) {
        match message {
            ToRegistry::Suspect { .. } => reach(Point::Suspect),
            ToRegistry::Leave { .. } => reach(Point::Leave),
            _ => {}
        }
        if let Some(link) = &mut self.link {
            link.send(message.encode());
            // A broken link is found when it is read.
            let _ = link.write();
        }
        match message {
            ToRegistry::Register(_) => reach(Point::Registered),
            ToRegistry::Report(_) => reach(Point::Reported),
            ToRegistry::Leave { .. } => reach(Point::Goodbye),
            _ => {}
        }
    }

    fn connect(&mut self) {
        reach(Point::Dial);
        let deadline = Deadline::after(Instant::now(), DIAL_LIMIT);
        match Link::dial(&self.place, self.key.as_ref(), MAX_ANSWER_FRAME, deadline, SILENCE) {
            Ok((link, key)) => {
                self.link = Some(link);
                self.key = Some(key);
                self.member.handle_connected(Instant::now());
            }
            Err((true, error)) => self.member.handle_disconnected(Instant::now(), &error.to_string()),
            Err((false, error)) => {
                self.member.handle_disconnected(Instant::now(), &error.to_string());
                // Until the first view a registry of another job is a mistake of whoever started this.
                if self.member.generation().is_none() {
                    self.end(error);
                    self.member.leave(Instant::now(), Parting::Unsaid, "it found no registry of its job");
                }
            }
        }
    }

    fn suspend(&mut self, generation: Generation, gone: &[Gone]) {
        let now = Instant::now();
        let cause: Arc<str> = match gone {
            [] => "the view is to change".into(),
            gone => gone.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ").into(),
        };
        self.shared.lock().suspend(now);
        if let Some(views) = self.lock_views().as_ref() {
            views.suspend(&Error::ViewChanged { generation, cause });
        }
        reach(Point::GivenUp);
        // Nothing passes a commit from here on, so that what is said stays true.
        let ledger = self.shared.lock();
        let (counted, at_boundary) = (ledger.counted, ledger.at_boundary);
        let (holds, closed) = (ledger.held.is_some(), ledger.held.as_ref().is_some_and(|held| held.closed));
        drop(ledger);
        if at_boundary {
            self.member.handle_boundary(now, counted);
        } else {
            self.member.handle_suspended(now, counted, holds, closed);
        }
    }

    fn install(&mut self, installation: Installation) {
        if let Err(error) = self.try_install(&installation) {
            // This member cannot be in the view; the others will see it go.
            self.end(error);
            self.member.leave(Instant::now(), Parting::Unsaid, "it could not go over to the next view");
        }
    }

    fn try_install(&mut self, installation: &Installation) -> Result<()> {
        let Installation { generation, slot, members, outcome, gone, joined, broken, .. } = installation;
        let slots: Arc<[usize]> = members.iter().map(|(slot, _)| *slot).collect();
        let mut identities: Vec<&[u8]> = Vec::new();
        let mut hosts = Vec::new();
        let mut peers = Vec::new();
        let mut told = Vec::new();
        for (peer, process) in members.iter() {
            let host = identities.iter().position(|known| *known == process.host).unwrap_or_else(|| {
                identities.push(&process.host);
                identities.len() - 1
            });
            hosts.push(host);
            let (addresses, said) = told::read(&process.addresses)?;
            told.push(said);
            peers.push(PeerAddress { rank: *peer, addresses });
        }
        let own = slots.iter().position(|one| one == slot);
        let own = own.ok_or_else(|| Error::internal("a view without this member"))?;
        let basis = Arc::new(agree(&told, &hosts, own, self.table.clone(), self.listeners.is_some())?);
        let waits = among(crowd(&told, &hosts, own));
        let broken = broken
            .iter()
            .filter_map(|&(one, other)| match *slot {
                me if me == one => Some(other),
                me if me == other => Some(one),
                _ => None,
            })
            .collect();
        let cause = describe(gone, joined, *outcome);
        let (generation, slots_of) = (*generation, slots.clone());
        let next = Members {
            generation,
            slots: slots_of,
            hosts,
            peers: peers.clone(),
            broken,
            cause: cause.clone(),
            basis,
            waits,
        };
        if self.listeners.is_some() {
            let started = self.start(*slot, generation, peers)?;
            *self.lock_views() = Some(started);
        }
        let communicator = match self.lock_views().as_ref() {
            Some(views) => views.install(next)?,
            None => return Err(Error::internal("no engine to install a view in")),
        };
        reach(Point::Installing);
        tracing::info!(generation = generation.0, size = slots.len(), %cause, "a view begins");
        let view = Installed { generation, slots, communicator, cause, joined: Generation(0) };
        let mut ledger = self.shared.lock();
        ledger.install(view, *outcome, installation.counted, !joined.is_empty(), Instant::now());
        ledger.doomed = self.member.has_lost_links();
        drop(ledger);
        self.shared.notify();
        reach(Point::Installed);
        Ok(())
    }

    fn start(&mut self, slot: usize, generation: Generation, peers: Vec<PeerAddress>) -> Result<Views> {
        let listeners = self.listeners.take().ok_or_else(|| Error::internal("the listeners are gone"))?;
        let key = self.key.clone().ok_or_else(|| Error::internal("a view without a key"))?;
        let config = ConnectorConfig::new(slot, generation, key, peers);
        let sockets = self.settings.sockets.and_then(|sockets| u8::try_from(sockets).ok());
        let sockets_per_peer = sockets.unwrap_or(config.sockets_per_peer);
        let config = ConnectorConfig {
            transport: self.policy,
            sockets_per_peer,
            single_copy: self.settings.single_copy,
            ..config
        };
        let settings = CommSettings {
            timeout: self.settings.timeout,
            algorithm: self.settings.algorithm,
            deterministic: self.settings.deterministic,
        };
        let control = self.control.clone();
        // Not the ledger itself: it has the view's communicator, that the engine, and the engine has this.
        let lost_links = self.shared.lost_links();
        let on_lost = move |lost| {
            lost_links.count();
            control.send(Command::LinkLost(lost));
        };
        Views::start(listeners, config, settings, Box::new(on_lost))
    }

    fn stop(&mut self, stop: &Stop) {
        self.shared.lock().can_rejoin = matches!(stop, Stop::Evicted { .. } | Stop::CutOff { .. });
        self.end(match stop {
            Stop::Left { .. } => Error::Closed { what: "this process has left the job".into() },
            Stop::Evicted { generation, reason } => {
                Error::Evicted { generation: *generation, reason: reason.as_str().into() }
            }
            Stop::Refused { what, hint } => {
                Error::environment(format_args!("the registry did not let this process in: {what}"), hint)
            }
            Stop::Ended { .. } => Error::environment(stop, "see what the launcher says, and start the job again"),
            Stop::NotAdmitted { .. } => {
                Error::environment(stop, "see whether the registry runs, and whether enough processes were started")
            }
            Stop::NoView { .. } => Error::environment(
                stop,
                "see what the launcher or `phalanx status` says that the job waits for, and start it again",
            ),
            Stop::CutOff { .. } => Error::environment(
                stop,
                "see the network; this process can join again when the registry can be reached",
            ),
            Stop::Defect { .. } => Error::internal(stop),
        });
        if !matches!(stop, Stop::Left { .. })
            && let Some(views) = self.lock_views().as_ref()
        {
            // The others are not to wait for this one, and nothing of it may reach them any more.
            views.vanish();
        }
    }

    /// This member is out, for this reason, if for no earlier one.
    fn end(&mut self, error: Error) {
        if !matches!(error, Error::Closed { .. })
            && let Some(views) = self.lock_views().as_ref()
        {
            views.suspend(&error);
        }
        self.shared.lock().stop.get_or_insert(error);
        self.shared.notify();
    }

    /// How many operations were begun, and whether some are in flight.
    fn progress(&self) -> (u64, bool) {
        self.lock_views().as_ref().map_or((0, false), |views| (views.operations(), views.is_busy()))
    }

    fn lock_views(&self) -> std::sync::MutexGuard<'_, Option<Views>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a view began, in words.
fn describe(gone: &[Gone], joined: &[usize], outcome: Outcome) -> Arc<str> {
    let mut parts: Vec<String> = gone.iter().map(ToString::to_string).collect();
    if outcome == Outcome::Joined {
        parts.push("this process joined".into());
    } else {
        parts.extend(joined.iter().map(|slot| format!("slot {slot} joined")));
    }
    if parts.is_empty() {
        parts.push("links were made again".into());
    }
    parts.join("; ").into()
}
