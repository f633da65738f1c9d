//! From environment variables to the settings that do not depend on the rank. Pure.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::variables::{self, Variable, Variables};
use crate::schedule::cost::ChoiceMode;
use crate::transport::rdma::RdmaSettings;
use crate::types::{Algorithm, Error, Result, TransportKind};
use crate::wire::handshake::JobKey;

/// Where the job's key comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// Nobody gave one: rank 0 makes it, where it can be handed over safely.
    #[default]
    None,
    /// It was given.
    Given(JobKey),
    /// It is in a file, which is read when the ranks meet.
    File(PathBuf),
}

impl KeySource {
    /// Whether somebody gave a key.
    pub fn is_given(&self) -> bool {
        *self != KeySource::None
    }
}

/// Whether figures of links are kept in a file from one run to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FiguresFile {
    /// They are read, and written after they were measured.
    #[default]
    On,
    /// They are measured anew and written.
    Renew,
    /// They are measured anew and not written.
    Off,
}

/// What carries collectives on device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceCollectives {
    /// NCCL, where all ranks have it, for calls whose results are those of host memory; memory of peers for others within one
    /// host; what is left is staged.
    #[default]
    Auto,
    /// NCCL, for all that it knows. That a rank has none is an error.
    Nccl,
    /// Memory of peers; what that does not carry is staged. That it cannot be used is an error.
    Peer,
    /// Pinned host memory and the transports.
    Staged,
}

/// What can be set beside the place in the world. `variables.rs` says what each means and why its default is what it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How long an operation may wait for other ranks.
    pub timeout: Duration,
    /// How long the ranks may take to meet.
    pub start_timeout: Duration,
    /// The transport that is forced.
    pub transport: Option<TransportKind>,
    /// Whether ranks of one host read each other's memory where it is.
    pub single_copy: bool,
    /// What is chosen about RDMA.
    pub rdma: RdmaSettings,
    /// The algorithm that is forced.
    pub algorithm: Option<Algorithm>,
    /// A file with rules for which algorithm is used where.
    pub algorithm_table: Option<PathBuf>,
    /// How freely algorithms are chosen.
    pub choice: ChoiceMode,
    /// Whether algorithms are tried while the program runs.
    pub tuning: bool,
    /// Whether figures of links are kept in a file.
    pub figures: FiguresFile,
    /// The folder for files that can be made again; none if the user has no home.
    pub cache: Option<PathBuf>,
    /// Whether to reduce in the order of the ranks.
    pub deterministic: bool,
    /// What carries collectives on device memory.
    pub device_collectives: DeviceCollectives,
    /// The network interface to use, by name or address.
    pub interface: Option<String>,
    /// The ports to listen on.
    pub ports: Option<RangeInclusive<u16>>,
    /// TCP connections to each peer.
    pub sockets: Option<usize>,
    /// Where the job's registry listens, if the job is elastic.
    pub registry: Option<String>,
    /// Which rank this process is to have in an elastic job's first view.
    pub slot: Option<usize>,
    /// Where the job's key comes from.
    pub key: KeySource,
    /// The filter of the log.
    pub log: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            // Longer than a checkpoint or an evaluation on one rank while the others wait, shorter than a coffee.
            timeout: Duration::from_secs(300),
            // Hosts that are told to start at the same time do so within seconds; a missing one should be told soon.
            start_timeout: Duration::from_secs(60),
            transport: None,
            single_copy: true,
            rdma: RdmaSettings::default(),
            algorithm: None,
            algorithm_table: None,
            choice: ChoiceMode::default(),
            tuning: false,
            figures: FiguresFile::default(),
            cache: None,
            deterministic: false,
            device_collectives: DeviceCollectives::default(),
            interface: None,
            ports: None,
            sockets: None,
            registry: None,
            slot: None,
            key: KeySource::None,
            log: None,
        }
    }
}

/// Reads the settings.
///
/// # Errors
///
/// [`Error::Environment`] for a value that cannot be read, with the variable, its value and what was expected.
pub fn settings(variables: &Variables) -> Result<Settings> {
    let default = Settings::default();
    let read = Reader(variables);
    Ok(Settings {
        timeout: read.with(variables::TIMEOUT, duration)?.unwrap_or(default.timeout),
        start_timeout: read.with(variables::START_TIMEOUT, duration)?.unwrap_or(default.start_timeout),
        transport: read.with(variables::TRANSPORT, transport)?,
        single_copy: read.with(variables::SINGLE_COPY, switch)?.unwrap_or(default.single_copy),
        rdma: rdma(&read)?,
        algorithm: read.with(variables::ALGORITHM, |text| text.parse())?,
        algorithm_table: read.with(variables::ALGORITHM_TABLE, |text| Ok(PathBuf::from(text)))?,
        choice: read.with(variables::CHOICE, |text| text.parse())?.unwrap_or(default.choice),
        tuning: read.with(variables::TUNING, switch)?.unwrap_or(default.tuning),
        figures: read.with(variables::FIGURES, figures)?.unwrap_or(default.figures),
        cache: cache(variables),
        deterministic: read.with(variables::DETERMINISTIC, switch)?.unwrap_or(default.deterministic),
        device_collectives: read
            .with(variables::DEVICE_COLLECTIVES, device_collectives)?
            .unwrap_or(default.device_collectives),
        interface: read.with(variables::INTERFACE, |text| Ok(text.to_string()))?,
        ports: read.with(variables::PORTS, ports)?,
        sockets: read.with(variables::SOCKETS, sockets)?,
        registry: read.with(variables::REGISTRY, |text| Ok(text.to_string()))?,
        slot: read
            .with(variables::SLOT, |text| text.parse().map_err(|_| "a number from 0 was expected".to_string()))?,
        key: key(&read)?,
        log: read.with(variables::LOG, |text| Ok(text.to_string()))?,
    })
}

