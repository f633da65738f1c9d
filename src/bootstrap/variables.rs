//! Every environment variable of Phalanx, declared once.
//!
//! Help texts and the manual are generated from this table, and a test holds that no source file reads a `PHALANX_`
//! variable which is not in it. Variables of other launchers are in the table of `launchers.rs`.

use std::collections::BTreeMap;
use std::fmt;

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub what: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// A value that can be used.
    pub example: &'static str,
    /// Whether its value must never be printed.
    pub secret: bool,
}

macro_rules! declare {
    ($($(#[secret = $secret:literal])? $constant:ident = $name:literal, $what:literal, default $default:literal, example $example:literal;)*) => {
        $(
            #[doc = $what]
            pub const $constant: Variable = Variable {
                name: $name,
                what: $what,
                default: $default,
                example: $example,
                secret: false $(|| $secret)?,
            };
        )*

        /// All of them, in the order of the manual.
        pub const ALL: &[Variable] = &[$($constant,)*];
    };
}

declare! {
    RANK = "PHALANX_RANK", "This process's rank, 0 to size - 1. Goes with PHALANX_SIZE.",
        default "the launcher's, or 0 when nothing suggests a world", example "0";
    SIZE = "PHALANX_SIZE", "How many ranks there are. Goes with PHALANX_RANK.",
        default "the launcher's, or 1 when nothing suggests a world", example "4";
    LOCAL_RANK = "PHALANX_LOCAL_RANK", "This process's number among the ranks of its host. Goes with PHALANX_LOCAL_SIZE, except in an elastic job, where it is told to the program and not read.",
        default "the launcher's, or found when the ranks meet", example "0";
    LOCAL_SIZE = "PHALANX_LOCAL_SIZE", "How many ranks this host has. Equal to PHALANX_SIZE means that all share one host.",
        default "the launcher's, or found when the ranks meet", example "4";
    CROSS_RANK = "PHALANX_CROSS_RANK", "This process's number among the ranks with its local rank, one a host. Told to the program by phalanx run; not read.",
        default "found when the ranks meet", example "0";
    CROSS_SIZE = "PHALANX_CROSS_SIZE", "How many ranks have this process's local rank. Told to the program by phalanx run; not read.",
        default "found when the ranks meet", example "2";
    JOB = "PHALANX_JOB", "The job's name. Jobs of one user on one host that meet without an address need different names.",
        default "the launcher's identity of the job", example "train-17";
    RENDEZVOUS = "PHALANX_RENDEZVOUS",
        "Where the ranks meet: host:port, unix:@name, file:///path on a shared file system, local (one host), pmi or pmix.",
        default "found through the launcher where it can be", example "node1:29400";
    RENDEZVOUS_HOSTED = "PHALANX_RENDEZVOUS_HOSTED", "Who listens at PHALANX_RENDEZVOUS: rank0 or launcher.",
        default "rank0", example "launcher";
    REGISTRY = "PHALANX_REGISTRY", "Where the registry of an elastic job listens: host:port, or unix:@name. Stands in place of rank, size and rendezvous.",
        default "the job is not elastic", example "node1:29500";
    SLOT = "PHALANX_SLOT", "Which rank this process is to have in the first view of an elastic job; later, which number.",
        default "in the order in which they come", example "0";
    #[secret = true]
    KEY = "PHALANX_KEY", "The job's key: 64 hexadecimal digits, the same for all ranks. Needed to meet over a network.",
        default "made by rank 0 where the ranks meet within one host or through the launcher", example "(64 hexadecimal digits)";
    KEY_FILE = "PHALANX_KEY_FILE", "A file that holds the key as PHALANX_KEY would. Nobody but its owner may read it.",
        default "not set", example "/home/me/.phalanx-key";
    TIMEOUT = "PHALANX_TIMEOUT", "How long an operation may wait for other ranks: seconds, or a number with ms, s, m or h.",
        default "300", example "30";
    START_TIMEOUT = "PHALANX_START_TIMEOUT", "How long the ranks may take to meet: seconds, or a number with ms, s, m or h.",
        default "60", example "2m";
    TRANSPORT = "PHALANX_TRANSPORT", "Forces one transport for all peers: shm, tcp, or in builds with them rdma or mpi (docs/hardware.md). An error where it cannot be used.",
        default "shm within a host; between hosts rdma where it was built in and both have it, else tcp", example "tcp";
    RDMA_DEVICE = "PHALANX_RDMA_DEVICE", "The RDMA devices to use, one rail each, in the same order on every host: names with commas between, or all for every active one.",
        default "the one that has the address this rank listens on, or the first active one", example "mlx5_0,mlx5_1";
    RDMA_PORT = "PHALANX_RDMA_PORT", "The port of the RDMA devices.",
        default "the first active one", example "1";
    RDMA_GID_INDEX = "PHALANX_RDMA_GID_INDEX", "The place of the global identifier in the port's table (show_gids, or rdma's folder in /sys).",
        default "RoCE v2 of the address this rank listens on, or of another IPv4 address; none on InfiniBand", example "3";
    RDMA_TRAFFIC_CLASS = "PHALANX_RDMA_TRAFFIC_CLASS", "The traffic class of RDMA's packets, 0 to 255: on Ethernet, four times the DSCP.",
        default "0", example "106";
    RDMA_MTU = "PHALANX_RDMA_MTU", "The largest packet of RDMA in bytes: 256, 512, 1024, 2048 or 4096.",
        default "the smaller one of what the two ports carry", example "1024";
    SINGLE_COPY = "PHALANX_SINGLE_COPY", "Whether ranks of one host read each other's memory where it is (process_vm_readv), where the kernel allows it: 1 or 0.",
        default "1", example "0";
    ALGORITHM = "PHALANX_ALGORITHM", "Forces one algorithm where the collective has it.",
        default "chosen by size and ranks", example "ring";
    ALGORITHM_TABLE = "PHALANX_ALGORITHM_TABLE", "A file with rules for which algorithm is used where, the same for all ranks. PHALANX_ALGORITHM goes before it.",
        default "no rules", example "/home/me/algorithms.txt";
    CHOICE = "PHALANX_CHOICE", "What algorithms are chosen by: builtin, the figures built in; measured, those of the links here where that changes no bit of a result; free, those of the links here.",
        default "builtin", example "measured";
    TUNING = "PHALANX_TUNING", "1 tries the best predicted algorithms while the program runs and keeps the fastest, where that changes no bit of a result or PHALANX_CHOICE is free.",
        default "0", example "1";
    FIGURES = "PHALANX_FIGURES", "Whether measured figures are kept in a file for later runs: on, renew (measured anew and kept) or off.",
        default "on", example "renew";
    DETERMINISTIC = "PHALANX_DETERMINISTIC", "Reduces in the order of the ranks whatever the algorithm: 1 or 0.",
        default "0", example "1";
    INTERFACE = "PHALANX_INTERFACE", "The network interface to use, by name or by address.",
        default "the one that routes to the rendezvous", example "eth0";
    PORTS = "PHALANX_PORTS", "The ports to listen on: one, or first-last.",
        default "any free port", example "20000-20100";
    SOCKETS = "PHALANX_SOCKETS", "How many TCP connections are made to each peer, 1 to 64.",
        default "chosen by the transport", example "2";
    LIBRARIES = "PHALANX_LIBRARIES", "Folders, parted by colons, that are looked in first for the libraries of NVIDIA: libcuda, libnvrtc, libnccl.",
        default "where the system looks", example "/opt/nvidia/lib";
    KERNELS = "PHALANX_KERNELS", "A file with compiled kernels for GPUs, a fatbin of kernels/build.py, to take in place of compiling them at first use.",
        default "compiled by NVRTC at first use, and kept under the user's cache folder", example "/opt/phalanx/phalanx.fatbin";
    DEVICE_COLLECTIVES = "PHALANX_DEVICE_COLLECTIVES", "What carries collectives on device memory: auto, NCCL where all ranks have it and its results are those of host memory, memory of peers for others within a host, and host memory; nccl, NCCL for all that it knows, or an error; peer, memory of peers within a host, or an error; staged, host memory and the transports. The same on all ranks.",
        default "auto", example "staged";
    LOG = "PHALANX_LOG", "What is logged to standard error: error, warn, info, debug, trace, or filters such as phalanx::bootstrap=debug. By the program phalanx, Python and C; Rust programs have subscribers of their own.",
        default "warn", example "info";
}

/// Every variable of Phalanx, in the order of the manual.
pub fn variables() -> &'static [Variable] {
    ALL
}

/// The table as Markdown, for the manual.
pub fn variables_as_markdown() -> String {
    let mut out = String::from("| variable | what it says | when not set | example |\n|---|---|---|---|\n");
    for Variable { name, what, default, example, .. } in ALL {
        out.push_str(&format!("| `{name}` | {what} | {default} | `{example}` |\n"));
    }
    out
}

/// The table as plain text, for `--help`.
pub fn variables_as_help() -> String {
    let width = ALL.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for Variable { name, what, default, .. } in ALL {
        out.push_str(&format!("  {name:width$}  {what} [default: {default}]\n"));
    }
    out
}

/// The variables among `set` that look like Phalanx's and are not: misspelt, perhaps, or of another version.
pub fn unknown_variables(set: &Variables) -> Vec<&str> {
    let is_ours = |name: &&str| name.starts_with("PHALANX_") && !name.starts_with("PHALANX_TEST_");
    set.names().filter(is_ours).filter(|&name| ALL.iter().all(|variable| variable.name != name)).collect()
}

/// What to say of each of the [`unknown_variables`].
pub fn unknown_in_words(set: &Variables) -> impl Iterator<Item = String> {
    unknown_variables(set).into_iter().map(|name| {
        format!("{name} is set, but there is no such variable; phalanx doctor --variables lists those there are")
    })
}

/// Environment variables as a value, so that reading them is a pure function.
///
/// An empty value counts as not set. Values of secret variables are not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Those of this process. Values that are not UTF-8 get replacement characters, and so fail to parse where they
    /// matter.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect()
    }

    /// The value, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The names that are set and not empty.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, value)| !value.trim().is_empty()).map(|(name, _)| name.as_str())
    }

    /// `NAME=value`, the value left out if it is secret; `NAME (not set)` otherwise.
    pub fn show(&self, name: &str) -> String {
        match self.get(name) {
            None => format!("{name} (not set)"),
            Some(_) if is_secret(name) => format!("{name}=(hidden)"),
            Some(value) => format!("{name}={value}"),
        }
    }
}

