//! Collectives over memory of peers: ranks of one host whose devices reach each other.
//!
//! Each rank has an [`Arena`] on its device, which the others have mapped ([`Mapped`]): by CUDA IPC, or by its address
//! in the same process. A call goes through it in pieces ([`pieces`]). Each rank copies a piece of its input into its own
//! arena, prescaled on the way; then a kernel of `kernels/peer.cuh` meets those of the other ranks. What lies in all
//! arenas is combined, in the order of the ranks, or copied, straight into the output; then all meet again, and the next
//! piece may come. Sums of all for all are combined by the kernel that meets. Nobody writes another's memory.
//!
//! The input is copied, and not itself mapped by the others, for three reasons. Memory that others have mapped must not
//! be freed before they are told, which whoever frees a tensor does not wait for. Memory of pools, which is what
//! PyTorch's may be, cannot be mapped by others at all. And nothing needs to be told of memory with each call. A copy
//! within a device costs a tenth of what goes between two.
//!
//! A kernel that waits for another rank's watches the abort word of its arena, which the host sets.

mod arena;
mod mapping;
mod pieces;

use std::sync::Arc;

use super::arithmetic::parameters::{self, MOST_SOURCES};
use super::context::Device;
use super::module::{Kernel, Kernels, LaunchShape};
use super::sources::THREADS;
use super::stream::{Event, Stream};
use crate::types::{Collective, DataType, Error, Finish, ReduceOp, Result};
use pieces::{Pieces, Run};

pub(crate) use arena::{Arena, MOST_BLOCKS};
pub(crate) use mapping::{Exported, Mapped};
pub(crate) use pieces::PeerMemory;

/// The most ranks.
pub(crate) const MOST_PEERS: usize = MOST_SOURCES;

/// Among more than two ranks, up to so many bytes every rank combines everything: one meeting less for more traffic.
const ONE_SHOT_BYTES: usize = 256 << 10;

/// How many elements a call moves.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// So many, by every rank.
    Whole(usize),
    /// A block of so many for each rank.
    Equal(usize),
    /// A block for each rank, of these lengths.
    Given(Vec<usize>),
}

impl Blocks {
    fn length(&self, block: usize) -> usize {
        match self {
            Self::Whole(count) | Self::Equal(count) => *count,
            Self::Given(counts) => counts[block],
        }
    }

    /// Where a block begins in memory that has all.
    fn start(&self, block: usize) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Equal(count) => block * count,
            Self::Given(counts) => counts[..block].iter().sum(),
        }
    }
}

/// A call, checked.
#[derive(Clone, Debug)]
pub(crate) struct PeerCall {
    pub collective: Collective,
    /// Of a collective that has one.
    pub root: usize,
    pub dtype: DataType,
    /// How a reduction combines.
    pub op: Option<ReduceOp>,
    /// What each input is multiplied by.
    pub prescale: f64,
    /// What is done to each result.
    pub finish: Finish,
    pub blocks: Blocks,
}

/// How a call is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shot {
    /// In one launch, everything by every rank.
    One,
    /// In one launch, a share by each rank, which the others copy.
    Two,
    /// By the kernel of the operation, or copies, between two meetings.
    Between,
}

impl PeerCall {
    /// How it is combined, the same on all ranks: `is_aligned` says that all outputs begin at a multiple of sixteen
    /// bytes.
    pub fn shot(&self, ranks: usize, is_aligned: bool) -> Shot {
        let is_sum = self.dtype.is_float() && matches!(self.op, Some(ReduceOp::Sum | ReduceOp::Average));
        if !is_sum || self.collective != Collective::Allreduce {
            return Shot::Between;
        }
        let is_long = self.blocks.length(0).saturating_mul(self.dtype.size()) > ONE_SHOT_BYTES;
        if ranks > 2 && is_long && is_aligned { Shot::Two } else { Shot::One }
    }
}

/// The kernels of a call.
#[derive(Clone, Copy)]
pub(crate) struct PeerKernels {
    fill: Kernel,
    meet: Kernel,
    /// None where nothing is combined.
    combine: Option<Kernel>,
}

/// The arenas of all ranks, seen from one of them.
pub(crate) struct Peers {
    kernels: Arc<Kernels>,
    stream: Stream,
    arena: Option<Arena>,
    /// Each rank's; none for this one.
    others: Vec<Option<Mapped>>,
    rank: usize,
    /// Blocks of a grid that meets others.
    blocks: u32,
    /// What the flags stand at.
    meetings: u32,
}

