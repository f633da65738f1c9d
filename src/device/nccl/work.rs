//! Calls as NCCL takes them, and which it takes.

use std::ffi::c_int;
use std::sync::Arc;

use super::group::Work;
use crate::device::stream::Stream;
use crate::types::{Collective, DataType, ReduceOp, Reduction};

/// NCCL's number for an element type; none for those it does not have.
fn data_type(dtype: DataType) -> Option<c_int> {
    Some(match dtype {
        DataType::I8 => 0,
        DataType::U8 => 1,
        DataType::I32 => 2,
        DataType::U32 => 3,
        DataType::I64 => 4,
        DataType::U64 => 5,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::F64 => 8,
        DataType::BF16 => 9,
        DataType::I16 | DataType::Bool => return None,
    })
}

/// NCCL's number for a type of as many bytes, for calls that move elements and combine none.
fn bytes_of(dtype: DataType) -> c_int {
    match dtype.size() {
        1 => 1,
        2 => 6,
        4 => 3,
        _ => 5,
    }
}

/// NCCL's number for an op; none for those it does not have.
fn reduce_op(op: ReduceOp) -> Option<c_int> {
    Some(match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Average => 4,
        _ => return None,
    })
}

/// Elements of a buffer: where they begin, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first element.
    pub at: usize,
    /// The number of elements.
    pub count: usize,
}

/// How a collective is made of NCCL's functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts {
    /// It is one of them.
    Whole,
    /// As many sends and receives as have elements, all at once: by rank, what of the input goes there, and where in the
    /// output what comes from there belongs.
    Exchange {
        /// To each rank.
        send: Vec<Span>,
        /// From each rank.
        recv: Vec<Span>,
    },
    /// A reduction of each of these spans of the input to the rank with its number, all at once.
    Reduces(Vec<Span>),
}

/// A collective for NCCL, without its memory.
#[derive(Clone, Debug)]
pub struct CollectiveCall {
    /// The call in words.
    pub name: String,
    /// Which.
    pub collective: Collective,
    /// NCCL's numbers for the element type and the op, as [`numbers`](Self::numbers) gives them.
    pub numbers: (c_int, c_int),
    /// The root of a rooted collective.
    pub root: usize,
    /// How it is done.
    pub parts: Parts,
    /// Elements: of the whole buffer, or of a block.
    pub count: usize,
    /// Bytes of an element.
    pub width: usize,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
}

impl CollectiveCall {
    /// NCCL's numbers for an element type and an op among so many ranks.
    ///
    /// # Errors
    ///
    /// Why NCCL does not carry it: types, ops and factors that it lacks, averages of integers, which it rounds otherwise.
    /// Without `insists` also what gives the bits of Phalanx's definition on the host alone:
    ///
    /// - more than two halves: NCCL rounds after every step, Phalanx once;
    /// - the smallest and the largest of floats: NCCL may pass over a NaN;
    /// - averages of floats where their number is no power of two: NCCL multiplies each by its reciprocal and adds, and
    ///   the reciprocal is rounded. (Where it is a power of two, only numbers next to the smallest or the largest float
    ///   come out otherwise.)
    pub fn numbers(
        dtype: DataType,
        reduction: Option<&Reduction>,
        size: usize,
        insists: bool,
    ) -> Result<(c_int, c_int), &'static str> {
        let Some(reduction) = reduction else {
            return Ok((bytes_of(dtype), 0));
        };
        if reduction.prescale != 1.0 || reduction.postscale != 1.0 {
            return Err("NCCL has no factors before and after");
        }
        let op = reduce_op(reduction.op).ok_or("NCCL lacks the op")?;
        let data_type = data_type(dtype).ok_or("NCCL does not combine elements of the type")?;
        if reduction.op == ReduceOp::Average && !dtype.is_float() {
            return Err("NCCL rounds averages of integers otherwise");
        }
        if insists || !dtype.is_float() {
            return Ok((data_type, op));
        }
        match reduction.op {
            ReduceOp::Min | ReduceOp::Max => Err("NCCL's min and max may pass over a NaN"),
            _ if dtype.is_half() && size > 2 => Err("NCCL rounds halves after every step"),
            ReduceOp::Average if !size.is_power_of_two() => {
                Err("NCCL's average is rounded otherwise where the number of ranks is no power of two")
            }
            _ => Ok((data_type, op)),
        }
    }
}

/// One collective for NCCL, on memory of its communicator's device.
#[derive(Debug)]
pub struct CollectiveWork {
    pub(super) call: CollectiveCall,
    input: u64,
    output: u64,
    pub(super) stream: Arc<Stream>,
}

impl CollectiveWork {
    /// A call with its memory, to be put on `stream`. Without input it is in place, which an alltoall cannot be: what it
    /// sends and what it receives are of one buffer then.
    ///
    /// # Safety
    ///
    /// `input` and `output` must have the elements that the collective needs, in memory of the communicator's device,
    /// and stay valid until the stream is past the call.
    pub unsafe fn new(call: CollectiveCall, input: u64, output: u64, stream: Arc<Stream>) -> Self {
        Self { call, input, output, stream }
    }

    /// Where NCCL is to read and to write.
    pub(super) fn ends(&self) -> (u64, u64) {
        let CollectiveCall { collective, rank, count, width, ref parts, .. } = self.call;
        // Where this rank's block begins in a buffer of all blocks.
        let own = (rank * count * width) as u64;
        match collective {
            _ if self.input != 0 => (self.input, self.output),
            _ if *parts != Parts::Whole => (self.output, self.output),
            Collective::Allgather => (self.output + own, self.output),
            Collective::ReduceScatter => (self.output, self.output + own),
            _ => (self.output, self.output),
        }
    }
}

impl Work for CollectiveWork {
    fn name(&self) -> &str {
        &self.call.name
    }
}
