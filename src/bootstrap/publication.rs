//! What rank 0 tells the others where all can read it: a file, or the launcher's own service.
//!
//! One line without spaces: `v1/SESSION/KEY/ADDRESS,ADDRESS,...`. The session tells this attempt from one whose line was
//! left behind. The key is `-` where the job has one already.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::server::{Bind, everywhere};
use super::settings::Settings;
use super::variables;
use crate::sys::network::{self, InterfaceAddress};
use crate::types::{Error, Result};
use crate::wire::handshake::JobKey;
use crate::wire::rendezvous::Session;

/// The most addresses that are told. A host with more has them for other things.
const MAX_ADDRESSES: usize = 16;

/// Where and how to meet rank 0.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    pub session: Session,
    /// The key, if rank 0 made it.
    pub key: Option<JobKey>,
    pub addresses: Vec<SocketAddr>,
}

impl Publication {
    /// The line, of at most `max` bytes: addresses that do not fit are left out.
    pub fn encode(&self, max: usize) -> String {
        let session: String = self.session.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = self.key.as_ref().map_or("-".to_string(), JobKey::to_hex);
        let mut line = format!("v1/{session}/{key}/");
        for (at, address) in self.addresses.iter().take(MAX_ADDRESSES).enumerate() {
            let piece = format!("{}{address}", if at > 0 { "," } else { "" });
            if line.len() + piece.len() > max {
                break;
            }
            line.push_str(&piece);
        }
        line
    }

    /// The publication in a line. The error repeats nothing of it, since a key may be in it.
    pub fn decode(line: &str) -> Result<Self, String> {
        let mut parts = line.trim().split('/');
        let (Some("v1"), Some(session), Some(key), Some(addresses), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("it is not of this version of Phalanx".into());
        };
        let number = Some(session).filter(|text| text.len() == 32).and_then(|text| u128::from_str_radix(text, 16).ok());
        let session = number.ok_or("its session cannot be read")?.to_be_bytes();
        let key = match key {
            "-" => None,
            text => Some(JobKey::from_hex(text)?),
        };
        let addresses: Vec<SocketAddr> = addresses
            .split(',')
            .take(MAX_ADDRESSES)
            .map(|address| address.parse().map_err(|_| "an address in it cannot be read".to_string()))
            .collect::<Result<_, _>>()?;
        Ok(Publication { session, key, addresses })
    }
}

/// Where rank 0 listens when nobody said where: on the chosen interface, or on all.
pub(super) fn bind(settings: &Settings) -> Result<Bind> {
    let hosts = match &settings.interface {
        Some(interface) => addresses_of(interface, &found()?)?,
        None => everywhere(0).map(|address| address.ip()).into(),
    };
    let ports: RangeInclusive<u16> = settings.ports.clone().unwrap_or(0..=0);
    Ok(Bind::FirstOf(ports.flat_map(|port| hosts.iter().map(move |&host| (host, port).into())).collect()))
}

/// How others reach a server that listens as [`bind`] says.
pub(super) fn reachable(settings: &Settings, address: &str, port: u16) -> Result<Vec<SocketAddr>> {
    // A server on one address is reached there.
    if let Some(address) = address.parse::<SocketAddr>().ok().filter(|address| !address.ip().is_unspecified()) {
        return Ok(vec![address]);
    }
    let only_four = address.starts_with("0.0.0.0:");
    let hosts = match &settings.interface {
        Some(interface) => addresses_of(interface, &found()?)?,
        None => reachable_hosts()?,
    };
    Ok(hosts.into_iter().filter(|host| !only_four || host.is_ipv4()).map(|host| (host, port).into()).collect())
}

/// The addresses of this host that other hosts may know.
pub(super) fn reachable_hosts() -> Result<Vec<IpAddr>> {
    Ok(choose(&found()?))
}

fn found() -> Result<Vec<InterfaceAddress>> {
    network::interface_addresses().map_err(|error| {
        Error::environment(
            format!("the network interfaces cannot be listed: {error}"),
            "see the limits of this process",
        )
    })
}