impl Peers {
    /// Maps the arenas of all ranks. `exported` has what each has told, in rank order, `blocks` how many blocks the
    /// grids have that meet, the same on all ranks.
    ///
    /// # Errors
    ///
    /// When an arena cannot be mapped. The own one is kept for the next time.
    pub fn open(kernels: Arc<Kernels>, arena: Arena, exported: &[Exported], rank: usize, blocks: u32) -> Result<Self> {
        if exported.len() > MOST_PEERS {
            return Err(Error::internal("more peers than a kernel takes"));
        }
        let device = kernels.device().clone();
        let stream = Stream::new(&device)?;
        let mut peers = Self { kernels, stream, arena: Some(arena), others: Vec::new(), rank, blocks, meetings: 0 };
        for (other, exported) in exported.iter().enumerate() {
            let mapped = if other == rank { None } else { Some(Mapped::open(&device, exported)?) };
            peers.others.push(mapped);
        }
        Ok(peers)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.kernels.device()
    }

    fn ranks(&self) -> usize {
        self.others.len()
    }

    /// The kernels of a call. May compile them.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub fn prepare(&self, call: &PeerCall, shot: Shot) -> Result<PeerKernels> {
        let dtype = call.dtype;
        let combine = match shot {
            Shot::One => Some(format!("phx_peer_one_shot_{dtype}")),
            Shot::Two => Some(format!("phx_peer_two_shot_{dtype}")),
            Shot::Between => call.op.map(|op| super::arithmetic::reduce_kernel(op, dtype)),
        };
        Ok(PeerKernels {
            fill: self.kernels.kernel(&format!("phx_peer_fill_{dtype}"))?,
            meet: self.kernels.kernel("phx_peer_meet")?,
            combine: combine.map(|name| self.kernels.kernel(&name)).transpose()?,
        })
    }

    /// Puts a call on the stream, after `ready`. The event comes when this rank's output is written and its input and
    /// arena are read by nobody any more, or when it was given up.
    ///
    /// # Errors
    ///
    /// When the driver refuses. What is on the stream then is still to be given up.
    ///
    /// # Safety
    ///
    /// The memory must have the call's elements on this device, input and output the same or apart, until the event has
    /// come. All ranks must launch the same call in the same shot, and no other meanwhile.
    pub unsafe fn launch(
        &mut self,
        call: &PeerCall,
        shot: Shot,
        kernels: PeerKernels,
        memory: PeerMemory,
        ready: &Event,
    ) -> Result<Event> {
        self.stream.wait_for(ready)?;
        let pieces = Pieces::new(call, memory, self.rank, self.ranks());
        for piece in 0..pieces.count() {
            // SAFETY: the caller's promise, for a part of the elements.
            unsafe { self.launch_piece(call, shot, kernels, &pieces, piece)? };
        }
        let done = Event::new(self.device())?;
        done.record(&self.stream)?;
        Ok(done)
    }

    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    unsafe fn launch_piece(
        &mut self,
        call: &PeerCall,
        shot: Shot,
        kernels: PeerKernels,
        pieces: &Pieces,
        piece: usize,
    ) -> Result<()> {
        let width = call.dtype.size();
        let shape = |count: usize| self.kernels.shape((count * width).div_ceil(16) as u64);
        let meeting = LaunchShape { blocks: self.blocks, threads: THREADS };
        for Run { at, memory, count, .. } in pieces.fills(piece) {
            let scale = parameters::Scale {
                target: self.arena()?.input() + at as u64,
                source: memory,
                count: count as u64,
                finish: Finish { divisor: 1, factor: call.prescale }.into(),
            };
            let fill = parameters::Fill { scale, status: self.arena()?.status_word() };
            // SAFETY: the arena has room for the run, and nobody reads it: the launch before has met all others after they
            // had. The kernel is the one of these parameters.
            unsafe { self.kernels.launch(kernels.fill, shape(count), &fill, &self.stream)? };
        }
        let result = pieces.reduction(piece);
        let (target, count) = result.map_or((0, 0), |run| (run.memory, run.count));
        let mut peer = self.parameters(target, count, call.finish)?;
        // SAFETY: every array has as many elements. The kernels are those of these parameters.
        unsafe {
            if let (Shot::One | Shot::Two, Some(combine)) = (shot, kernels.combine) {
                self.kernels.launch(combine, meeting, &peer, &self.stream)?;
            } else {
                self.kernels.launch(kernels.meet, meeting, &peer, &self.stream)?;
                if let (Some(combine), Some(run)) = (kernels.combine, result) {
                    let mut reduce = parameters::Reduce {
                        target,
                        sources: peer.inputs.map(|base| base + run.at as u64),
                        count: count as u64,
                        finish: call.finish.into(),
                        sources_used: peer.ranks,
                    };
                    reduce.sources[self.ranks()..].fill(0);
                    self.kernels.launch(combine, shape(count), &reduce, &self.stream)?;
                }
                for run in pieces.copies(piece) {
                    self.stream.copy(run.memory, peer.inputs[run.rank] + run.at as u64, run.count * width)?;
                }
                peer.meetings = peer.meetings.wrapping_add(1);
                self.kernels.launch(kernels.meet, meeting, &peer, &self.stream)?;
            }
        }
        let meetings = if shot == Shot::Two { 3 } else { 2 };
        self.meetings = self.meetings.wrapping_add(meetings);
        Ok(())
    }

    fn parameters(&self, target: u64, count: usize, finish: Finish) -> Result<parameters::Peer> {
        let own = self.arena()?;
        let mut peer = parameters::Peer {
            target,
            inputs: [0; MOST_SOURCES],
            stages: [0; MOST_SOURCES],
            flags: [0; MOST_SOURCES],
            abort: own.abort_word(),
            status: own.status_word(),
            count: count as u64,
            finish: finish.into(),
            rank: self.rank as u32,
            ranks: self.ranks() as u32,
            meetings: self.meetings,
        };
        for (rank, other) in self.others.iter().enumerate() {
            let base = other.as_ref().map_or(own.base(), Mapped::base);
            peer.inputs[rank] = base;
            peer.stages[rank] = base + arena::STAGE_AT as u64;
            peer.flags[rank] = base + other.as_ref().map_or(own.flags_at(), Mapped::flags_at);
        }
        Ok(peer)
    }

    fn arena(&self) -> Result<&Arena> {
        self.arena.as_ref().ok_or_else(|| Error::internal("a call over memory of peers after its end"))
    }

    /// Tells all kernels that wait to give up.
    pub fn abort(&self) {
        if let Some(arena) = &self.arena {
            arena.abort();
        }
    }

    /// The stream of the calls.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Lets go of the others' arenas. When all ranks have done this, the own one may be freed by [`free`](Self::free).
    pub fn close(&mut self) {
        self.others.clear();
    }

    /// Frees the own arena, which nobody has mapped any more.
    pub fn free(mut self) {
        drop(self.arena.take());
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // Others may still have it mapped.
        if let Some(arena) = self.arena.take() {
            let others = std::mem::take(&mut self.others);
            arena.keep(Some((others, Arc::clone(&self.kernels))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_choose_the_same_shot_of_what_they_agree_on() {
        let call = |dtype, op, count| PeerCall {
            collective: Collective::Allreduce,
            root: 0,
            dtype,
            op: Some(op),
            prescale: 1.0,
            finish: Finish::NONE,
            blocks: Blocks::Whole(count),
        };
        let sum = |count| call(DataType::F32, ReduceOp::Sum, count);
        assert_eq!(sum(65536).shot(4, true), Shot::One);
        assert_eq!(sum(65537).shot(4, true), Shot::Two);
        assert_eq!(
            sum(65537).shot(4, false),
            Shot::One,
            "blocks copy what the same blocks wrote only where all lie alike"
        );
        assert_eq!(sum(65537).shot(2, true), Shot::One, "the traffic is the same, and a meeting is saved");
        assert_eq!(call(DataType::BF16, ReduceOp::Average, usize::MAX).shot(8, true), Shot::Two);
        assert_eq!(call(DataType::F32, ReduceOp::Max, 8).shot(4, true), Shot::Between);
        assert_eq!(call(DataType::I32, ReduceOp::Sum, 8).shot(4, true), Shot::Between);
        let one_each = PeerCall { collective: Collective::ReduceScatter, ..sum(65536) };
        assert_eq!(one_each.shot(4, true), Shot::Between, "no rank gets all");
    }
}
