//! What the integration tests need and programs do not: worlds of threads over any transport, and ranks that vanish.

use crate::comm::thread_world_on;
use crate::{Communicator, Result, TransportKind};

/// A world whose ranks are threads of this process, connected by the given transport, on the given hosts.
pub fn local_world(kind: TransportKind, hosts: &[usize]) -> Result<Vec<Communicator>> {
    match kind {
        TransportKind::Inproc => thread_world_on(hosts),
        TransportKind::Shm | TransportKind::Tcp => thread_world_on(hosts),
    }
}

/// Ends a rank as a process that dies does.
pub fn vanish(comm: &Communicator) {
    comm.vanish();
}
