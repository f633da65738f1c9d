//! The messages byte for byte.

use std::sync::Arc;

use super::{
    Condition, FromRegistry, Gone, MAX_ADDRESSES, MAX_HOST, MAX_MEMBERS, MAX_TEXT, Malformed, MemberStatus, Members,
    Parting, Phase, ProcessRecord, Register, Report, Resume, Status, ToRegistry, ViewMessage, Whom, Why,
};
use crate::types::Generation;
use crate::wire::fields::{Input, frame, put_bytes, put_millis, put_text, put_u32};

/// The most bytes that a process takes in a frame.
const MAX_PROCESS: usize = 4 + 3 * 2 + 2 * MAX_HOST + MAX_ADDRESSES;

/// The most bytes that a member that is out takes in a frame.
const MAX_GONE: usize = 4 + 1 + 2 + MAX_TEXT;

/// The most bytes that a member takes in a status.
const MAX_MEMBER_STATUS: usize = 4 + 5 + MAX_PROCESS + 1 + 8 + 8 + 8 + 1;

/// The most bytes of a frame to the registry: a register.
pub const MAX_REQUEST_FRAME: usize = 1 + 2 + 16 + 8 + 5 + MAX_PROCESS + 1 + 12;

/// The most bytes of a frame from the registry: a view or a status of the most members.
pub const MAX_ANSWER_FRAME: usize = {
    let view = 1 + 8 + 8 + 1 + 4 + MAX_MEMBERS * (4 + MAX_PROCESS) + 3 * 4 + MAX_MEMBERS * (MAX_GONE + 8 + 4);
    let status = 1 + 1 + 8 + 8 + 8 + 4 + 4 + 2 + MAX_TEXT + 4 + MAX_MEMBERS * MAX_MEMBER_STATUS;
    if view > status { view } else { status }
};

const REGISTER: u8 = 1;
const HEARTBEAT: u8 = 2;
const SUSPECT: u8 = 3;
const REPORT: u8 = 4;
const LEAVE: u8 = 5;
const STATUS_REQUEST: u8 = 6;
const EVICT: u8 = 7;

const WELCOME: u8 = 65;
const WANTED: u8 = 66;
const PREPARE: u8 = 67;
const VIEW: u8 = 68;
const EVICTED: u8 = 69;
const END: u8 = 70;
const WAITING: u8 = 71;
const STATUS: u8 = 72;
const GOODBYE: u8 = 73;
const PROBE: u8 = 74;
const REFUSED: u8 = 75;
const DONE: u8 = 76;

impl ToRegistry {
    /// The message as a frame. Texts that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        frame(|out| match self {
            ToRegistry::Register(Register { version, token, patience, wish, process, resume }) => {
                out.push(REGISTER);
                out.extend(version.to_le_bytes());
                out.extend(token);
                put_millis(out, *patience);
                put_option(out, *wish, put_u32);
                put_process(out, process);
                put_option(out, *resume, |out, resume| {
                    put_u32(out, resume.slot);
                    put_u64(out, resume.generation.0);
                });
            }
            ToRegistry::Heartbeat { number, progress, is_waiting, counted } => {
                out.push(HEARTBEAT);
                put_u64(out, *number);
                put_u64(out, *progress);
                out.push(u8::from(*is_waiting));
                put_u64(out, *counted);
            }
            ToRegistry::Suspect { generation, slot, detail } => {
                out.push(SUSPECT);
                put_u64(out, generation.0);
                put_u32(out, *slot);
                put_text(out, detail, MAX_TEXT);
            }
            ToRegistry::Report(Report { generation, counted, holds, boundary, closed }) => {
                out.push(REPORT);
                put_u64(out, generation.0);
                put_u64(out, *counted);
                out.push(u8::from(*holds));
                out.push(u8::from(*boundary));
                out.push(u8::from(*closed));
            }
            ToRegistry::Leave { parting, reason } => {
                out.push(LEAVE);
                out.push(*parting as u8);
                put_text(out, reason, MAX_TEXT);
            }
            ToRegistry::StatusRequest => out.push(STATUS_REQUEST),
            ToRegistry::Evict { whom, reason } => {
                out.push(EVICT);
                let (is_rank, number) = match *whom {
                    Whom::Slot(slot) => (false, slot),
                    Whom::Rank(rank) => (true, rank),
                };
                out.push(u8::from(is_rank));
                put_u32(out, number);
                put_text(out, reason, MAX_TEXT);
            }
        })
    }

    /// The message in a frame, without its length.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let input = &mut Input(frame);
        let message = match input.u8()? {
            REGISTER => ToRegistry::Register(Register {
                version: u16::from_le_bytes(input.array()?),
                token: input.array()?,
                patience: input.millis()?,
                wish: option(input, Input::u32)?,
                process: process(input)?,
                resume: option(input, |input| Ok(Resume { slot: input.u32()?, generation: generation(input)? }))?,
            }),
            HEARTBEAT => ToRegistry::Heartbeat {
                number: input.u64()?,
                progress: input.u64()?,
                is_waiting: input.bool()?,
                counted: input.u64()?,
            },
            SUSPECT => ToRegistry::Suspect {
                generation: generation(input)?,
                slot: input.u32()?,
                detail: input.text(MAX_TEXT)?,
            },
            REPORT => ToRegistry::Report(Report {
                generation: generation(input)?,
                counted: input.u64()?,
                holds: input.bool()?,
                boundary: input.bool()?,
                closed: input.bool()?,
            }),
            LEAVE => ToRegistry::Leave { parting: parting(input)?, reason: input.text(MAX_TEXT)? },
            STATUS_REQUEST => ToRegistry::StatusRequest,
            EVICT => {
                let whom = if input.bool()? { Whom::Rank(input.u32()?) } else { Whom::Slot(input.u32()?) };
                ToRegistry::Evict { whom, reason: input.text(MAX_TEXT)? }
            }
            _ => return Err(Malformed("unknown kind")),
        };
        input.end()?;
        Ok(message)
    }
}

