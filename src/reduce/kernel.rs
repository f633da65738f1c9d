//! The loop that every combination runs in, compiled once for each element type, operation and processor level.
//!
//! One pass: a chunk of every source is read into registers, combined from left to right, finished, settled and
//! written. All reads of a chunk come before its write, so that the target may be one of the sources. The chunks are
//! arrays of a fixed length and the bodies plain loops over them, which the compiler turns into vector instructions;
//! alignment is never assumed, which costs nothing on processors of this century.

#[cfg(target_arch = "aarch64")]
use super::neon::*;
use super::number::*;
use super::storage::*;
#[cfg(target_arch = "x86_64")]
use super::x86::*;
use crate::types::{DataType, Finish, ReduceOp};
use std::ops::Range;

/// What the processor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// What the build assumes of every processor of its kind.
    #[cfg_attr(all(target_arch = "aarch64", not(test)), expect(dead_code, reason = "tests compare with it"))]
    Baseline,
    /// AVX2 and F16C on x86-64.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with its foundation, bytes and words, and bfloat16: processors from Cooper Lake, Sapphire Rapids and Zen 4
    /// on. Those before, which slow down for it, stay at AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON with its conversion of `f16`: every 64-bit ARM.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// And with that of `bf16`: from ARMv8.6 on, such as Neoverse V1 and N2.
    #[cfg(target_arch = "aarch64")]
    NeonBf16,
}

impl Level {
    /// The best level of this processor.
    #[inline]
    pub(super) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("f16c") {
                let all = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
                return if all && has!("avx512bf16") { Level::Avx512 } else { Level::Avx2 };
            }
            Level::Baseline
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("bf16") {
            Level::NeonBf16
        } else {
            Level::Neon
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Level::Baseline
    }

    /// Every level of this processor.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Level> {
        let mut levels = vec![Level::Baseline];
        #[cfg(target_arch = "x86_64")]
        if Level::best() == Level::Avx512 {
            levels.push(Level::Avx2);
        }
        #[cfg(target_arch = "aarch64")]
        if Level::best() == Level::NeonBf16 {
            levels.push(Level::Neon);
        }
        if Level::best() != Level::Baseline {
            levels.push(Level::best());
        }
        levels
    }
}

/// Combines the elements `range` of all sources, of which there is at least one, into the same elements of the target,
/// and finishes them if they are floats.
///
/// # Safety
///
/// Target and sources must be valid for `range.end` elements; each source must be equal to the target or apart from
/// it. The processor must be of the level that the kernel was selected for.
pub(super) type Kernel = unsafe fn(target: *mut u8, sources: &[*const u8], range: Range<usize>, finish: &Finish);

/// The kernels of one element type and operation.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// For exactly two sources.
    pub(super) pair: Kernel,
    /// For any number.
    pub(super) many: Kernel,
}

/// The kernels for a pair of type and operation; `None` where the operation is not defined, or is the user's.
pub(super) fn select(level: Level, dtype: DataType, op: ReduceOp) -> Option<Kernels> {
    // The numbers of lanes make chunks of 64 to 128 bytes: two to four vectors, which hides the latency of one.
    match dtype {
        DataType::F16 => match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => floats::<HardF16, 32, 8>(level, op),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => floats::<WideF16, 32, 16>(level, op),
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonBf16 => floats::<HardF16, 32, 32>(level, op),
            Level::Baseline => floats::<F16, 32, 32>(level, op),
        },
        DataType::BF16 => match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => floats::<HardBf16, 32, 8>(level, op),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => floats::<WideBf16, 32, 16>(level, op),
            #[cfg(target_arch = "aarch64")]
            Level::NeonBf16 => floats::<HardBf16, 32, 32>(level, op),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => floats::<Bf16, 32, 32>(level, op),
            Level::Baseline => floats::<Bf16, 32, 32>(level, op),
        },
        DataType::F32 => floats::<f32, 32, 32>(level, op),
        DataType::F64 => floats::<f64, 16, 16>(level, op),
        DataType::I8 => integers::<i8, u8, 64>(level, op),
        DataType::U8 => integers::<u8, u8, 64>(level, op),
        DataType::I16 => integers::<i16, u16, 32>(level, op),
        DataType::I32 => integers::<i32, u32, 32>(level, op),
        DataType::U32 => integers::<u32, u32, 32>(level, op),
        DataType::I64 => integers::<i64, u64, 16>(level, op),
        DataType::U64 => integers::<u64, u64, 16>(level, op),
        DataType::Bool => truths::<64>(level, op),
    }
}

/// Operations that compare have lanes of their own: beyond one vector, the compiler ties the comparisons of `HardF16`
/// in knots.
fn floats<S: Storage, const LANES: usize, const COMPARED: usize>(level: Level, op: ReduceOp) -> Option<Kernels> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Average => kernels::<S, Sum, LANES>(level),
        ReduceOp::Product => kernels::<S, Product, LANES>(level),
        ReduceOp::Min => kernels::<S, Min, COMPARED>(level),
        ReduceOp::Max => kernels::<S, Max, COMPARED>(level),
        ReduceOp::LogicalAnd => kernels::<S, LogicalAnd, COMPARED>(level),
        ReduceOp::LogicalOr => kernels::<S, LogicalOr, COMPARED>(level),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor | ReduceOp::User => return None,
    })
}

