//! One connection of the rendezvous server, from its first byte to the answer.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use crate::bootstrap::stream::Stream;
use crate::types::Result;
use crate::wire::handshake::{Purpose, Refusal, Responder};
use crate::wire::rendezvous::{Frames, MAX_JOIN_FRAME, Message};

/// How far a connection has come.
pub(super) enum Stage {
    /// Both sides prove the key.
    Handshake(Box<Responder>),
    /// Its join is read.
    Join(Frames),
    /// It is told to wait.
    Joined,
    /// It is closed once everything is written.
    Told,
}

pub(super) struct Connection {
    pub stream: Stream,
    pub stage: Stage,
    pub until: Option<Instant>,
    pub outgoing: VecDeque<Arc<[u8]>>,
    pub written: usize,
}

impl Connection {
    /// Writes what the socket takes.
    pub fn write(&mut self) -> Result<(), String> {
        while let Some(piece) = self.outgoing.front() {
            match self.stream.write(&piece[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            }
            if self.written >= piece.len() {
                self.outgoing.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }

    /// Reads what is there, up to a whole join. The error says why the connection is of no more use.
    pub fn read(&mut self, size: usize, joins: &mut Option<Message>) -> Result<(), String> {
        let mut buffer = [0u8; MAX_JOIN_FRAME + 4];
        loop {
            let wanted = match &self.stage {
                Stage::Handshake(machine) => machine.wanted().min(buffer.len()),
                Stage::Join(frames) => frames.wanted().map_err(|error| error.to_string())?,
                Stage::Joined | Stage::Told => 1,
            };
            let count = match self.stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            let arrived = &buffer[..count];
            match &mut self.stage {
                Stage::Handshake(machine) => {
                    let outcome = machine.handle_input(arrived);
                    let is_member = match machine.to_decide() {
                        Some(hello) if hello.purpose == Purpose::Rendezvous => {
                            machine.accept();
                            true
                        }
                        Some(_) => {
                            machine.refuse(Refusal::Transport);
                            false
                        }
                        None => false,
                    };
                    let output = machine.poll_output();
                    if !output.is_empty() {
                        self.outgoing.push_back(output.into());
                    }
                    if is_member {
                        self.stage = Stage::Join(Frames::new(MAX_JOIN_FRAME));
                    }
                    // What it is told on failure fits into its socket, or it will not know why.
                    self.write()?;
                    outcome.map_err(|error| error.to_string())?;
                }
                Stage::Join(frames) => {
                    frames.push(arrived);
                    if let Some(frame) = frames.next_frame().map_err(|error| error.to_string())? {
                        let message = Message::decode(&frame, size).map_err(|error| error.to_string())?;
                        if !matches!(message, Message::Join(_)) {
                            return Err("it sent something else than a join".into());
                        }
                        *joins = Some(message);
                        return Ok(());
                    }
                }
                Stage::Joined => return Err("it sent something after its join".into()),
                Stage::Told => {}
            }
        }
    }
}
