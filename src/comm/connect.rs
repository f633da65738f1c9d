//! From a description of the world to a communicator over real transports.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::communicator::{Communicator, Settings};
use super::world::World;
use super::{figures_file, probe, told};
use crate::bootstrap::{self, Config};
use crate::executor::{Dial, Engine, EngineConfig};
use crate::membership::Member;
use crate::schedule::cost::{Basis, ChoiceMode, Crowd, agree, crowd};
use crate::sys;
use crate::transport::connect::{Connector, ConnectorConfig, PeerAddress, TransportPolicy};
use crate::transport::listen::{ListenConfig, Listeners};
use crate::transport::sleep::Sleeper;
use crate::types::{CommunicatorId, Deadline, Error, Generation, Result, TransportKind, View};

/// How the engines wait of `ranks` that are threads of this process, or which this process knows nothing of yet.
pub(crate) fn within_process(ranks: usize) -> EngineConfig {
    EngineConfig::new(ranks, sys::process::usable_processors())
}

/// How the engine of a rank waits among the ranks of its machine.
pub(crate) fn among(crowd: Crowd) -> EngineConfig {
    EngineConfig::new(crowd.ranks, crowd.processors)
}

/// What the engine sleeps on. `single_copy` says whether others may read this process's memory.
pub(super) fn sleeper(single_copy: bool) -> Result<Arc<Sleeper>> {
    Sleeper::new().map(|sleeper| Arc::new(sleeper.with_single_copy(single_copy))).map_err(|error| {
        Error::environment(
            format_args!("cannot make what the engine sleeps on: {error}"),
            "raise the limits on open files, file size and memory (ulimit -n, -f, -v)",
        )
    })
}

/// A world of one.
pub(super) fn alone(settings: Settings) -> Result<Communicator> {
    let view = View { generation: Generation::FIRST, hosts: vec![0] };
    let engine = Engine::new(0, 1, Box::new(Nobody), sleeper(false)?, within_process(1))?;
    let world = Arc::new(World::new(engine, None));
    Communicator::new(world, CommunicatorId::WORLD, [0].into(), 0, view, Arc::default(), settings)
}

/// Makes one member of a world: its engine, and the connector that makes its connections on first use.
pub(crate) fn member(
    listeners: Listeners,
    connector: ConnectorConfig,
    view: View,
    basis: Arc<Basis>,
    waits: EngineConfig,
    settings: Settings,
) -> Result<Communicator> {
    let (rank, size) = (connector.rank, view.size());
    let sleeper = sleeper(connector.single_copy)?;
    let slot = Arc::new(OnceLock::new());
    let dial = Box::new(Dialler(Arc::downgrade(&slot)));
    let engine = Engine::new(rank, size, dial, sleeper.clone(), waits)?;
    let connector = Connector::start(listeners, connector, sleeper, Box::new(engine.connection_handler()))?;
    // The slot was made here and is empty.
    let _ = slot.set(connector);
    let world = Arc::new(World::new(engine, Some(Box::new(slot))));
    let id = CommunicatorId::world(view.generation);
    Communicator::new(world, id, (0..size).collect(), rank, view, basis, settings)
}

/// The communicator of all ranks, as this process's environment describes it: what `phalanx run`, `mpirun`, `mpiexec`,
/// `srun` or `torchrun` left there, or the `PHALANX_` variables set by hand. A world of one when nothing suggests
/// otherwise.
///
/// Meets all other ranks, and so blocks until the last has come or the start-up deadline has passed.
///
/// # Errors
///
/// [`Error::Environment`] names the variables that are half set or contradict each other; [`Error::Timeout`] names
/// the ranks that did not come.
pub fn init() -> Result<Communicator> {
    Config::from_env()?.connect()
}

