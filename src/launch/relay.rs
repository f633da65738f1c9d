//! Passing what is typed at the launcher's terminal on to rank 0.
//!
//! Only a terminal is passed on: a file or a pipe is handed to rank 0 itself, which then reads as much of it as it
//! wants. A terminal cannot be handed on, because rank 0 is not in its foreground group.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// What is on its way to rank 0.
#[derive(Debug)]
pub(super) struct Relay {
    /// Rank 0's end, until it is closed.
    target: Option<OwnedFd>,
    buffer: Vec<u8>,
    /// The terminal said that nothing follows.
    ended: bool,
}

/// What the relay waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// For nothing: it is done.
    Nothing,
    /// For something typed.
    Source,
    /// For being in the terminal's foreground, of which nothing tells.
    Foreground,
    /// For room in the pipe.
    Target,
}

impl Relay {
    pub(super) fn new(target: OwnedFd) -> Self {
        Self { target: Some(target), buffer: Vec::new(), ended: false }
    }

    pub(super) fn waits(&self) -> Waits {
        if self.target.is_none() {
            Waits::Nothing
        } else if !self.buffer.is_empty() {
            Waits::Target
        } else if is_background() {
            // Reading would stop the launcher, as it does with any job in the background.
            Waits::Foreground
        } else {
            Waits::Source
        }
    }

    /// The descriptor of rank 0's end.
    pub(super) fn target(&self) -> Option<BorrowedFd<'_>> {
        self.target.as_ref().map(AsFd::as_fd)
    }

    /// Reads what was typed, and returns whether it ended a line. Call it when the terminal is readable: it blocks
    /// otherwise.
    pub(super) fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match rustix::io::read(io::stdin().as_fd(), &mut bytes) {
            Ok(0) => self.ended = true,
            Ok(count) => self.buffer.extend_from_slice(bytes.get(..count).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The terminal is gone.
            Err(_) => self.ended = true,
        }
        let line = self.buffer.contains(&b'\n');
        self.try_write();
        line
    }

    /// Writes what the pipe takes.
    pub(super) fn try_write(&mut self) {
        let Some(target) = &self.target else { return };
        while !self.buffer.is_empty() {
            match rustix::io::write(target, &self.buffer) {
                Ok(count) => drop(self.buffer.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Rank 0 reads no more.
                Err(_) => {
                    self.target = None;
                    return;
                }
            }
        }
        if self.ended {
            self.target = None;
        }
    }
}

/// Whether another job has the terminal.
fn is_background() -> bool {
    rustix::termios::tcgetpgrp(io::stdin().as_fd()).is_ok_and(|foreground| foreground != rustix::process::getpgrp())
}
