//! A started worker as the launcher's loop sees it: what its guard says, and what it writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::console::Console;
use super::control::{Lines, Order, Report};
use super::lines::{End, LineBuffer};
use super::log::{Log, Tail};
use super::printer::{Source, StreamKind};
use super::spawn::Running;

/// One worker's processes and streams, from its start on.
pub(super) struct Worker {
    /// The number that stands before its lines.
    pub(super) label: usize,
    pub(super) running: Running,
    reports: Lines,
    /// The process id of the worker itself, once the guard has told it.
    pub(super) pid: Option<i32>,
    /// Whether the guard is gone.
    pub(super) gone: bool,
    pub(super) streams: [Stream; 2],
}

/// One of a worker's streams.
pub(super) struct Stream {
    pub(super) kind: StreamKind,
    /// Whether something can still come.
    pub(super) open: bool,
    pub(super) lines: LineBuffer,
    log: Log,
    pub(super) tail: Tail,
}

/// What became of one attempt to read a stream.
#[derive(Debug)]
pub(super) enum Pumped {
    /// Something came; there may be more. The error ended its file.
    Some(Option<io::Error>),
    /// Nothing is there now.
    Nothing,
    /// Nothing will come any more.
    Ended,
}

/// The most reads that are made for one stream in a row. A pipe holds less, so that whoever writes without end cannot
/// hold the launcher.
const READS: usize = 32;

impl Worker {
    pub(super) fn new(label: usize, running: Running, [out, err]: [Log; 2]) -> Self {
        let stream = |kind, log| Stream { kind, open: true, lines: LineBuffer::default(), log, tail: Tail::default() };
        let streams = [stream(StreamKind::Out, out), stream(StreamKind::Err, err)];
        Self { label, running, reports: Lines::default(), pid: None, gone: false, streams }
    }

    /// Tells the guard something. It reads at once, and the orders are few: they fit the socket's buffer.
    pub(super) fn order(&self, order: Order) {
        tracing::debug!(label = self.label, ?order, "order");
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.running.control, order.encode().as_bytes(), flags);
    }

    /// What the guard has said since the last time. The second value is true when it is gone.
    pub(super) fn read_reports(&mut self) -> (Vec<Report>, bool) {
        let mut bytes = [0; 512];
        let ended = loop {
            match rustix::io::read(&self.running.control, &mut bytes) {
                Ok(count) if count > 0 => self.reports.push(bytes.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Ok(_) | Err(_) => break true,
            }
        };
        let lines = std::iter::from_fn(|| self.reports.poll_line());
        (lines.filter_map(|line| Report::decode(&line)).collect(), ended)
    }

    /// Whether nothing more can come from it.
    pub(super) fn is_silent(&self) -> bool {
        self.streams.iter().all(|stream| !stream.open)
    }

    /// The launcher's end of a stream.
    pub(super) fn fd(&self, kind: StreamKind) -> BorrowedFd<'_> {
        match kind {
            StreamKind::Out => self.running.stdout.as_fd(),
            StreamKind::Err => self.running.stderr.as_fd(),
        }
    }

    /// A stream that is open.
    pub(super) fn stream(&mut self, kind: StreamKind) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.kind == kind && stream.open)
    }

    /// Moves what a stream has to the console, up to one `buffer` full.
    pub(super) fn pump(&mut self, kind: StreamKind, console: &mut Console, buffer: &mut [u8]) -> Pumped {
        let read = match rustix::io::read(self.fd(kind), &mut *buffer) {
            Err(Errno::INTR | Errno::AGAIN) => return Pumped::Nothing,
            Err(_) => 0,
            Ok(count) => count,
        };
        let source = Source::Rank(self.label, kind);
        let Some(stream) = self.stream(kind) else { return Pumped::Ended };
        let bytes = buffer.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            stream.close(source, console);
            return Pumped::Ended;
        }
        let tail = &mut stream.tail;
        stream.lines.push(bytes, |text, end| {
            if end != End::Return {
                tail.push(text);
            }
            console.write(source, text, end);
        });
        let error = stream.log.write(bytes);
        console.try_flush();
        Pumped::Some(error)
    }

    /// Moves all that its streams have now, as long as the console has room. Returns errors of its files.
    pub(super) fn pump_all(&mut self, console: &mut Console, buffer: &mut [u8]) -> Vec<io::Error> {
        let mut errors = Vec::new();
        for kind in [StreamKind::Out, StreamKind::Err] {
            for _ in 0..READS {
                if console.is_full() {
                    return errors;
                }
                match self.pump(kind, console, buffer) {
                    Pumped::Some(error) => errors.extend(error),
                    Pumped::Nothing | Pumped::Ended => break,
                }
            }
        }
        errors
    }

    /// Closes streams that something outside the job still holds open.
    pub(super) fn close_streams(&mut self, console: &mut Console) {
        for stream in self.streams.iter_mut().filter(|stream| stream.open) {
            stream.close(Source::Rank(self.label, stream.kind), console);
        }
    }
}

impl Stream {
    fn close(&mut self, source: Source, console: &mut Console) {
        self.open = false;
        let tail = &mut self.tail;
        self.lines.finish(|text, end| {
            if end != End::Return {
                tail.push(text);
            }
            console.write(source, text, end);
        });
    }
}
