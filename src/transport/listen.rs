//! Where this member can be reached: bound before members meet, so that whoever learns the addresses can connect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::rdma::{self, Rails, RdmaAddress, RdmaUse};
use crate::sys::network::{InterfaceAddress, interface_addresses};
use crate::sys::{HostIdentity, Uninherited, socket, unix};
use crate::types::{Error, Result};

/// How many connections may wait to be accepted. More than a large job's ranks dialling at once; the kernel cuts it to
/// its own limit (`net.core.somaxconn`, 4096 on most machines).
const BACKLOG: i32 = 4096;

/// How and where to listen.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The address to listen on unless `interface` says otherwise: the local one that routes to the rendezvous, or
    /// loopback when all members are on this host.
    pub address: IpAddr,
    /// The name of an interface (`eth0`) or one of its addresses.
    pub interface: Option<String>,
    /// The ports to choose from; any free one without.
    pub ports: Option<RangeInclusive<u16>>,
    /// Whether members of this host may connect over a Unix socket, to share memory.
    pub shared_memory: bool,
    /// Whether RDMA devices are looked for and opened.
    pub rdma: RdmaUse,
}

/// Where one member can be reached, as it tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenAddresses {
    /// The addresses of its TCP listener.
    pub tcp: Vec<SocketAddr>,
    /// The abstract name of its Unix listener, if it has one.
    pub unix: Option<Vec<u8>>,
    /// Its host.
    pub host: HostIdentity,
    /// Its RDMA devices, if it uses any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaAddress>,
}

impl ListenAddresses {
    /// The most bytes that [`Self::encode`] gives and [`Self::decode`] takes.
    pub const MAX_BYTES: usize = 4096;

    /// As bytes to publish; text, so that a rendezvous file can be read by a person.
    pub fn encode(&self) -> Vec<u8> {
        // Plain data with string keys always has a text.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From what a member published.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let refuse = |what: String| Error::environment(what, "all members must run the same version of Phalanx");
        if bytes.len() > Self::MAX_BYTES {
            return Err(refuse(format!(
                "a member's addresses take {} bytes; at most {}",
                bytes.len(),
                Self::MAX_BYTES
            )));
        }
        serde_json::from_slice(bytes).map_err(|error| refuse(format!("a member's addresses are unreadable: {error}")))
    }
}

/// Bound and listening, not yet accepting: connections wait in the kernel until the connector starts.
#[derive(Debug)]
pub struct Listeners {
    pub(super) tcp: Uninherited<OwnedFd>,
    pub(super) unix: Option<Uninherited<OwnedFd>>,
    pub(super) rails: Option<Rails>,
    addresses: ListenAddresses,
}

impl Listeners {
    /// Binds one TCP port and, if wanted, one Unix socket with a random abstract name.
    ///
    /// # Errors
    ///
    /// `Environment` for an unknown interface (with those that exist), an address that is not this machine's, when no
    /// port of the range is free, or when RDMA is demanded and cannot be had.
    pub fn bind(config: &ListenConfig) -> Result<Self> {
        let address = match &config.interface {
            Some(wanted) => {
                let found = interface_addresses().map_err(|error| {
                    Error::environment(format!("cannot list interfaces: {error}"), "see getifaddrs(3)")
                })?;
                choose_address(wanted, config.address, &found)?
            }
            None => config.address,
        };
        let tcp = bind_tcp(address, config.ports.clone())?;
        let local = socket::local_address(&tcp)
            .map_err(|error| Error::environment(format!("a listener has no address: {error}"), "see getsockname(2)"))?;
        let host = HostIdentity::current().map_err(|error| {
            Error::environment(format!("cannot tell which host this is: {error}"), "mount /proc in the container")
        })?;
        let (unix, name) = if config.shared_memory { bind_unix()? } else { (None, None) };
        let (tcp, unix) = (tcp.into(), unix.map(Uninherited::from));
        let rails = open_rails(&config.rdma, local.ip())?;
        let rdma = rails.as_ref().map(Rails::address);
        Ok(Self { tcp, unix, rails, addresses: ListenAddresses { tcp: vec![local], unix: name, host, rdma } })
    }

    /// Where this member can be reached.
    pub fn addresses(&self) -> &ListenAddresses {
        &self.addresses
    }
}

