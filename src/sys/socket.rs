//! Calls on stream sockets that the standard library lacks. None of them blocks, and none raises SIGPIPE.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

fn checked(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends `head` and then `body` in one call; returns how many bytes were taken.
pub fn send_two(fd: impl AsFd, head: &[u8], body: &[u8]) -> io::Result<usize> {
    let parts = [io::IoSlice::new(head), io::IoSlice::new(body)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(fd, &parts, &mut Default::default(), flags)?)
}

/// Receives into `target` and, when that is full, into `spare`, in one call. Returns how many bytes; 0 at the end of
/// the stream.
///
/// # Safety
///
/// `target .. target + bytes` must be writable, and read or written by nobody else during the call.
pub unsafe fn recv_two(fd: impl AsFd, target: *mut u8, bytes: usize, spare: &mut [u8]) -> io::Result<usize> {
    let mut parts = [
        libc::iovec { iov_base: target.cast(), iov_len: bytes },
        libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() },
    ];
    // SAFETY: all zeros is a valid message header: no address, no parts, no control data.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the header points to two live parts; the first is writable by the caller's promise, the second is a
    // mutable slice.
    checked(unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Receives into `buffer`; 0 at the end of the stream.
pub fn recv(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(fd, buffer, rustix::net::RecvFlags::DONTWAIT)?.0)
}

/// Sends from `bytes`; returns how many were taken.
pub fn send(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

/// Says that nothing more will be written.
pub fn end_writing(fd: impl AsFd) {
    // Failure means that the connection is gone, which says it as well.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
}

/// Whether there is room to write, or an error to be had by writing.
pub fn is_writable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    matches!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

/// Waits until the descriptor is readable or has ended; whether it is.
#[cfg(feature = "rdma")]
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    Ok(rustix::event::poll(&mut fds, Some(&timeout))? > 0)
}

/// The error of an attempt to connect, once the socket is writable.
pub fn take_error(fd: impl AsFd) -> io::Result<()> {
    sockopt::socket_error(fd)?.map_err(io::Error::from)
}

/// For how long the other host has answered nothing at all, if it owes an acknowledgement of something that was sent.
/// None when it owes none, or the kernel does not say. A stopped process's host still answers.
pub fn unanswered(fd: impl AsFd) -> Option<Duration> {
    // SAFETY: all zeros is a valid value: every field is a number.
    let mut info: libc::tcp_info = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut bytes = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `info`, which has as many and is alive during the call.
    let status = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    let millis = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
    (status == 0 && info.tcpi_unacked > 0).then(|| Duration::from_millis(millis.into()))
}

fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, Some(rustix::net::ipproto::TCP))?)
}

/// The congestion control of connections within one host. Nothing is lost or shared there, so whatever looks for the
/// speed of the path finds only itself: BBR, the default of some hosts, lets bytes out at the rate that it has measured,
/// and took up to twice as long. This one is in every kernel, allowed to everyone, and does not pace. It counts only
/// from before the connection is made: a connection that was paced once stays so.
const IN_HOST_CONGESTION_CONTROL: &str = "reno";

/// A non-blocking TCP listener bound to `address`, for [`accept_tcp`].
pub fn tcp_listen(address: &SocketAddr, backlog: i32) -> io::Result<OwnedFd> {
    let fd = tcp_socket(address)?;
    // A port of the last run that is still in TIME_WAIT may be used again; one with a live listener may not.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    rustix::net::bind(&fd, address)?;
    // What is not in its power is left as it is: it costs time, and nothing else.
    let _ = sockopt::set_tcp_congestion(&fd, IN_HOST_CONGESTION_CONTROL);
    rustix::net::listen(&fd, backlog)?;
    Ok(fd)
}

/// Takes a waiting connection from a TCP listener, as [`accept`]. One from another host gets the congestion control that
/// this host uses.
pub fn accept_tcp(listener: impl AsFd) -> io::Result<OwnedFd> {
    let fd = accept(listener)?;
    let (ours, theirs) = (local_address(&fd)?, peer_address(&fd)?);
    if !is_in_host(ours.ip(), theirs.ip()) {
        // A new socket has it.
        let usual = tcp_socket(&ours).and_then(|new| Ok(sockopt::tcp_congestion(new)?));
        let _ = usual.map(|name| sockopt::set_tcp_congestion(&fd, &name));
    }
    Ok(fd)
}

/// Whether a connection between two addresses, one of them this host's, never leaves it.
fn is_in_host(ours: IpAddr, theirs: IpAddr) -> bool {
    ours == theirs || theirs.is_loopback()
}

/// Begins to connect to `address`, from the local address `from` if given (its port is ignored). The socket becomes
/// writable when the outcome is known: [`take_error`].
pub fn tcp_connect(address: &SocketAddr, from: Option<SocketAddr>) -> io::Result<OwnedFd> {
    let fd = tcp_socket(address)?;
    if is_in_host(from.map_or(Ipv4Addr::UNSPECIFIED.into(), |from| from.ip()), address.ip()) {
        let _ = sockopt::set_tcp_congestion(&fd, IN_HOST_CONGESTION_CONTROL);
    }
    if let Some(mut from) = from {
        // The port is then chosen when the target is known, so that it need not be free towards all targets.
        set_bind_address_no_port(&fd)?;
        from.set_port(0);
        rustix::net::bind(&fd, &from)?;
    }
    match rustix::net::connect(&fd, address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

fn set_bind_address_no_port(fd: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is a local integer of the size given.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes a waiting connection from a listener, non-blocking like the listener. `WouldBlock` when none is waiting.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Whether a call failed because this process or machine has no more of something, and not for the sake of its target.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// The local address of a TCP socket.
pub fn local_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?)?)
}

/// The address of the other end of a TCP socket.
pub fn peer_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getpeername(fd)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::try_from(address)?)
}

/// Sends small messages at once instead of waiting for more.
pub fn set_no_delay(fd: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(fd, true)?)
}

/// Probes a silent connection: first after `idle`, then every `interval`; after `count` lost probes it is broken.
pub fn set_keepalive(fd: impl AsFd, idle: Duration, interval: Duration, count: u32) -> io::Result<()> {
    sockopt::set_tcp_keepidle(&fd, idle)?;
    sockopt::set_tcp_keepintvl(&fd, interval)?;
    sockopt::set_tcp_keepcnt(&fd, count)?;
    Ok(sockopt::set_socket_keepalive(&fd, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_within_the_host_are_not_paced() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = tcp_listen(&address.parse().unwrap(), 4).unwrap();
            let target = local_address(&listener).unwrap();
            let dialled = tcp_connect(&target, None).unwrap();
            let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
            rustix::event::poll(&mut waiting, None).unwrap();
            let accepted = accept_tcp(&listener).unwrap();
            for end in [&dialled, &accepted] {
                assert_eq!(sockopt::tcp_congestion(end).unwrap(), IN_HOST_CONGESTION_CONTROL);
            }
        }
    }

    #[test]
    fn only_one_address_twice_or_loopback_is_one_host() {
        let [here, other, loopback] = ["10.0.0.1", "10.0.0.2", "127.0.0.1"].map(|text| text.parse().unwrap());
        assert!(is_in_host(here, here) && is_in_host(loopback, loopback));
        assert!(!is_in_host(here, other) && !is_in_host(Ipv4Addr::UNSPECIFIED.into(), other));
    }
}
