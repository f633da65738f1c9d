//! Which of this host's addresses others should use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use super::environment::{Launch, Rendezvous};
use super::publication;
use crate::types::Result;

/// The address that this member should listen at, where no interface was chosen: the one that routes to the rendezvous;
/// the loopback's when all ranks are known to share this host.
///
/// # Errors
///
/// [`Environment`](crate::types::Error::Environment) if the interfaces of this host cannot be listed.
pub fn listen_address(launch: &Launch) -> Result<IpAddr> {
    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if launch.local_size == Some(launch.size) {
        return Ok(LOOPBACK);
    }
    let routed = match &launch.rendezvous {
        Rendezvous::Alone | Rendezvous::Local | Rendezvous::Unix { .. } => return Ok(LOOPBACK),
        Rendezvous::Tcp { address, .. } if is_loopback(address) => return Ok(LOOPBACK),
        // A host's own name often means the loopback on that host: others could not use it.
        Rendezvous::Tcp { address, .. } => {
            let targets = address.to_socket_addrs().into_iter().flatten();
            targets.filter_map(own_address_towards).find(|own| !own.is_loopback())
        }
        _ => None,
    };
    match routed {
        Some(own) => Ok(own),
        None => Ok(publication::reachable_hosts()?.into_iter().next().unwrap_or(LOOPBACK)),
    }
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The address that packets to `target` leave from. Nothing is sent to find out.
fn own_address_towards(target: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listens(rendezvous: Rendezvous, local_size: Option<usize>) -> IpAddr {
        listen_address(&Launch { size: 4, local_size, rendezvous, ..Launch::default() }).unwrap()
    }

    fn at(address: &str) -> Rendezvous {
        Rendezvous::Tcp { address: address.into(), hosted_by_launcher: false }
    }

    #[test]
    fn one_host_needs_no_more_than_its_loopback() {
        for (rendezvous, local_size) in [
            (at("127.0.0.1:1"), None),
            (at("[::1]:1"), None),
            (at("localhost:1"), None),
            (Rendezvous::Local, None),
            (at("192.0.2.1:1"), Some(4)),
            (Rendezvous::Pmi, Some(4)),
        ] {
            assert!(listens(rendezvous.clone(), local_size).is_loopback(), "{rendezvous:?}");
        }
    }

    #[test]
    fn what_routes_to_the_rendezvous_is_chosen() {
        let hosts = publication::reachable_hosts().unwrap();
        // One's own address routes to itself.
        for host in hosts.iter().filter(|host| !host.is_loopback()) {
            assert_eq!(listens(at(&SocketAddr::new(*host, 9).to_string()), None), *host);
        }
        assert_eq!(listens(Rendezvous::Pmi, Some(2)), hosts[0]);
        assert_eq!(listens(at("no-such-host.invalid:9"), None), hosts[0]);
    }
}
