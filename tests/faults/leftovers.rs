//! Looks for what a job left behind: processes, shared memory, sockets, files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::job::unique;

/// In whose environment a process stands that belongs to a job.
const MARK: &str = "PHALANX_TEST_MARK";

/// How long a process may take to be gone after its end was heard, and its sockets with it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A job's own folders, and the mark that its processes carry.
pub struct Place {
    folder: tempfile::TempDir,
    mark: String,
    before: BTreeSet<PathBuf>,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("tmp")).expect("a folder");
        std::fs::create_dir(folder.path().join("run")).expect("a folder");
        let mark = format!("{}-{}", std::process::id(), unique());
        Self { folder, mark, before: shared() }
    }

    /// Where the processes run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the processes are told, so that they can be found.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |name| self.folder.path().join(name).to_str().expect("a name").to_owned();
        vec![(MARK, self.mark.clone()), ("TMPDIR", path("tmp")), ("XDG_RUNTIME_DIR", path("run"))]
    }

    /// The path of a fifo, which is made when it is first asked for.
    pub fn fifo(&self) -> String {
        let path = self.folder.path().join("fifo");
        let kind = rustix::fs::FileType::Fifo;
        let _ = rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0);
        path.to_str().expect("a name").to_owned()
    }

    /// The processes of this job that are there, zombies aside.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}\0", self.mark).into_bytes();
        let entries = std::fs::read_dir("/proc").expect("a list").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let carries = |pid: &u32| {
            // One that has ended meanwhile is not there.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|part| part == mark)
        };
        numbers.filter(|pid| *pid != std::process::id()).filter(carries).collect()
    }

    /// The descriptors of the job's processes that are shared memory without a name.
    pub fn memories(&self) -> usize {
        let links = |pid: &u32| {
            let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            names.filter(|name| name.to_string_lossy().contains("memfd:")).count()
        };
        self.processes().iter().map(links).sum()
    }

    /// What is left when all should be gone, in words; waits a moment for the kernel to tidy up.
    pub fn leftovers(&self) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = self.look();
            if left.is_empty() || Instant::now() >= until {
                return left;
            }
            std::thread::yield_now();
        }
    }

    fn look(&self) -> Vec<String> {
        let mut left = Vec::new();
        for pid in self.processes() {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            left.push(format!("process {pid}: {}", String::from_utf8_lossy(&command).replace('\0', " ")));
        }
        let of_job = |line: &&str| line.contains(self.folder.path().to_str().expect("a name"));
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("a list of sockets");
        left.extend(sockets.lines().filter(of_job).map(|line| format!("socket {line}")));
        left.extend(shared().difference(&self.before).map(|path| format!("segment {}", path.display())));
        for folder in [self.folder.path().to_path_buf(), self.folder.path().join("tmp"), self.folder.path().join("run")]
        {
            for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                let name = entry.file_name();
                if name != "tmp" && name != "run" && name != "fifo" {
                    left.push(format!("file {}", entry.path().display()));
                }
            }
        }
        left
    }
}

/// The names in /dev/shm that could be ours.
fn shared() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains("phalanx")).collect()
}

/// The names of the abstract sockets of a process, as long as they stand.
pub fn abstract_sockets(of: u32) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("a list of sockets");
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    names.filter(|name| name.starts_with("@phalanx") && name.contains(&of.to_string())).map(str::to_owned).collect()
}

#[test]
fn what_is_left_is_found() {
    let place = Place::new();
    assert_eq!(place.leftovers(), Vec::<String>::new());
    std::fs::write(place.folder().join("tmp").join("x"), "").expect("room");
    let mut child = crate::job::command("cat", &place).stdin(std::process::Stdio::piped()).spawn().expect("a process");
    // A process has its environment a moment after it was started.
    let until = Instant::now() + PATIENCE;
    while place.processes().is_empty() && Instant::now() < until {
        std::thread::yield_now();
    }
    let left = place.look();
    assert!(left.len() == 2 && left[0].starts_with("process") && left[1].starts_with("file"), "{left:?}");
    drop(child.stdin.take());
    child.wait().expect("a child");
    std::fs::remove_file(place.folder().join("tmp").join("x")).expect("a file");
    assert_eq!(place.leftovers(), Vec::<String>::new());
}
