//! Limits of this process, and of the container around it.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::files::Files;
use super::{Finding, State, bytes_in_words};
use crate::sys::process;

/// Limits of this process. None means no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Open files, now.
    pub open_files: Option<u64>,
    /// Open files, as far as this process can raise it.
    pub open_files_maximum: Option<u64>,
    /// Memory that may be locked, in bytes, as far as this process can raise it.
    pub locked_memory_bytes: Option<u64>,
    /// Processes and threads of this user.
    pub processes: Option<u64>,
    /// The size of a file, which holds for shared memory too.
    pub file_bytes: Option<u64>,
}

/// Each rank has a few connections; a launcher four files a rank.
const FEW_FILES: u64 = 64;
const ENOUGH_FILES: u64 = 1024;

impl Limits {
    pub(super) fn look() -> Self {
        let files = process::descriptor_limit();
        let limit = |resource| rustix::process::getrlimit(resource).current;
        Self {
            open_files: files.current,
            open_files_maximum: files.maximum,
            locked_memory_bytes: process::locked_memory_limit().maximum,
            processes: limit(rustix::process::Resource::Nproc),
            file_bytes: limit(rustix::process::Resource::Fsize),
        }
    }

    pub(super) fn judge(&self, has_rdma: bool) -> Vec<Finding> {
        let count = |value: Option<u64>| value.map_or("unlimited".into(), |value| value.to_string());
        let size = |value: Option<u64>| value.map_or("unlimited".into(), bytes_in_words);
        let below = |value: Option<u64>, least| value.is_some_and(|value| value < least);

        let text = if self.open_files == self.open_files_maximum {
            count(self.open_files)
        } else {
            format!("{}, can be raised to {}", count(self.open_files), count(self.open_files_maximum))
        };
        let files = if below(self.open_files_maximum, FEW_FILES) {
            Finding::problem("limits", "open files", text, "raise the hard limit: `ulimit -Hn 4096` as root")
        } else if below(self.open_files, ENOUGH_FILES) {
            Finding::note("limits", "open files", text, "`ulimit -n 4096` leaves room for hundreds of ranks")
        } else {
            Finding::ok("limits", "open files", text)
        };
        let locked = size(self.locked_memory_bytes);
        let locked = if has_rdma && below(self.locked_memory_bytes, 1 << 30) {
            let advice = "RDMA needs locked memory: `ulimit -l unlimited`, docker run --ulimit memlock=-1";
            Finding::note("limits", "locked memory", locked, advice)
        } else {
            let why = if has_rdma { "" } else { "; only RDMA needs it" };
            Finding::ok("limits", "locked memory", format!("{locked}{why}"))
        };
        let mut findings = vec![files, locked];
        if below(self.processes, 256) {
            let advice = "each rank is two processes, and has threads: `ulimit -u 4096`";
            findings.push(Finding::note("limits", "processes", count(self.processes), advice));
        }
        if below(self.file_bytes, 1 << 30) {
            let advice = "it limits shared memory too: `ulimit -f unlimited`";
            findings.push(Finding::note("limits", "file size", size(self.file_bytes), advice));
        }
        findings
    }
}

/// What surrounds this process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Container {
    /// What tells that this is a container; none if nothing does.
    pub evidence: Option<String>,
    /// The version of control groups: 2 when all are in one tree.
    pub cgroup_version: Option<u8>,
    /// Memory, in bytes; the tightest on the way to the root.
    pub memory_bytes: Option<u64>,
    /// Processes and threads; the tightest on the way to the root.
    pub processes: Option<u64>,
    /// Processors' worth of time.
    pub processors: Option<f64>,
}

