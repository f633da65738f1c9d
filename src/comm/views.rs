//! A process whose world changes: one engine and one connector for all its views, a communicator for each.

use std::sync::{Arc, OnceLock};

use super::communicator::{Communicator, Settings};
use super::connect::{Dialler, sleeper, within_process};
use super::world::World;
use crate::executor::{Engine, EngineConfig, Lost};
use crate::schedule::cost::Basis;
use crate::transport::connect::{Connector, ConnectorConfig, NextView, PeerAddress};
use crate::transport::listen::Listeners;
use crate::types::{CommunicatorId, Error, Generation, Result, View};

/// One view's members, for [`Views::install`].
pub(crate) struct Members {
    pub generation: Generation,
    /// The members' slots, in rank order. This process is among them.
    pub slots: Arc<[usize]>,
    /// The members' hosts, in rank order, numbered by first appearance.
    pub hosts: Vec<usize>,
    /// Where each listens; by slot.
    pub peers: Vec<PeerAddress>,
    /// Members whose links to this one are to be made anew.
    pub broken: Vec<usize>,
    /// Why the view before ended.
    pub cause: Arc<str>,
    /// What its members choose algorithms by.
    pub basis: Arc<Basis>,
    /// How this process waits among those of its machine.
    pub waits: EngineConfig,
}

/// What outlives a view.
pub(crate) struct Views {
    world: Arc<World>,
    connector: Arc<OnceLock<Connector>>,
    own: usize,
    settings: Settings,
}

impl Views {
    /// Begins with the view that `connector` describes; [`install`](Self::install) it next. `on_lost` hears of every
    /// link that is lost: it must neither block nor call back.
    pub fn start(
        listeners: Listeners,
        connector: ConnectorConfig,
        settings: Settings,
        on_lost: Box<dyn Fn(Lost) + Send>,
    ) -> Result<Self> {
        let own = connector.rank;
        let sleeper = sleeper(connector.single_copy)?;
        let slot = Arc::new(OnceLock::new());
        let dial = Box::new(Dialler(Arc::downgrade(&slot)));
        // Peers may connect as soon as the connector listens.
        let size = connector.peers.iter().map(|peer| peer.rank + 1).max().unwrap_or(0).max(own + 1);
        let engine = Engine::new(own, size, dial, sleeper.clone(), within_process(1))?;
        engine.judge(connector.generation, on_lost);
        let connector = ConnectorConfig { elastic: true, ..connector };
        let connector = Connector::start(listeners, connector, sleeper, Box::new(engine.connection_handler()))?;
        // The slot was made here and is empty.
        let _ = slot.set(connector);
        let world = Arc::new(World::new(engine, Some(Box::new(slot.clone()))));
        Ok(Self { world, connector: slot, own, settings })
    }

    /// Gives up what is in flight; calls fail with `cause` until they are made on the next view's communicator.
    pub fn suspend(&self, cause: &Error) {
        self.world.engine.suspend(cause);
    }

    /// Goes over to a view. Returns its communicator.
    pub fn install(&self, members: Members) -> Result<Communicator> {
        let Members { generation, slots, hosts, peers, broken, cause, basis, waits } = members;
        let rank = slots.iter().position(|&slot| slot == self.own);
        let rank = rank.ok_or_else(|| Error::internal("a view without this member was to be installed"))?;
        let view = View { generation, hosts };
        let cause = Error::ViewChanged { generation, cause };
        let again = self.world.engine.install(generation, &slots, &broken, &cause, waits)?;
        if let Some(connector) = self.connector.get() {
            connector.install(NextView { generation, peers, again });
        }
        let id = CommunicatorId::world(generation);
        Communicator::new(self.world.clone(), id, slots, rank, view, basis, self.settings)
    }

    /// Waits for what is in flight, says goodbye and closes.
    pub fn close(&self) {
        self.world.close();
    }

    /// Drops every connection without goodbye: this member is out, and what it has in flight is nobody's business.
    pub fn vanish(&self) {
        self.world.vanish();
    }

    /// Operations submitted so far.
    pub fn operations(&self) -> u64 {
        self.world.statistics().operations
    }

    /// Whether operations are in flight.
    pub fn is_busy(&self) -> bool {
        self.world.engine.is_busy()
    }

    /// Messages of views that were over, dropped so far.
    pub fn stale(&self) -> u64 {
        self.world.engine.stale()
    }
}
