//! Processors, memory nodes and caches.

use serde::Serialize;

use super::files::{Files, parse_bytes};
use super::{Finding, State, bytes_in_words, list_in_words, parse_list};
use crate::sys::process;

/// The processors this process may use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cores {
    /// What they are called.
    pub model: Option<String>,
    /// Those that are switched on.
    pub online: Vec<usize>,
    /// Those that the affinity of this process allows.
    pub allowed: Vec<usize>,
    /// How many cores those are; hardware threads of one core are one.
    pub cores: usize,
    /// How many processors' worth of time the control group allows; none without a limit.
    pub quota: Option<f64>,
    /// How many threads can run at once.
    pub usable: usize,
    /// Instructions that the arithmetic uses where they are.
    pub features: Vec<&'static str>,
}

impl Cores {
    pub(super) fn look(files: &Files) -> Self {
        let allowed = process::affinity().unwrap_or_default();
        let mut cores: Vec<_> = allowed
            .iter()
            .map(|cpu| {
                let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
                let number = |name: &str| files.number::<usize>(format!("{topology}/{name}"));
                (number("physical_package_id").unwrap_or(0), number("core_id").unwrap_or(*cpu))
            })
            .collect();
        cores.sort_unstable();
        cores.dedup();
        let online = files.text("/sys/devices/system/cpu/online").map(|text| parse_list(&text));
        Self {
            model: files.field("/proc/cpuinfo", "model name"),
            online: online.unwrap_or_else(|| allowed.clone()),
            cores: cores.len(),
            quota: process::cgroup_processors(),
            usable: process::usable_processors(),
            allowed,
            features: features(),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let model = self.model.as_deref().unwrap_or("model unknown");
        let mut text = format!(
            "{} of {} processors ({}), {} cores, {model}",
            self.allowed.len(),
            self.online.len(),
            list_in_words(&self.allowed),
            self.cores
        );
        if !self.features.is_empty() {
            text.push_str(&format!(", {}", self.features.join(" ")));
        }
        findings.push(Finding::ok("processors", "processors", text));
        if self.allowed.len() < self.online.len() {
            findings.push(Finding::note(
                "processors",
                "affinity",
                format!("this process may use {} of {} processors", self.allowed.len(), self.online.len()),
                "ranks inherit this; taskset, a container or the scheduler set it",
            ));
        }
        if let Some(quota) = self.quota
            && quota < self.allowed.len() as f64
        {
            findings.push(Finding::note(
                "processors",
                "quota",
                format!("the control group allows {quota:.2} processors' worth of time"),
                "start no more ranks than that, or raise the limit of the container: beyond it all are halted together",
            ));
        }
        let advice = match self.usable {
            1 => "ranks take turns on one processor: fine for trying, slow for work",
            _ => "more ranks than that work, but take turns",
        };
        let state = if self.usable == 1 { State::Note } else { State::Ok };
        let text = format!("up to {} at full speed; {advice}", self.usable.min(self.cores.max(1)));
        findings.push(Finding::new("processors", "ranks", state, text));
        findings
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => { $(if std::is_x86_feature_detected!($name) { found.push($name); })* };
    }
    look!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512bf16", "avx512fp16");
    found
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => { $(if std::arch::is_aarch64_feature_detected!($name) { found.push($name); })* };
    }
    look!("neon", "fp16", "bf16", "sve", "sve2");
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub node: usize,
    /// The processors next to it.
    pub processors: Vec<usize>,
    /// Its memory.
    pub bytes: Option<u64>,
}

