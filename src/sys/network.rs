//! The network interfaces of this machine.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name, such as `eth0`.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Whether the interface is up and running.
    pub up: bool,
    /// Whether it is the loopback.
    pub loopback: bool,
}

impl InterfaceAddress {
    /// Whether only members of one link can use the address, and not without saying which link (`fe80::`).
    pub fn is_link_local(&self) -> bool {
        match self.address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }
}

/// All addresses of all interfaces, in the kernel's order.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the argument points to a local pointer, which the call overwrites with a list that `freeifaddrs` frees.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: `next` is null or an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an entry's address is null or points to a socket address of its family.
        let Some(address) = (unsafe { ip_address(entry.ifa_addr) }) else {
            continue;
        };
        // SAFETY: an entry's name is a string that ends with zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let has = |flag: libc::c_int| entry.ifa_flags & flag as libc::c_uint != 0;
        found.push(InterfaceAddress {
            interface: name.to_string_lossy().into_owned(),
            address,
            up: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
            loopback: has(libc::IFF_LOOPBACK),
        });
    }
    // SAFETY: the list came from `getifaddrs` and no reference into it is left.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// The IP address in a socket address, if it has one.
///
/// # Safety
///
/// `address` is null or points to a whole socket address of the family it names.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null or valid by the caller's promise.
    let family = unsafe { address.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is an IPv4 socket address.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is an IPv6 socket address.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_there() {
        let found = interface_addresses().unwrap();
        let loopback = found.iter().find(|entry| entry.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(loopback.loopback && loopback.up && !loopback.is_link_local());
        assert_eq!(loopback.interface, "lo");
    }
}
