//! The place where the ranks meet, which the launcher hosts for the job.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use super::LaunchError;
use super::environment::{Compat, JobEnvironment};
use super::job::Plan;
use crate::bootstrap::{Bind, RendezvousServer, new_key};
use crate::types::{Error, Result};

/// Opens the place, and puts what ranks need to find it into `environment`. It is there as long as the value returned
/// lives. A job of one rank has nobody to meet.
pub(super) fn open(plan: &Plan, environment: &mut JobEnvironment) -> Result<Option<RendezvousServer>, LaunchError> {
    let address = plan.job.rendezvous_address;
    if address.is_none() && plan.hosts.iter().any(|host| !host.enter.is_empty()) {
        return Err(Error::invalid("ranks on several hosts need an address at which they all reach this one").into());
    }
    if environment.compat.contains(&Compat::Torch) {
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        environment.master = Some((address.to_string(), free_port(address)?));
    }
    if plan.size() == 1 {
        return Ok(None);
    }
    let addresses = match address {
        Some(address) => vec![address],
        // A machine without IPv4 still has a loopback.
        None => vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
    };
    let bind = Bind::FirstOf(addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect());
    let key = new_key()?;
    let digits: Vec<_> = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let server = RendezvousServer::start(plan.size(), key, bind)?;
    environment.rendezvous = Some(server.address().to_owned());
    environment.key = Some(digits.concat());
    Ok(Some(server))
}

/// A port that was free a moment ago, for torch's own store, which one of the ranks opens.
fn free_port(address: IpAddr) -> Result<u16> {
    TcpListener::bind((address, 0))
        .and_then(|listener| listener.local_addr())
        .map(|bound| bound.port())
        .map_err(|error| Error::environment(format!("no free port at {address}: {error}"), "see `phalanx doctor`"))
}
