//! What is on this machine, what Phalanx would use of it and why, and what to do about what is missing.
//!
//! [`examine`] looks, and returns a [`Report`]: facts, part by part, which can be serialised, and [`Finding`]s, which
//! judge them in words. Looking and judging are apart: each part has a `look` that reads the machine and a `judge` that
//! is a pure function of what was read.
//!
//! A finding is *ok*, a *note* (something is slower, or missing, or worth knowing) or a *problem* (Phalanx cannot work).

mod choice;
mod devices;
mod files;
mod gpu_memory;
mod launch;
mod libraries;
mod limits;
mod memory;
mod network;
mod processors;
mod rdma;
mod single_copy;
mod system;

use std::fmt;

use serde::Serialize;

pub use choice::Choice;
pub use devices::DevicesSeen;
pub use gpu_memory::GpuMemory;
pub use launch::{LaunchSeen, Seen};
pub use libraries::{CANDIDATES, Candidate, Library};
pub use limits::{Container, Limits};
pub use memory::{HugePages, Memory, SharedMemory};
pub use network::Interface;
pub use processors::{Cache, Cores, Node};
pub use rdma::Rdma;
pub use single_copy::SingleCopy;
pub use system::{Machine, Python};

use files::Files;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Works, but slower than it could, or without something.
    Note,
    /// Prevents Phalanx from working.
    Problem,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "PROBLEM",
        })
    }
}

/// A judgement about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The part of the report it belongs to.
    pub part: &'static str,
    /// What it is about.
    pub name: String,
    /// How it is to be taken.
    pub state: State,
    /// What was found.
    pub text: String,
    /// What to do, if anything.
    pub advice: Option<String>,
}

impl Finding {
    fn new(part: &'static str, name: impl Into<String>, state: State, text: impl Into<String>) -> Self {
        Self { part, name: name.into(), state, text: text.into(), advice: None }
    }

    fn ok(part: &'static str, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(part, name, State::Ok, text)
    }

    fn note(part: &'static str, name: impl Into<String>, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..Self::new(part, name, State::Note, text) }
    }

    fn problem(
        part: &'static str,
        name: impl Into<String>,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { advice: Some(advice.into()), ..Self::new(part, name, State::Problem, text) }
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of Phalanx.
    pub version: &'static str,
    /// Whether nothing prevents Phalanx from working.
    pub healthy: bool,
    /// The system.
    pub machine: Machine,
    /// The processors this process may use.
    pub cores: Cores,
    /// The memory nodes.
    pub numa: Vec<Node>,
    /// The caches of the first usable processor.
    pub caches: Vec<Cache>,
    /// Memory.
    pub memory: Memory,
    /// Memory that processes share.
    pub shared_memory: SharedMemory,
    /// Memory of other processes, read where it is.
    pub single_copy: SingleCopy,
    /// Limits of this process.
    pub limits: Limits,
    /// What surrounds this process.
    pub container: Container,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// RDMA devices.
    pub rdma: Rdma,
    /// Libraries that are looked for at run time.
    pub libraries: Vec<Library>,
    /// GPUs.
    pub devices: DevicesSeen,
    /// The Python that a script would get.
    pub python: Option<Python>,
    /// What started this process, and its variables.
    pub launch: LaunchSeen,
    /// What Phalanx would use here.
    pub choice: Choice,
    /// The judgements.
    pub findings: Vec<Finding>,
}

/// The order and the titles of the parts.
const PARTS: [(&str, &str); 10] = [
    ("system", "System"),
    ("processors", "Processors"),
    ("memory", "Memory"),
    ("limits", "Limits"),
    ("network", "Network"),
    ("libraries", "Libraries looked for at run time"),
    (devices::PART, "GPUs"),
    ("python", "Python"),
    ("launch", "Launch"),
    ("choice", "What Phalanx would use"),
];

/// Looks at this machine. Takes well under a second, most of it for starting Python.
pub fn examine() -> Report {
    let files = Files::of_this_machine();
    let machine = Machine::look(&files);
    let cores = Cores::look(&files);
    let numa = processors::nodes(&files);
    let caches = processors::caches(&files, cores.allowed.first().copied().unwrap_or_default());
    let memory = Memory::look(&files);
    let shared_memory = SharedMemory::look();
    let limits = Limits::look();
    let container = Container::look(&files);
    let mut launch = LaunchSeen::look();
    let config = launch.take_config();
    let single_copy = SingleCopy::look(&files, config.as_ref());
    let interfaces = network::look(&files, config.as_ref());
    let libraries = libraries::look();
    let verbs = libraries.iter().find(|library| library.purpose == "RDMA verbs").and_then(|library| library.found);
    let verbs_can = verbs.is_some_and(|name| libraries::has(name, c"ibv_reg_dmabuf_mr"));
    let gpu_memory = GpuMemory::look(&files, verbs_can);
    let rdma = Rdma::look(&files, config.as_ref(), &interfaces, verbs.is_some(), gpu_memory);
    let devices = devices::look();
    let python = Python::look();
    let choice = Choice::decide(config.as_ref(), &shared_memory, &interfaces, &rdma);

    let mut findings = machine.judge();
    findings.extend(container.judge());
    findings.extend(cores.judge());
    findings.extend(processors::judge(&numa, &caches));
    findings.extend(memory.judge());
    findings.extend(shared_memory.judge());
    findings.extend(single_copy.judge());
    findings.extend(limits.judge(!files.names("/sys/class/infiniband").is_empty()));
    findings.extend(network::judge(&interfaces, network::loopback_works()));
    findings.extend(rdma.judge());
    findings.extend(libraries::judge(&libraries, &files));
    findings.extend(devices::judge(&devices, !files.names("/proc/driver/nvidia/gpus").is_empty()));
    findings.extend(system::judge_python(python.as_ref()));
    findings.extend(launch.judge());
    findings.extend(choice.judge());
    let healthy = findings.iter().all(|finding| finding.state != State::Problem);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        healthy,
        machine,
        cores,
        numa,
        caches,
        memory,
        shared_memory,
        single_copy,
        limits,
        container,
        interfaces,
        rdma,
        libraries,
        devices,
        python,
        launch,
        choice,
        findings,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "phalanx {} on {}", self.version, self.machine.host_name)?;
        let width = self.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or_default();
        for (part, title) in PARTS {
            writeln!(f, "\n{title}")?;
            for finding in self.findings.iter().filter(|finding| finding.part == part) {
                writeln!(f, "  {:7}  {:width$}  {}", finding.state, finding.name, finding.text)?;
                if let Some(advice) = &finding.advice {
                    writeln!(f, "  {:7}  {:width$}  -> {advice}", "", "")?;
                }
            }
        }
        let count = |state| self.findings.iter().filter(|finding| finding.state == state).count();
        match count(State::Problem) {
            0 => {
                let notes = count(State::Note);
                let plural = if notes == 1 { "" } else { "s" };
                writeln!(f, "\nNothing here prevents Phalanx from working ({notes} note{plural}).")
            }
            1 => writeln!(f, "\n1 problem prevents Phalanx from working."),
            problems => writeln!(f, "\n{problems} problems prevent Phalanx from working."),
        }
    }
}

