//! Where a rendezvous server listens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::bootstrap::stream::Listener;
use crate::types::{Error, Result};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// At `host:port`; port 0 takes a free one. A host name other than `localhost` means every interface: what a name
    /// resolves to on its own host is often not what others see.
    Tcp(String),
    /// At one of these addresses: the first that can be had.
    FirstOf(Vec<SocketAddr>),
    /// At the abstract Unix socket of this name, for processes of this user.
    Unix(String),
    /// At all of these. The first is the one that is told.
    All(Vec<Bind>),
}

/// Listens there.
pub(in crate::bootstrap) fn listen(bind: &Bind) -> Result<Vec<Listener>> {
    let failed = |place: &str, error: &io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another process listens there, perhaps of an earlier run; end it or choose another place"
            }
            io::ErrorKind::PermissionDenied => "choose a port above 1023",
            _ => "see that the address belongs to this host",
        };
        Error::environment(format!("cannot listen at {place}: {error}"), hint)
    };
    match bind {
        Bind::All(binds) => {
            let listeners = binds.iter().map(listen).collect::<Result<Vec<_>>>()?;
            Ok(listeners.into_iter().flatten().collect())
        }
        Bind::Unix(name) => Listener::unix(name)
            .map(|listener| vec![listener])
            .map_err(|error| failed(&format!("unix:@{name}"), &error)),
        Bind::FirstOf(addresses) => {
            let mut last = None;
            for &address in addresses {
                match Listener::tcp(address) {
                    Ok(listener) => return Ok(vec![listener]),
                    Err(error) => last = Some((address, error)),
                }
            }
            Err(match last {
                Some((address, error)) => failed(&address.to_string(), &error),
                None => Error::internal("a server without an address"),
            })
        }
        Bind::Tcp(place) => {
            let (host, port) = place
                .rsplit_once(':')
                .and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse::<u16>().ok()?)))
                .ok_or_else(|| Error::environment(format!("{place} is not host:port"), "give a host and a port"))?;
            let literal = host.split('%').next().is_some_and(|ip| ip.parse::<IpAddr>().is_ok());
            if !literal && host != "localhost" {
                return listen_everywhere(port).map(|listener| vec![listener]).map_err(|error| failed(place, &error));
            }
            let addresses: Vec<_> = place.to_socket_addrs().map_err(|error| failed(place, &error))?.collect();
            let mut listeners = Vec::new();
            let mut last = None;
            for address in addresses {
                match Listener::tcp(address) {
                    Ok(listener) => listeners.push(listener),
                    Err(error) => last = Some(error),
                }
                if port == 0 && !listeners.is_empty() {
                    break;
                }
            }
            match last {
                _ if !listeners.is_empty() => Ok(listeners),
                // An address that others reach this host at need not be one of its own.
                Some(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    listen_everywhere(port).map(|listener| vec![listener]).map_err(|error| failed(place, &error))
                }
                Some(error) => Err(failed(place, &error)),
                None => Err(Error::environment(format!("{place} has no address"), "give a host that can be resolved")),
            }
        }
    }
}

/// On every interface; IPv4 alone where there is no IPv6.
pub(in crate::bootstrap) fn everywhere(port: u16) -> [SocketAddr; 2] {
    [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}

fn listen_everywhere(port: u16) -> io::Result<Listener> {
    let [six, four] = everywhere(port);
    match Listener::tcp(six) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => Listener::tcp(four),
        listener => listener,
    }
}