/// Whether an integer has a sign matters for the order alone; everything else shares the code of the unsigned type.
fn integers<S, Unsigned, const LANES: usize>(level: Level, op: ReduceOp) -> Option<Kernels>
where
    S: Storage,
    Unsigned: Storage<Number: Bits>,
{
    Some(match op {
        ReduceOp::Sum | ReduceOp::Average => kernels::<Unsigned, Sum, LANES>(level),
        ReduceOp::Product => kernels::<Unsigned, Product, LANES>(level),
        ReduceOp::Min => kernels::<S, Min, LANES>(level),
        ReduceOp::Max => kernels::<S, Max, LANES>(level),
        ReduceOp::BitAnd => kernels::<Unsigned, BitAnd, LANES>(level),
        ReduceOp::BitOr => kernels::<Unsigned, BitOr, LANES>(level),
        ReduceOp::BitXor => kernels::<Unsigned, BitXor, LANES>(level),
        ReduceOp::LogicalAnd => kernels::<Unsigned, LogicalAnd, LANES>(level),
        ReduceOp::LogicalOr => kernels::<Unsigned, LogicalOr, LANES>(level),
        ReduceOp::User => return None,
    })
}

fn truths<const LANES: usize>(level: Level, op: ReduceOp) -> Option<Kernels> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr | ReduceOp::LogicalOr => kernels::<Truth, BitOr, LANES>(level),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd | ReduceOp::LogicalAnd => {
            kernels::<Truth, BitAnd, LANES>(level)
        }
        ReduceOp::BitXor => kernels::<Truth, BitXor, LANES>(level),
        ReduceOp::Average | ReduceOp::User => return None,
    })
}

fn kernels<S: Storage, O: Operation<S::Number>, const LANES: usize>(level: Level) -> Kernels {
    match level {
        Level::Baseline => Kernels { pair: baseline_pair::<S, O, LANES>, many: baseline_many::<S, O, LANES> },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Kernels { pair: avx2_pair::<S, O, LANES>, many: avx2_many::<S, O, LANES> },
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Kernels { pair: avx512_pair::<S, O, LANES>, many: avx512_many::<S, O, LANES> },
        // The compiler uses NEON everywhere, as every processor of this kind has it.
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonBf16 => {
            Kernels { pair: baseline_pair::<S, O, LANES>, many: baseline_many::<S, O, LANES> }
        }
    }
}

/// The two kernels of a level. They differ from other levels' only in the instructions that the compiler may use.
macro_rules! level {
    ($pair:ident, $many:ident $(, $feature:meta)?) => {
        $(#[$feature])?
        unsafe fn $pair<S: Storage, O: Operation<S::Number>, const LANES: usize>(
            target: *mut u8,
            sources: &[*const u8],
            range: Range<usize>,
            finish: &Finish,
        ) {
            if let &[left, right] = sources {
                // SAFETY: the caller keeps the promises of `Kernel`.
                unsafe { run::<S, O, LANES>(target, &[left, right], range, finish) }
            }
        }

        $(#[$feature])?
        unsafe fn $many<S: Storage, O: Operation<S::Number>, const LANES: usize>(
            target: *mut u8,
            sources: &[*const u8],
            range: Range<usize>,
            finish: &Finish,
        ) {
            // SAFETY: the caller keeps the promises of `Kernel`.
            unsafe { run::<S, O, LANES>(target, sources, range, finish) }
        }
    };
}

level!(baseline_pair, baseline_many);
#[cfg(target_arch = "x86_64")]
level!(avx2_pair, avx2_many, target_feature(enable = "avx2,f16c"));
#[cfg(target_arch = "x86_64")]
level!(avx512_pair, avx512_many, target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"));

/// The body of every kernel: full chunks, then eights, then one by one.
///
/// # Safety
///
/// As for [`Kernel`].
#[inline(always)]
unsafe fn run<S: Storage, O: Operation<S::Number>, const LANES: usize>(
    target: *mut u8,
    sources: &[*const u8],
    range: Range<usize>,
    finish: &Finish,
) {
    let Some((&first, rest)) = sources.split_first() else { return };
    let steps = steps(finish);
    let mut at = range.start;
    while range.end - at >= LANES {
        // SAFETY: `LANES` elements from `at` on lie within the range; the caller vouches for the rest.
        unsafe { chunk::<S, O, LANES>(target, first, rest, at, steps) };
        at += LANES;
    }
    while range.end - at >= 8 {
        // SAFETY: eight elements from `at` on lie within the range; the caller vouches for the rest.
        unsafe { chunk::<S, O, 8>(target, first, rest, at, steps) };
        at += 8;
    }
    while at < range.end {
        // SAFETY: the element `at` lies within the range; the caller vouches for the rest.
        unsafe { chunk::<S, O, 1>(target, first, rest, at, steps) };
        at += 1;
    }
}

/// Elements `at .. at + LANES`.
///
/// # Safety
///
/// They must lie within the range of a [`Kernel`]'s call.
#[inline(always)]
unsafe fn chunk<S: Storage, O: Operation<S::Number>, const LANES: usize>(
    target: *mut u8,
    first: *const u8,
    rest: &[*const u8],
    at: usize,
    steps: [Step; 2],
) {
    let offset = at * S::SIZE;
    // SAFETY: the caller vouches for these elements of every source.
    let mut value = unsafe { S::read::<LANES>(first.add(offset)) };
    for source in rest {
        // Volatile, so that the compiler leaves this loop in peace: it would rather take a few sources at once and
        // pick their elements one by one, and has to be kept to the lanes.
        // SAFETY: the pointer comes from a slice, and the caller vouches for these elements of every source.
        let other = unsafe { S::read::<LANES>(std::ptr::read_volatile(source).add(offset)) };
        for lane in 0..LANES {
            value[lane] = O::apply(value[lane], other[lane]);
        }
    }
    for step in steps {
        value = S::Number::finish(value, step);
    }
    // SAFETY: the caller vouches for these elements of the target, and everything has been read.
    unsafe { S::write(target.add(offset), value) };
}
