//! Calls on device memory that go over memory of peers: of all ranks of one host.
//!
//! A kernel that waits for a rank which does not make the call would wait until the deadline, and two that combine
//! different calls would spoil memory. So a kernel is launched only when all ranks have agreed that it is the same call
//! and each rank's device has come to it. From there on the thread asks in turn whether the device is done and whether
//! another rank gave the call up, until the deadline; then the abort word ends the kernel, and the others are told why.

use std::time::{Duration, Instant};

use super::agreement::{TEXT_BYTES, decode_text, encode_text};
use super::waiting::{signature, wait, wait_until};
use super::worker::{Failure, Job, late};
use crate::comm::call::{Call, Extent};
use crate::comm::communicator::Communicator;
use crate::device::peers::{Arena, Blocks, Exported, MOST_BLOCKS, MOST_PEERS, PeerCall, PeerMemory, Peers};
use crate::device::{DeviceIdentity, Event, Kernels};
use crate::types::{Collective, DataType, Deadline, Error, Finish, ReduceOp, Result};

/// What is told on the way of a call, apart from what others tell.
const EXPORTED: u8 = 16;
const MAPPED: u8 = 17;
const AGREED: u8 = 18;

/// Whether it is well, multiprocessors, the device, its memory, and why not.
const RECORD_BYTES: usize = 1 + 4 + 16 + Exported::BYTES + 2 + TEXT_BYTES;

/// How long the other ranks may take to let go of this one's memory when the communicator ends.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long a kernel may take to give up.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Memory of all ranks, mapped on this one.
pub(super) struct OverPeers {
    peers: Peers,
    communicator: Communicator,
}

/// What a rank tells of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    multiprocessors: u32,
    uuid: [u8; 16],
    exported: Exported,
}

impl OverPeers {
    /// Maps the memory of all ranks, with all of them. The inner error says why it cannot be, on any rank.
    pub fn start(job: &Job) -> Result<Result<Self, Error>, Failure> {
        let (rank, size) = (job.communicator.rank(), job.communicator.size());
        if let Some(why) = obstacle(size, &job.communicator.view().hosts) {
            return Ok(Err(unusable(why)));
        }
        let own = Self::own(job);
        let told = encode(own.as_ref().map(|(_, _, record)| record).map_err(ToString::to_string));
        let mut all = vec![0; RECORD_BYTES * size];
        job.tell(Call::allgather(DataType::U8, RECORD_BYTES), EXPORTED, &told, &mut all)?;
        let (exported, blocks) = match decide(&all.chunks_exact(RECORD_BYTES).map(decode).collect::<Vec<_>>()) {
            Ok(decided) => decided,
            // Nobody has mapped what this rank has told of.
            Err(why) => return Ok(Err(unusable(why))),
        };
        // Whoever has none has told so.
        let (kernels, arena, _) = own.map_err(Failure::Network)?;
        let opened = Peers::open(kernels, arena, &exported, rank, blocks).map_err(|error| error.to_string());
        let told = encode_text(opened.as_ref().err().map_or("", String::as_str));
        let mut all = vec![0; told.len() * size];
        job.tell(Call::allgather(DataType::U8, told.len()), MAPPED, &told, &mut all)?;
        let reasons: Vec<_> = all.chunks_exact(told.len()).map(decode_text).collect();
        match (opened, reasons.iter().position(|reason| !reason.is_empty())) {
            (Ok(peers), None) => Ok(Ok(Self { peers, communicator: job.communicator.clone() })),
            (_, Some(rank)) => Ok(Err(unusable(format_args!("rank {rank}: {}", reasons[rank])))),
            (Err(why), None) => Ok(Err(unusable(why))),
        }
    }

    /// This rank's kernels and memory.
    fn own(job: &Job) -> Result<(std::sync::Arc<Kernels>, Arena, Record)> {
        let DeviceIdentity { uuid, .. } = job.device.identity()?;
        let kernels = Kernels::open(&job.device)?;
        // Compiles them, if that is still to be done.
        kernels.kernel("phx_peer_meet")?;
        let multiprocessors = job.device.multiprocessors()?;
        let arena = Arena::take(&job.device, job.deadline)?;
        match arena.export() {
            Ok(exported) => Ok((kernels, arena, Record { multiprocessors, uuid, exported })),
            Err(error) => Err(error),
        }
    }

