//! Meeting within one host without being told where: an abstract Unix socket whose name follows from the user and the
//! job.
//!
//! Such a name has no file, ends with the process that listens, and is seen only within the network namespace. Another
//! user can take the name first, but cannot pass for this one: both ends ask the kernel who the other is.

use std::os::fd::BorrowedFd;

use sha2::{Digest, Sha256};

use super::environment::Launch;
use crate::sys::unix::peer_credentials;

/// The name of the job's socket, without the `@`.
pub(super) fn socket_name(launch: &Launch) -> String {
    name(rustix::process::geteuid().as_raw(), &job(launch), launch.size)
}

fn name(user: u32, job: &str, size: usize) -> String {
    let mut hash = Sha256::new();
    hash.update(job.as_bytes());
    hash.update(size.to_le_bytes());
    let hex: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("phalanx-{user}-{hex}")
}

/// What tells this job from others: what the launcher says, or else which process the launcher is.
fn job(launch: &Launch) -> String {
    if let Some(job) = &launch.job {
        return format!("{}: {job}", launch.launcher);
    }
    let process =
        launch.pmi_fd.and_then(creator).or_else(|| u32::try_from(rustix::process::getppid()?.as_raw_pid()).ok());
    match process {
        Some(process) => format!("{}: process {process} started at {:?}", launch.launcher, start_time(process)),
        None => launch.launcher.to_string(),
    }
}

/// The process that made the socket pair of a launcher's service. It is the same for all ranks of a host, however many
/// shells stand between it and them.
fn creator(fd: i32) -> Option<u32> {
    if !is_open(fd) {
        return None;
    }
    // SAFETY: the descriptor is open, and nothing in this library closes it. It is only asked about.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    peer_credentials(fd).ok()?.process
}

/// Whether the number is that of an open descriptor.
pub(super) fn is_open(fd: i32) -> bool {
    // SAFETY: the call takes any number, and changes nothing.
    fd >= 0 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
}

/// When a process started, in the kernel's ticks since boot: numbers of processes are used again, pairs are not.
fn start_time(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Launcher;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn names_differ_by_user_job_and_size() {
        let names = [name(0, "a", 2), name(1, "a", 2), name(0, "b", 2), name(0, "a", 3)];
        for (at, one) in names.iter().enumerate() {
            assert!(one.len() <= 107 && names[at + 1..].iter().all(|other| other != one), "{names:?}");
        }
        assert_eq!(name(0, "a", 2), names[0]);
    }

    #[test]
    fn the_maker_of_the_service_is_the_job() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let launch = Launch { launcher: Launcher::Pmi, size: 2, pmi_fd: Some(ours.as_raw_fd()), ..Launch::default() };
        assert_eq!(
            job(&launch),
            format!("PMI: process {} started at {:?}", std::process::id(), start_time(std::process::id()))
        );
        assert!(start_time(std::process::id()).is_some());
    }

    #[test]
    fn without_a_service_the_parent_is_the_job() {
        let launch = Launch { launcher: Launcher::Pmi, size: 2, pmi_fd: Some(i32::MAX), ..Launch::default() };
        let parent = std::os::unix::process::parent_id();
        assert!(job(&launch).starts_with(&format!("PMI: process {parent} ")), "{}", job(&launch));
    }
}
