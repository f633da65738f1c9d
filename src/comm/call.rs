//! One collective call, untyped: what is to be done over how many elements.

use crate::executor;
use crate::schedule::Shape;
use crate::types::{Algorithm, Collective, DataType, Digest, Error, ReduceOp, Reduction, Result, Signature};

/// How many elements a call moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extent {
    /// The whole buffer.
    Whole(usize),
    /// Blocks of one length, one for each rank.
    Equal(usize),
    /// Blocks of given lengths, one for each rank.
    Blocks(Vec<usize>),
    /// Alltoall with given lengths, known to sender and receiver only.
    Exchange { send: Vec<usize>, recv: Vec<usize> },
}

/// A collective call without its memory. Build one with the function of its collective's name.
#[derive(Clone, Debug)]
pub struct Call {
    pub(super) collective: Collective,
    pub(super) dtype: DataType,
    pub(super) extent: Extent,
    pub(super) reduction: Option<Reduction>,
    pub(super) root: usize,
    pub(super) in_place: bool,
    /// Of a piece of a longer call: the count of the whole, and where the piece begins.
    pub(super) part: Option<(u64, u64)>,
    /// Of what ranks tell each other on the way of another call: that call, what of it this is, and what carries that call
    /// where it is not the host.
    pub(super) way: Option<(Box<Call>, u8, Option<Algorithm>)>,
}

impl Call {
    fn new(collective: Collective, dtype: DataType, extent: Extent) -> Self {
        Self { collective, dtype, extent, reduction: None, root: 0, in_place: false, part: None, way: None }
    }

    /// Every rank gets the reduction of all inputs of `count` elements.
    pub fn allreduce(dtype: DataType, count: usize, reduction: impl Into<Reduction>) -> Self {
        Self { reduction: Some(reduction.into()), ..Self::new(Collective::Allreduce, dtype, Extent::Whole(count)) }
    }

    /// The root gets the reduction of all inputs of `count` elements.
    pub fn reduce(dtype: DataType, count: usize, reduction: impl Into<Reduction>, root: usize) -> Self {
        Self { reduction: Some(reduction.into()), root, ..Self::new(Collective::Reduce, dtype, Extent::Whole(count)) }
    }

    /// Every rank's one buffer of `count` elements becomes the root's. Always in place.
    pub fn broadcast(dtype: DataType, count: usize, root: usize) -> Self {
        Self { root, in_place: true, ..Self::new(Collective::Broadcast, dtype, Extent::Whole(count)) }
    }

    /// Every rank gets every rank's block of `count` elements.
    pub fn allgather(dtype: DataType, count: usize) -> Self {
        Self::new(Collective::Allgather, dtype, Extent::Equal(count))
    }

    /// Every rank gets every rank's block; `counts` has the elements of each.
    pub fn allgatherv(dtype: DataType, counts: &[usize]) -> Self {
        Self::new(Collective::Allgather, dtype, Extent::Blocks(counts.to_vec()))
    }

    /// Each rank gets its block of `count` elements of the reduction.
    pub fn reduce_scatter(dtype: DataType, count: usize, reduction: impl Into<Reduction>) -> Self {
        Self { reduction: Some(reduction.into()), ..Self::new(Collective::ReduceScatter, dtype, Extent::Equal(count)) }
    }

    /// Each rank gets its block of the reduction; `counts` has the elements of each.
    pub fn reduce_scatterv(dtype: DataType, counts: &[usize], reduction: impl Into<Reduction>) -> Self {
        Self {
            reduction: Some(reduction.into()),
            ..Self::new(Collective::ReduceScatter, dtype, Extent::Blocks(counts.to_vec()))
        }
    }

    /// Each rank sends a block of `count` elements to each rank.
    pub fn alltoall(dtype: DataType, count: usize) -> Self {
        Self::new(Collective::Alltoall, dtype, Extent::Equal(count))
    }