impl FromRegistry {
    /// The message as a frame. Texts that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        frame(|out| match self {
            FromRegistry::Welcome { slot, heartbeat_interval, heartbeat_limit, elastic_timeout } => {
                out.push(WELCOME);
                put_u32(out, *slot);
                for length in [heartbeat_interval, heartbeat_limit, elastic_timeout] {
                    put_millis(out, *length);
                }
            }
            FromRegistry::Wanted { generation } => {
                out.push(WANTED);
                put_u64(out, generation.0);
            }
            FromRegistry::Prepare { generation, gone } => {
                out.push(PREPARE);
                put_u64(out, generation.0);
                put_list(out, gone, put_gone);
            }
            FromRegistry::View(view) => {
                out.push(VIEW);
                put_view(out, view);
            }
            FromRegistry::Evicted { generation, reason } => {
                out.push(EVICTED);
                put_u64(out, generation.0);
                put_text(out, reason, MAX_TEXT);
            }
            FromRegistry::End { reason } => {
                out.push(END);
                put_text(out, reason, MAX_TEXT);
            }
            FromRegistry::Waiting { have, need, remaining } => {
                out.push(WAITING);
                put_u32(out, *have);
                put_u32(out, *need);
                put_millis(out, *remaining);
            }
            FromRegistry::Status(status) => {
                out.push(STATUS);
                put_status(out, status);
            }
            FromRegistry::Goodbye => out.push(GOODBYE),
            FromRegistry::Probe => out.push(PROBE),
            FromRegistry::Refused { what, hint } => {
                out.push(REFUSED);
                put_text(out, what, MAX_TEXT);
                put_text(out, hint, MAX_TEXT);
            }
            FromRegistry::Done { what } => {
                out.push(DONE);
                put_text(out, what, MAX_TEXT);
            }
        })
    }

    /// The message in a frame, without its length.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let input = &mut Input(frame);
        let message = match input.u8()? {
            WELCOME => FromRegistry::Welcome {
                slot: input.u32()?,
                heartbeat_interval: input.millis()?,
                heartbeat_limit: input.millis()?,
                elastic_timeout: input.millis()?,
            },
            WANTED => FromRegistry::Wanted { generation: generation(input)? },
            PREPARE => FromRegistry::Prepare { generation: generation(input)?, gone: input.list(MAX_MEMBERS, gone)? },
            VIEW => FromRegistry::View(view(input)?),
            EVICTED => FromRegistry::Evicted { generation: generation(input)?, reason: input.text(MAX_TEXT)? },
            END => FromRegistry::End { reason: input.text(MAX_TEXT)? },
            WAITING => FromRegistry::Waiting { have: input.u32()?, need: input.u32()?, remaining: input.millis()? },
            STATUS => FromRegistry::Status(status(input)?),
            GOODBYE => FromRegistry::Goodbye,
            PROBE => FromRegistry::Probe,
            REFUSED => FromRegistry::Refused { what: input.text(MAX_TEXT)?, hint: input.text(MAX_TEXT)? },
            DONE => FromRegistry::Done { what: input.text(MAX_TEXT)? },
            _ => return Err(Malformed("unknown kind")),
        };
        input.end()?;
        Ok(message)
    }
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn option<'a, T>(
    input: &mut Input<'a>,
    item: impl FnOnce(&mut Input<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if input.bool()? { item(input).map(Some) } else { Ok(None) }
}

/// As many items as a peer may take. The machines keep their lists shorter; a longer one is cut rather than refused.
fn put_list<T>(out: &mut Vec<u8>, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    let items = &items[..items.len().min(MAX_MEMBERS)];
    put_u32(out, items.len());
    items.iter().for_each(|item| put(out, item));
}