/// The addresses that other hosts may know; those of the loopback only where there is nothing else.
fn choose(found: &[InterfaceAddress]) -> Vec<IpAddr> {
    let usable = |entry: &&InterfaceAddress| entry.up && !entry.is_link_local();
    let pick = |loopback: bool| -> Vec<IpAddr> {
        found.iter().filter(usable).filter(|entry| entry.loopback == loopback).map(|entry| entry.address).collect()
    };
    let mut chosen = pick(false);
    if chosen.is_empty() {
        chosen = pick(true);
    }
    // Stable: IPv4 first, since a host without working IPv6 often has an address all the same.
    chosen.sort_by_key(IpAddr::is_ipv6);
    chosen
}

fn addresses_of(interface: &str, found: &[InterfaceAddress]) -> Result<Vec<IpAddr>> {
    let address = interface.parse::<IpAddr>().ok();
    let fits = |entry: &&InterfaceAddress| match address {
        Some(address) => entry.address == address,
        None => entry.interface == interface && !entry.is_link_local(),
    };
    let chosen: Vec<_> = found.iter().filter(fits).map(|entry| entry.address).collect();
    if chosen.is_empty() {
        let known: Vec<_> = found.iter().map(|entry| format!("{} ({})", entry.interface, entry.address)).collect();
        return Err(Error::environment(
            format!("{}={interface}: this host has no such interface or address", variables::INTERFACE.name),
            format!("choose one of {}", known.join(", ")),
        ));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(addresses: usize) -> Publication {
        let addresses = (0..addresses).map(|at| format!("[fd00::{at:x}]:400{at:02}").parse().unwrap()).collect();
        Publication { session: [0xab; 16], key: Some(JobKey::from_bytes([3; 32])), addresses }
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let line = publication(3).encode(4096);
        let read = Publication::decode(&format!("{line}\n")).unwrap();
        assert_eq!((read.session, &read.addresses), ([0xab; 16], &publication(3).addresses));
        assert_eq!(read.key.map(|key| key.to_hex()), Some("03".repeat(32)));
        assert!(!line.contains([' ', '=', ';']), "{line}: what PMI splits at");
        let keyless = Publication { key: None, ..publication(1) };
        assert!(Publication::decode(&keyless.encode(4096)).unwrap().key.is_none());
    }

    #[test]
    fn a_line_keeps_within_its_limit() {
        for max in [130, 160, 200, 256] {
            let line = publication(9).encode(max);
            assert!(line.len() <= max && !Publication::decode(&line).unwrap().addresses.is_empty(), "{line}");
        }
    }

    #[test]
    fn garbage_is_refused_and_not_repeated() {
        let good = publication(1).encode(4096);
        let bad = [
            String::new(),
            "v2/ab".into(),
            good.replace("v1", "v9"),
            good.replace("abab", "xyxy"),
            good.replace("0303", "03"),
            good.replace("fd00", "zz00"),
            format!("{good}/more"),
        ];
        for line in bad {
            let error = Publication::decode(&line).unwrap_err();
            assert!(!error.contains("0303"), "{error}");
        }
    }

    fn entry(interface: &str, address: &str, up: bool) -> InterfaceAddress {
        let address: IpAddr = address.parse().unwrap();
        InterfaceAddress { interface: interface.into(), address, up, loopback: address.is_loopback() }
    }

    #[test]
    fn the_loopback_is_told_only_where_there_is_nothing_else() {
        let host = [
            entry("lo", "127.0.0.1", true),
            entry("eth0", "fe80::1", true),
            entry("eth0", "fd00::2", true),
            entry("eth0", "10.0.0.2", true),
            entry("eth1", "10.1.0.2", false),
        ];
        assert_eq!(choose(&host), ["10.0.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
        assert_eq!(choose(&host[..1]), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(addresses_of("eth0", &host).unwrap().len(), 2);
        assert_eq!(addresses_of("10.1.0.2", &host).unwrap().len(), 1);
        let error = addresses_of("ib0", &host).unwrap_err().to_string();
        assert!(error.contains("PHALANX_INTERFACE=ib0") && error.contains("eth0 (10.0.0.2)"), "{error}");
    }
}
