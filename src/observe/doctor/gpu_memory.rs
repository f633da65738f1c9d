//! Whether RDMA adapters could reach the memory of GPUs, and by which way; or why it would be staged.

use serde::Serialize;

use super::files::Files;

/// How adapters could reach the memory of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// Whether there is an NVIDIA GPU.
    pub has_gpu: bool,
    /// The kernel module that gives the adapter's driver such memory, if one is loaded.
    pub peer_module: Option<&'static str>,
    /// What is missing for registering such memory as a dma-buf; nothing if it could be.
    pub dma_buf_lacks: Vec<String>,
}

/// The modules: NVIDIA's own, and the one from before.
const PEER_MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// The first kernel whose RDMA registers a dma-buf.
const FIRST_KERNEL: (u32, u32) = (5, 12);

impl GpuMemory {
    /// `verbs_can` tells whether libibverbs has the call for it.
    pub(super) fn look(files: &Files, verbs_can: bool) -> Self {
        let mut lacks = Vec::new();
        let release = files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
        if version(&release).is_none_or(|version| version < FIRST_KERNEL) {
            let (major, minor) = FIRST_KERNEL;
            let release = if release.is_empty() { "unknown" } else { &release };
            lacks.push(format!("Linux {major}.{minor} (this one is {release})"));
        }
        if !verbs_can {
            lacks.push("ibv_reg_dmabuf_mr in libibverbs (rdma-core 34)".to_owned());
        }
        // The closed modules export no dma-buf.
        if !files.text("/proc/driver/nvidia/version").is_some_and(|text| text.contains("Open Kernel Module")) {
            lacks.push("NVIDIA's open kernel modules".to_owned());
        }
        Self {
            has_gpu: !files.names("/proc/driver/nvidia/gpus").is_empty(),
            peer_module: PEER_MODULES.into_iter().find(|name| files.exists(format!("/sys/module/{name}"))),
            dma_buf_lacks: lacks,
        }
    }

    pub(super) fn in_words(&self) -> String {
        const STAGED: &str = "this version stages it through pinned host memory";
        let lacks = self.dma_buf_lacks.join(", ");
        match (self.has_gpu, self.peer_module, self.dma_buf_lacks.is_empty()) {
            (false, ..) => "there is no NVIDIA GPU here".to_owned(),
            (true, _, true) => format!("adapters could register it as dma-buf; {STAGED}"),
            (true, Some(module), false) => {
                format!("adapters could register it through {module} (for dma-buf it lacks {lacks}); {STAGED}")
            }
            (true, None, false) => format!(
                "staged through pinned host memory: adapters cannot register it, since for dma-buf it lacks {lacks}, and \
                 {} is not loaded",
                PEER_MODULES[0]
            ),
        }
    }
}

/// The first two numbers of a release such as `6.1.0-48-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(files: &[(&str, &str)], verbs_can: bool) -> GpuMemory {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        GpuMemory::look(&Files::under(dir.path()), verbs_can)
    }

    const GPU: (&str, &str) = ("proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    const OPEN: (&str, &str) =
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86\n");
    const CLOSED: (&str, &str) =
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.86\n");
    const NEW: (&str, &str) = ("proc/sys/kernel/osrelease", "5.12.0-1-amd64\n");
    const OLD: (&str, &str) = ("proc/sys/kernel/osrelease", "5.4.0\n");
    const PEERMEM: (&str, &str) = ("sys/module/nvidia_peermem/version", "1\n");

    #[test]
    fn a_machine_without_a_gpu_has_none_to_reach() {
        assert!(seen(&[NEW, OPEN], true).in_words().contains("no NVIDIA GPU"));
    }

    #[test]
    fn dma_buf_needs_kernel_library_and_open_modules() {
        let whole = seen(&[GPU, NEW, OPEN], true);
        assert!(whole.dma_buf_lacks.is_empty() && whole.in_words().contains("could register it as dma-buf"));
        for (files, verbs_can, lack) in [
            ([GPU, OLD, OPEN], true, "Linux 5.12 (this one is 5.4.0)"),
            ([GPU, NEW, OPEN], false, "ibv_reg_dmabuf_mr"),
            ([GPU, NEW, CLOSED], true, "open kernel modules"),
        ] {
            let seen = seen(&files, verbs_can);
            assert_eq!(seen.dma_buf_lacks.len(), 1, "{seen:?}");
            let words = seen.in_words();
            assert!(words.starts_with("staged") && words.contains(lack) && words.contains("nvidia_peermem"), "{words}");
        }
    }

    #[test]
    fn a_peer_module_is_the_other_way() {
        let words = seen(&[GPU, OLD, CLOSED, PEERMEM], true).in_words();
        assert!(words.contains("through nvidia_peermem") && words.contains("5.4.0"), "{words}");
    }

    #[test]
    fn releases_are_read_up_to_their_second_number() {
        assert_eq!(version("6.1.0-48-amd64"), Some((6, 1)));
        assert_eq!(version("5.12"), Some((5, 12)));
        assert_eq!(version("unknown"), None);
    }
}
