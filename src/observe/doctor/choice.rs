//! What Phalanx would use here, and why.

use serde::Serialize;

use super::memory::SharedMemory;
use super::network::Interface;
use super::rdma::Rdma;
use super::{Finding, State};
use crate::bootstrap::Config;
use crate::types::TransportKind;

/// What Phalanx would use here. Each has its reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The transport between ranks of one host.
    pub within_host: &'static str,
    /// Why.
    pub within_host_why: String,
    /// The transport between hosts; none if there is no way.
    pub between_hosts: Option<&'static str>,
    /// Over which interface, and why.
    pub between_hosts_why: String,
    /// The algorithm that is forced; none means that it is chosen by size and ranks.
    pub algorithm: Option<&'static str>,
    /// How long an operation may wait for other ranks, in seconds.
    pub timeout_seconds: f64,
    /// Whether what is forced cannot be had.
    pub impossible: bool,
}

impl Choice {
    pub(super) fn decide(
        config: Option<&Config>,
        memory: &SharedMemory,
        interfaces: &[Interface],
        rdma: &Rdma,
    ) -> Self {
        let forced = config.and_then(|config| config.settings.transport);
        let (within_host, within_host_why) = match (forced, memory.works) {
            (Some(TransportKind::Shm), false) => {
                (TransportKind::Shm, "PHALANX_TRANSPORT=shm, but shared memory does not work here".to_owned())
            }
            (Some(TransportKind::Mpi), _) if !cfg!(feature = "mpi") => {
                (TransportKind::Mpi, "PHALANX_TRANSPORT=mpi, but this build has no MPI".to_owned())
            }
            (Some(kind), _) => (kind, format!("PHALANX_TRANSPORT={kind}")),
            (None, true) => (TransportKind::Shm, "shared memory works here, and nothing is faster".into()),
            (None, false) => (TransportKind::Tcp, "shared memory does not work here".into()),
        };
        let route = interfaces.iter().find_map(|interface| {
            let purpose = interface.used_for.iter().find(|purpose| purpose.starts_with("TCP"))?;
            Some(format!("over {}: {purpose}", interface.name))
        });
        let (between_hosts, between_hosts_why) = match (forced, route) {
            (Some(TransportKind::Shm), _) => (None, "PHALANX_TRANSPORT=shm keeps to one host".to_owned()),
            (Some(TransportKind::Rdma), _) | (None, Some(_)) if !rdma.used.is_empty() => {
                (Some(TransportKind::Rdma), rdma.in_words().unwrap_or_default())
            }
            (Some(TransportKind::Rdma), _) => (None, rdma.why_not.clone().unwrap_or_default()),
            (Some(TransportKind::Mpi), _) => (Some(TransportKind::Mpi), "PHALANX_TRANSPORT=mpi".to_owned()),
            (_, Some(route)) => (Some(TransportKind::Tcp), route),
            (_, None) => (None, "no route to other hosts was found".into()),
        };
        Self {
            within_host: within_host.name(),
            within_host_why,
            between_hosts: between_hosts.map(TransportKind::name),
            between_hosts_why,
            algorithm: config.and_then(|config| config.settings.algorithm).map(|algorithm| algorithm.name()),
            timeout_seconds: config.map(|config| &config.settings).cloned().unwrap_or_default().timeout.as_secs_f64(),
            impossible: match forced {
                Some(TransportKind::Shm) => !memory.works,
                Some(TransportKind::Mpi) => !cfg!(feature = "mpi"),
                _ => false,
            },
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let within = format!("{}: {}", self.within_host, self.within_host_why);
        let within = if self.impossible {
            let advice = match self.within_host {
                "mpi" => "unset PHALANX_TRANSPORT, or build with --features mpi",
                _ => "unset PHALANX_TRANSPORT, or let memfd_create be allowed",
            };
            Finding::problem("choice", "within a host", within, advice)
        } else {
            Finding::ok("choice", "within a host", within)
        };
        let between = format!("{}: {}", self.between_hosts.unwrap_or("nothing"), self.between_hosts_why);
        let algorithm = match self.algorithm {
            Some(name) => format!("{name} where the collective has it: PHALANX_ALGORITHM"),
            None => "chosen by size and ranks; `phalanx explain allreduce --bytes 1M -np 4` says which and why".into(),
        };
        vec![
            within,
            Finding::new("choice", "between hosts", State::Ok, between),
            Finding::ok("choice", "algorithm", algorithm),
            Finding::ok("choice", "timeout", format!("{} s an operation; PHALANX_TIMEOUT", self.timeout_seconds)),
            mpi(self.within_host == "mpi"),
            Finding::ok("choice", "GPUs", "not used by this version: data in host memory"),
        ]
    }
}

/// The MPI of this build. Under its launcher, and if it is to be used, it is started to see what it gives.
#[cfg(feature = "mpi")]
fn mpi(is_wanted: bool) -> Finding {
    let library = crate::sys::mpi::library_version();
    if !is_wanted {
        return Finding::ok("choice", "MPI", format!("built with {library}; used with PHALANX_TRANSPORT=mpi"));
    }
    match crate::sys::mpi::try_level() {
        Ok((level, size)) => Finding::ok("choice", "MPI", format!("{library}; it gives {level}, and {size} ranks")),
        Err(error) => Finding::problem("choice", "MPI", error.to_string(), "see docs/hardware.md"),
    }
}

/// The MPI of this build: none.
#[cfg(not(feature = "mpi"))]
fn mpi(_: bool) -> Finding {
    let text =
        "not in this build, as a carrier: built with --features mpi; mpirun and mpiexec start ranks all the same";
    Finding::ok("choice", "MPI", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(works: bool) -> SharedMemory {
        SharedMemory { works, error: None, dev_shm_bytes: None, dev_shm_free_bytes: None }
    }

    fn no_rdma() -> Rdma {
        let why_not = Some("there is none".into());
        Rdma { built_in: true, devices: vec![], used: vec![], why_not, demanded: false, gpu_memory: Default::default() }
    }

    fn config(variables: &[(&str, &str)]) -> Config {
        Config::from_variables(&variables.iter().copied().collect()).expect("sound variables")
    }

    #[test]
    fn shared_memory_is_used_where_it_works() {
        let decide = |variables: &[(&str, &str)], works| {
            Choice::decide(Some(&config(variables)), &memory(works), &[], &no_rdma())
        };
        assert_eq!(decide(&[], true).within_host, "shm");
        assert_eq!(decide(&[], false).within_host, "tcp");
        assert_eq!(decide(&[("PHALANX_TRANSPORT", "tcp")], true).within_host, "tcp");
        let mpi = decide(&[("PHALANX_TRANSPORT", "mpi")], true);
        assert_eq!((mpi.within_host, mpi.between_hosts), ("mpi", Some("mpi")));
        assert_eq!(mpi.impossible, !cfg!(feature = "mpi"));
        let forced = decide(&[("PHALANX_TRANSPORT", "shm")], false);
        assert!(forced.impossible);
        assert_eq!(forced.judge()[0].state, State::Problem);
        assert_eq!(decide(&[("PHALANX_ALGORITHM", "ring")], true).algorithm, Some("ring"));
    }

    #[test]
    fn the_route_is_used_between_hosts() {
        let interface = Interface {
            name: "eth0".into(),
            up: true,
            loopback: false,
            addresses: vec![],
            speed_mbit: None,
            mtu_bytes: None,
            used_for: vec!["TCP to other hosts (the default route)".into()],
        };
        let choice = Choice::decide(Some(&config(&[])), &memory(true), &[interface], &no_rdma());
        assert_eq!(choice.between_hosts, Some("tcp"));
        assert_eq!(choice.between_hosts_why, "over eth0: TCP to other hosts (the default route)");
    }
}
