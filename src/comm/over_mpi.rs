//! A world over a running MPI: its ranks are MPI's, they meet over MPI, and everything that they say travels over it.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::communicator::{Communicator, Settings};
use super::connect::{alone, among};
use super::world::World;
use super::{probe, told};
use crate::bootstrap::{self, Config, Introduction, Launcher};
use crate::executor::{Dial, Engine, EngineConfig};
use crate::schedule::cost::{ChoiceMode, agree, crowd};
use crate::sys::HostIdentity;
use crate::sys::mpi::{Level, Session, library_version};
use crate::transport::Endpoint;
use crate::transport::mpi::{MpiLane, Nap, Port};
use crate::transport::stream::{StreamConfig, StreamEndpoint};
use crate::types::{CommunicatorId, Deadline, Error, Generation, Result, TransportKind, View};
use crate::wire::frame;

/// What a rank says when the ranks meet.
#[derive(Serialize, Deserialize)]
struct Greeting {
    /// The version of Phalanx, and of its messages.
    version: (String, u8),
    /// Equal for two ranks exactly when they share a host.
    host: Vec<u8>,
    /// Its host's name, for messages.
    host_name: String,
    /// What it would choose algorithms by.
    told: Vec<u8>,
}

/// What stands before each greeting, so that one of another version can be told apart whatever it says.
const MARK: &[u8] = b"phalanx 1\n";

impl Greeting {
    fn encode(&self) -> Result<Vec<u8>> {
        let line = serde_json::to_vec(self).map_err(|error| Error::internal(error.to_string()))?;
        Ok([MARK, &line].concat())
    }

    /// What rank `from` said.
    fn decode(from: usize, bytes: &[u8]) -> Result<Self> {
        let hint = "run the same version of Phalanx on all ranks";
        let greeting: Option<Greeting> = bytes.strip_prefix(MARK).and_then(|line| serde_json::from_slice(line).ok());
        let greeting = greeting
            .ok_or_else(|| Error::environment(format_args!("rank {from} speaks of itself in another way"), hint))?;
        let own = version();
        if greeting.version != own {
            let what = format_args!(
                "rank {from} on {} runs Phalanx {} (messages {}), this rank {} (messages {})",
                greeting.host_name, greeting.version.0, greeting.version.1, own.0, own.1
            );
            return Err(Error::environment(what, hint));
        }
        Ok(greeting)
    }
}

fn version() -> (String, u8) {
    (env!("CARGO_PKG_VERSION").to_owned(), frame::VERSION)
}

