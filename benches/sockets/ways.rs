//! The ways. Each sends and receives whole messages of one length from and into buffers of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};

/// `SO_EE_ORIGIN_ZEROCOPY` of the kernel's `linux/errqueue.h`.
const ORIGIN_ZEROCOPY: u8 = 5;

/// One end of a connection.
pub trait Way: Send {
    /// Sends what lies in the buffer. It may be written again when this returns.
    fn send(&mut self) -> io::Result<()>;
    /// Receives a message.
    fn receive(&mut self) -> io::Result<()>;
    /// The buffer that is sent.
    fn to_send(&mut self) -> &mut [u8];
    /// The message that came last.
    fn received(&self) -> &[u8];
    /// What else there is to say.
    fn remark(&self) -> String {
        String::new()
    }
}

type Make = fn(TcpStream, usize) -> io::Result<Box<dyn Way>>;

/// All of them, that of the carrier first.
pub const WAYS: [(&str, Make); 6] = [
    ("send, recv, polling", |stream, bytes| Ok(Box::new(Plain::new(stream, bytes, Wait::Polls)?))),
    ("send, recv, sleeping in epoll", |stream, bytes| Ok(Box::new(Plain::new(stream, bytes, Wait::Sleeps)?))),
    ("io_uring, polling", |stream, bytes| Ok(Box::new(Ring::new(stream, bytes, Wait::Polls, false)?))),
    ("io_uring, sleeping", |stream, bytes| Ok(Box::new(Ring::new(stream, bytes, Wait::Sleeps, false)?))),
    ("io_uring, registered, polling", |stream, bytes| Ok(Box::new(Ring::new(stream, bytes, Wait::Polls, true)?))),
    ("MSG_ZEROCOPY, polling", |stream, bytes| Ok(Box::new(ZeroCopy::new(stream, bytes)?))),
];

/// What one does while nothing comes.
#[derive(Clone, Copy, PartialEq)]
pub enum Wait {
    Polls,
    Sleeps,
}

/// Non-blocking calls of the socket, again and again.
struct Plain {
    stream: TcpStream,
    wait: Wait,
    epoll: rustix::fd::OwnedFd,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Plain {
    fn new(stream: TcpStream, bytes: usize, wait: Wait) -> io::Result<Self> {
        use rustix::event::epoll;
        stream.set_nonblocking(true)?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&set, &stream, epoll::EventData::new_u64(0), flags)?;
        Ok(Self { stream, wait, epoll: set, out: vec![0; bytes], into: vec![0; bytes] })
    }

    /// What to do with how a call ended: how many bytes it moved.
    fn moved(&self, outcome: io::Result<usize>) -> io::Result<usize> {
        match outcome {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if self.wait == Wait::Sleeps {
                    let mut events = Vec::with_capacity(1);
                    match rustix::event::epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(0)
            }
            other => other,
        }
    }
}

