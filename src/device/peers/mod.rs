//! Allreduce over memory of peers: ranks of one host whose devices reach each other.
//!
//! Each rank has an [`Arena`] on its device, which the others have mapped ([`Mapped`]): by CUDA IPC, or by its address
//! in the same process. A call goes through it in pieces. Each rank copies a piece of its input into its own arena,
//! prescaled on the way; then a kernel of `kernels/peer.cuh` meets those of the other ranks and combines what lies in
//! all arenas, in the order of the ranks, straight into the output. Nobody writes another's memory.
//!
//! The input is copied, and not itself mapped by the others, for three reasons. Memory that others have mapped must not
//! be freed before they are told, which whoever frees a tensor does not wait for. Memory of pools, which is what
//! PyTorch's may be, cannot be mapped by others at all. And nothing needs to be told of memory with each call. A copy
//! within a device costs a tenth of what goes between two.
//!
//! A kernel that waits for another rank's watches the abort word of its arena, which the host sets.

mod arena;
mod mapping;

use std::sync::Arc;

use super::arithmetic::parameters::{self, MOST_SOURCES};
use super::context::Device;
use super::module::{Kernel, Kernels, LaunchShape};
use super::sources::THREADS;
use super::stream::{Event, Stream};
use crate::types::{DataType, Error, Finish, ReduceOp, Result};

pub(crate) use arena::{Arena, MOST_BLOCKS};
pub(crate) use mapping::{Exported, Mapped};

/// The most ranks.
pub(crate) const MOST_PEERS: usize = MOST_SOURCES;

/// Among more than two ranks, up to so many bytes every rank combines everything: one meeting less for more traffic.
const ONE_SHOT_BYTES: usize = 256 << 10;

/// An allreduce, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCall {
    pub dtype: DataType,
    pub op: ReduceOp,
    /// What each input is multiplied by.
    pub prescale: f64,
    /// What is done to each result.
    pub finish: Finish,
    pub count: usize,
}

/// How a call is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shot {
    /// In one launch, everything by every rank.
    One,
    /// In one launch, a share by each rank, which the others copy.
    Two,
    /// By the kernel of the operation between two meetings.
    Between,
}

impl PeerCall {
    /// How it is combined, the same on all ranks: `is_aligned` says that all outputs begin at a multiple of sixteen
    /// bytes.
    pub fn shot(&self, ranks: usize, is_aligned: bool) -> Shot {
        if !(self.dtype.is_float() && matches!(self.op, ReduceOp::Sum | ReduceOp::Average)) {
            return Shot::Between;
        }
        let is_long = self.count.saturating_mul(self.dtype.size()) > ONE_SHOT_BYTES;
        if ranks > 2 && is_long && is_aligned { Shot::Two } else { Shot::One }
    }
}

/// The kernels of a call.
#[derive(Clone, Copy)]
pub(crate) struct PeerKernels {
    fill: Kernel,
    meet: Kernel,
    combine: Kernel,
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
            Shot::One => format!("phx_peer_one_shot_{dtype}"),
            Shot::Two => format!("phx_peer_two_shot_{dtype}"),
            Shot::Between => super::arithmetic::reduce_kernel(call.op, dtype),
        };
        Ok(PeerKernels {
            fill: self.kernels.kernel(&format!("phx_peer_fill_{dtype}"))?,
            meet: self.kernels.kernel("phx_peer_meet")?,
            combine: self.kernels.kernel(&combine)?,
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
    /// `input` and `output` must be the same or apart, with the call's elements in memory of this device, until the event
    /// has come. All ranks must launch the same call in the same shot, and no other meanwhile.
    pub unsafe fn launch(
        &mut self,
        call: &PeerCall,
        shot: Shot,
        kernels: PeerKernels,
        (input, output): (u64, u64),
        ready: &Event,
    ) -> Result<Event> {
        self.stream.wait_for(ready)?;
        let width = call.dtype.size();
        let piece = arena::REGION / width;
        for first in (0..call.count).step_by(piece) {
            let count = piece.min(call.count - first);
            let at = (first * width) as u64;
            // SAFETY: the caller's promise, for a part of the elements.
            unsafe { self.launch_piece(call, shot, kernels, (input + at, output + at), count)? };
        }
        let done = Event::new(self.device())?;
        done.record(&self.stream)?;
        Ok(done)
    }

    /// # Safety
    ///
    /// As [`launch`](Self::launch), for `count` elements that fit in an arena.
    unsafe fn launch_piece(
        &mut self,
        call: &PeerCall,
        shot: Shot,
        kernels: PeerKernels,
        (input, output): (u64, u64),
        count: usize,
    ) -> Result<()> {
        let scale = parameters::Scale {
            target: self.arena()?.input(),
            source: input,
            count: count as u64,
            finish: Finish { divisor: 1, factor: call.prescale }.into(),
        };
        let fill = parameters::Fill { scale, status: self.arena()?.status_word() };
        let shape = self.kernels.shape((count * call.dtype.size()).div_ceil(16) as u64);
        let meeting = LaunchShape { blocks: self.blocks, threads: THREADS };
        let mut peer = self.parameters(output, count, call.finish)?;
        // SAFETY: the arena has room for so many elements, and nobody reads it: the launch before has met all others
        // after they had. The kernels are those of these parameters, and every array has as many elements.
        unsafe {
            self.kernels.launch(kernels.fill, shape, &fill, &self.stream)?;
            match shot {
                Shot::One | Shot::Two => self.kernels.launch(kernels.combine, meeting, &peer, &self.stream)?,
                Shot::Between => {
                    self.kernels.launch(kernels.meet, meeting, &peer, &self.stream)?;
                    let mut reduce = parameters::Reduce {
                        target: output,
                        sources: peer.inputs,
                        count: count as u64,
                        finish: call.finish.into(),
                        sources_used: peer.ranks,
                    };
                    reduce.sources[self.ranks()..].fill(0);
                    self.kernels.launch(kernels.combine, shape, &reduce, &self.stream)?;
                    peer.meetings = peer.meetings.wrapping_add(1);
                    self.kernels.launch(kernels.meet, meeting, &peer, &self.stream)?;
                }
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
        let call = |dtype, op, count| PeerCall { dtype, op, prescale: 1.0, finish: Finish::NONE, count };
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
    }
}
