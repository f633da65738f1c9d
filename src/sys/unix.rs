//! Unix stream sockets in the abstract namespace, and the descriptors that travel over them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The most descriptors that one message carries.
pub const MAX_DESCRIPTORS: usize = 4;

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// A non-blocking listener under the abstract `name` (at most 107 bytes). The name ends with the process, whatever
/// happens to it.
pub fn listen(name: &[u8], backlog: i32) -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&fd, backlog)?;
    Ok(fd)
}

/// Connects to the listener under the abstract `name`, without blocking. `WouldBlock` means that the listener's queue
/// is full: try again later.
pub fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let fd = socket()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(fd)
}

/// The process at the other end when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id as seen from here; `None` when it is not visible from this process-id namespace.
    pub process: Option<u32>,
    /// Its effective user.
    pub user: u32,
}

/// Who is at the other end of a connected Unix socket.
pub fn peer_credentials(fd: impl AsFd) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to locals of the sizes given; the kernel writes at most `bytes` bytes of plain integers.
    let status = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd()),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // A process of another namespace has the id 0 here.
    let process = u32::try_from(credentials.pid).ok().filter(|&pid| pid != 0);
    Ok(PeerCredentials { process, user: credentials.uid })
}

/// Sends `bytes` and with the first of them the descriptors. Returns how many bytes were taken; the descriptors are
/// gone if that is not 0. Never blocks.
pub fn send_with_descriptors(fd: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = match descriptors.len() {
        0 => true,
        1..=MAX_DESCRIPTORS => control.push(SendAncillaryMessage::ScmRights(descriptors)),
        _ => false,
    };
    if !fits {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Receives up to `buffer.len()` bytes, and appends the descriptors that came with them. Returns how many bytes; 0 at
/// the end of the stream. Never blocks.
pub fn recv_with_descriptors(fd: impl AsFd, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received.bytes)
}

/// What a look at a quiet connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// Connected, and nothing was sent.
    Silent,
    /// The peer has closed or is gone.
    HungUp,
    /// The peer has sent something.
    Speaking,
}

/// Looks, without taking anything, at a connection over which nothing is expected.
pub fn look(fd: impl AsFd) -> Quiet {
    let mut byte = [0u8; 1];
    match rustix::net::recv(fd, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Quiet::HungUp,
        Ok(_) => Quiet::Speaking,
        Err(Errno::AGAIN | Errno::INTR) => Quiet::Silent,
        Err(_) => Quiet::HungUp,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_travel_and_work() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        assert_eq!(send_with_descriptors(&ours, b"take", &[writer.as_fd()]).unwrap(), 4);
        drop(writer);

        let (mut buffer, mut descriptors) = ([0; 16], Vec::new());
        assert_eq!(recv_with_descriptors(&theirs, &mut buffer, &mut descriptors).unwrap(), 4);
        assert_eq!(&buffer[..4], b"take");
        let mut file = std::fs::File::from(descriptors.pop().unwrap());
        file.write_all(b"through").unwrap();
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn too_many_descriptors_are_an_error() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let many = [ours.as_fd(); MAX_DESCRIPTORS + 1];
        assert!(send_with_descriptors(&ours, b"x", &many).is_err());
    }

    #[test]
    fn the_abstract_name_is_reachable_and_credentials_are_ours() {
        let name = format!("phalanx-test-{}-{:?}", std::process::id(), std::thread::current().id());
        let listener = listen(name.as_bytes(), 4).unwrap();
        let ours = connect(name.as_bytes()).unwrap();
        let theirs = rustix::net::accept(&listener).unwrap();
        let credentials = peer_credentials(&theirs).unwrap();
        assert_eq!(credentials.process, Some(std::process::id()));
        assert_eq!(credentials.user, rustix::process::geteuid().as_raw());
        assert_eq!(look(&theirs), Quiet::Silent);
        drop(ours);
        assert_eq!(look(&theirs), Quiet::HungUp);
        drop(listener);
        assert_eq!(connect(name.as_bytes()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_full_queue_does_not_block() {
        let name = format!("phalanx-queue-{}", std::process::id());
        let _listener = listen(name.as_bytes(), 0).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect(name.as_bytes()) {
                Ok(fd) => waiting.push(fd),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
