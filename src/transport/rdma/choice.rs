//! Which devices, ports and global identifiers are used. Read from `/sys`, where they are listed without any library.
//!
//! On Ethernet a packet needs a global identifier (GID) of the kind RoCE v2, which routers and switches carry as UDP. The
//! one of the address on which this rank listens is taken, for that is the one its peers have a way to; if no device has
//! it (loopback; TCP over another network), the first active device with an IPv4 address. Several devices are used only
//! if they are named: whether a second network leads to every peer is known to nobody here. On InfiniBand the first
//! active port is taken, and packets find their way by LID.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use serde::Serialize;

use super::RdmaSettings;

/// A global identifier of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u8,
    /// The identifier; an IPv4 address is mapped into it.
    pub address: Ipv6Addr,
    /// Its kind in the kernel's words, such as `RoCE v2`.
    pub kind: String,
    /// The network interface it belongs to.
    pub interface: Option<String>,
}

impl Gid {
    /// The address as that of an interface.
    pub fn ip(&self) -> IpAddr {
        self.address.to_ipv4_mapped().map_or(IpAddr::V6(self.address), IpAddr::V4)
    }

    /// The smaller the better; none if it cannot be used on Ethernet.
    fn rank(&self, near: IpAddr) -> Option<u8> {
        if !self.kind.contains("v2") {
            return None;
        }
        Some(match self.ip() {
            ip if ip == near => 0,
            IpAddr::V4(_) => 1,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => 3,
            IpAddr::V6(_) => 2,
        })
    }
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortSeen {
    /// Its number, from 1.
    pub number: u8,
    /// Its state in the kernel's words, such as `ACTIVE`.
    pub state: String,
    /// Whether the link is Ethernet.
    pub ethernet: bool,
    /// Its speed in the kernel's words.
    pub rate: Option<String>,
    /// Its global identifiers.
    pub gids: Vec<Gid>,
}

/// A device that can do RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub ports: Vec<PortSeen>,
}

/// What is used of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The device.
    pub device: String,
    /// The port.
    pub port: u8,
    /// Whether the link is Ethernet.
    pub ethernet: bool,
    /// The global identifier; on InfiniBand only named when it is to be routed by.
    pub gid: Option<Gid>,
    /// Why this one.
    pub why: String,
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The names in a folder, sorted by number where they are numbers.
fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_by_key(|name| (name.parse().unwrap_or(u32::MAX), name.clone()));
    names
}

/// The devices of the machine whose files are under `root`, which is `/`.
pub fn devices(root: &Path) -> Vec<Device> {
    let class = root.join("sys/class/infiniband");
    let port = |at: &Path, number: String| -> Option<PortSeen> {
        let at = at.join(&number);
        let state = line(at.join("state"))?;
        let gid = |index: String| -> Option<Gid> {
            let address: Ipv6Addr = line(at.join("gids").join(&index))?.parse().ok()?;
            Some(Gid {
                kind: line(at.join("gid_attrs/types").join(&index)).unwrap_or_default(),
                interface: line(at.join("gid_attrs/ndevs").join(&index)),
                index: index.parse().ok()?,
                address,
            })
        };
        let gids = names(&at.join("gids")).into_iter().filter_map(gid);
        Some(PortSeen {
            number: number.parse().ok()?,
            state: state.split_once(": ").map_or(state.clone(), |(_, word)| word.to_owned()),
            ethernet: line(at.join("link_layer")).is_some_and(|layer| layer == "Ethernet"),
            rate: line(at.join("rate")),
            gids: gids.filter(|gid| !gid.address.is_unspecified()).collect(),
        })
    };
    names(&class)
        .into_iter()
        .map(|name| {
            let at = class.join(&name).join("ports");
            Device { ports: names(&at).into_iter().filter_map(|number| port(&at, number)).collect(), name }
        })
        .collect()
}