impl Container {
    pub(super) fn look(files: &Files) -> Self {
        let groups = files.text("/proc/self/cgroup").unwrap_or_default();
        let is_v2 = files.exists("/sys/fs/cgroup/cgroup.controllers");
        let version = if is_v2 { Some(2) } else { files.exists("/sys/fs/cgroup").then_some(1) };
        let limit = |controller: &str, v2: &str, v1: &str| {
            if is_v2 {
                tightest(files, Path::new("/sys/fs/cgroup"), group(&groups, "")?, v2)
            } else {
                tightest(files, &Path::new("/sys/fs/cgroup").join(controller), group(&groups, controller)?, v1)
            }
        };
        Self {
            evidence: evidence(files, &groups),
            cgroup_version: version,
            memory_bytes: limit("memory", "memory.max", "memory.limit_in_bytes"),
            processes: limit("pids", "pids.max", "pids.max"),
            processors: process::cgroup_processors(),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let limits: Vec<_> = [
            self.memory_bytes.map(|bytes| format!("memory {}", bytes_in_words(bytes))),
            self.processes.map(|count| format!("processes {count}")),
            self.processors.map(|count| format!("processors {count:.2}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        let place = self.evidence.as_ref().map_or("none seen".into(), |evidence| format!("yes ({evidence})"));
        let limits = if limits.is_empty() { "no limits".into() } else { format!("limits: {}", limits.join(", ")) };
        let text = format!("{place}; {limits}");
        vec![if self.processes.is_some_and(|count| count < 256) {
            let advice = "each rank is two processes, and has threads: docker run --pids-limit=-1";
            Finding::note("system", "container", text, advice)
        } else {
            Finding::new("system", "container", State::Ok, text)
        }]
    }
}

/// The path of this process in the tree of a controller; the one tree of version 2 has no name.
fn group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

/// The least number in the files of that name from a group up to the root. Inside a container the path may not be
/// there: then it is the root's.
fn tightest(files: &Files, root: &Path, group: &str, name: &str) -> Option<u64> {
    // Larger than any machine: how version 1 writes "no limit".
    const NO_LIMIT: u64 = 1 << 60;
    let mut directory: PathBuf = root.join(group.trim_start_matches('/'));
    let mut least = None;
    while directory.starts_with(root) {
        let found = files.number::<u64>(directory.join(name)).filter(|&limit| limit < NO_LIMIT);
        least = match (least, found) {
            (Some(least), Some(found)) => Some(found.min(least)),
            (least, found) => least.or(found),
        };
        if !directory.pop() {
            break;
        }
    }
    least
}

fn evidence(files: &Files, groups: &str) -> Option<String> {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    if let Some(mark) = marks.into_iter().find(|mark| files.exists(mark)) {
        return Some(mark.into());
    }
    if let Some(name) = std::env::var_os("container") {
        return Some(format!("container={}", name.to_string_lossy()));
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("Kubernetes".into());
    }
    ["docker", "kubepods", "containerd", "lxc", "libpod"]
        .into_iter()
        .find(|name| groups.contains(name))
        .map(|name| format!("control group of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            open_files: Some(1024),
            open_files_maximum: None,
            locked_memory_bytes: Some(64 << 10),
            processes: None,
            file_bytes: None,
        }
    }

    fn states(limits: &Limits, has_rdma: bool) -> Vec<State> {
        limits.judge(has_rdma).iter().map(|finding| finding.state).collect()
    }

    #[test]
    fn limits_are_judged_by_who_needs_them() {
        assert_eq!(states(&limits(), false), [State::Ok, State::Ok]);
        assert_eq!(states(&limits(), true), [State::Ok, State::Note]);
        let few = Limits { open_files: Some(16), open_files_maximum: Some(32), ..limits() };
        assert_eq!(states(&few, false)[0], State::Problem);
        let some = Limits { open_files: Some(256), ..limits() };
        assert_eq!(states(&some, false)[0], State::Note);
        assert_eq!(states(&Limits { processes: Some(10), file_bytes: Some(0), ..limits() }, false).len(), 4);
    }

    #[test]
    fn the_tightest_group_holds() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/cgroup.controllers", "memory pids\n");
        write("sys/fs/cgroup/a/memory.max", "1048576\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/pids.max", "100\n");
        let container = Container::look(&Files::under(dir.path()));
        assert_eq!(container.cgroup_version, Some(2));
        assert_eq!((container.memory_bytes, container.processes), (Some(1 << 20), Some(100)));
        let findings = container.judge();
        assert_eq!(findings[0].state, State::Note);
        assert!(findings[0].text.contains("limits: memory 1 MiB, processes 100"), "{}", findings[0].text);
    }

    #[test]
    fn the_first_version_has_a_tree_for_each_controller() {
        let groups = "5:cpu,cpuacct:/c\n4:memory:/m\n0::/\n";
        assert_eq!(group(groups, "memory"), Some("/m"));
        assert_eq!(group(groups, "cpuacct"), Some("/c"));
        assert_eq!(group(groups, "pids"), None);
        assert_eq!(group(groups, ""), Some("/"));
    }
}