impl Config {
    /// Meets the other ranks and makes the communicator of all.
    ///
    /// # Errors
    ///
    /// As [`init`].
    pub fn connect(&self) -> Result<Communicator> {
        let deadline = Deadline::after(Instant::now(), self.settings.start_timeout);
        let (rank, size) = (self.launch.rank, self.launch.size);
        for note in &self.launch.notes {
            tracing::warn!("{note}");
        }
        let settings = Settings {
            timeout: self.settings.timeout,
            algorithm: self.settings.algorithm,
            deterministic: self.settings.deterministic,
        };
        if self.settings.transport == Some(TransportKind::Mpi) {
            return self.connect_over_mpi(settings, deadline);
        }
        if size == 1 {
            return alone(settings);
        }
        let transport = policy(self.settings.transport)?;
        let listeners = Listeners::bind(&ListenConfig {
            address: bootstrap::listen_address(&self.launch)?,
            interface: self.settings.interface.clone(),
            ports: self.settings.ports.clone(),
            shared_memory: transport.shares_memory(),
            rdma: transport.rdma(&self.settings.rdma),
        })?;
        let shares_memory = transport.shares_memory();
        let table = told::table(&self.settings)?;
        let introduction = told::introduce(listeners.addresses(), &self.settings, &table, shares_memory)?;
        let roster = bootstrap::join(self, introduction, deadline)?;
        let mut said = Vec::new();
        let mut peer = |member: &Member| -> Result<PeerAddress> {
            let (addresses, told) = told::read(&member.addresses)?;
            said.push(told);
            Ok(PeerAddress { rank: member.rank, addresses })
        };
        let peers = roster.members.iter().map(&mut peer).collect::<Result<_>>()?;
        let basis = Arc::new(agree(&said, &roster.view.hosts, rank, table, true)?);
        let waits = among(crowd(&said, &roster.view.hosts, rank));
        let config = ConnectorConfig::new(rank, roster.generation, roster.key.clone(), peers);
        let sockets = self.settings.sockets.and_then(|sockets| u8::try_from(sockets).ok());
        let sockets_per_peer = sockets.unwrap_or(config.sockets_per_peer);
        let config = ConnectorConfig { transport, sockets_per_peer, single_copy: self.settings.single_copy, ..config };
        let is_measured = basis.choice != ChoiceMode::Builtin && basis.measured.is_none();
        let communicator = member(listeners, config, roster.view, basis, waits, settings)?;
        // Among two ranks the links make no difference, and boards are not links.
        if is_measured && size > 2 && !communicator.inner.in_host {
            let figures = probe::measure(&communicator, deadline)?;
            communicator.inner.choose_by(communicator.inner.basis().measured_as(figures));
            if communicator.local_rank() == 0 {
                figures_file::write(&self.settings, shares_memory, figures);
            }
        }
        Ok(communicator)
    }
}

#[cfg(not(feature = "mpi"))]
impl Config {
    /// For builds without MPI.
    fn connect_over_mpi(&self, _: Settings, _: Deadline) -> Result<Communicator> {
        Err(no_mpi())
    }
}

/// The error of a build that was asked for MPI and has none.
#[cfg(not(feature = "mpi"))]
fn no_mpi() -> Error {
    Error::environment(
        "the transport mpi was asked for, and this build of Phalanx has no MPI",
        "build it with `cargo build --features mpi` where an MPI and libclang are installed, or unset PHALANX_TRANSPORT",
    )
}

/// Which carriers may be used, from the one that was asked for.
pub(crate) fn policy(transport: Option<TransportKind>) -> Result<TransportPolicy> {
    match transport {
        None => Ok(TransportPolicy::Auto),
        Some(TransportKind::Shm) => Ok(TransportPolicy::Shm),
        Some(TransportKind::Tcp) => Ok(TransportPolicy::Tcp),
        Some(TransportKind::Rdma) => Ok(TransportPolicy::Rdma),
        Some(TransportKind::Mpi) => Err(Error::environment(
            "the transport mpi cannot be used here: the ranks of MPI are fixed, and its launcher ends all when one falls",
            "set PHALANX_TRANSPORT to shm, tcp or rdma, or unset it; over MPI, start a job that is not elastic with mpirun",
        )),
        Some(TransportKind::Inproc) => Err(Error::environment(
            "the transport inproc is for ranks that are threads of one process",
            "set PHALANX_TRANSPORT to shm, tcp or rdma, or unset it",
        )),
    }
}

/// For a world of one, where nobody is dialled.
struct Nobody;

impl Dial for Nobody {
    fn dial(&mut self, _peer: usize) {}
}

/// Passes the engine's wishes on to the connector, as long as there is one.
pub(super) struct Dialler(pub Weak<OnceLock<Connector>>);

impl Dial for Dialler {
    fn dial(&mut self, peer: usize) {
        if let Some(slot) = self.0.upgrade()
            && let Some(connector) = slot.get()
        {
            connector.dial(peer);
        }
    }
}
