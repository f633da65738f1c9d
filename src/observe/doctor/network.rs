//! Network interfaces: which there are, and which would be used for what.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use serde::Serialize;

use super::files::Files;
use super::{Finding, State};
use crate::bootstrap::{Config, Rendezvous};
use crate::sys::network::{InterfaceAddress, interface_addresses};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up and connected.
    pub up: bool,
    /// Whether it leads to this machine only.
    pub loopback: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its speed in megabits a second, where the driver says it.
    pub speed_mbit: Option<u64>,
    /// The largest packet, in bytes.
    pub mtu_bytes: Option<u64>,
    /// What Phalanx would use it for, and why.
    pub used_for: Vec<String>,
}

pub(super) fn look(files: &Files, config: Option<&Config>) -> Vec<Interface> {
    let addresses = interface_addresses().unwrap_or_default();
    let mut interfaces = gather(files, &addresses);
    let (route, why) = route(config);
    if let Some(interface) = interfaces.iter_mut().find(|interface| interface.loopback && interface.up) {
        interface.used_for.push("the meeting of ranks that `phalanx run` starts on this machine".into());
    }
    let wanted = config.and_then(|config| config.settings.interface.clone());
    let chosen = interfaces.iter_mut().find(|interface| match (&wanted, route) {
        (Some(wanted), _) => is_named(interface, wanted),
        (None, Some(route)) => interface.addresses.contains(&route),
        (None, None) => false,
    });
    if let Some(interface) = chosen {
        let why = wanted.map_or(why, |wanted| format!("PHALANX_INTERFACE={wanted}"));
        interface.used_for.push(format!("TCP to other hosts ({why})"));
    }
    interfaces
}

fn is_named(interface: &Interface, wanted: &str) -> bool {
    interface.name == wanted || wanted.parse().is_ok_and(|address| interface.addresses.contains(&address))
}

/// The interfaces of the kernel's list and of the list of addresses: some have no address.
fn gather(files: &Files, addresses: &[InterfaceAddress]) -> Vec<Interface> {
    let mut names = files.names("/sys/class/net");
    names.extend(addresses.iter().map(|address| address.interface.clone()));
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            let own: Vec<_> = addresses.iter().filter(|address| address.interface == name).collect();
            let at = |file: &str| format!("/sys/class/net/{name}/{file}");
            Interface {
                up: own.iter().any(|address| address.up)
                    || files.text(at("operstate")).is_some_and(|state| state == "up"),
                loopback: own.iter().any(|address| address.loopback) || name == "lo",
                addresses: own.iter().map(|address| address.address).collect(),
                // A driver that does not know says -1.
                speed_mbit: files.number::<i64>(at("speed")).and_then(|speed| u64::try_from(speed).ok()),
                mtu_bytes: files.number(at("mtu")),
                used_for: Vec::new(),
                name,
            }
        })
        .collect()
}

/// Our own address on the way to the meeting point, or to the world, and which of these it is. Nothing is sent.
fn route(config: Option<&Config>) -> (Option<IpAddr>, String) {
    if let Some(Rendezvous::Tcp { address, .. }) = config.map(|config| &config.launch.rendezvous) {
        let target = address.to_socket_addrs().ok().and_then(|mut found| found.next());
        if let Some(source) = target.and_then(source_towards) {
            return (Some(source), format!("it routes to PHALANX_RENDEZVOUS={address}"));
        }
    }
    // Addresses that documentation may use, and nobody has: the kernel takes the default route.
    let far = [
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9)),
        SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9)),
    ];
    (far.into_iter().find_map(source_towards), "the default route; with PHALANX_RENDEZVOUS, the one to it".into())
}

fn source_towards(target: SocketAddr) -> Option<IpAddr> {
    let any = if target.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Connecting a datagram socket only chooses the route.
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether a port can be opened on the loopback of either family; tried.
pub(super) fn loopback_works() -> bool {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loopback.into_iter().any(|address| TcpListener::bind((address, 0)).is_ok())
}

pub(super) fn judge(interfaces: &[Interface], loopback_works: bool) -> Vec<Finding> {
    let mut findings: Vec<_> = interfaces
        .iter()
        .map(|interface| {
            let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
            let mut parts = vec![if interface.up { "up".to_owned() } else { "down".into() }];
            parts.push(if addresses.is_empty() { "no address".into() } else { addresses.join(" ") });
            parts.extend(interface.speed_mbit.map(speed_in_words));
            parts.extend(interface.mtu_bytes.map(|mtu| format!("MTU {mtu}")));
            parts.extend(interface.used_for.iter().map(|purpose| format!("for {purpose}")));
            Finding::new("network", interface.name.clone(), State::Ok, parts.join(", "))
        })
        .collect();
    if !loopback_works {
        let advice = "bring it up: `ip link set lo up`; without it no rank can meet another";
        findings.push(Finding::problem("network", "loopback", "no port can be opened on it", advice));
    }
    if !interfaces.iter().any(|interface| interface.used_for.iter().any(|purpose| purpose.starts_with("TCP"))) {
        let advice = "only matters for several hosts: set PHALANX_INTERFACE to the interface they share";
        findings.push(Finding::note("network", "other hosts", "no route to other hosts was found", advice));
    }
    findings
}

fn speed_in_words(mbit: u64) -> String {
    if mbit >= 1000 { format!("{} Gbit/s", mbit as f64 / 1000.0) } else { format!("{mbit} Mbit/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_gathered_with_and_without_addresses() {
        let dir = tempfile::tempdir().unwrap();
        for (name, speed) in [("eth0", "25000\n"), ("eth1", "-1\n")] {
            let at = dir.path().join("sys/class/net").join(name);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("speed"), speed).unwrap();
            std::fs::write(at.join("mtu"), "1500\n").unwrap();
        }
        let address = InterfaceAddress {
            interface: "eth0".into(),
            address: "10.0.0.5".parse().unwrap(),
            up: true,
            loopback: false,
        };
        let mut interfaces = gather(&Files::under(dir.path()), &[address]);
        assert_eq!(interfaces.len(), 2);
        assert_eq!((interfaces[0].speed_mbit, interfaces[1].speed_mbit), (Some(25000), None));
        assert!(is_named(&interfaces[0], "10.0.0.5") && is_named(&interfaces[0], "eth0"));
        assert_eq!(judge(&interfaces, true).last().map(|finding| finding.state), Some(State::Note));
        assert!(judge(&interfaces, false).iter().any(|finding| finding.state == State::Problem));
        interfaces[0].used_for.push("TCP to other hosts (x)".into());
        let findings = judge(&interfaces, true);
        assert!(findings.iter().all(|finding| finding.state == State::Ok));
        assert_eq!(findings[0].text, "up, 10.0.0.5, 25 Gbit/s, MTU 1500, for TCP to other hosts (x)");
        assert_eq!(findings[1].text, "down, no address, MTU 1500");
    }
}
