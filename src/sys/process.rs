//! Processes and processors: who is alive, how many processors are ours, what the limits are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Resource};

/// A process held by its descriptor: unlike a process id, it never comes to mean another process.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Takes hold of a running process.
    pub fn open(process: u32) -> io::Result<Self> {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let pid =
            pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("no process id: {process}")))?;
        Ok(Self(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Whether the process has ended. Costs one system call.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The processors that this thread may run on, in ascending order.
pub fn affinity() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Restricts this thread, and the threads it will start, to the given processors.
pub fn set_affinity(processors: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &processor in processors {
        if processor >= rustix::thread::CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no such processor: {processor}")));
        }
        set.set(processor);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Copies from the memory of another process, each range to the one of the same place and length. Returns how many bytes
/// that were: fewer than asked for when a page is not there.
///
/// # Safety
///
/// Every target can be written, and nobody else looks at it.
pub unsafe fn read_memory<const N: usize>(
    process: i32,
    from: [(u64, usize); N],
    to: [(*mut u8, usize); N],
) -> io::Result<usize> {
    let from = from.map(|(start, bytes)| libc::iovec { iov_base: start as *mut _, iov_len: bytes });
    let to = to.map(|(start, bytes)| libc::iovec { iov_base: start.cast(), iov_len: bytes });
    let count = N as libc::c_ulong;
    // SAFETY: the lists have `N` entries; the kernel writes to the targets only, as the caller allows, and checks what it
    // reads.
    let read = unsafe { libc::process_vm_readv(process, to.as_ptr(), count, from.as_ptr(), count, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Where the kernel's Yama policy lets a process's memory be read only by those that started it (`ptrace_scope` 1), lets
/// this one's be read by all that its parent has started, too: the other ranks that a launcher runs.
pub fn allow_reading_by_siblings() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        // SAFETY: this call takes a number and touches no memory.
        let allowed = unsafe { libc::prctl(libc::PR_SET_PTRACER, parent as libc::c_ulong, 0, 0, 0) };
        tracing::debug!(parent, allowed = allowed == 0, "memory may be read by the parent's other processes");
    }
}

/// How many processors' worth of time the control group of this process is allowed; `None` without a limit.
///
/// A container's `--cpus=2` shows here and not in the affinity. The tightest limit on the way to the root holds.
pub fn cgroup_processors() -> Option<f64> {
    let memberships = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_limit(Path::new("/sys/fs/cgroup"), &memberships)
}

/// The limit under `root` (the mounted hierarchy) for the membership lines of `/proc/self/cgroup`.
fn cgroup_limit(root: &Path, memberships: &str) -> Option<f64> {
    let path = memberships.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut directory: PathBuf = root.join(path.trim_start_matches('/'));
    let mut tightest: Option<f64> = None;
    while directory.starts_with(root) {
        if let Some(limit) = std::fs::read_to_string(directory.join("cpu.max")).ok().and_then(|text| parse_quota(&text))
        {
            tightest = Some(tightest.map_or(limit, |other| other.min(limit)));
        }
        if !directory.pop() {
            break;
        }
    }
    tightest
}

/// `cpu.max` is "quota period" in microseconds, or "max period".
fn parse_quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// How many threads of this process can run at once: the affinity, or the control group's limit (rounded up) when
/// that is less. At least 1.
pub fn usable_processors() -> usize {
    let allowed = affinity().map_or(1, |processors| processors.len());
    let limit = cgroup_processors().map_or(usize::MAX, |limit| limit.ceil() as usize);
    allowed.min(limit).max(1)
}

/// How many processors this host has for all its processes, or this process's control group allows when that is less.
pub fn host_processors() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|text| count_list(&text));
    let limit = cgroup_processors().map_or(usize::MAX, |limit| limit.ceil() as usize);
    online.unwrap_or_else(usable_processors).min(limit).max(1)
}

/// How many numbers a list such as `0-3,6` has.
fn count_list(text: &str) -> Option<usize> {
    let mut count = 0usize;
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// A limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What holds now; `None` without a limit.
    pub current: Option<u64>,
    /// How far the process itself may raise it; `None` without a limit.
    pub maximum: Option<u64>,
}

fn limit(resource: Resource) -> Limit {
    let found = rustix::process::getrlimit(resource);
    Limit { current: found.current, maximum: found.maximum }
}

/// How many descriptors this process may have open.
pub fn descriptor_limit() -> Limit {
    limit(Resource::Nofile)
}

/// How many bytes this process may lock in memory.
pub fn locked_memory_limit() -> Limit {
    limit(Resource::Memlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_tells_the_end() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let held = PidFd::open(child.id()).unwrap();
        assert!(!held.has_ended());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(held.has_ended());
        assert!(PidFd::open(0).is_err());
        assert!(PidFd::open(u32::MAX).is_err());
    }

    #[test]
    fn processors_are_counted() {
        assert!(!affinity().unwrap().is_empty());
        assert!(usable_processors() >= 1);
        assert!(set_affinity(&[usize::MAX]).is_err());
    }

    #[test]
    fn quotas_are_understood() {
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota("150000 100000\n"), Some(1.5));
        assert_eq!(parse_quota("100000 0"), None);
        assert_eq!(parse_quota(""), None);
    }

    #[test]
    fn the_tightest_group_holds() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pod/container");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(root.path().join("pod/cpu.max"), "200000 100000\n").unwrap();
        std::fs::write(inner.join("cpu.max"), "max 100000\n").unwrap();
        assert_eq!(cgroup_limit(root.path(), "12:pids:/x\n0::/pod/container\n"), Some(2.0));
        assert_eq!(cgroup_limit(root.path(), "0::/elsewhere\n"), None);
        assert_eq!(cgroup_limit(root.path(), ""), None);
    }

    #[test]
    fn limits_are_ordered() {
        let limit = descriptor_limit();
        assert!(limit.current.unwrap_or(u64::MAX) <= limit.maximum.unwrap_or(u64::MAX));
    }
}
