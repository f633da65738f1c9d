//! What the integration tests need and programs do not: worlds of threads over any transport, and ranks that vanish.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::comm::{member, thread_world_on, within_process};
use crate::schedule::cost::Basis;
use crate::transport::connect::{ConnectorConfig, PeerAddress, TransportPolicy};
use crate::transport::listen::{ListenConfig, Listeners};
use crate::transport::rdma::RdmaSettings;
use crate::types::{Generation, View};
use crate::wire::handshake::JobKey;
use crate::{Communicator, Result, Settings, TransportKind};

/// A world whose ranks are threads of this process, connected by the given transport, that take themselves to be on the
/// given hosts.
pub fn local_world(kind: TransportKind, hosts: &[usize]) -> Result<Vec<Communicator>> {
    local_world_with(kind, hosts, true)
}

/// As [`local_world`], where `single_copy` says whether ranks read each other's memory where it is.
pub fn local_world_with(kind: TransportKind, hosts: &[usize], single_copy: bool) -> Result<Vec<Communicator>> {
    let transport = match kind {
        TransportKind::Inproc => return thread_world_on(hosts),
        TransportKind::Shm => TransportPolicy::Shm,
        TransportKind::Tcp => TransportPolicy::Tcp,
        TransportKind::Rdma => TransportPolicy::Rdma,
        TransportKind::Mpi => return Err(crate::Error::invalid("MPI has a world of processes, not of threads")),
    };
    let key = JobKey::generate().map_err(crate::Error::internal)?;
    let listen = ListenConfig {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        interface: None,
        ports: None,
        shared_memory: kind == TransportKind::Shm,
        rdma: transport.rdma(&RdmaSettings::default()),
    };
    let listeners = hosts.iter().map(|_| Listeners::bind(&listen)).collect::<Result<Vec<_>>>()?;
    let peer = |(rank, listeners): (usize, &Listeners)| PeerAddress { rank, addresses: listeners.addresses().clone() };
    let peers: Vec<_> = listeners.iter().enumerate().map(peer).collect();
    let view = View { generation: Generation::FIRST, hosts: hosts.to_vec() };
    let start = |(rank, listeners)| {
        let config = ConnectorConfig::new(rank, view.generation, key.clone(), peers.clone());
        let basis = Arc::new(Basis::usual(kind == TransportKind::Shm));
        member(
            listeners,
            ConnectorConfig { transport, single_copy, ..config },
            view.clone(),
            basis,
            within_process(hosts.len()),
            Settings::default(),
        )
    };
    listeners.into_iter().enumerate().map(start).collect()
}

/// Ends a rank as a process that dies does.
pub fn vanish(comm: &Communicator) {
    comm.vanish();
}

/// Ends a member of an elastic job as a process that dies does: without a word to anybody.
pub fn vanish_elastic(elastic: &crate::elastic::Elastic) {
    elastic.vanish();
}
