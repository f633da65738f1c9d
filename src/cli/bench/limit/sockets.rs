//! What two processes cannot do without that share nothing but a connection over loopback: the system calls that send
//! the bytes of a collective, and those that receive them.
//!
//! Both never sleep: each writes what the socket takes, and otherwise reads. There are no headers, nothing is matched, nothing
//! is added up, and bytes land where they belong.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use phalanx::types::Collective;
use phalanx::{Error, Result};

use super::{Meeting, Outcome, Work, on_threads};

/// Bytes that each of the two sends, and whether both send at once, for `bytes` of a collective as the bench counts them.
struct Traffic {
    bytes: usize,
    both: bool,
}

impl Traffic {
    /// Among two ranks, everything that a rank has goes to the other or half of it. A barrier is one byte.
    fn of(collective: Collective, bytes: usize) -> Self {
        let (bytes, both) = match collective {
            Collective::Allreduce => (bytes, true),
            Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall => (bytes / 2, true),
            Collective::Broadcast | Collective::Reduce => (bytes, false),
            Collective::Gather | Collective::Scatter => (bytes / 2, false),
            Collective::SendRecv | Collective::Barrier => (bytes, true),
        };
        Self { bytes: bytes.max(1), both }
    }
}

/// One end of the connection.
struct End {
    stream: TcpStream,
    /// Which of the two it is.
    rank: usize,
    sent: Vec<u8>,
    received: Vec<u8>,
    both: bool,
    /// Connections that broke, which is as bad as a wrong byte.
    broken: u64,
}

impl End {
    /// Sends and receives so many bytes, whichever the socket has room or bytes for.
    fn carry(&mut self, out: usize, into: usize) {
        let (mut out, mut into) = (&self.sent[..out], &mut self.received[..into]);
        while !out.is_empty() || !into.is_empty() {
            if !out.is_empty() {
                match self.stream.write(out) {
                    Ok(written) => out = &out[written..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return self.broken += 1,
                }
            }
            if !into.is_empty() {
                match self.stream.read(into) {
                    Ok(0) => return self.broken += 1,
                    Ok(read) => into = &mut into[read..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return self.broken += 1,
                }
            }
        }
    }
}

impl Work for End {
    fn once(&mut self, _: &mut Meeting) {
        let bytes = self.sent.len();
        if self.broken > 0 {
            return;
        }
        match (self.both, self.rank) {
            (true, _) => self.carry(bytes, bytes),
            // One way, and the answer to it: two of what is asked for.
            (false, 0) => {
                self.carry(bytes, 0);
                self.carry(0, bytes);
            }
            (false, _) => {
                self.carry(0, bytes);
                self.carry(bytes, 0);
            }
        }
    }

    fn wrong(&self) -> u64 {
        let wrong = self.received.iter().zip(&self.sent).filter(|(received, sent)| *received != *sent).count() as u64;
        wrong + self.broken
    }
}

/// The limit over loopback.
pub(super) fn over_loopback(collective: Collective, bytes: usize) -> Result<Outcome> {
    let traffic = Traffic::of(collective, bytes);
    let failed = |error: std::io::Error| {
        Error::environment(
            format!("no connection over loopback: {error}"),
            "the limit of sockets is measured on 127.0.0.1",
        )
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let near = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let (far, _) = listener.accept().map_err(failed)?;
    let mut ends = Vec::new();
    for (rank, stream) in [near, far].into_iter().enumerate() {
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(failed)?;
        let sent = (0..traffic.bytes).map(|at| (at % 251) as u8).collect();
        let received = vec![0; traffic.bytes];
        ends.push(End { stream, rank, sent, received, both: traffic.both, broken: 0 });
    }
    let (mut times, wrong) = on_threads(ends);
    if !traffic.both {
        times.iter_mut().for_each(|time| *time /= 2);
    }
    Ok((times, wrong))
}
