//! From a description of the world to a communicator over real transports.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::communicator::{Communicator, Settings};
use super::world::World;
use crate::executor::{Dial, Engine, EngineConfig};
use crate::sys;
use crate::transport::connect::{Connector, ConnectorConfig};
use crate::transport::listen::Listeners;
use crate::transport::sleep::Sleeper;
use crate::types::{CommunicatorId, Error, Result, View};

/// How long a waiting thread polls before it sleeps. A sleep and the wake-up that ends it cost 5 to 50 us; polling as
/// long as that costs at most twice the best choice.
const SPIN: Duration = Duration::from_micros(50);

/// How the engine waits when `local_ranks` share this host. With more ranks than cores, whoever polls offers its core
/// to the others in between.
pub(super) fn engine_config(local_ranks: usize) -> EngineConfig {
    EngineConfig { spin: SPIN, yields: local_ranks > sys::process::usable_processors() }
}

/// What the engine sleeps on.
pub(super) fn sleeper() -> Result<Arc<Sleeper>> {
    Sleeper::new().map(Arc::new).map_err(|error| {
        Error::environment(
            format_args!("cannot make what the engine sleeps on: {error}"),
            "raise the limit on open files (ulimit -n)",
        )
    })
}

/// Makes one member of a world: its engine, and the connector that makes its connections on first use.
pub(crate) fn member(
    listeners: Listeners,
    connector: ConnectorConfig,
    view: View,
    settings: Settings,
) -> Result<Communicator> {
    let (rank, size) = (connector.rank, view.size());
    let sleeper = sleeper()?;
    let slot = Arc::new(OnceLock::new());
    let dial = Box::new(Dialler(Arc::downgrade(&slot)));
    let (_, local_size) = view.local(rank);
    let engine = Engine::new(rank, size, dial, sleeper.clone(), engine_config(local_size))?;
    let connector = Connector::start(listeners, connector, sleeper, Box::new(engine.connection_handler()))?;
    // The slot was made here and is empty.
    let _ = slot.set(connector);
    let world = Arc::new(World::new(engine, Some(Box::new(slot))));
    Communicator::new(world, CommunicatorId::WORLD, (0..size).collect(), rank, view, settings)
}

/// Passes the engine's wishes on to the connector, as long as there is one.
struct Dialler(Weak<OnceLock<Connector>>);

impl Dial for Dialler {
    fn dial(&mut self, peer: usize) {
        if let Some(slot) = self.0.upgrade()
            && let Some(connector) = slot.get()
        {
            connector.dial(peer);
        }
    }
}
