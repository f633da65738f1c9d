//! RDMA devices: which there are, which would be used, and why none is.

use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;

use super::files::Files;
use super::gpu_memory::GpuMemory;
use super::network::Interface;
use super::{Finding, State};
use crate::bootstrap::Config;
use crate::transport::rdma::{self, Device, Place};
use crate::types::TransportKind;

/// What there is of RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rdma {
    /// Whether this Phalanx was built with it.
    pub built_in: bool,
    /// The devices that the kernel lists.
    pub devices: Vec<Device>,
    /// What Phalanx would use, one a rail.
    pub used: Vec<Place>,
    /// Why nothing of it would be used.
    pub why_not: Option<String>,
    /// Whether PHALANX_TRANSPORT demands it.
    pub demanded: bool,
    /// How the adapters could reach the memory of GPUs.
    pub gpu_memory: GpuMemory,
}

impl Rdma {
    pub(super) fn look(
        files: &Files,
        config: Option<&Config>,
        interfaces: &[Interface],
        library: bool,
        gpu_memory: GpuMemory,
    ) -> Self {
        let settings = config.map(|config| config.settings.rdma.clone()).unwrap_or_default();
        let forced = config.and_then(|config| config.settings.transport);
        let listens = interfaces.iter().find(|interface| interface.used_for.iter().any(|use_| use_.starts_with("TCP")));
        let near = listens
            .and_then(|interface| interface.addresses.iter().find(|ip| ip.is_ipv4()).or(interface.addresses.first()))
            .copied()
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let devices = rdma::devices(&files.path("/"));
        let chosen = match forced {
            Some(kind @ (TransportKind::Shm | TransportKind::Tcp | TransportKind::Inproc)) => {
                Err(format!("PHALANX_TRANSPORT={kind}"))
            }
            _ if devices.is_empty() => Err("this machine has no RDMA device (/sys/class/infiniband)".into()),
            _ if !rdma::BUILT_IN => Err("this Phalanx was built without the feature rdma".into()),
            _ if !library => Err("libibverbs cannot be loaded".into()),
            _ => rdma::choose(&devices, &settings, near),
        };
        let (used, why_not) = chosen.map_or_else(|why| (Vec::new(), Some(why)), |places| (places, None));
        let demanded = forced == Some(TransportKind::Rdma);
        Self { built_in: rdma::BUILT_IN, devices, used, why_not, demanded, gpu_memory }
    }

    /// The places that would be used, in words.
    pub(super) fn in_words(&self) -> Option<String> {
        let place = |place: &Place| {
            let gid = place.gid.as_ref().map_or(String::new(), |gid| format!(", GID {} ({})", gid.index, gid.ip()));
            format!("{} port {}{gid}: {}", place.device, place.port, place.why)
        };
        (!self.used.is_empty()).then(|| self.used.iter().map(place).collect::<Vec<_>>().join("; "))
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        const PART: &str = "network";
        let mut findings = Vec::new();
        for device in &self.devices {
            let ports = device.ports.iter().map(|port| {
                let link = if port.ethernet { "Ethernet" } else { "InfiniBand" };
                let rate = port.rate.as_ref().map_or(String::new(), |rate| format!(", {rate}"));
                let gids = port.gids.iter().map(|gid| format!("{} {} ({})", gid.index, gid.ip(), gid.kind));
                let gids = gids.collect::<Vec<_>>().join(", ");
                format!(
                    "port {} {}, {link}{rate}, GIDs {}",
                    port.number,
                    port.state,
                    if gids.is_empty() { "none" } else { &gids }
                )
            });
            let text = ports.collect::<Vec<_>>().join("; ");
            findings.push(Finding::ok(PART, format!("RDMA {}", device.name), text));
        }
        let advice = "ask for another transport, or see why: the line above says what is missing";
        match (self.in_words(), &self.why_not) {
            (Some(used), _) => {
                findings.push(Finding::ok(PART, "RDMA", format!("used between hosts that have it: {used}")))
            }
            (None, Some(why)) if self.demanded => {
                findings.push(Finding::problem(PART, "RDMA", format!("PHALANX_TRANSPORT=rdma, but {why}"), advice));
            }
            (None, Some(why)) if self.devices.is_empty() => {
                findings.push(Finding::new(PART, "RDMA", State::Ok, format!("not used: {why}")));
            }
            (None, Some(why)) => {
                let advice = "TCP is used, which is slower; PHALANX_RDMA_DEVICE, _PORT and _GID_INDEX choose";
                findings.push(Finding::note(PART, "RDMA", format!("not used: {why}"), advice));
            }
            (None, None) => {}
        }
        if !self.devices.is_empty() {
            findings.push(Finding::ok(PART, "RDMA and GPU memory", self.gpu_memory.in_words()));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with an active RoCE device.
    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("sys/class/infiniband/rxe0/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0001\n"),
            ("gid_attrs/types/1", "RoCE v2\n"),
        ] {
            let path = port.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn look(root: &std::path::Path, variables: &[(&str, &str)], library: bool) -> Rdma {
        let config = Config::from_variables(&variables.iter().copied().collect()).unwrap();
        Rdma::look(&Files::under(root), Some(&config), &[], library, GpuMemory::default())
    }

    #[test]
    fn a_machine_without_devices_misses_nothing_unless_they_are_demanded() {
        let dir = tempfile::tempdir().unwrap();
        let judged = look(dir.path(), &[], true).judge();
        assert_eq!((judged.len(), judged[0].state), (1, State::Ok));
        let judged = look(dir.path(), &[("PHALANX_TRANSPORT", "rdma")], true).judge();
        assert_eq!(judged[0].state, State::Problem);
        assert!(judged[0].text.contains("no RDMA device"), "{}", judged[0].text);
    }

    #[test]
    fn what_is_used_and_what_is_not_has_its_reason() {
        let dir = machine();
        let seen = look(dir.path(), &[], true);
        let texts: Vec<String> = seen.judge().into_iter().map(|finding| finding.text).collect();
        assert!(texts[0].contains("port 1 ACTIVE, Ethernet, GIDs 1 10.9.0.1 (RoCE v2)"), "{texts:?}");
        if rdma::BUILT_IN {
            assert!(texts[1].contains("rxe0 port 1, GID 1 (10.9.0.1)"), "{texts:?}");
            let judged = look(dir.path(), &[], false).judge();
            assert!(judged[1].text.contains("libibverbs") && judged[1].state == State::Note, "{}", judged[1].text);
        } else {
            assert!(texts[1].contains("built without the feature rdma"), "{texts:?}");
        }
        let judged = look(dir.path(), &[("PHALANX_TRANSPORT", "tcp")], true).judge();
        assert!(judged[1].text.contains("PHALANX_TRANSPORT=tcp"), "{}", judged[1].text);
    }
}