    /// The job's call, if this carries it. Depends on nothing but what all ranks compare with the call.
    pub fn carries(job: &Job) -> Option<PeerCall> {
        let (call, size) = (&job.call, job.communicator.size());
        let blocks = match &call.extent {
            Extent::Whole(count) => Blocks::Whole(*count),
            Extent::Equal(count) => Blocks::Equal(*count),
            Extent::Blocks(counts) => Blocks::Given(counts.clone()),
            // How many pieces it has is not known to all.
            Extent::Exchange { .. } => return None,
        };
        let op = call.reduction.as_ref().map(|reduction| reduction.op);
        // A forced algorithm is one of the host's.
        if matches!(call.collective, Collective::Barrier | Collective::SendRecv)
            || op == Some(ReduceOp::User)
            || job.communicator.settings().algorithm.is_some()
        {
            return None;
        }
        let (prescale, factor) =
            call.reduction.as_ref().map_or((1.0, 1.0), |reduction| (reduction.prescale, reduction.postscale));
        let divisor = if op == Some(ReduceOp::Average) { size as u64 } else { 1 };
        Some(PeerCall {
            collective: call.collective,
            root: call.root,
            dtype: call.dtype,
            op,
            prescale,
            finish: Finish { divisor, factor },
            blocks,
        })
    }

    /// Carries a job out. Returns when the device is done with it.
    pub fn carry_out(&mut self, job: &Job, call: PeerCall) -> Result<Event, Failure> {
        let size = job.communicator.size();
        // What can fail on this rank alone comes first, while the others can still hear of it in place of the
        // agreement.
        wait_until(job, |_| Ok(job.ready.is_done()?.then_some(())), || late(job))?;
        for is_aligned in [false, true] {
            self.peers.prepare(&call, call.shot(size, is_aligned))?;
        }
        let own = [u8::from(job.output.is_multiple_of(16))];
        let mut all = vec![0; size];
        job.tell(Call::allgather(DataType::U8, 1), AGREED, &own, &mut all)?;
        let shot = call.shot(size, all.iter().all(|aligned| *aligned == 1));
        let kernels = self.peers.prepare(&call, shot)?;
        let is_in_place = job.call.is_in_place(job.communicator.rank());
        let memory = PeerMemory { input: job.input, output: job.output, is_in_place };
        // SAFETY: whoever made the job answers for its memory until its outcome is told, which is not before the event
        // has come, or the kernel gave up and the stream is drained. All ranks have agreed on the call.
        let done = unsafe { self.peers.launch(&call, shot, kernels, memory, &job.ready)? };
        let what = signature(job).to_string();
        wait(job, &what, "over memory of peers; its kernel was told to give up", |_| {
            Ok(done.is_done()?.then_some(()))
        })?;
        // No kernel gives up that was not told to, and only `give_up` tells.
        Ok(done)
    }

    /// Ends what is on the device. `false`: it may still have work with the memory of a call, and with this: better lost
    /// than used again.
    pub fn give_up(&self) -> bool {
        self.peers.abort();
        let deadline = Deadline::after(Instant::now(), DRAIN_LIMIT);
        self.peers.stream().synchronize(deadline).is_ok_and(|done| done)
    }

    /// Lets go of the others' memory, and frees its own when they have let go of it, too.
    pub fn end(mut self) {
        self.peers.close();
        let communicator = self.communicator.with_timeout(END_LIMIT);
        // SAFETY: a barrier has no memory.
        let all_closed = unsafe { communicator.run(&Call::barrier(), std::ptr::null(), std::ptr::null_mut()) };
        if all_closed.is_ok() {
            self.peers.free();
        }
    }
}

fn unusable(why: impl std::fmt::Display) -> Error {
    Error::environment(
        format_args!("memory of peers cannot be used: {why}"),
        "mend that, or set PHALANX_DEVICE_COLLECTIVES to auto",
    )
}

/// Why these ranks cannot use it, whatever their devices are.
fn obstacle(size: usize, hosts: &[usize]) -> Option<String> {
    if size < 2 {
        return Some("there are no peers".into());
    }
    if size > MOST_PEERS {
        return Some(format!("there are {size} ranks, and kernels take at most {MOST_PEERS}"));
    }
    let other = hosts.iter().position(|host| Some(host) != hosts.first());
    other.map(|rank| format!("rank {rank} is on another host than rank 0"))
}