    /// Each rank sends `send[i]` elements to rank i and gets `recv[i]` from it.
    pub fn alltoallv(dtype: DataType, send: &[usize], recv: &[usize]) -> Self {
        let extent = Extent::Exchange { send: send.to_vec(), recv: recv.to_vec() };
        Self::new(Collective::Alltoall, dtype, extent)
    }

    /// The root gets every rank's block of `count` elements.
    pub fn gather(dtype: DataType, count: usize, root: usize) -> Self {
        Self { root, ..Self::new(Collective::Gather, dtype, Extent::Equal(count)) }
    }

    /// The root gets every rank's block; `counts`, the same on every rank, has the elements of each.
    pub fn gatherv(dtype: DataType, counts: &[usize], root: usize) -> Self {
        Self { root, ..Self::new(Collective::Gather, dtype, Extent::Blocks(counts.to_vec())) }
    }

    /// Each rank gets its block of `count` elements of the root's input.
    pub fn scatter(dtype: DataType, count: usize, root: usize) -> Self {
        Self { root, ..Self::new(Collective::Scatter, dtype, Extent::Equal(count)) }
    }

    /// Each rank gets its block of the root's input; `counts`, the same on every rank, has the elements of each.
    pub fn scatterv(dtype: DataType, counts: &[usize], root: usize) -> Self {
        Self { root, ..Self::new(Collective::Scatter, dtype, Extent::Blocks(counts.to_vec())) }
    }

    /// No rank's barrier ends before every rank's has begun.
    pub fn barrier() -> Self {
        Self::new(Collective::Barrier, DataType::U8, Extent::Whole(0))
    }

