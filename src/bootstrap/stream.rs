//! A connection to or from the rendezvous server: TCP, or a Unix socket within one host.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::sys::Uninherited;

/// One connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(Uninherited<TcpStream>),
    Unix(Uninherited<UnixStream>),
}

impl Stream {
    pub fn connect_unix(name: &str) -> io::Result<Self> {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        Ok(Stream::Unix(UnixStream::connect_addr(&address)?.into()))
    }

    pub fn connect_tcp(address: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(address, timeout.max(Duration::from_millis(1)))?;
        // Dialling a port of one's own machine that nobody listens on can meet itself.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream.into()))
    }

    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(on),
            Stream::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    /// How long a read or write may take. The caller sees [`io::ErrorKind::WouldBlock`] when it passes.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        let patience = Some(patience.max(Duration::from_millis(1)));
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)),
            Stream::Unix(stream) => stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)),
        }
    }

    /// Whether the kernel says that the other end of a Unix socket belongs to this process's user. Never true of
    /// TCP.
    pub fn is_of_this_user(&self) -> io::Result<bool> {
        match self {
            Stream::Tcp(_) => Ok(false),
            Stream::Unix(stream) => {
                let peer = crate::sys::unix::peer_credentials(stream)?;
                Ok(peer.user == rustix::process::geteuid().as_raw())
            }
        }
    }

    pub fn is_unix(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }
}

impl Read for Stream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(target),
            Stream::Unix(stream) => stream.read(target),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(source),
            // The other end may be gone: an error is wanted then, not a signal. Rust ignores SIGPIPE in its own
            // programs, but this library also lives in others.
            Stream::Unix(stream) => Ok(rustix::net::send(stream, source, rustix::net::SendFlags::NOSIGNAL)?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(Uninherited<TcpListener>),
    Unix(Uninherited<UnixListener>),
}

impl Listener {
    pub fn unix(name: &str) -> io::Result<Self> {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        Ok(Listener::Unix(UnixListener::bind_addr(&address)?.into()))
    }

    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        use socket2::{Domain, Protocol, Socket, Type};
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // The wildcard serves IPv4 too; for any other address it makes no difference.
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        // All ranks dial at once.
        socket.listen(1024)?;
        Ok(Listener::Tcp(TcpListener::from(socket).into()))
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream.into()))
            }
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0.into())),
        }
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    /// Where it listens, as [`super::variables::RENDEZVOUS`] would say it.
    pub fn address(&self) -> io::Result<String> {
        match self {
            Listener::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Listener::Unix(listener) => {
                let address = listener.local_addr()?;
                let name = address.as_abstract_name().unwrap_or_default();
                Ok(format!("unix:@{}", String::from_utf8_lossy(name)))
            }
        }
    }

    /// The TCP port.
    pub fn port(&self) -> Option<u16> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
            Listener::Unix(_) => None,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}