/// Opens the RDMA devices that a member which listens on `near` is to use.
fn open_rails(wanted: &RdmaUse, near: IpAddr) -> Result<Option<Rails>> {
    match wanted {
        RdmaUse::No => Ok(None),
        RdmaUse::IfThere(settings) => match Rails::open(settings, near) {
            Ok(rails) => Ok(Some(rails)),
            Err(why) if rdma::devices(Path::new("/")).is_empty() => {
                tracing::debug!(%why, "no RDMA");
                Ok(None)
            }
            Err(why) => {
                tracing::warn!(%why, "this machine has RDMA devices, but they cannot be used: TCP is, which is slower");
                Ok(None)
            }
        },
        RdmaUse::Demanded(settings) => Rails::open(settings, near).map(Some).map_err(|why| {
            Error::environment(
                format!("RDMA was demanded, but {why}"),
                "`phalanx doctor` tells what is there; unset PHALANX_TRANSPORT to use what there is",
            )
        }),
    }
}

/// The address of the interface that `wanted` names, by name or address. Among several, one of `like`'s family that is
/// reachable beyond its link is preferred.
fn choose_address(wanted: &str, like: IpAddr, found: &[InterfaceAddress]) -> Result<IpAddr> {
    if let Ok(address) = wanted.parse::<IpAddr>() {
        if found.iter().any(|entry| entry.address == address) {
            return Ok(address);
        }
    } else {
        let best = found
            .iter()
            .filter(|entry| entry.interface == wanted)
            .min_by_key(|entry| (entry.is_link_local(), entry.address.is_ipv4() != like.is_ipv4()));
        if let Some(entry) = best {
            if entry.is_link_local() {
                return Err(Error::environment(
                    format!("interface {wanted} has only the link-local address {}", entry.address),
                    "give the interface an address that other hosts can reach",
                ));
            }
            return Ok(entry.address);
        }
    }
    let existing: Vec<String> = found
        .iter()
        .filter(|entry| entry.up && !entry.is_link_local())
        .map(|entry| format!("{} ({})", entry.interface, entry.address))
        .collect();
    Err(Error::environment(
        format!("there is no interface {wanted:?} with an address; there are {}", existing.join(", ")),
        "name one of those, or none to use the one that routes to the rendezvous",
    ))
}

fn bind_tcp(address: IpAddr, ports: Option<RangeInclusive<u16>>) -> Result<OwnedFd> {
    let listen = |port| socket::tcp_listen(&SocketAddr::new(address, port), BACKLOG);
    let Some(ports) = ports else {
        return listen(0).map_err(|error| cannot_listen(address, &error));
    };
    if ports.is_empty() || *ports.start() == 0 {
        return Err(Error::invalid(format!("no port range: {}-{}", ports.start(), ports.end())));
    }
    // Every member of a host begins elsewhere, so that they do not all try the first port together.
    let count = u32::from(*ports.end() - *ports.start()) + 1;
    let begin = std::process::id().wrapping_mul(0x9e37_79b9) % count;
    for step in 0..count {
        let port = *ports.start() + ((begin + step) % count) as u16;
        match listen(port) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(cannot_listen(address, &error)),
        }
    }
    Err(Error::environment(
        format!("all ports {}-{} of {address} are in use", ports.start(), ports.end()),
        "give a range with at least one free port for each rank of the host",
    ))
}

fn cannot_listen(address: IpAddr, error: &io::Error) -> Error {
    Error::environment(
        format!("cannot listen on {address}: {error}"),
        "the address must be one of this machine's interfaces",
    )
}

