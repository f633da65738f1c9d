//! Ranks in network namespaces: hosts on one machine, between which there is only the network.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;

use phalanx::launch::hosts::Host;
use phalanx::{Error, Result};
use rustix::thread::LinkNameSpaceType;
use serde::Deserialize;

/// Where named namespaces are found.
const FOLDER: &str = "/run/netns";

/// The given namespaces as hosts for `ranks` ranks, in blocks whose lengths differ by one at most.
pub fn hosts(names: &[String], ranks: usize) -> Result<Vec<Host>> {
    if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('/') || name.starts_with(['.', '-']))
    {
        return Err(Error::invalid(format!("--hosts: {name:?} is not the name of a network namespace")));
    }
    if names.len() > ranks {
        return Err(Error::invalid(format!("--hosts: {ranks} ranks cannot fill {} hosts", names.len())));
    }
    let host = |(number, name): (usize, &String)| Host {
        name: name.clone(),
        slots: ranks / names.len() + usize::from(number < ranks % names.len()),
        enter: ["ip", "netns", "exec", name].map(String::from).to_vec(),
    };
    Ok(names.iter().enumerate().map(host).collect())
}

/// Moves this thread, and those it starts, into the first namespace, and returns its address that all others reach.
/// That is where the ranks meet.
pub fn enter_first(names: &[String]) -> Result<Option<IpAddr>> {
    let Some((first, others)) = names.split_first() else {
        return Ok(None);
    };
    for name in names {
        std::fs::metadata(format!("{FOLDER}/{name}")).map_err(|error| {
            let what = format!("--hosts: network namespace {name} cannot be found: {error}");
            Error::environment(what, "`ip netns list` shows those there are; `ip netns add` makes one")
        })?;
    }
    let candidates = addresses(first)?;
    let reaches = |name: &String, address: &IpAddr| ip(&["-n", name, "route", "get", &address.to_string()]).is_ok();
    let address = candidates.into_iter().find(|address| others.iter().all(|name| reaches(name, address)));
    let address = address.ok_or_else(|| {
        Error::environment(
            format!("no address of namespace {first} can be reached from {}", others.join(", ")),
            "connect the namespaces, for instance by a bridge, and give each an address",
        )
    })?;
    let path = format!("{FOLDER}/{first}");
    let entered = File::open(&path).and_then(|namespace| {
        Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    });
    entered.map(|()| Some(address)).map_err(|error| {
        Error::environment(format!("cannot enter network namespace {path}: {error}"), "--hosts needs root")
    })
}

/// What `ip -json address` prints of an interface.
#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    addr_info: Vec<Address>,
}

/// One of its addresses.
#[derive(Deserialize)]
struct Address {
    local: Option<IpAddr>,
}

/// The global addresses of the interfaces that are up in a namespace.
fn addresses(name: &str) -> Result<Vec<IpAddr>> {
    parse_addresses(&ip(&["-n", name, "-json", "address", "show", "up", "scope", "global"])?)
}

fn parse_addresses(json: &[u8]) -> Result<Vec<IpAddr>> {
    let interfaces: Vec<Interface> = serde_json::from_slice(json).map_err(|error| {
        Error::environment(format!("`ip -json address` printed what is not understood: {error}"), "update iproute2")
    })?;
    Ok(interfaces.into_iter().flat_map(|interface| interface.addr_info).filter_map(|address| address.local).collect())
}

/// Runs `ip` and returns what it prints.
fn ip(arguments: &[&str]) -> Result<Vec<u8>> {
    let failed = |why: &str| {
        let what = format!("`ip {}` failed: {}", arguments.join(" "), why.trim());
        Error::environment(what, "--hosts needs iproute2 and root; `ip netns list` shows the namespaces")
    };
    let output = Command::new("ip").args(arguments).output().map_err(|error| failed(&error.to_string()))?;
    if output.status.success() { Ok(output.stdout) } else { Err(failed(&String::from_utf8_lossy(&output.stderr))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranks_fill_namespaces_in_blocks() {
        let hosts = hosts(&names(&["h1", "h2", "h3"]), 8).expect("three hosts");
        assert_eq!(hosts.iter().map(|host| host.slots).collect::<Vec<_>>(), [3, 3, 2]);
        assert_eq!(hosts[1].enter, ["ip", "netns", "exec", "h2"]);
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for name in ["", "../h1", "-n"] {
            assert!(hosts(&names(&[name]), 2).expect_err("no name").to_string().contains("not the name"));
        }
        assert!(hosts(&names(&["a", "b"]), 1).expect_err("too many").to_string().contains("cannot fill 2 hosts"));
    }

    #[test]
    fn addresses_are_read_from_what_ip_prints() {
        let json = br#"[{"ifname":"eth0","addr_info":[{"family":"inet","local":"10.77.0.1","prefixlen":24},
                        {"family":"inet6","local":"fd00::1"}]},{"ifname":"lo"},{}]"#;
        let expected: Vec<IpAddr> = ["10.77.0.1", "fd00::1"].map(|text| text.parse().expect("an address")).to_vec();
        assert_eq!(parse_addresses(json), Ok(expected));
        assert!(parse_addresses(b"Object \"-json\" is unknown").is_err());
    }
}