/// A size in the largest unit in which it is at least 1, as `1.5 GiB`.
fn bytes_in_words(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS.get(unit).unwrap_or(&"B"))
}

/// Numbers as the kernel lists them, such as `0-3,8`.
fn list_in_words(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let text =
        |(first, last): (usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Reads a list such as `0-3,8`.
fn parse_list(text: &str) -> Vec<usize> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            // A kernel has at most some thousands of processors: what is larger is a mistake.
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?.min(1 << 16));
            Some(first..=last)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lists_are_written_as_people_do() {
        assert_eq!(bytes_in_words(512), "512 B");
        assert_eq!(bytes_in_words(1536), "1.5 KiB");
        assert_eq!(bytes_in_words(64 << 20), "64 MiB");
        assert_eq!(list_in_words(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(parse_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_list(""), [0; 0]);
    }

    #[test]
    fn this_machine_can_be_examined() {
        let report = examine();
        assert!(report.healthy, "{report}");
        for (part, title) in PARTS {
            assert!(report.findings.iter().any(|finding| finding.part == part), "nothing about {title}");
        }
        assert!(report.findings.iter().all(|finding| PARTS.iter().any(|(part, _)| *part == finding.part)));
        let value = serde_json::to_value(&report).expect("a value");
        for part in [
            "machine",
            "cores",
            "numa",
            "caches",
            "memory",
            "shared_memory",
            "single_copy",
            "limits",
            "container",
            "interfaces",
            "rdma",
            "libraries",
            "devices",
            "python",
            "launch",
            "choice",
            "findings",
        ] {
            assert!(value.get(part).is_some(), "{part}");
        }
        assert!(report.to_string().contains("What Phalanx would use"));
    }

    #[test]
    fn a_problem_makes_the_report_unhealthy_in_words() {
        let mut report = examine();
        report.findings.push(Finding::problem("limits", "open files", "only 3", "raise it"));
        let text = report.to_string();
        assert!(text.contains("PROBLEM  open files") && text.contains("-> raise it"), "{text}");
        assert!(text.ends_with("1 problem prevents Phalanx from working.\n"), "{text}");
    }
}