pub(super) fn nodes(files: &Files) -> Vec<Node> {
    let root = "/sys/devices/system/node";
    let mut nodes: Vec<_> = files
        .names(root)
        .iter()
        .filter_map(|name| {
            let node: usize = name.strip_prefix("node")?.parse().ok()?;
            let field = format!("Node {node} MemTotal");
            Some(Node {
                node,
                processors: parse_list(&files.text(format!("{root}/{name}/cpulist")).unwrap_or_default()),
                bytes: files.field(format!("{root}/{name}/meminfo"), &field).and_then(|text| parse_bytes(&text)),
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.node);
    nodes
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1 is nearest.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size.
    pub bytes: u64,
    /// The processors that share it.
    pub shared_by: Vec<usize>,
}

/// The caches that hold data of one processor, nearest first.
pub(super) fn caches(files: &Files, cpu: usize) -> Vec<Cache> {
    let root = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let mut caches: Vec<_> = files
        .names(&root)
        .iter()
        .filter_map(|name| {
            let at = |file: &str| format!("{root}/{name}/{file}");
            Some(Cache {
                level: files.number(at("level"))?,
                kind: files.text(at("type"))?,
                bytes: parse_bytes(&files.text(at("size"))?)?,
                shared_by: parse_list(&files.text(at("shared_cpu_list")).unwrap_or_default()),
            })
        })
        .filter(|cache| cache.kind != "Instruction")
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

pub(super) fn judge(nodes: &[Node], caches: &[Cache]) -> Vec<Finding> {
    let shown: Vec<_> = nodes
        .iter()
        .map(|node| {
            let memory = node.bytes.map(|bytes| format!(", {}", bytes_in_words(bytes))).unwrap_or_default();
            format!("node {}: processors {}{memory}", node.node, list_in_words(&node.processors))
        })
        .collect();
    let numa = match nodes.len() {
        0 => Finding::new("processors", "NUMA", State::Ok, "the kernel lists no memory nodes: one is assumed"),
        1 => Finding::ok("processors", "NUMA", shown.join("; ")),
        _ => Finding::note(
            "processors",
            "NUMA",
            shown.join("; "),
            "`phalanx run --bind-to core` keeps each rank beside its memory",
        ),
    };
    let shown: Vec<_> = caches
        .iter()
        .map(|cache| {
            let shared = match cache.shared_by.len() {
                0 | 1 => String::new(),
                sharers => format!(" shared by {sharers}"),
            };
            format!("L{} {}{shared}", cache.level, bytes_in_words(cache.bytes))
        })
        .collect();
    let text = if shown.is_empty() { "the kernel lists none".into() } else { shown.join(", ") };
    vec![numa, Finding::ok("processors", "caches", text)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores() -> Cores {
        Cores {
            model: Some("a processor".into()),
            online: vec![0, 1, 2, 3],
            allowed: vec![0, 1, 2, 3],
            cores: 2,
            quota: None,
            usable: 4,
            features: vec![],
        }
    }

    fn names(cores: &Cores, state: State) -> Vec<String> {
        cores.judge().into_iter().filter(|finding| finding.state == state).map(|finding| finding.name).collect()
    }

    #[test]
    fn what_holds_a_process_back_is_noted() {
        assert_eq!(names(&cores(), State::Note), [""; 0]);
        assert_eq!(names(&Cores { allowed: vec![0, 2], ..cores() }, State::Note), ["affinity"]);
        assert_eq!(names(&Cores { quota: Some(1.5), ..cores() }, State::Note), ["quota"]);
        assert_eq!(names(&Cores { quota: Some(8.0), ..cores() }, State::Note), [""; 0]);
        assert_eq!(names(&Cores { usable: 1, ..cores() }, State::Note), ["ranks"]);
    }

    #[test]
    fn nodes_and_caches_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/node0/cpulist", "0-1\n");
        write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB\n");
        write("sys/devices/system/node/node10/cpulist", "2-3\n");
        write("sys/devices/system/node/online", "0\n");
        write("sys/devices/system/cpu/cpu2/cache/index0/level", "1\n");
        write("sys/devices/system/cpu/cpu2/cache/index0/type", "Data\n");
        write("sys/devices/system/cpu/cpu2/cache/index0/size", "32K\n");
        write("sys/devices/system/cpu/cpu2/cache/index0/shared_cpu_list", "2,3\n");
        write("sys/devices/system/cpu/cpu2/cache/index1/level", "1\n");
        write("sys/devices/system/cpu/cpu2/cache/index1/type", "Instruction\n");
        write("sys/devices/system/cpu/cpu2/cache/index1/size", "32K\n");
        let files = Files::under(dir.path());
        let nodes = nodes(&files);
        assert_eq!(nodes[0], Node { node: 0, processors: vec![0, 1], bytes: Some(1 << 20) });
        assert_eq!(nodes[1], Node { node: 10, processors: vec![2, 3], bytes: None });
        let caches = caches(&files, 2);
        assert_eq!(caches, [Cache { level: 1, kind: "Data".into(), bytes: 32768, shared_by: vec![2, 3] }]);
        let findings = judge(&nodes, &caches);
        assert_eq!(findings[0].state, State::Note);
        assert_eq!(findings[1].text, "L1 32 KiB shared by 2");
    }
}
