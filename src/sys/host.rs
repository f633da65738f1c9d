//! Which members share a host.

use std::io;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// What makes two members neighbours for shared memory: the same running kernel, one network namespace (abstract Unix
/// sockets are reachable within one and not beyond), and one user (who may hold the other's memory anyway).
///
/// Containers of one machine with their own networks are thus different hosts, which is right: neither can reach the
/// other's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Drawn by the kernel at boot.
    pub boot: u128,
    /// The network namespace's inode and device.
    pub network: (u64, u64),
    /// The effective user.
    pub user: u32,
}

impl HostIdentity {
    /// That of this process.
    pub fn current() -> io::Result<Self> {
        // The thread's own namespace: a thread may have entered another one than the process began in.
        Self::in_namespace("/proc/thread-self/ns/net")
    }

    /// That of another process of this user, while it lives.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::in_namespace(&format!("/proc/{pid}/ns/net"))
    }

    fn in_namespace(path: &str) -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot =
            u128::from_str_radix(&digits, 16).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "boot id"))?;
        let namespace = std::fs::metadata(path)?;
        let user = rustix::process::geteuid().as_raw();
        Ok(Self { boot, network: (namespace.ino(), namespace.dev()), user })
    }
}

/// Names the machine that this process runs on, whatever its network namespace: containers of one machine have the same
/// name. A name of its own where the kernel does not tell.
pub fn machine() -> u64 {
    HostIdentity::current()
        .map_or_else(|_| u64::from(std::process::id()), |host| (host.boot ^ (host.boot >> 64)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_host() {
        assert_eq!(HostIdentity::current().unwrap(), HostIdentity::current().unwrap());
        assert_ne!(HostIdentity::current().unwrap().boot, 0);
        assert_eq!(HostIdentity::of_process(std::process::id()).unwrap(), HostIdentity::current().unwrap());
    }
}
