//! Fabrics with names: figures of common hardware, rounded, as starting points for a description of one's own.

use super::{Fabric, Port};

const GBIT: f64 = 1e9 / 8.0;

/// The names that [`preset`] knows, with what they stand for.
pub const PRESETS: [(&str, &str); 6] = [
    ("laptop", "8 ranks in the memory of one host"),
    ("ethernet-1g", "hosts of one rank, kernel TCP at 1 Gbit/s, one switch"),
    ("ethernet-10g", "hosts of 4 ranks, kernel TCP at 10 Gbit/s, one switch"),
    ("roce-100g", "hosts of 8 ranks with one 100 Gbit/s RDMA card, racks of 16 without oversubscription"),
    ("clos-400g", "hosts of 8 ranks with a 400 Gbit/s RDMA card each, racks of 16 without oversubscription"),
    ("clos-400g-4to1", "the same with a quarter of the links above the racks"),
];

/// The fabric of that name.
pub fn preset(name: &str) -> Option<Fabric> {
    let host = Fabric {
        name: name.into(),
        ranks_per_host: 8,
        cores_per_host: 8,
        one_machine: false,
        eager_bytes: 64 << 10,
        memory: Port { latency: 0.3e-6, overhead: 0.2e-6, rate: 5e9 },
        network: Port { latency: 15e-6, overhead: 4e-6, rate: 2.5e9 },
        nics: 1,
        nic_rate: 10.0 * GBIT,
        nic_overhead: 0.0,
        hosts_per_rack: 0,
        oversubscription: 1.0,
        hop_latency: 1e-6,
        reduce_rate: 12e9,
        copy_rate: 12e9,
    };
    let rdma = Port { latency: 1e-6, overhead: 0.3e-6, rate: 50e9 };
    let many = Fabric {
        memory: Port { latency: 0.5e-6, overhead: 0.3e-6, rate: 40e9 },
        network: rdma,
        nics: 8,
        nic_rate: 400.0 * GBIT,
        nic_overhead: 0.05e-6,
        hosts_per_rack: 16,
        hop_latency: 0.4e-6,
        reduce_rate: 100e9,
        copy_rate: 100e9,
        ..host.clone()
    };
    Some(match name {
        "laptop" => host,
        "ethernet-1g" => Fabric { ranks_per_host: 1, cores_per_host: 1, nic_rate: GBIT, ..host },
        "ethernet-10g" => Fabric { ranks_per_host: 4, cores_per_host: 4, ..host },
        "roce-100g" => Fabric {
            network: Port { rate: 12.5e9, ..rdma },
            nic_rate: 100.0 * GBIT,
            nic_overhead: 0.05e-6,
            hosts_per_rack: 16,
            hop_latency: 0.5e-6,
            ..host
        },
        "clos-400g" => many,
        "clos-400g-4to1" => Fabric { oversubscription: 4.0, ..many },
        _ => return None,
    })
}
