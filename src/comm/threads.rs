//! Worlds whose ranks are threads of this process.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};

use super::communicator::{Communicator, Settings};
use super::connect::{sleeper, within_process};
use super::world::World;
use crate::executor::{Dial, Engine};
use crate::schedule::cost::Basis;
use crate::transport::sleep::Sleeper;
use crate::transport::stream::{StreamConfig, StreamEndpoint};
use crate::transport::{Endpoint, Lane, inproc};
use crate::types::{CommunicatorId, Error, Generation, Result, TransportKind, View};

/// A world whose ranks are threads of this process, connected by the `inproc` transport: for tests, for examples, and
/// for programs that have one thread a device. Returns one communicator for each rank.
///
/// # Errors
///
/// [`Error::InvalidArgument`] for a size of 0, [`Error::Environment`] when threads or memory run out.
pub fn thread_world(size: usize) -> Result<Vec<Communicator>> {
    thread_world_on(&vec![0; size])
}

/// As [`thread_world`], with ranks that take themselves to be on the given hosts.
pub(crate) fn thread_world_on(hosts: &[usize]) -> Result<Vec<Communicator>> {
    let size = hosts.len();
    if size == 0 {
        return Err(Error::invalid("a world of 0 ranks given, at least 1 expected"));
    }
    let (dials, asked) = mpsc::channel();
    let mut worlds = Vec::new();
    let mut sides = Vec::new();
    for rank in 0..size {
        let sleeper = sleeper(false)?;
        let dial = Box::new(Switchboard { rank, dials: dials.clone() });
        let engine = Engine::new(rank, size, dial, sleeper.clone(), within_process(size))?;
        sides.push((engine.connection_handler(), sleeper));
        worlds.push(Arc::new(World::new(engine, None)));
    }
    drop(dials);
    let connect = move || {
        let mut connected = HashSet::new();
        // Ends when the last engine, and with it the last sender, is gone.
        for (rank, peer) in asked {
            if !connected.insert((rank.min(peer), rank.max(peer))) {
                continue;
            }
            let wake = |rank: usize| -> inproc::Wake {
                let (_, sleeper): &(_, Arc<Sleeper>) = &sides[rank];
                let sleeper = sleeper.clone();
                Arc::new(move || sleeper.kick())
            };
            let (here, there) = inproc::pair(wake(rank), wake(peer));
            sides[rank].0(peer, Generation::FIRST, Ok(endpoint(here)));
            sides[peer].0(rank, Generation::FIRST, Ok(endpoint(there)));
        }
    };
    std::thread::Builder::new()
        .name("phalanx-connect".into())
        .spawn(connect)
        .map_err(|error| Error::environment(format_args!("cannot start a thread: {error}"), "raise ulimit -u"))?;
    let view = View { generation: Generation::FIRST, hosts: hosts.to_vec() };
    let communicator = |(rank, world)| {
        let members = (0..size).collect();
        let (basis, settings) = (Arc::new(Basis::default()), Settings::default());
        Communicator::new(world, CommunicatorId::WORLD, members, rank, view.clone(), basis.clone(), settings)
    };
    worlds.into_iter().enumerate().map(communicator).collect()
}

fn endpoint(lane: impl Lane + 'static) -> Box<dyn Endpoint> {
    Box::new(StreamEndpoint::new(
        vec![Box::new(lane)],
        Generation::FIRST,
        StreamConfig::for_kind(TransportKind::Inproc),
    ))
}

/// Passes wishes for connections on to the thread that makes them.
struct Switchboard {
    rank: usize,
    dials: mpsc::Sender<(usize, usize)>,
}

impl Dial for Switchboard {
    fn dial(&mut self, peer: usize) {
        // The thread outlives every engine, so that the send cannot fail.
        let _ = self.dials.send((self.rank, peer));
    }
}