    /// Makes the call in place: `input` is null, and `output` is the one buffer. It holds
    ///
    /// - allreduce, reduce: the input, then the result (for reduce at the root; elsewhere unspecified);
    /// - allgather, alltoall: all blocks, with this rank's own (alltoall: those to send) filled in;
    /// - reduce_scatter: all blocks; the result is this rank's own, the others are unspecified;
    /// - gather and scatter: at the root all blocks, with its own in its place. Other ranks are not affected.
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place || self.collective == Collective::Broadcast;
        self
    }

    /// What is done on the way of another call: it travels under that one's signature, so that a rank which makes
    /// another call is found out. `number` tells what is done on the same way apart.
    #[cfg(feature = "cuda")]
    pub(super) fn on_the_way_of(self, call: &Call, number: u8, carrier: Option<Algorithm>) -> Self {
        Self { way: Some((Box::new(call.clone()), number, carrier)), ..self }
    }

    /// The collective.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// Elements of a rank's input and output among so many ranks; no input in place.
    ///
    /// # Errors
    ///
    /// When the call cannot be made among so many ranks, or has no such rank.
    pub fn counts(&self, rank: usize, size: usize) -> Result<(usize, usize)> {
        if rank >= size {
            return Err(Error::invalid(format_args!(
                "rank {rank} given, but ranks are 0 to {}",
                size.saturating_sub(1)
            )));
        }
        self.validate(rank, size)?;
        Ok(self.buffer_counts(rank, size))
    }

    /// Whether a rank's memory is one buffer.
    pub fn is_one_buffer(&self, rank: usize) -> bool {
        self.is_in_place(rank)
    }

    /// Whether this rank's memory is one buffer.
    pub(super) fn is_in_place(&self, rank: usize) -> bool {
        let rooted = matches!(self.collective, Collective::Gather | Collective::Scatter);
        self.in_place && (!rooted || rank == self.root)
    }

    /// Checks the call against a communicator, so that nothing after this can overflow or go out of bounds.
    pub(super) fn validate(&self, rank: usize, size: usize) -> Result<()> {
        if self.root >= size {
            return Err(Error::invalid(format_args!(
                "{}: root {} given, but ranks are 0 to {}",
                self.collective,
                self.root,
                size - 1
            )));
        }
        match &self.extent {
            Extent::Blocks(counts) => self.expect_one_each("counts", counts, size)?,
            Extent::Exchange { send, recv } => {
                self.expect_one_each("send counts", send, size)?;
                self.expect_one_each("receive counts", recv, size)?;
                if self.in_place {
                    return Err(Error::invalid("alltoallv in place is not possible: lengths differ"));
                }
                if send[rank] != recv[rank] {
                    return Err(Error::invalid(format_args!(
                        "alltoallv: rank {rank} sends itself {} elements but expects {}",
                        send[rank], recv[rank]
                    )));
                }
            }
            Extent::Whole(_) | Extent::Equal(_) => {}
        }
        if self
            .total(size)
            .and_then(|total| total.checked_mul(self.dtype.size()))
            .is_none_or(|b| b > isize::MAX as usize)
        {
            return Err(Error::invalid(format_args!("{}: more bytes than memory can have", self.collective)));
        }
        let Some(reduction) = &self.reduction else {
            return Ok(());
        };
        if !reduction.op.supports(self.dtype) {
            return Err(Error::invalid(format_args!(
                "{}: {} is not defined for {}; bitwise ops want integers or bool, average wants numbers",
                self.collective, reduction.op, self.dtype
            )));
        }
        if (reduction.prescale != 1.0 || reduction.postscale != 1.0) && self.dtype == DataType::Bool {
            return Err(Error::invalid(format_args!("{}: bool cannot be scaled", self.collective)));
        }
        if (reduction.op == ReduceOp::User) != reduction.function.is_some() {
            return Err(Error::invalid(
                "a user op needs its function, and only a user op has one: use Reduction::user",
            ));
        }
        Ok(())
    }

    fn expect_one_each(&self, what: &str, counts: &[usize], size: usize) -> Result<()> {
        if counts.len() == size {
            return Ok(());
        }
        Err(Error::invalid(format_args!(
            "{}: {} {what} given, one for each of {size} ranks expected",
            self.collective,
            counts.len()
        )))
    }

    /// Elements of the larger buffer; `None` when they cannot be counted in 64 bits.
    fn total(&self, size: usize) -> Option<usize> {
        let sum = |counts: &[usize]| counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        match &self.extent {
            Extent::Whole(count) => Some(*count),
            Extent::Equal(count) => count.checked_mul(size),
            Extent::Blocks(counts) => sum(counts),
            Extent::Exchange { send, recv } => Some(sum(send)?.max(sum(recv)?)),
        }
    }

    /// Elements of this rank's input and output. Zero means that the pointer may be null and is not used.
    pub(super) fn buffer_counts(&self, rank: usize, size: usize) -> (usize, usize) {
        let total = self.total(size).unwrap_or(usize::MAX);
        let own = match &self.extent {
            Extent::Whole(count) | Extent::Equal(count) => *count,
            Extent::Blocks(counts) => counts[rank],
            Extent::Exchange { .. } => 0,
        };
        let at_root = |count| if rank == self.root { count } else { 0 };
        let (input, output) = match self.collective {
            Collective::Allreduce | Collective::Broadcast | Collective::SendRecv => (own, own),
            Collective::Reduce => (own, if self.in_place { own } else { at_root(own) }),
            Collective::Allgather => (own, total),
            Collective::ReduceScatter => {
                if self.in_place {
                    (total, total)
                } else {
                    (total, own)
                }
            }
            Collective::Alltoall => match &self.extent {
                Extent::Exchange { send, recv } => (send.iter().sum(), recv.iter().sum()),
                _ => (total, total),
            },
            Collective::Gather => (own, at_root(total)),
            Collective::Scatter => {
                if self.is_in_place(rank) {
                    (0, total)
                } else {
                    (at_root(total), own)
                }
            }
            Collective::Barrier => (0, 0),
        };
        if self.is_in_place(rank) { (0, output) } else { (input, output) }
    }

    /// Its counts, if every rank knows them all.
    pub(super) fn in_host_extent(&self) -> Option<executor::Extent> {
        match &self.extent {
            Extent::Whole(count) => Some(executor::Extent::Whole(*count)),
            Extent::Equal(count) => Some(executor::Extent::Equal(*count)),
            Extent::Blocks(counts) => Some(executor::Extent::Blocks(counts.as_slice().into())),
            Extent::Exchange { .. } => None,
        }
    }

    /// Whether the order of the reduction shows in the bits of the result.
    pub(super) fn is_inexact(&self) -> bool {
        self.reduction.as_ref().is_some_and(|reduction| self.dtype.is_float() || reduction.op == ReduceOp::User)
    }

    /// Whether only the two ranks of each exchange know its length.
    pub(super) fn is_unequal(&self) -> bool {
        matches!(self.extent, Extent::Exchange { .. })
    }

    /// Elements by which an algorithm is chosen: the same number on every rank.
    pub(super) fn selection_elements(&self, size: usize) -> usize {
        if self.is_unequal() { 0 } else { self.total(size).unwrap_or(usize::MAX) }
    }

    /// The blocks, spelled out when they are equal.
    pub(super) fn blocks(&self, size: usize) -> Vec<usize> {
        match &self.extent {
            Extent::Equal(count) => vec![*count; size],
            Extent::Blocks(counts) => counts.clone(),
            Extent::Whole(_) | Extent::Exchange { .. } => Vec::new(),
        }
    }

    /// The shape for the planner, over `blocks` as [`blocks`](Self::blocks) gives them.
    pub(super) fn shape<'a>(&'a self, blocks: &'a [usize]) -> Shape<'a> {
        match &self.extent {
            Extent::Whole(count) => Shape::Whole(*count),
            Extent::Exchange { send, recv } => Shape::Exchange { send, recv, equal: false },
            Extent::Equal(_) if self.collective == Collective::Alltoall => {
                Shape::Exchange { send: blocks, recv: blocks, equal: true }
            }
            Extent::Equal(_) | Extent::Blocks(_) => Shape::Blocks(blocks),
        }
    }

    /// What the other ranks must agree with.
    pub(super) fn signature(&self, algorithm: Algorithm, deterministic: bool, size: usize) -> Signature {
        if let Some((call, number, carrier)) = &self.way {
            let signature = call.signature(carrier.unwrap_or(algorithm), deterministic, size);
            let mut digest = Digest::new();
            digest.add(&signature.digest.to_le_bytes());
            digest.add(&[*number]);
            return Signature { digest: digest.0, ..signature };
        }
        let mut digest = Digest::new();
        digest.add(&[u8::from(deterministic)]);
        let count = match &self.extent {
            Extent::Whole(count) | Extent::Equal(count) => *count,
            Extent::Blocks(counts) => {
                counts.iter().for_each(|&count| digest.add(&(count as u64).to_le_bytes()));
                self.total(size).unwrap_or(usize::MAX)
            }
            Extent::Exchange { .. } => {
                digest.add(b"exchange");
                0
            }
        };
        let count = match self.part {
            Some((whole, at)) => {
                digest.add(&at.to_le_bytes());
                whole
            }
            None => count as u64,
        };
        if let Some(reduction) = &self.reduction {
            digest.add(&reduction.prescale.to_bits().to_le_bytes());
            digest.add(&reduction.postscale.to_bits().to_le_bytes());
            if let Some((name, _)) = &reduction.function {
                digest.add(name.as_bytes());
            }
        }
        let rooted = matches!(
            self.collective,
            Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter
        );
        Signature {
            collective: self.collective,
            dtype: self.dtype,
            op: self.reduction.as_ref().map(|reduction| reduction.op),
            algorithm,
            root: rooted.then_some(self.root as u32),
            count,
            digest: digest.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_cannot_be_are_refused_with_what_was_given() {
        let refused = |call: Call| call.validate(0, 4).unwrap_err().to_string();
        assert!(refused(Call::broadcast(DataType::F32, 1, 4)).contains("root 4"));
        assert!(refused(Call::allgatherv(DataType::F32, &[1, 2])).contains("2 counts given"));
        assert!(refused(Call::allgather(DataType::F64, usize::MAX / 8)).contains("more bytes"));
        assert!(
            refused(Call::allreduce(DataType::F32, 1, ReduceOp::BitXor)).contains("bit_xor is not defined for f32")
        );
        assert!(refused(Call::allreduce(DataType::F32, 1, ReduceOp::User)).contains("Reduction::user"));
        let scaled = Reduction::new(ReduceOp::Max).postscale(2.0);
        assert!(refused(Call::allreduce(DataType::Bool, 1, scaled)).contains("cannot be scaled"));
        assert!(refused(Call::alltoallv(DataType::U8, &[1, 0, 0, 0], &[2, 0, 0, 0])).contains("sends itself 1"));
        Call::allreduce(DataType::F32, 7, ReduceOp::Average).validate(0, 4).unwrap();
    }

    #[test]
    fn signatures_tell_calls_apart_that_would_not_meet() {
        let sign = |call: Call| call.signature(Algorithm::Ring, false, 3);
        let sum = sign(Call::allreduce(DataType::F32, 6, ReduceOp::Sum));
        assert_eq!(sum, sign(Call::allreduce(DataType::F32, 6, ReduceOp::Sum).in_place(true)));
        for other in [
            Call::allreduce(DataType::F32, 7, ReduceOp::Sum),
            Call::allreduce(DataType::F64, 6, ReduceOp::Sum),
            Call::allreduce(DataType::F32, 6, ReduceOp::Max),
            Call::allreduce(DataType::F32, 6, Reduction::new(ReduceOp::Sum).prescale(0.5)),
            Call::allreduce(DataType::F32, 6, Reduction::new(ReduceOp::Sum).postscale(0.5)),
            Call::reduce(DataType::F32, 6, ReduceOp::Sum, 0),
        ] {
            assert_ne!(sign(other), sum);
        }
        // In rank order and in any order, partial results travel on other ways.
        let ordered = Call::allreduce(DataType::F32, 6, ReduceOp::Sum).signature(Algorithm::Ring, true, 3);
        assert_ne!(ordered, sum);
        let user = |name: &str| sign(Call::allreduce(DataType::F32, 6, Reduction::user(name, |_, _, _| ())));
        assert_eq!(user("clip"), user("clip"));
        assert_ne!(user("clip"), user("norm"));
        let reduce = |root| sign(Call::reduce(DataType::F32, 6, ReduceOp::Sum, root));
        assert_ne!(reduce(0), reduce(1));
        // What is done on the way of a call is known by that call, and by what it is.
        let on_the_way = |count, number| {
            let call = Call::allreduce(DataType::F32, count, ReduceOp::Sum);
            sign(Call { way: Some((Box::new(call), number, None)), ..Call::barrier() })
        };
        let call = Call::allreduce(DataType::F32, 6, ReduceOp::Sum);
        let over = sign(Call { way: Some((Box::new(call), 1, Some(Algorithm::Nccl))), ..Call::barrier() });
        assert_eq!(over.to_string(), "allreduce(count 6, f32, sum, nccl)");
        assert_eq!(on_the_way(6, 1).to_string(), sum.to_string());
        assert!(
            on_the_way(6, 1) != sum && on_the_way(6, 1) != on_the_way(6, 2) && on_the_way(6, 1) != on_the_way(7, 1)
        );
        let blocks = |counts: &[usize]| sign(Call::allgatherv(DataType::F32, counts));
        assert_ne!(blocks(&[1, 2, 3]), blocks(&[3, 2, 1]));
    }
}
