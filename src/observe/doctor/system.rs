//! The system, and the Python on it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::{Finding, State};

/// The system.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The machine's name.
    pub host_name: String,
    /// The kernel's version.
    pub kernel: String,
    /// The processor family, such as `x86_64`.
    pub architecture: String,
    /// Where the kernel takes the time from.
    pub clock_source: Option<String>,
    /// Whether processes can be held by descriptor (Linux 5.3, and not forbidden).
    pub pidfd: bool,
    /// Whether `/proc` is there.
    pub proc: bool,
}

impl Machine {
    pub(super) fn look(files: &Files) -> Self {
        let name = rustix::system::uname();
        let own = rustix::process::getpid();
        Self {
            host_name: name.nodename().to_string_lossy().into_owned(),
            kernel: name.release().to_string_lossy().into_owned(),
            architecture: name.machine().to_string_lossy().into_owned(),
            clock_source: files.text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            pidfd: rustix::process::pidfd_open(own, PidfdFlags::empty()).is_ok(),
            proc: files.exists("/proc/self/stat"),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let text = format!("Linux {} {}", self.kernel, self.architecture);
        findings.push(match self.architecture.as_str() {
            "x86_64" | "aarch64" => Finding::ok("system", "kernel", text),
            _ => Finding::note("system", "kernel", text, "Phalanx is tested on x86_64 and aarch64"),
        });
        if !self.proc {
            let advice = "mount it: the launcher needs it to end process trees";
            findings.push(Finding::problem("system", "/proc", "not mounted", advice));
        }
        if !self.pidfd {
            let advice = "Linux 5.3 has them; a sandbox may forbid them; processes are then known by number alone";
            findings.push(Finding::note("system", "pidfd", "processes cannot be held by descriptor", advice));
        }
        findings.push(match self.clock_source.as_deref() {
            None => {
                Finding::new("system", "clock", State::Note, "the kernel does not say where it takes the time from")
            }
            Some(source @ ("hpet" | "acpi_pm" | "pit" | "jiffies" | "refined-jiffies")) => Finding::note(
                "system",
                "clock",
                format!("{source}: reading it takes about a microsecond, more than a small collective"),
                "look in `dmesg` why the faster clock was given up",
            ),
            Some(source) => Finding::ok("system", "clock", source),
        });
        findings
    }
}

/// A Python.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Python {
    /// The program.
    pub program: PathBuf,
    /// Its version.
    pub version: String,
    /// The versions of packages that matter here, where they are installed.
    pub packages: Vec<(String, String)>,
}

/// What the script below prints.
#[derive(Deserialize)]
struct Answer {
    version: String,
    packages: Vec<(String, String)>,
}

/// Asks without importing the packages: that takes seconds.
const QUESTION: &str = "
import sys, json
from importlib import metadata
packages = []
for name in ('phalanx', 'numpy', 'torch', 'jax'):
    try: packages.append((name, metadata.version(name)))
    except Exception: pass
print(json.dumps({'version': '.'.join(map(str, sys.version_info[:3])), 'packages': packages}))
";

/// How long Python may take to answer.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

impl Python {
    /// The first of `python3` and `python` on the path.
    pub(super) fn look() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let found = ["python3", "python"].into_iter().find_map(|name| {
            let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
            candidates.find(|file| file.is_file())
        })?;
        let mut child = Command::new(&found)
            .args(["-c", QUESTION])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        if let Ok(held) = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            // The answer is one short line: it fits the pipe, so that nothing has to be read before the end.
            let mut fds = [PollFd::new(&held, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut fds, Some(&PATIENCE)), Ok(1..)) {
                let _ = child.kill();
            }
        }
        let output = child.wait_with_output().ok()?;
        let answer: Option<Answer> = serde_json::from_slice(&output.stdout).ok();
        let answer = answer.unwrap_or(Answer { version: "unknown".into(), packages: Vec::new() });
        Some(Self { program: found, version: answer.version, packages: answer.packages })
    }
}

pub(super) fn judge_python(python: Option<&Python>) -> Vec<Finding> {
    let Some(python) = python else {
        let text = "no python3 on the path; Rust and C programs do not need it";
        return vec![Finding::new("python", "python", State::Note, text)];
    };
    let shown = format!("{} ({})", python.version, python.program.display());
    let mut numbers = python.version.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut findings = vec![if python.version == "unknown" {
        let advice = "run it by hand: it gave no answer";
        Finding::note("python", "python", shown, advice)
    } else if version < (3, 10) {
        Finding::note("python", "python", shown, "the Python package of Phalanx needs 3.10 or later")
    } else {
        Finding::ok("python", "python", shown)
    }];
    let packages: Vec<_> = python.packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let text = if packages.is_empty() { "none of phalanx, numpy, torch, jax".into() } else { packages.join(", ") };
    findings.push(if python.packages.iter().any(|(name, _)| name == "phalanx") {
        Finding::ok("python", "packages", text)
    } else {
        Finding::note("python", "packages", text, "for Python programs: pip install ./ffi/python, or the wheel")
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(clock_source: &str) -> Machine {
        Machine {
            host_name: "box".into(),
            kernel: "6.1.0".into(),
            architecture: "x86_64".into(),
            clock_source: Some(clock_source.into()),
            pidfd: true,
            proc: true,
        }
    }

    fn worst(findings: &[Finding]) -> Option<State> {
        findings.iter().map(|finding| finding.state).max()
    }

    #[test]
    fn slow_clocks_are_noted() {
        assert_eq!(worst(&machine("tsc").judge()), Some(State::Ok));
        assert_eq!(worst(&machine("hpet").judge()), Some(State::Note));
        assert_eq!(worst(&Machine { proc: false, ..machine("tsc") }.judge()), Some(State::Problem));
    }

    #[test]
    fn python_is_judged_by_its_version() {
        let python = |version: &str, packages: &[&str]| Python {
            program: "/usr/bin/python3".into(),
            version: version.into(),
            packages: packages.iter().map(|name| ((*name).into(), "1".into())).collect(),
        };
        assert_eq!(worst(&judge_python(Some(&python("3.12.1", &["phalanx"])))), Some(State::Ok));
        assert_eq!(worst(&judge_python(Some(&python("3.9.1", &["phalanx"])))), Some(State::Note));
        assert_eq!(worst(&judge_python(Some(&python("3.12.1", &[])))), Some(State::Note));
        assert_eq!(worst(&judge_python(None)), Some(State::Note));
    }
}