/// What may be used of a device: its best port; or why there is none.
fn usable(device: &Device, settings: &RdmaSettings, near: IpAddr) -> Result<(u8, Place), String> {
    let name = &device.name;
    let mut found: Vec<(u8, Place)> = Vec::new();
    let mut why_not = format!("{name} has no port");
    for port in device.ports.iter().filter(|port| settings.port.is_none_or(|wanted| wanted == port.number)) {
        let number = port.number;
        if port.state != "ACTIVE" {
            why_not = format!("port {number} of {name} is {}", port.state);
            continue;
        }
        let place = |gid: Option<&Gid>, why: &str| Place {
            device: name.clone(),
            port: number,
            ethernet: port.ethernet,
            gid: gid.cloned(),
            why: why.to_owned(),
        };
        if let Some(index) = settings.gid_index {
            match port.gids.iter().find(|gid| gid.index == index) {
                Some(gid) => found.push((0, place(Some(gid), "PHALANX_RDMA_GID_INDEX"))),
                None => why_not = format!("port {number} of {name} has no GID {index} (PHALANX_RDMA_GID_INDEX)"),
            }
        } else if port.ethernet {
            let best = port.gids.iter().filter_map(|gid| Some((gid.rank(near)?, gid))).min_by_key(|(rank, _)| *rank);
            match best {
                Some((0, gid)) => found.push((0, place(Some(gid), "it has the address that this rank listens on"))),
                Some((rank, gid)) => found.push((rank, place(Some(gid), "the first active device with such a GID"))),
                None => {
                    why_not = format!("port {number} of {name} has no GID of RoCE v2: give its interface an address");
                }
            }
        } else {
            found.push((1, place(None, "the first active InfiniBand port")));
        }
    }
    if let Some(wanted) = settings.port.filter(|wanted| device.ports.iter().all(|port| port.number != *wanted)) {
        why_not = format!("{name} has no port {wanted} (PHALANX_RDMA_PORT)");
    }
    found.into_iter().min_by_key(|(rank, _)| *rank).ok_or(why_not)
}

/// What is used, one place a rail, for a rank that listens on `near`; or why nothing can be.
pub fn choose(devices: &[Device], settings: &RdmaSettings, near: IpAddr) -> Result<Vec<Place>, String> {
    if devices.is_empty() {
        return Err("this machine has no RDMA device (/sys/class/infiniband)".into());
    }
    let all = settings.devices == ["all"];
    if !settings.devices.is_empty() && !all {
        let named = |wanted: &String| {
            let device = devices.iter().find(|device| device.name == *wanted).ok_or_else(|| {
                let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
                format!("there is no RDMA device {wanted} (PHALANX_RDMA_DEVICE); there is {}", names.join(", "))
            })?;
            let (_, place) = usable(device, settings, near)?;
            Ok(Place { why: "PHALANX_RDMA_DEVICE".into(), ..place })
        };
        return same_kind(settings.devices.iter().map(named).collect::<Result<_, String>>()?);
    }
    let mut whys = Vec::new();
    let mut found: Vec<(u8, Place)> = Vec::new();
    for device in devices {
        match usable(device, settings, near) {
            Ok(place) => found.push(place),
            Err(why) => whys.push(why),
        }
    }
    if all && !found.is_empty() {
        return same_kind(
            found.into_iter().map(|(_, place)| Place { why: "PHALANX_RDMA_DEVICE=all".into(), ..place }).collect(),
        );
    }
    found.into_iter().min_by_key(|(rank, _)| *rank).map(|(_, place)| vec![place]).ok_or_else(|| whys.join("; "))
}