fn is_secret(name: &str) -> bool {
    ALL.iter().any(|variable| variable.secret && variable.name == name)
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().map(|name| self.show(name))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    rust_files(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// The names in string literals of `text` that start with the prefix.
    fn names_in(text: &str) -> BTreeSet<String> {
        const PREFIX: &str = "PHALANX_";
        let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        text.match_indices(PREFIX)
            .map(|(at, _)| text[at..].chars().take_while(|&c| is_part(c)).collect::<String>())
            .map(|name| name.trim_end_matches('_').to_string())
            .filter(|name| name.len() > PREFIX.len())
            .collect()
    }

    #[test]
    fn what_is_misspelt_is_found() {
        let set = [("TIMOUT", "3"), ("TIMEOUT", "3"), ("TEST_SEED", "1"), ("EMPTY", "")];
        let set = set.map(|(name, value)| (format!("PHALANX_{name}"), value)).into_iter().collect();
        assert_eq!(unknown_variables(&set), [["PHALANX", "TIMOUT"].join("_")]);
    }

    #[test]
    fn every_variable_in_the_sources_is_in_the_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        for folder in ["src", "ffi", "examples", "benches"] {
            rust_files(&root.join(folder), &mut files);
        }
        assert!(files.len() > 5);
        let declared: BTreeSet<String> = ALL.iter().map(|variable| variable.name.to_string()).collect();
        let is_test = |file: &PathBuf| file.to_string_lossy().ends_with("tests.rs");
        for file in files.into_iter().filter(|file| !is_test(file)) {
            // Names made up in tests stand below the line that opens the tests.
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or("");
            let mut unknown: Vec<_> = names_in(code).difference(&declared).cloned().collect();
            // What a test tells a process of its own.
            unknown.retain(|name| !name.starts_with("PHALANX_TEST"));
            assert!(
                unknown.is_empty(),
                "{} reads {unknown:?}: declare it in src/bootstrap/variables.rs",
                file.display()
            );
        }
    }

    #[test]
    fn the_scan_of_the_sources_is_not_blind() {
        assert_eq!(names_in(r#"get("PHALANX_RANK"), "PHALANX_*", PHALANX_X1_Y"#).len(), 2);
    }

    #[test]
    fn names_are_unique_and_texts_are_there() {
        let names: BTreeSet<_> = ALL.iter().map(|variable| variable.name).collect();
        assert_eq!(names.len(), ALL.len());
        for variable in ALL {
            assert!(variable.what.ends_with('.') && !variable.default.is_empty() && !variable.example.is_empty());
            assert!(!variable.what.contains('|'), "a bar would break the Markdown table");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let variables: Variables = [("PHALANX_KEY", "abc123"), ("PHALANX_RANK", "1")].into_iter().collect();
        let shown = format!("{variables:?} {}", variables.show("PHALANX_KEY"));
        assert!(!shown.contains("abc123") && shown.contains("PHALANX_RANK=1"), "{shown}");
    }

    #[test]
    fn the_manual_has_the_table() {
        let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/launchers.md");
        let text = std::fs::read_to_string(manual).unwrap();
        assert!(text.contains(&variables_as_markdown()), "docs/launchers.md needs:\n{}", variables_as_markdown());
    }
}
