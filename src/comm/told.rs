//! What ranks tell each other when they meet: where they listen, and what they would choose algorithms by.
//!
//! It travels with the addresses, which all members get of all: in the rendezvous, and in every view of an elastic job. So
//! that ranks choose alike costs no message, and a change of the view holds nobody up.

use std::sync::Arc;

use super::figures_file;
use crate::bootstrap::{Introduction, Settings};
use crate::schedule::cost::{AlgorithmTable, ChoiceMode, Told};
use crate::sys::{host, process};
use crate::transport::listen::ListenAddresses;
use crate::types::{Error, Result};

/// The table of algorithms that the settings name. Read once: what is told of it is what is chosen by, whatever becomes of
/// the file.
pub(crate) fn table(settings: &Settings) -> Result<Arc<AlgorithmTable>> {
    let Some(path) = &settings.algorithm_table else { return Ok(Arc::default()) };
    let wrong = |why: String| {
        let what = format_args!("the table of algorithms in {}: {why}", path.display());
        Error::environment(what, "correct it, or unset PHALANX_ALGORITHM_TABLE; docs/algorithms.md has its form")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    AlgorithmTable::parse(&text).map(Arc::new).map_err(wrong)
}

/// Introduces this process: where it listens, and what it knows.
pub(crate) fn introduce(
    addresses: &ListenAddresses,
    settings: &Settings,
    table: &AlgorithmTable,
    shares_memory: bool,
) -> Result<Introduction> {
    let mut introduction = Introduction::new(addresses);
    introduction.addresses.push(b'\n');
    introduction.addresses.extend(tell(settings, table, shares_memory)?);
    Ok(introduction)
}

/// What this process knows.
pub(crate) fn tell(settings: &Settings, table: &AlgorithmTable, shares_memory: bool) -> Result<Vec<u8>> {
    let told = Told {
        affinity: process::affinity().unwrap_or_default().into_iter().collect(),
        host_processors: process::host_processors(),
        machine: host::machine(),
        shares_memory,
        choice: settings.choice,
        table: table.digest(),
        tuning: settings.tuning,
        figures: (settings.choice != ChoiceMode::Builtin)
            .then(|| figures_file::read(settings, shares_memory))
            .flatten(),
    };
    serde_json::to_vec(&told).map_err(|error| Error::internal(error.to_string()))
}

/// What a member said of itself.
pub(crate) fn read(introduction: &[u8]) -> Result<(ListenAddresses, Told)> {
    let at = introduction.iter().position(|byte| *byte == b'\n').unwrap_or(introduction.len());
    let (addresses, told) = introduction.split_at(at);
    let told = hear(told.get(1..).unwrap_or(&[]))?;
    Ok((ListenAddresses::decode(addresses)?, told))
}

/// What a member said that it knows.
pub(crate) fn hear(line: &[u8]) -> Result<Told> {
    serde_json::from_slice(line).map_err(|_| {
        Error::environment(
            "a member did not say what it would choose algorithms by",
            "all members must run the same version of Phalanx",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::cost::Affinity;
    use crate::transport::listen::{ListenConfig, Listeners};
    use crate::transport::rdma::RdmaUse;

    #[test]
    fn what_is_told_is_read_and_what_is_garbled_is_refused() {
        let listeners = Listeners::bind(&ListenConfig {
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            interface: None,
            ports: None,
            shared_memory: false,
            rdma: RdmaUse::No,
        })
        .expect("a listener");
        let said = introduce(listeners.addresses(), &Settings::default(), &AlgorithmTable::default(), true)
            .expect("an introduction");
        let (addresses, told) = read(&said.addresses).expect("what was said");
        assert_eq!(&addresses, listeners.addresses());
        assert!(
            told.shares_memory
                && told.affinity != Affinity::default()
                && told.host_processors >= 1
                && told.figures.is_none()
        );
        let plain = listeners.addresses().encode();
        for garbled in [plain.clone(), [&plain[..], b"\n{}"].concat(), said.addresses[3..].to_vec(), Vec::new()] {
            assert!(read(&garbled).is_err(), "{}", String::from_utf8_lossy(&garbled));
        }
    }
}