/// From what all ranks told: their memory, and how many blocks of a grid that meets fit on every device at once.
fn decide(told: &[Result<Record, String>]) -> Result<(Vec<Exported>, u32), String> {
    let mut records = Vec::new();
    for (rank, told) in told.iter().enumerate() {
        records.push(told.as_ref().map_err(|why| format!("rank {rank}: {why}"))?);
    }
    let mut blocks = MOST_BLOCKS;
    for (rank, record) in records.iter().enumerate() {
        let has_same_place = |other: &&Record| {
            (other.exported.process, other.exported.ordinal) == (record.exported.process, record.exported.ordinal)
        };
        if let Some(other) = records[..rank].iter().position(has_same_place) {
            // Whatever the one does with the device, such as freeing memory, may wait for the other's kernel.
            return Err(format!("ranks {other} and {rank} are one process with one device"));
        }
        let sharing = records.iter().filter(|other| other.uuid == record.uuid && record.uuid != [0; 16]).count();
        blocks = blocks.min(record.multiprocessors / u32::try_from(sharing.max(1)).unwrap_or(u32::MAX));
    }
    Ok((records.iter().map(|record| record.exported.clone()).collect(), blocks.max(1)))
}

fn encode(record: Result<&Record, String>) -> Vec<u8> {
    let mut bytes = vec![u8::from(record.is_ok())];
    match record {
        Ok(record) => {
            bytes.extend(record.multiprocessors.to_le_bytes());
            bytes.extend(record.uuid);
            bytes.extend(record.exported.encode());
            bytes.extend(encode_text(""));
        }
        Err(why) => {
            bytes.resize(RECORD_BYTES - 2 - TEXT_BYTES, 0);
            bytes.extend(encode_text(&why));
        }
    }
    bytes
}

fn decode(bytes: &[u8]) -> Result<Record, String> {
    let Ok(bytes) = <&[u8; RECORD_BYTES]>::try_from(bytes) else { return Err("told something else".into()) };
    if bytes[0] != 1 {
        return Err(decode_text(&bytes[RECORD_BYTES - 2 - TEXT_BYTES..]));
    }
    Ok(Record {
        multiprocessors: u32::from_le_bytes(std::array::from_fn(|at| bytes[1 + at])),
        uuid: std::array::from_fn(|at| bytes[5 + at]),
        exported: Exported::decode(&std::array::from_fn(|at| bytes[21 + at])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(process: u8, ordinal: u32, uuid: u8) -> Record {
        let mut bytes = [process; Exported::BYTES];
        bytes[16..20].copy_from_slice(&ordinal.to_le_bytes());
        Record { multiprocessors: 80, uuid: [uuid; 16], exported: Exported::decode(&bytes) }
    }

    #[test]
    fn what_is_told_survives_the_way() {
        let one = record(3, 1, 9);
        assert_eq!(encode(Ok(&one)).len(), RECORD_BYTES);
        assert_eq!(decode(&encode(Ok(&one))), Ok(one));
        assert_eq!(encode(Err("no IPC".into())).len(), RECORD_BYTES);
        assert_eq!(decode(&encode(Err("no IPC".into()))), Err("no IPC".into()));
        assert!(decode(&[1; 9]).is_err());
    }

    #[test]
    fn grids_fit_on_every_device_at_once() {
        let blocks = |records: &[Record]| decide(&records.iter().cloned().map(Ok).collect::<Vec<_>>()).map(|all| all.1);
        assert_eq!(blocks(&[record(1, 0, 1), record(2, 0, 2)]), Ok(80));
        assert_eq!(blocks(&[record(1, 0, 1), record(2, 0, 1), record(3, 0, 2)]), Ok(40), "two share a device");
        let large = Record { multiprocessors: 1000, ..record(1, 0, 1) };
        assert_eq!(
            blocks(&[large.clone(), large.clone()]),
            Err("ranks 0 and 1 are one process with one device".into())
        );
        assert_eq!(blocks(&[large]), Ok(MOST_BLOCKS));
        let told = [Ok(record(1, 0, 1)), Err("no IPC".into())];
        assert_eq!(decide(&told).map(|_| ()), Err("rank 1: no IPC".into()));
    }

    #[test]
    fn what_keeps_it_away_is_said() {
        assert_eq!(obstacle(4, &[0; 4]), None);
        assert!(obstacle(1, &[0]).is_some_and(|why| why.contains("no peers")));
        assert!(obstacle(17, &[0; 17]).is_some_and(|why| why.contains("at most 16")));
        assert_eq!(obstacle(3, &[0, 0, 1]), Some("rank 2 is on another host than rank 0".into()));
    }
}
