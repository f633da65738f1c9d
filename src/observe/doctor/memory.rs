//! Memory, and memory that processes share.

use serde::Serialize;

use super::files::{Files, parse_bytes};
use super::{Finding, State, bytes_in_words};
use crate::sys::{Mapping, Segment, page_bytes};

/// Memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: Option<u64>,
    /// What can be had without swapping.
    pub available_bytes: Option<u64>,
    /// The size of a page.
    pub page_bytes: usize,
    /// When the kernel gives large pages by itself: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// Large pages set aside.
    pub huge_pages: Vec<HugePages>,
}

/// Large pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// Their size.
    pub page_bytes: u64,
    /// How many are set aside.
    pub total: u64,
    /// How many of them are free.
    pub free: u64,
}

impl Memory {
    pub(super) fn look(files: &Files) -> Self {
        let field = |name| files.field("/proc/meminfo", name).and_then(|text| parse_bytes(&text));
        let root = "/sys/kernel/mm/hugepages";
        let huge_pages = files.names(root).into_iter().filter_map(|name| {
            let number = |file: &str| files.number::<u64>(format!("{root}/{name}/{file}"));
            Some(HugePages {
                page_bytes: parse_bytes(name.strip_prefix("hugepages-")?)?,
                total: number("nr_hugepages")?,
                free: number("free_hugepages").unwrap_or_default(),
            })
        });
        // The chosen word stands in brackets.
        let transparent = files.text("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| {
            let (_, rest) = text.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        });
        Self {
            total_bytes: field("MemTotal"),
            available_bytes: field("MemAvailable"),
            page_bytes: page_bytes(),
            transparent_huge_pages: transparent,
            huge_pages: huge_pages.collect(),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let size = |bytes: Option<u64>| bytes.map_or("unknown".into(), bytes_in_words);
        let text = format!("{}, {} available", size(self.total_bytes), size(self.available_bytes));
        let memory = match self.available_bytes {
            Some(bytes) if bytes < 256 << 20 => {
                Finding::note("memory", "memory", text, "end what is not needed: little is left for buffers")
            }
            _ => Finding::ok("memory", "memory", text),
        };
        let reserved: Vec<_> = self
            .huge_pages
            .iter()
            .filter(|pages| pages.total > 0)
            .map(|pages| format!("{} of {} ({} free)", pages.total, bytes_in_words(pages.page_bytes), pages.free))
            .collect();
        let transparent = self.transparent_huge_pages.as_deref().unwrap_or("not there");
        let reserved = if reserved.is_empty() { "none set aside".into() } else { reserved.join(", ") };
        vec![memory, Finding::ok("memory", "huge pages", format!("transparent: {transparent}; {reserved}"))]
    }
}

/// Memory that processes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedMemory {
    /// Whether nameless shared memory works here; tried.
    pub works: bool,
    /// Why not.
    pub error: Option<String>,
    /// The size of `/dev/shm`, which Phalanx does not use.
    pub dev_shm_bytes: Option<u64>,
    /// What is free of it.
    pub dev_shm_free_bytes: Option<u64>,
}

impl SharedMemory {
    pub(super) fn look() -> Self {
        let tried = Segment::create("phalanx-doctor", page_bytes())
            .and_then(|segment| Mapping::new(&segment, 0, page_bytes()).map(drop));
        let shm = rustix::fs::statvfs("/dev/shm").ok();
        let size = |blocks: fn(&rustix::fs::StatVfs) -> u64| shm.as_ref().map(|stat| blocks(stat) * stat.f_frsize);
        Self {
            works: tried.is_ok(),
            error: tried.err().map(|error| error.to_string()),
            dev_shm_bytes: size(|stat| stat.f_blocks),
            dev_shm_free_bytes: size(|stat| stat.f_bavail),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        let segments = match &self.error {
            None => Finding::ok("memory", "shared memory", "nameless segments (memfd) work; tried"),
            Some(error) => Finding::note(
                "memory",
                "shared memory",
                format!("nameless segments (memfd) do not work: {error}"),
                "ranks of one host will use TCP, which is slower; let the sandbox allow memfd_create",
            ),
        };
        let shm = match (self.dev_shm_bytes, self.dev_shm_free_bytes) {
            (Some(bytes), Some(free)) => {
                let text = format!("{}, {} free", bytes_in_words(bytes), bytes_in_words(free));
                if bytes <= 64 << 20 {
                    let advice = "Phalanx does not need it, but data loaders of PyTorch do: docker run --shm-size=1g";
                    Finding::note("memory", "/dev/shm", text, advice)
                } else {
                    Finding::ok("memory", "/dev/shm", format!("{text}; not needed by Phalanx"))
                }
            }
            _ => Finding::new("memory", "/dev/shm", State::Ok, "not there; not needed by Phalanx"),
        };
        vec![segments, shm]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1\n");
        let memory = Memory::look(&Files::under(dir.path()));
        assert_eq!((memory.total_bytes, memory.available_bytes), (Some(2 << 20), Some(1 << 20)));
        assert_eq!(memory.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(memory.huge_pages, [HugePages { page_bytes: 2 << 20, total: 3, free: 1 }]);
        let findings = memory.judge();
        assert_eq!(findings[0].state, State::Note);
        assert_eq!(findings[1].text, "transparent: madvise; 3 of 2 MiB (1 free)");
    }

    #[test]
    fn what_containers_take_away_is_noted() {
        let good =
            SharedMemory { works: true, error: None, dev_shm_bytes: Some(1 << 30), dev_shm_free_bytes: Some(1 << 30) };
        let states = |memory: &SharedMemory| memory.judge().iter().map(|finding| finding.state).collect::<Vec<_>>();
        assert_eq!(states(&good), [State::Ok, State::Ok]);
        assert_eq!(states(&SharedMemory { dev_shm_bytes: Some(64 << 20), ..good.clone() }), [State::Ok, State::Note]);
        let denied = SharedMemory { works: false, error: Some("denied".into()), ..good };
        assert_eq!(states(&denied), [State::Note, State::Ok]);
    }
}
