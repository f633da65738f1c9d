//! What two processes cannot do without that share nothing but a connection over loopback: the system calls that send
//! the bytes of a collective, and those that receive them.
//!
//! Both never sleep: each writes what the socket takes of a piece, and reads what there is, in turn. There are no headers,
//! nothing is matched, nothing is added up, and bytes land where they belong.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use phalanx::types::Collective;
use phalanx::{Error, Result};

use super::{Meeting, Outcome, Work, fastest, on_threads};

/// Bytes that are written before it is looked for what came: what is tried. The fastest counts.
const PIECE_BYTES: [usize; 4] = [32 << 10, 64 << 10, 128 << 10, usize::MAX];

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

/// From so many bytes on the two meet before each exchange.
const MEETING_BYTES: usize = 32 << 10;

/// One end of the connection.
struct End {
    stream: TcpStream,
    /// Which of the two it is.
    rank: usize,
    piece: usize,
    sent: Vec<u8>,
    received: Vec<u8>,
    both: bool,
    /// Connections that broke, which is as bad as a wrong byte.
    broken: u64,
}

impl End {
    /// One way and the answer to it are two of what is asked for. Where the two meet, nothing answers.
    fn answer_bytes(&self) -> usize {
        if self.sent.len() >= MEETING_BYTES { 0 } else { self.sent.len() }
    }

    /// Sends and receives so many bytes, whichever the socket has room or bytes for.
    fn carry(&mut self, out: usize, into: usize) {
        let (mut out, mut into) = (&self.sent[..out], &mut self.received[..into]);
        while !out.is_empty() || !into.is_empty() {
            if !out.is_empty() {
                match self.stream.write(&out[..out.len().min(self.piece)]) {
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
    fn once(&mut self, meeting: &mut Meeting) {
        let bytes = self.sent.len();
        // One that begins while the other is still at the last exchange makes both slower, where there is much to carry.
        // Where there is little, that would count.
        if bytes >= MEETING_BYTES {
            meeting.exchange(&[], |_, _| {});
        }
        if self.broken > 0 {
            return;
        }
        match (self.both, self.rank) {
            (true, _) => self.carry(bytes, bytes),
            (false, 0) => {
                self.carry(bytes, 0);
                self.carry(0, self.answer_bytes());
            }
            (false, _) => {
                self.carry(0, bytes);
                self.carry(self.answer_bytes(), 0);
            }
        }
    }

    fn wrong(&self) -> u64 {
        let has_received = self.both || self.rank == 1 || self.answer_bytes() > 0;
        let pairs = self.received.iter().zip(&self.sent).filter(|_| has_received);
        pairs.filter(|(received, sent)| received != sent).count() as u64 + self.broken
    }
}

/// The limit over loopback.
pub(super) fn over_loopback(collective: Collective, bytes: usize) -> Result<Outcome> {
    let traffic = Traffic::of(collective, bytes);
    // What is not cut needs no more than one try.
    let pieces = PIECE_BYTES.iter().filter(|piece| **piece < traffic.bytes || **piece == usize::MAX);
    Ok(fastest(pieces.map(|piece| in_pieces(&traffic, *piece)).collect::<Result<Vec<_>>>()?))
}

fn in_pieces(traffic: &Traffic, piece: usize) -> Result<Outcome> {
    let failed = |error: std::io::Error| {
        let what = format!("no connection over loopback: {error}");
        Error::environment(what, "the limit of sockets is measured on 127.0.0.1")
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let near = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let (far, _) = listener.accept().map_err(failed)?;
    let mut ends = Vec::new();
    for (rank, stream) in [near, far].into_iter().enumerate() {
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(failed)?;
        let sent = (0..traffic.bytes).map(|at| (at % 251) as u8).collect();
        let received = vec![0; traffic.bytes];
        ends.push(End { stream, rank, piece, sent, received, both: traffic.both, broken: 0 });
    }
    let (mut times, wrong) = on_threads(ends);
    if !traffic.both && traffic.bytes < MEETING_BYTES {
        times.iter_mut().for_each(|time| *time /= 2);
    }
    Ok((times, wrong))
}