impl Config {
    /// Meets the other ranks of this process's MPI, which it starts if nobody has, and makes the communicator of all.
    /// Opens no socket.
    pub(super) fn connect_over_mpi(&self, settings: Settings, deadline: Deadline) -> Result<Communicator> {
        if self.settings.registry.is_some() {
            return super::policy(Some(TransportKind::Mpi)).and(Err(Error::internal("MPI and a registry")));
        }
        let session = Session::begin(deadline)?;
        self.check_place(&session)?;
        if session.size == 1 {
            return alone(settings);
        }
        let (rank, size) = (session.rank, session.size);
        let table = told::table(&self.settings)?;
        let host = HostIdentity::current().map_err(|error| {
            Error::environment(format_args!("cannot tell which host this is: {error}"), "let /proc be mounted")
        })?;
        let greeting = Greeting {
            version: version(),
            host: Introduction::host_bytes(&host),
            host_name: bootstrap::host_name(),
            told: told::tell(&self.settings, &table, false)?,
        };
        let meeting = session.meet(&greeting.encode()?, deadline)?;
        let greetings: Vec<_> =
            meeting.said.iter().enumerate().map(|(from, said)| Greeting::decode(from, said)).collect();
        let greetings = greetings.into_iter().collect::<Result<Vec<_>>>()?;
        let said = greetings.iter().map(|greeting| told::hear(&greeting.told)).collect::<Result<Vec<_>>>()?;
        let mut hosts: Vec<&[u8]> = Vec::new();
        let numbers = greetings.iter().map(|greeting| {
            hosts.iter().position(|known| *known == greeting.host).unwrap_or_else(|| {
                hosts.push(&greeting.host);
                hosts.len() - 1
            })
        });
        let view = View { generation: Generation::FIRST, hosts: numbers.collect() };
        let basis = Arc::new(agree(&said, &view.hosts, rank, table, true)?);
        let waits = EngineConfig {
            in_background: session.level == Level::Multiple,
            owner: session.owner,
            ..among(crowd(&said, &view.hosts, rank))
        };
        if rank == 0 {
            state(&session);
        }
        let port = Arc::new(Port::new(session, meeting.tag, meeting.in_use));
        let leave = Leave(port.clone());
        let dial = Dialler { port: port.clone(), tag: meeting.tag, wanted: VecDeque::new() };
        let engine = Engine::new(rank, size, Box::new(dial), Arc::new(Nap::new(port)), waits)?;
        let world = Arc::new(World::without_shared_memory(engine, Some(Box::new(leave))));
        let is_measured = basis.choice != ChoiceMode::Builtin;
        let members = (0..size).collect();
        let communicator = Communicator::new(world, CommunicatorId::WORLD, members, rank, view, basis, settings)?;
        if is_measured && size > 2 {
            let figures = probe::measure(&communicator, deadline)?;
            communicator.inner.choose_by(communicator.inner.basis().measured_as(figures));
        }
        Ok(communicator)
    }

    /// The launcher's word and MPI's must be the same: a launcher of another MPI starts worlds of one.
    fn check_place(&self, session: &Session) -> Result<()> {
        let (rank, size) = (self.launch.rank, self.launch.size);
        if self.launch.launcher == Launcher::None || (rank, size) == (session.rank, session.size) {
            return Ok(());
        }
        Err(Error::environment(
            format_args!(
                "{} says rank {rank} of {size}, and MPI rank {} of {}; this build's MPI is {}",
                self.launch.launcher,
                session.rank,
                session.size,
                library_version()
            ),
            "start the ranks with the mpirun or mpiexec of that MPI",
        ))
    }
}

/// Says what the thread level means.
fn state(session: &Session) {
    let library = library_version();
    let by = if session.is_ours { "started by Phalanx" } else { "started by the program" };
    match session.level {
        Level::Multiple => tracing::info!("over {library}, {by}, with {}", session.level),
        Level::Serialized => tracing::warn!(
            "over {library}, {by}, with {}: no thread calls MPI in the background, so that asynchronous calls move only \
             while a thread waits, and no other thread may call MPI while one is in a call of Phalanx",
            session.level
        ),
        Level::Funneled | Level::Single => tracing::warn!(
            "over {library}, {by}, with {}: calls of Phalanx may be made only on the thread that started MPI, and \
             asynchronous ones move only while it waits",
            session.level
        ),
    }
}

/// Makes endpoints, of which MPI needs no preparation.
struct Dialler {
    port: Arc<Port>,
    tag: c_int,
    wanted: VecDeque<usize>,
}

impl Dial for Dialler {
    fn dial(&mut self, peer: usize) {
        if !self.port.has_lane(peer) {
            self.wanted.push_back(peer);
        }
    }

    fn connected(&mut self) -> Option<(usize, Box<dyn Endpoint>)> {
        let peer = self.wanted.pop_front().or_else(|| self.port.next_stranger())?;
        let lane = MpiLane::new(self.port.clone(), peer, self.tag);
        let config = StreamConfig::for_kind(TransportKind::Mpi);
        Some((peer, Box::new(StreamEndpoint::new(vec![Box::new(lane)], Generation::FIRST, config))))
    }
}

/// Dropped when this rank has said goodbye.
struct Leave(Arc<Port>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.leave();
    }
}