fn same_kind(places: Vec<Place>) -> Result<Vec<Place>, String> {
    match places.iter().any(|place| place.ethernet) && places.iter().any(|place| !place.ethernet) {
        true => {
            Err("the RDMA devices are of both kinds, Ethernet and InfiniBand: name those of one (PHALANX_RDMA_DEVICE)"
                .into())
        }
        false => Ok(places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: &str) -> Gid {
        Gid { index, address: address.parse().unwrap(), kind: kind.into(), interface: Some("eth0".into()) }
    }

    fn device(name: &str, state: &str, ethernet: bool, gids: Vec<Gid>) -> Device {
        Device {
            name: name.into(),
            ports: vec![PortSeen { number: 1, state: state.into(), ethernet, rate: None, gids }],
        }
    }

    fn near(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn two() -> Vec<Device> {
        let table = |host: &str| {
            vec![
                gid(0, "fe80::1", "IB/RoCE v1"),
                gid(1, "fe80::1", "RoCE v2"),
                gid(2, &format!("::ffff:{host}"), "IB/RoCE v1"),
                gid(3, &format!("::ffff:{host}"), "RoCE v2"),
            ]
        };
        vec![device("a", "ACTIVE", true, table("10.0.0.5")), device("b", "ACTIVE", true, table("10.0.1.5"))]
    }

    #[test]
    fn the_address_that_a_rank_listens_on_decides() {
        let index = |listens: &str, settings: &RdmaSettings| -> Vec<(String, u8)> {
            let places = choose(&two(), settings, near(listens)).unwrap();
            places.into_iter().map(|place| (place.device, place.gid.unwrap().index)).collect()
        };
        let plain = RdmaSettings::default();
        assert_eq!(index("10.0.1.5", &plain), [("b".to_owned(), 3)]);
        assert_eq!(index("10.0.0.5", &plain), [("a".to_owned(), 3)]);
        assert_eq!(index("127.0.0.1", &plain), [("a".to_owned(), 3)], "IPv4 before a link-local address");
        let named = |devices: &[&str]| RdmaSettings {
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            ..RdmaSettings::default()
        };
        assert_eq!(index("10.0.0.5", &named(&["b"])), [("b".to_owned(), 3)]);
        assert_eq!(index("10.0.0.5", &named(&["all"])).len(), 2);
        assert_eq!(index("10.0.0.5", &RdmaSettings { gid_index: Some(1), ..plain })[0].1, 1);
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let why =
            |devices: &[Device], settings: RdmaSettings| choose(devices, &settings, near("10.0.0.5")).unwrap_err();
        let plain = RdmaSettings::default;
        assert!(why(&[], plain()).contains("no RDMA device"));
        assert_eq!(why(&[device("a", "DOWN", true, vec![])], plain()), "port 1 of a is DOWN");
        let v1 = vec![gid(0, "fe80::1", "IB/RoCE v1")];
        assert!(why(&[device("a", "ACTIVE", true, v1)], plain()).contains("no GID of RoCE v2"));
        let wants = |devices: &[&str]| devices.iter().map(|name| (*name).to_owned()).collect();
        assert!(why(&two(), RdmaSettings { devices: wants(&["c"]), ..plain() }).contains("there is a, b"));
        assert!(why(&two(), RdmaSettings { port: Some(2), ..plain() }).contains("PHALANX_RDMA_PORT"));
        assert!(why(&two(), RdmaSettings { gid_index: Some(9), ..plain() }).contains("PHALANX_RDMA_GID_INDEX"));
        let mut mixed = two();
        mixed.push(device("ib", "ACTIVE", false, vec![]));
        assert!(why(&mixed, RdmaSettings { devices: wants(&["all"]), ..plain() }).contains("both kinds"));
    }

    #[test]
    fn infiniband_needs_no_identifier() {
        let places =
            choose(&[device("ib", "ACTIVE", false, vec![])], &RdmaSettings::default(), near("10.0.0.5")).unwrap();
        assert_eq!((places[0].device.as_str(), places[0].gid.is_none(), places[0].ethernet), ("ib", true, false));
    }

    #[test]
    fn devices_are_read_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("sys/class/infiniband/rxe0/ports/1");
        let write = |file: &str, text: &str| {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("state", "4: ACTIVE\n");
        write("link_layer", "Ethernet\n");
        write("rate", "2.5 Gb/sec (1X SDR)\n");
        write("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        write("gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0001\n");
        write("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write("gid_attrs/types/0", "RoCE v2\n");
        write("gid_attrs/types/1", "RoCE v2\n");
        write("gid_attrs/ndevs/1", "d0\n");
        let found = devices(dir.path());
        assert_eq!(found.len(), 1);
        let port = &found[0].ports[0];
        assert_eq!((port.state.as_str(), port.ethernet, port.gids.len()), ("ACTIVE", true, 2));
        assert_eq!(port.gids[1].ip(), near("10.9.0.1"));
        let place = choose(&found, &RdmaSettings::default(), near("10.9.0.1")).unwrap().remove(0);
        assert_eq!(place.gid.unwrap().index, 1);
        assert!(devices(&dir.path().join("nothing")).is_empty());
    }
}