fn bind_unix() -> Result<(Option<OwnedFd>, Option<Vec<u8>>)> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Error::environment(format!("no random numbers: {error}"), "see getrandom(2)"))?;
    let name = random.iter().fold(String::from("phalanx-"), |name, byte| name + &format!("{byte:02x}")).into_bytes();
    match unix::listen(&name, BACKLOG) {
        Ok(listener) => Ok((Some(listener), Some(name))),
        Err(error) => {
            tracing::warn!(%error, "no Unix socket can be had here: members of this host will not share memory");
            Ok((None, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn config() -> ListenConfig {
        ListenConfig {
            address: Ipv4Addr::LOCALHOST.into(),
            interface: None,
            ports: None,
            shared_memory: true,
            rdma: RdmaUse::No,
        }
    }

    #[test]
    fn addresses_go_both_ways() {
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let listeners = Listeners::bind(&ListenConfig { address, ..config() }).unwrap();
            let addresses = listeners.addresses();
            assert_eq!(addresses.tcp[0].ip(), address);
            assert_ne!(addresses.tcp[0].port(), 0);
            assert!(addresses.encode().len() <= ListenAddresses::MAX_BYTES);
            assert_eq!(&ListenAddresses::decode(&addresses.encode()).unwrap(), addresses);
        }
        assert!(ListenAddresses::decode(b"{}").is_err());
        assert!(ListenAddresses::decode(&[b' '; 5000]).is_err());
    }

    /// Wherever it cannot be had; a build without it says how to have one.
    #[test]
    fn rdma_that_is_demanded_and_missing_is_an_error() {
        if rdma::BUILT_IN && !rdma::devices(Path::new("/")).is_empty() {
            println!("skipped: this machine has an RDMA device");
            return;
        }
        let error = Listeners::bind(&ListenConfig { rdma: RdmaUse::Demanded(Default::default()), ..config() });
        let text = error.unwrap_err().to_string();
        let why = if rdma::BUILT_IN { "this machine has no RDMA device" } else { "build it with --features rdma" };
        assert!(text.contains("RDMA was demanded") && text.contains(why), "{text}");
        let without = RdmaUse::IfThere(Default::default());
        assert!(Listeners::bind(&ListenConfig { rdma: without, ..config() }).unwrap().rails.is_none());
    }

    #[test]
    fn names_are_not_repeated() {
        let (first, second) = (Listeners::bind(&config()).unwrap(), Listeners::bind(&config()).unwrap());
        assert_ne!(first.addresses().unix, second.addresses().unix);
    }

    #[test]
    fn a_range_is_kept_and_its_end_is_told() {
        // A port that is free now, as a range of one.
        let port = Listeners::bind(&config()).unwrap().addresses().tcp[0].port();
        let one = ListenConfig { ports: Some(port..=port), ..config() };
        let holder = Listeners::bind(&one).unwrap();
        assert_eq!(holder.addresses().tcp[0].port(), port);
        let error = Listeners::bind(&one).unwrap_err().to_string();
        assert!(error.contains(&format!("all ports {port}-{port} of 127.0.0.1 are in use")), "{error}");
        drop(holder);
        Listeners::bind(&one).unwrap();
        assert!(Listeners::bind(&ListenConfig { ports: Some(0..=5), ..config() }).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let empty = ListenConfig { ports: Some(6..=5), ..config() };
        assert!(Listeners::bind(&empty).is_err());
    }

    #[test]
    fn an_interface_is_found_by_name_or_address() {
        let named = ListenConfig { interface: Some("lo".into()), ..config() };
        assert_eq!(Listeners::bind(&named).unwrap().addresses().tcp[0].ip(), Ipv4Addr::LOCALHOST);
        let error = Listeners::bind(&ListenConfig { interface: Some("nope0".into()), ..config() }).unwrap_err();
        assert!(error.to_string().contains("lo (127.0.0.1)"), "{error}");
        let error = Listeners::bind(&ListenConfig { interface: Some("203.0.113.77".into()), ..config() }).unwrap_err();
        assert!(error.to_string().contains("there are"), "{error}");
    }

    #[test]
    fn the_better_address_of_an_interface_is_chosen() {
        let entry = |interface: &str, address: &str| InterfaceAddress {
            interface: interface.into(),
            address: address.parse().unwrap(),
            up: true,
            loopback: false,
        };
        let found =
            [entry("eth0", "fe80::1"), entry("eth0", "fd00::2"), entry("eth0", "10.0.0.2"), entry("eth1", "fe80::3")];
        let choose = |wanted: &str, like: &str| choose_address(wanted, like.parse().unwrap(), &found);
        assert_eq!(choose("eth0", "10.0.0.9"), Ok("10.0.0.2".parse().unwrap()));
        assert_eq!(choose("eth0", "fd00::9"), Ok("fd00::2".parse().unwrap()));
        assert_eq!(choose("fd00::2", "10.0.0.9"), Ok("fd00::2".parse().unwrap()));
        assert!(choose("eth1", "10.0.0.9").unwrap_err().to_string().contains("link-local"));
    }
}