struct Reader<'a>(&'a Variables);

impl Reader<'_> {
    fn with<T>(&self, variable: Variable, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>> {
        let Some(text) = self.0.get(variable.name) else { return Ok(None) };
        parse(text).map(Some).map_err(|expected| {
            Error::environment(
                format!("{}: {expected}", self.0.show(variable.name)),
                format!("correct {} or unset it; an example is {}", variable.name, variable.example),
            )
        })
    }
}

fn key(read: &Reader<'_>) -> Result<KeySource> {
    let given = read.with(variables::KEY, JobKey::from_hex)?;
    let file = read.with(variables::KEY_FILE, |text| Ok(PathBuf::from(text)))?;
    match (given, file) {
        (None, None) => Ok(KeySource::None),
        (Some(key), None) => Ok(KeySource::Given(key)),
        (None, Some(path)) => Ok(KeySource::File(path)),
        (Some(_), Some(_)) => Err(Error::environment(
            format!("both {} and {} are set", read.0.show(variables::KEY.name), read.0.show(variables::KEY_FILE.name)),
            "unset one of them",
        )),
    }
}

fn rdma(read: &Reader<'_>) -> Result<RdmaSettings> {
    let names = |text: &str| match text.split(',').map(str::trim).collect::<Vec<_>>() {
        names if names.iter().any(|name| name.is_empty() || name.contains('/')) => {
            Err("expected names of devices with commas between, or all".to_string())
        }
        names => Ok(names.into_iter().map(String::from).collect()),
    };
    let port =
        |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or("expected a number from 1 to 255".to_string());
    let byte = |text: &str| text.parse::<u8>().map_err(|_| "expected a number from 0 to 255".to_string());
    let mtu = |text: &str| match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("expected 256, 512, 1024, 2048 or 4096".to_string()),
    };
    Ok(RdmaSettings {
        devices: read.with(variables::RDMA_DEVICE, names)?.unwrap_or_default(),
        port: read.with(variables::RDMA_PORT, port)?,
        gid_index: read.with(variables::RDMA_GID_INDEX, byte)?,
        traffic_class: read.with(variables::RDMA_TRAFFIC_CLASS, byte)?.unwrap_or_default(),
        mtu: read.with(variables::RDMA_MTU, mtu)?,
    })
}

/// Seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("the unit {unit:?} is not ms, s, m or h")),
    };
    let seconds = number.trim().parse::<f64>().map_err(|_| "expected a number of seconds".to_string())? * scale;
    if !(seconds > 0.0 && seconds.is_finite()) {
        return Err("expected more than 0 seconds".into());
    }
    // A century is longer than any job, and no clock overflows.
    Duration::try_from_secs_f64(seconds.min(3.2e9)).map_err(|error| error.to_string())
}

fn transport(text: &str) -> Result<TransportKind, String> {
    match text.parse()? {
        TransportKind::Inproc => Err("inproc joins threads of one process; expected shm, tcp, rdma or mpi".into()),
        kind => Ok(kind),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("expected 1 or 0".into()),
    }
}

fn figures(text: &str) -> Result<FiguresFile, String> {
    match text {
        "on" => Ok(FiguresFile::On),
        "renew" => Ok(FiguresFile::Renew),
        "off" => Ok(FiguresFile::Off),
        _ => Err("expected on, renew or off".into()),
    }
}

fn device_collectives(text: &str) -> Result<DeviceCollectives, String> {
    match text {
        "auto" => Ok(DeviceCollectives::Auto),
        "nccl" => Ok(DeviceCollectives::Nccl),
        "peer" => Ok(DeviceCollectives::Peer),
        "staged" => Ok(DeviceCollectives::Staged),
        _ => Err("expected auto, nccl, peer or staged".into()),
    }
}

/// Where the user's desktop keeps what can be made again.
fn cache(variables: &Variables) -> Option<PathBuf> {
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let named = variables.get("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let home = || variables.get("HOME").map(PathBuf::from).and_then(absolute).map(|home| home.join(".cache"));
    named.or_else(home).map(|folder| folder.join("phalanx"))
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err("expected a port from 1 to 65535, or two with a dash, the smaller first".into()),
    }
}

fn sockets(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=64).contains(count))
        .ok_or_else(|| "expected a number from 1 to 64".to_string())
}