impl Way for Plain {
    fn send(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.out.len() {
            at += self.moved((&self.stream).write(&self.out[at..]))?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.into.len() {
            let outcome = (&self.stream).read(&mut self.into[at..]);
            at += self.moved(outcome)?;
        }
        Ok(())
    }

    fn to_send(&mut self) -> &mut [u8] {
        &mut self.out
    }

    fn received(&self) -> &[u8] {
        &self.into
    }
}

/// One ring of requests for a socket, with buffers that the kernel has pinned beforehand, if asked.
struct Ring {
    ring: IoUring,
    stream: TcpStream,
    wait: Wait,
    is_registered: bool,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Ring {
    fn new(stream: TcpStream, bytes: usize, wait: Wait, is_registered: bool) -> io::Result<Self> {
        let ring = IoUring::new(8)?;
        let (mut out, mut into) = (vec![0_u8; bytes], vec![0_u8; bytes]);
        if is_registered {
            let buffers = [&mut out, &mut into]
                .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            // SAFETY: the buffers are not moved or given back before the ring is: it stands first in the struct.
            unsafe { ring.submitter().register_buffers(&buffers)? };
        }
        Ok(Self { ring, stream, wait, is_registered, out, into })
    }

    /// Hands one request over and waits for its end: how many bytes it moved.
    fn run(&mut self, request: squeue::Entry) -> io::Result<usize> {
        // SAFETY: the request names a buffer and the socket of this struct, and is over when this returns.
        unsafe { self.ring.submission().push(&request).map_err(io::Error::other)? };
        loop {
            match self.ring.submit_and_wait(usize::from(self.wait == Wait::Sleeps)) {
                Ok(_) => break,
                // What was handed over before stays so.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            if let Some(end) = self.ring.completion().next() {
                return match end.result() {
                    0 => Err(ErrorKind::UnexpectedEof.into()),
                    moved => usize::try_from(moved).map_err(|_| io::Error::from_raw_os_error(-moved)),
                };
            }
            std::hint::spin_loop();
        }
    }
}

impl Way for Ring {
    fn send(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.out.len() {
            let (start, bytes) = (self.out[at..].as_ptr(), (self.out.len() - at) as u32);
            let socket = types::Fd(self.stream.as_raw_fd());
            at += self.run(match self.is_registered {
                true => opcode::WriteFixed::new(socket, start, bytes, 0).build(),
                false => opcode::Send::new(socket, start, bytes).build(),
            })?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.into.len() {
            let (start, bytes) = (self.into[at..].as_mut_ptr(), (self.into.len() - at) as u32);
            let socket = types::Fd(self.stream.as_raw_fd());
            at += self.run(match self.is_registered {
                true => opcode::ReadFixed::new(socket, start, bytes, 1).build(),
                false => opcode::Recv::new(socket, start, bytes).build(),
            })?;
        }
        Ok(())
    }

    fn to_send(&mut self) -> &mut [u8] {
        &mut self.out
    }

    fn received(&self) -> &[u8] {
        &self.into
    }
}

/// Sends that lend their pages to the kernel, and wait until it gives them back.
struct ZeroCopy {
    plain: Plain,
    /// How many sends there were, and how many of them the kernel has copied all the same.
    sends: u32,
    given_back: u32,
    copied: u32,
}

impl ZeroCopy {
    fn new(stream: TcpStream, bytes: usize) -> io::Result<Self> {
        let plain = Plain::new(stream, bytes, Wait::Polls)?;
        let on: libc::c_int = 1;
        // SAFETY: the option is an int, alive during the call.
        let set = unsafe {
            libc::setsockopt(
                plain.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { plain, sends: 0, given_back: 0, copied: 0 })
    }

    /// Looks whether sends have been given back.
    fn look(&mut self) -> io::Result<()> {
        let mut control = [0_u64; 16];
        // SAFETY: all zero is an empty header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the header names memory of this frame.
        let got = unsafe { libc::recvmsg(self.plain.stream.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(error) };
        }
        // SAFETY: the kernel has filled the header, whose first control message is of this kind on this queue.
        let told: libc::sock_extended_err = unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            if first.is_null() {
                return Ok(());
            }
            libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned()
        };
        if told.ee_origin == ORIGIN_ZEROCOPY {
            // A range of the numbers of sends.
            let count = told.ee_data.wrapping_sub(told.ee_info).wrapping_add(1);
            self.given_back = self.given_back.wrapping_add(count);
            if u32::from(told.ee_code) & 1 != 0 {
                self.copied = self.copied.wrapping_add(count);
            }
        }
        Ok(())
    }
}

impl Way for ZeroCopy {
    fn send(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.plain.out.len() {
            let rest = &self.plain.out[at..];
            // SAFETY: the bytes are alive and stay as they are until they are given back, below.
            let sent = unsafe {
                libc::send(self.plain.stream.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_ZEROCOPY)
            };
            match usize::try_from(sent) {
                Ok(sent) => {
                    at += sent;
                    self.sends = self.sends.wrapping_add(1);
                }
                Err(_) => match io::Error::last_os_error() {
                    // No room, or too many pages lent at once.
                    error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)) => self.look()?,
                    error => return Err(error),
                },
            }
        }
        while self.given_back != self.sends {
            self.look()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        self.plain.receive()
    }

    fn to_send(&mut self) -> &mut [u8] {
        self.plain.to_send()
    }

    fn received(&self) -> &[u8] {
        self.plain.received()
    }

    fn remark(&self) -> String {
        format!("the kernel copied {:.0} % of the sends", 100.0 * f64::from(self.copied) / f64::from(self.sends.max(1)))
    }
}