fn parting(input: &mut Input<'_>) -> Result<Parting, Malformed> {
    let number = input.u8()?;
    Parting::ALL.get(usize::from(number)).copied().ok_or(Malformed("a parting that does not exist"))
}

fn generation(input: &mut Input<'_>) -> Result<Generation, Malformed> {
    Ok(Generation(input.u64()?))
}

pub(crate) fn put_process(out: &mut Vec<u8>, process: &ProcessRecord) {
    out.extend(process.pid.to_le_bytes());
    put_bytes(out, &process.host);
    put_text(out, &process.host_name, MAX_HOST);
    put_bytes(out, &process.addresses);
}

pub(crate) fn process(input: &mut Input<'_>) -> Result<ProcessRecord, Malformed> {
    Ok(ProcessRecord {
        pid: u32::from_le_bytes(input.array()?),
        host: input.bytes(MAX_HOST)?.to_vec(),
        host_name: input.text(MAX_HOST)?,
        addresses: input.bytes(MAX_ADDRESSES)?.to_vec(),
    })
}

pub(crate) fn put_gone(out: &mut Vec<u8>, gone: &Gone) {
    put_u32(out, gone.slot);
    out.push(gone.why as u8);
    put_text(out, &gone.detail, MAX_TEXT);
}

pub(crate) fn gone(input: &mut Input<'_>) -> Result<Gone, Malformed> {
    Ok(Gone { slot: input.u32()?, why: one_of(input, &Why::ALL)?, detail: input.text(MAX_TEXT)? })
}

fn one_of<T: Copy>(input: &mut Input<'_>, all: &[T]) -> Result<T, Malformed> {
    all.get(usize::from(input.u8()?)).copied().ok_or(Malformed("a value that does not exist"))
}

fn put_view(out: &mut Vec<u8>, view: &ViewMessage) {
    put_u64(out, view.generation.0);
    put_u64(out, view.counted);
    let (is_change, members) = match &view.members {
        Members::All(members) => (false, members),
        Members::Change(members) => (true, members),
    };
    out.push(u8::from(is_change));
    put_list(out, members, |out, (slot, process)| {
        put_u32(out, *slot);
        put_process(out, process);
    });
    put_list(out, &view.gone, put_gone);
    put_list(out, &view.broken, |out, (one, other)| {
        put_u32(out, *one);
        put_u32(out, *other);
    });
    put_list(out, &view.newcomers, |out, slot| put_u32(out, *slot));
}

fn view(input: &mut Input<'_>) -> Result<ViewMessage, Malformed> {
    let (generation, counted) = (generation(input)?, input.u64()?);
    let is_change = input.bool()?;
    let members = input.list(MAX_MEMBERS, |input| Ok((input.u32()?, Arc::new(process(input)?))))?;
    Ok(ViewMessage {
        generation,
        counted,
        members: if is_change { Members::Change(members) } else { Members::All(members) },
        gone: input.list(MAX_MEMBERS, gone)?,
        broken: input.list(MAX_MEMBERS, |input| Ok((input.u32()?, input.u32()?)))?,
        newcomers: input.list(MAX_MEMBERS, Input::u32)?,
    })
}

fn put_status(out: &mut Vec<u8>, status: &Status) {
    out.push(status.phase as u8);
    put_u64(out, status.generation.0);
    put_u64(out, status.counted);
    put_u64(out, status.changes);
    put_u32(out, status.min_np);
    put_u32(out, status.max_np);
    put_text(out, &status.waits_for, MAX_TEXT);
    put_list(out, &status.members, |out, member| {
        put_u32(out, member.slot);
        put_option(out, member.rank, put_u32);
        put_process(out, &member.process);
        out.push(member.condition as u8);
        put_millis(out, member.quiet);
        put_u64(out, member.progress);
        put_millis(out, member.idle);
        out.push(u8::from(member.has_reported));
    });
}

fn status(input: &mut Input<'_>) -> Result<Status, Malformed> {
    Ok(Status {
        phase: one_of(input, &Phase::ALL)?,
        generation: generation(input)?,
        counted: input.u64()?,
        changes: input.u64()?,
        min_np: input.u32()?,
        max_np: input.u32()?,
        waits_for: input.text(MAX_TEXT)?,
        members: input.list(MAX_MEMBERS, |input| {
            Ok(MemberStatus {
                slot: input.u32()?,
                rank: option(input, Input::u32)?,
                process: Arc::new(process(input)?),
                condition: one_of(input, &Condition::ALL)?,
                quiet: input.millis()?,
                progress: input.u64()?,
                idle: input.millis()?,
                has_reported: input.bool()?,
            })
        })?,
    })
}
